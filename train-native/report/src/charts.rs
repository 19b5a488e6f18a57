//! SVG charts by plotters.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, by x.
    pub points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (760, 320);
const COLOURS: [RGBColor; 12] = [
    RGBColor(31, 111, 235),
    RGBColor(210, 90, 30),
    RGBColor(40, 150, 90),
    RGBColor(130, 80, 200),
    RGBColor(200, 160, 20),
    RGBColor(210, 60, 130),
    RGBColor(30, 160, 180),
    RGBColor(110, 110, 110),
    RGBColor(130, 20, 40),
    RGBColor(110, 80, 40),
    RGBColor(20, 60, 110),
    RGBColor(20, 20, 20),
];
/// Height of a row of the names above lines.
const LEGEND: u32 = 26;
/// Where a row of names begins.
const NAMES: i32 = 76;

fn colour(i: usize) -> RGBColor {
    COLOURS[i % COLOURS.len()]
}

/// Smallest and largest value with a little room; something drawable for no values too.
pub(super) fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
    match high - low {
        room if room > 0.0 => (low - 0.04 * room, high + 0.04 * room),
        _ if low.is_finite() => (low - 0.5, high + 0.5),
        _ => (0.0, 1.0),
    }
}

/// A chart of lines.
///
/// # Errors
/// What plotters cannot draw.
pub fn line_chart(x: &str, y: &str, series: &[Series]) -> Result<String> {
    let mut svg = String::new();
    draw_lines(&mut svg, x, y, series, false)
        .map_err(|error| anyhow!("cannot draw a chart: {error}"))?;
    Ok(svg)
}

/// Where each line's name begins and in which row it stands; one line needs no name.
fn legend(series: &[Series]) -> Vec<(i32, i32)> {
    if series.len() < 2 {
        return Vec::new();
    }
    let (mut left, mut row) = (NAMES, 0);
    let place = |line: &Series| {
        let width = 46 + 7 * line.name.chars().count() as i32;
        if left > NAMES && left + width > SIZE.0 as i32 {
            (left, row) = (NAMES, row + 1);
        }
        left += width;
        (left - width, row)
    };
    series.iter().map(place).collect()
}

/// Whether a point has a place; a line is broken where one has none, such as the loss of a step that overflowed.
fn drawn(point: &(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

fn draw_lines(
    svg: &mut String,
    x: &str,
    y: &str,
    series: &[Series],
    fractions: bool,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || series.iter().flat_map(|series| series.points.iter());
    let (left, right) = span(points().map(|point| point.0));
    let (low, high) = span(points().map(|point| point.1));
    let places = legend(series);
    let height = places.last().map_or(0, |(_, row)| LEGEND * (*row as u32 + 1));
    let size = (SIZE.0, SIZE.1 + height.max(LEGEND));
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    let (names, plot) = area.split_vertically(height);
    let mut chart = ChartBuilder::on(&plot)
        .margin(12)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(left..right, low..high)?;
    let number = |value: &f64| {
        if value.abs() >= 0.01 || *value == 0.0 {
            format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            format!("{value:.1e}")
        }
    };
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|value| {
            if fractions { format!("{value:.2}") } else { format!("{value:.0}") }
        })
        .y_label_formatter(&number)
        .max_light_lines(0)
        .bold_line_style(RGBColor(228, 228, 228))
        .draw()?;
    for (i, line) in series.iter().enumerate() {
        let style = colour(i).stroke_width(2);
        for part in line.points.split(|point| !drawn(point)) {
            chart.draw_series(LineSeries::new(part.iter().copied(), style))?;
        }
        if let Some((left, row)) = places.get(i) {
            let top = row * LEGEND as i32;
            let text = ("sans-serif", 13).into_font().color(&RGBColor(40, 40, 40));
            names.draw(&PathElement::new(vec![(*left, top + 16), (left + 18, top + 16)], style))?;
            names.draw(&Text::new(line.name.clone(), (left + 24, top + 9), text))?;
        }
    }
    drop(chart);
    area.present()?;
    Ok(())
}

/// Counts of values in equal steps between the smallest and the largest, a line a series.
///
/// # Errors
/// What plotters cannot draw.
pub fn histogram(x: &str, series: &[(String, Vec<f64>)], steps: usize) -> Result<String> {
    let (low, high) = span(series.iter().flat_map(|(_, values)| values.iter().copied()));
    let width = (high - low) / steps as f64;
    let lines: Vec<Series> = series
        .iter()
        .map(|(name, values)| {
            let mut counts = vec![0usize; steps];
            for value in values {
                counts[(((value - low) / width) as usize).min(steps - 1)] += 1;
            }
            let total = values.len().max(1) as f64;
            // Each step as a stair: its count over its whole width.
            let stairs = counts.iter().enumerate().flat_map(|(i, count)| {
                let (left, share) = (low + i as f64 * width, *count as f64 / total);
                [(left, share), (left + width, share)]
            });
            Series { name: name.clone(), points: stairs.collect() }
        })
        .collect();
    let mut svg = String::new();
    draw_lines(&mut svg, x, "share", &lines, true)
        .map_err(|error| anyhow!("cannot draw a chart: {error}"))?;
    Ok(svg)
}

/// Horizontal bars between 0 and 1, each with its value.
///
/// # Errors
/// What plotters cannot draw.
pub fn bar_chart(bars: &[(String, f64)]) -> Result<String> {
    let mut svg = String::new();
    draw_bars(&mut svg, bars).map_err(|error| anyhow!("cannot draw a chart: {error}"))?;
    Ok(svg)
}

fn draw_bars(svg: &mut String, bars: &[(String, f64)]) -> Result<(), Box<dyn std::error::Error>> {
    let (row, left, width) = (34, 190, 470);
    let area = SVGBackend::with_string(svg, (SIZE.0, (bars.len() as u32) * row as u32 + 12))
        .into_drawing_area();
    let text = ("sans-serif", 15).into_font().color(&RGBColor(40, 40, 40));
    for (i, (name, value)) in bars.iter().enumerate() {
        let top = i as i32 * row + 8;
        let end = left + (value.clamp(0.0, 1.0) * f64::from(width)) as i32;
        area.draw(&Text::new(name.clone(), (4, top + 5), text.clone()))?;
        area.draw(&Rectangle::new(
            [(left, top), (left + width, top + 22)],
            RGBColor(240, 240, 240).filled(),
        ))?;
        area.draw(&Rectangle::new([(left, top), (end, top + 22)], colour(0).filled()))?;
        area.draw(&Text::new(format!("{value:.4}"), (left + width + 10, top + 5), text.clone()))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_hold_their_data_and_survive_none() {
        let series = [Series { name: "loss".into(), points: vec![(1.0, 2.0), (2.0, 1.0)] }];
        assert!(line_chart("step", "loss", &series).unwrap().contains("polyline"));
        assert!(line_chart("step", "loss", &[]).is_ok());
        let lost = vec![(1.0, 2.0), (2.0, 1.0), (3.0, f64::NAN), (4.0, 1.0), (5.0, 2.0)];
        let lost =
            line_chart("step", "loss", &[Series { name: "loss".into(), points: lost }]).unwrap();
        assert_eq!(lost.matches("stroke-width=\"2\" points").count(), 2, "{lost}");
        assert!(!lost.contains("NaN"), "{lost}");
    }

    #[test]
    fn names_of_many_lines_stand_in_rows() {
        let name = "level 4 alone, the easiest";
        let line = |i| Series { name: format!("{name} {i}"), points: vec![(1.0, 0.0), (2.0, 1.0)] };
        let series: Vec<Series> = (0..9).map(line).collect();
        let places = legend(&series);
        assert_eq!(places[..3], [(76, 0), (318, 0), (76, 1)]);
        assert_eq!(places[8].1, 4);
        assert!(legend(&series[..1]).is_empty());
        let height = |series: &[Series]| {
            let svg = line_chart("step", "score", series).unwrap();
            let of = svg.split("height=\"").nth(1).unwrap().split('"').next().unwrap();
            of.parse::<u32>().unwrap()
        };
        assert_eq!(height(&series), height(&series[..2]) + 4 * LEGEND);
        assert_eq!(height(&series[..1]), height(&series[..2]));
        for (i, colour) in COLOURS.iter().enumerate() {
            assert!(!COLOURS[..i].contains(colour), "{i}");
        }
    }
}
