//! A text with its tokens shaded by weights.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: i32 = 1000;
const LETTER: i32 = 8;
const BOX: i32 = 40;
/// Times the mean weight.
const DARKEST: f64 = 4.0;
const GREY: RGBColor = RGBColor(40, 40, 40);
const SHADE: RGBColor = RGBColor(31, 111, 235);

/// The tokens once for each named list of weights, with the weight in percent under the token. A
/// token of four times the mean weight is as dark as can be.
///
/// # Errors
/// What plotters cannot draw.
pub fn token_weights(tokens: &[String], weights: &[(String, Vec<f64>)]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, tokens, weights).map_err(|error| anyhow!("cannot draw weights: {error}"))?;
    Ok(svg)
}

/// Left edge, line and width of each token's box, and the number of lines.
fn wrap(tokens: &[String]) -> (Vec<(i32, i32, i32)>, i32) {
    let (mut x, mut line) = (8, 0);
    let boxes = tokens
        .iter()
        .map(|token| {
            let wide = (token.chars().count() as i32 * LETTER + 10).max(40);
            if x + wide > WIDTH - 8 && x > 8 {
                (x, line) = (8, line + 1);
            }
            let place = (x, line, wide);
            x += wide + 3;
            place
        })
        .collect();
    (boxes, line + 1)
}

fn draw(
    svg: &mut String,
    tokens: &[String],
    weights: &[(String, Vec<f64>)],
) -> Result<(), Box<dyn std::error::Error>> {
    let (boxes, lines) = wrap(tokens);
    let block = 26 + lines * (BOX + 4);
    let height = block * weights.len() as i32 + 12;
    let area = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
    let middle = Pos::new(HPos::Center, VPos::Center);
    for (i, (name, weights)) in weights.iter().enumerate() {
        let top = i as i32 * block + 6;
        let title = ("sans-serif", 14).into_font().color(&GREY);
        area.draw(&Text::new(name.clone(), (8, top), title))?;
        let darkest = DARKEST / tokens.len().max(1) as f64;
        for ((token, &weight), &(x, line, wide)) in tokens.iter().zip(weights).zip(&boxes) {
            let y = top + 22 + line * (BOX + 4);
            let share = (weight / darkest).clamp(0.0, 1.0);
            let corners = [(x, y), (x + wide, y + BOX)];
            area.draw(&Rectangle::new(corners, SHADE.mix(0.85 * share).filled()))?;
            area.draw(&Rectangle::new(corners, RGBColor(200, 205, 215).stroke_width(1)))?;
            let ink = if share > 0.6 { WHITE } else { GREY };
            let font = |size: i32| ("sans-serif", size).into_font().color(&ink).pos(middle);
            let centre = |down: i32| (x + wide / 2, y + down);
            area.draw(&Text::new(token.clone(), centre(14), font(14)))?;
            area.draw(&Text::new(format!("{:.1}", 100.0 * weight), centre(30), font(11)))?;
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_wrap() {
        let tokens = vec!["token".to_string(); 60];
        let (boxes, lines) = wrap(&tokens);
        assert!(lines > 1 && boxes.iter().all(|(x, _, wide)| x + wide <= WIDTH));
        let svg = token_weights(&tokens, &[("mean".into(), vec![1.0 / 60.0; 60])]).unwrap();
        assert!(svg.contains("1.7") && svg.contains("mean"));
        assert!(token_weights(&[], &[]).is_ok());
    }
}
