//! Scatter plots by plotters: points in groups.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Points of one label.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The label.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

const PLOT: (i32, i32) = (720, 620);
const LEGEND: i32 = 250;
const GREY: RGBColor = RGBColor(60, 60, 60);
/// Groups that get a colour of their own; smaller ones are grey.
const COLOURED: usize = 20;

/// The largest groups in a colour each, what is left in grey behind them.
///
/// # Errors
/// What plotters cannot draw.
pub fn scatter(x: &str, y: &str, groups: &[Group]) -> Result<String> {
    let mut svg = String::new();
    draw(&mut svg, x, y, groups).map_err(|error| anyhow!("cannot draw points: {error}"))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    x: &str,
    y: &str,
    groups: &[Group],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || groups.iter().flat_map(|group| &group.points);
    let (left, right) = super::charts::span(points().map(|point| point.0));
    let (low, high) = super::charts::span(points().map(|point| point.1));
    let size = ((PLOT.0 + LEGEND) as u32, PLOT.1 as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    let (plot, legend) = area.split_horizontally(PLOT.0);
    let mut chart = ChartBuilder::on(&plot)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(44)
        .build_cartesian_2d(left..right, low..high)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(232, 232, 232))
        .draw()?;
    let mut sorted: Vec<&Group> = groups.iter().collect();
    sorted.sort_by(|a, b| b.points.len().cmp(&a.points.len()).then_with(|| a.name.cmp(&b.name)));
    let (coloured, rest) = sorted.split_at(sorted.len().min(COLOURED));
    let grey = RGBColor(190, 190, 190).mix(0.6).filled();
    let behind = rest.iter().flat_map(|group| &group.points);
    chart.draw_series(behind.map(|&point| Circle::new(point, 2, grey)))?;
    let text = ("sans-serif", 13).into_font().color(&GREY);
    for (i, group) in coloured.iter().enumerate() {
        let style = Palette99::pick(i).mix(0.75).filled();
        chart.draw_series(group.points.iter().map(|&point| Circle::new(point, 3, style)))?;
        let line = 24 + i as i32 * 24;
        legend.draw(&Circle::new((10, line), 5, style))?;
        let name: String = group.name.chars().take(26).collect();
        let label = format!("{name} ({})", group.points.len());
        legend.draw(&Text::new(label, (22, line - 7), text.clone()))?;
    }
    if !rest.is_empty() {
        let line = 24 + coloured.len() as i32 * 24;
        legend.draw(&Circle::new((10, line), 5, grey))?;
        let label = format!("{} more labels", rest.len());
        legend.draw(&Text::new(label, (22, line - 7), text.clone()))?;
    }
    drop(chart);
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_labels_are_summed_up() {
        let group = |i: usize| Group { name: format!("label {i}"), points: vec![(i as f64, 0.0)] };
        let groups: Vec<Group> = (0..23).map(group).collect();
        let svg = scatter("x", "y", &groups).unwrap();
        assert!(svg.contains("label 0 (1)") && svg.contains("3 more labels"));
        assert_eq!(svg.matches("<circle").count(), 23 + 21);
        assert!(scatter("x", "y", &[]).is_ok());
    }
}
