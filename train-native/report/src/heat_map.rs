//! Heat maps by plotters: one, or several side by side on one scale.

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One heat map.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeatMap {
    /// Line above it.
    pub title: String,
    /// Names of the rows.
    pub rows: Vec<String>,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Values, row by row.
    pub values: Vec<Vec<f64>>,
    /// Columns to point at.
    pub marked: Vec<usize>,
}

/// How heat maps are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatStyle {
    /// Maps beside each other.
    pub across: usize,
    /// What the colours stand for.
    pub unit: String,
    /// Values of the lightest and the darkest colour; the smallest and largest value if `None`.
    pub range: Option<(f64, f64)>,
    /// Writes the values into the cells where they fit.
    pub numbers: bool,
}

const WIDTH: i32 = 1100;
const LETTER: i32 = 7;
const FONT: i32 = 12;
const GREY: RGBColor = RGBColor(60, 60, 60);
const MARK: RGBColor = RGBColor(214, 84, 20);
/// Steps of the legend's colours.
const STEPS: i32 = 60;
/// Longest label, in letters.
const LONGEST: usize = 28;

fn colours() -> DerivedColorMap<RGBColor> {
    DerivedColorMap::new(&[
        RGBColor(247, 250, 255),
        RGBColor(158, 202, 225),
        RGBColor(49, 130, 189),
        RGBColor(8, 48, 107),
    ])
}

fn short(label: &str) -> String {
    match label.chars().count() {
        count if count > LONGEST => label.chars().take(LONGEST - 1).chain(['…']).collect(),
        _ => label.into(),
    }
}

fn label_width(labels: &[String]) -> i32 {
    let longest = labels.iter().map(|label| short(label).chars().count()).max().unwrap_or(0);
    longest as i32 * LETTER + 10
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size != 0.0 && size < 0.01 => format!("{value:.1e}"),
        size if size < 10.0 => format!("{value:.2}"),
        _ => format!("{value:.1}"),
    }
}

/// Columns in as many as fit: each the largest of its neighbours.
fn fit(map: &HeatMap, most: usize) -> HeatMap {
    let count = map.columns.len();
    if count <= most {
        return map.clone();
    }
    let step = count.div_ceil(most);
    let largest = |values: &[f64]| values.iter().copied().fold(f64::MIN, f64::max);
    HeatMap {
        columns: map.columns.iter().step_by(step).cloned().collect(),
        values: map.values.iter().map(|row| row.chunks(step).map(largest).collect()).collect(),
        marked: map.marked.iter().map(|column| column / step).collect(),
        ..map.clone()
    }
}

/// Sizes of everything, in pixels.
struct Layout {
    left: i32,
    bottom: i32,
    top: i32,
    cell: (i32, i32),
    panel: (i32, i32),
    across: usize,
}

impl Layout {
    fn new(maps: &[HeatMap], across: usize) -> Self {
        let most = |count: fn(&HeatMap) -> usize| maps.iter().map(count).max().unwrap_or(1).max(1);
        let (rows, columns) = (most(|map| map.rows.len()), most(|map| map.columns.len()));
        let across = across.clamp(1, maps.len().max(1));
        let left = maps.iter().map(|map| label_width(&map.rows)).max().unwrap_or(0);
        let bottom = maps.iter().map(|map| label_width(&map.columns)).max().unwrap_or(0);
        let room = (WIDTH - left) / across as i32 - 14;
        let width = (room / columns as i32).clamp(1, 40);
        // Cells of square maps are square; rows of texts stay readable.
        let height = if rows == columns { width } else { width.clamp(16, 28) };
        Self {
            left,
            bottom,
            top: if maps.iter().any(|map| !map.title.is_empty()) { 22 } else { 6 },
            cell: (width, height),
            panel: (width * columns as i32 + 14, height * rows as i32),
            across,
        }
    }

    fn most_columns(maps: &[HeatMap], across: usize) -> usize {
        let left = maps.iter().map(|map| label_width(&map.rows)).max().unwrap_or(0);
        let room = (WIDTH - left) / across.clamp(1, maps.len().max(1)) as i32 - 14;
        room.max(1) as usize
    }
}

/// Heat maps on one scale, `style.across` beside each other.
///
/// # Errors
/// What plotters cannot draw.
pub fn heat_maps(maps: &[HeatMap], style: &HeatStyle) -> Result<String> {
    let most = Layout::most_columns(maps, style.across);
    let maps: Vec<HeatMap> = maps.iter().map(|map| fit(map, most)).collect();
    let mut svg = String::new();
    draw(&mut svg, &maps, style).map_err(|error| anyhow!("cannot draw a heat map: {error}"))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    maps: &[HeatMap],
    style: &HeatStyle,
) -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::new(maps, style.across);
    let lines = maps.len().div_ceil(layout.across) as i32;
    let line_height = layout.top + layout.panel.1 + 8;
    let width = layout.left + layout.across as i32 * layout.panel.0 + 8;
    let height = lines * line_height + layout.bottom + 44;
    let legend_width = STEPS * 3 + 16 + style.unit.chars().count() as i32 * LETTER;
    let size = (width.max(layout.left + legend_width) as u32, height as u32);
    let area = SVGBackend::with_string(svg, size).into_drawing_area();
    let values = || maps.iter().flat_map(|map| map.values.iter().flatten().copied());
    let (low, high) = style.range.unwrap_or_else(|| {
        values()
            .filter(|value| value.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    });
    let share = |value: f64| match high - low {
        span if span > 0.0 && value.is_finite() => ((value - low) / span).clamp(0.0, 1.0),
        _ => 0.0,
    };
    let map_colours = colours();
    let text = |size: i32| ("sans-serif", size).into_font().color(&GREY);
    for (i, map) in maps.iter().enumerate() {
        let (line, place) = ((i / layout.across) as i32, (i % layout.across) as i32);
        let (x0, y0) = (layout.left + place * layout.panel.0, line * line_height + layout.top);
        let (wide, high_cell) = layout.cell;
        area.draw(&Text::new(map.title.clone(), (x0, y0 - 17), text(13)))?;
        for (row, values) in map.values.iter().enumerate() {
            let y = y0 + row as i32 * high_cell;
            for (column, &value) in values.iter().enumerate() {
                let x = x0 + column as i32 * wide;
                let colour = map_colours.get_color(share(value));
                let cell = Rectangle::new([(x, y), (x + wide, y + high_cell)], colour.filled());
                area.draw(&cell)?;
                if style.numbers && wide >= 30 {
                    let ink = if share(value) > 0.55 { WHITE } else { GREY };
                    let middle = Pos::new(HPos::Center, VPos::Center);
                    let font = ("sans-serif", 11).into_font().color(&ink).pos(middle);
                    let centre = (x + wide / 2, y + high_cell / 2);
                    area.draw(&Text::new(format!("{value:.2}"), centre, font))?;
                }
            }
            let thinned = row % (FONT + 2).div_euclid(high_cell).max(1) as usize == 0;
            if place == 0 && thinned {
                let end = Pos::new(HPos::Right, VPos::Center);
                let label = short(&map.rows[row]);
                let i = (x0 - 6, y + high_cell / 2);
                area.draw(&Text::new(label, i, text(FONT).pos(end)))?;
            }
        }
        let bottom = y0 + map.values.len() as i32 * high_cell;
        for &column in &map.marked {
            let x = x0 + column as i32 * wide;
            let edge = MARK.stroke_width(1);
            area.draw(&Rectangle::new([(x, y0), (x + wide, bottom)], edge))?;
            let (middle, tip) = (x + wide / 2, bottom + 2);
            let arrow = vec![(middle, tip), (middle - 4, tip + 6), (middle + 4, tip + 6)];
            area.draw(&Polygon::new(arrow, MARK.filled()))?;
        }
        let last = i + layout.across >= maps.len();
        let step = ((FONT + 2) + wide - 1) / wide;
        if last {
            for (column, label) in map.columns.iter().enumerate() {
                let marked = map.marked.contains(&column);
                if column % step.max(1) as usize != 0 && !marked {
                    continue;
                }
                let ink = if marked { MARK } else { GREY };
                let end = Pos::new(HPos::Right, VPos::Center);
                let font = ("sans-serif", FONT).into_font().transform(FontTransform::Rotate270);
                let i = (x0 + column as i32 * wide + wide / 2, bottom + 10);
                area.draw(&Text::new(short(label), i, font.color(&ink).pos(end)))?;
            }
        }
    }
    if low.is_finite() {
        legend(&area, height - 34, layout.left, (low, high), &style.unit)?;
    }
    area.present()?;
    Ok(())
}

fn legend(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    y: i32,
    left: i32,
    (low, high): (f64, f64),
    unit: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let (map_colours, steps) = (colours(), STEPS);
    let text = ("sans-serif", FONT).into_font().color(&GREY);
    for step in 0..steps {
        let colour = map_colours.get_color(f64::from(step) / f64::from(steps - 1));
        let x = left + step * 3;
        area.draw(&Rectangle::new([(x, y), (x + 3, y + 12)], colour.filled()))?;
    }
    let right = left + steps * 3 + 8;
    area.draw(&Text::new(number(low), (left, y + 15), text.clone()))?;
    let end = text.pos(Pos::new(HPos::Right, VPos::Top));
    area.draw(&Text::new(number(high), (right - 8, y + 15), end))?;
    let text = ("sans-serif", FONT).into_font().color(&GREY);
    area.draw(&Text::new(unit.to_string(), (right, y), text))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style() -> HeatStyle {
        HeatStyle { across: 2, unit: "weight".into(), range: None, numbers: true }
    }

    #[test]
    fn maps_hold_their_labels_and_survive_odd_values() {
        let map = HeatMap {
            title: "head <1>".into(),
            rows: vec!["a".into(), "b".into()],
            columns: vec!["x".into(), "y".into()],
            values: vec![vec![0.25, 1.0], vec![f64::NAN, 0.0]],
            marked: vec![1],
        };
        let svg = heat_maps(&[map.clone(), map], &style()).unwrap();
        assert!(svg.contains("head &lt;1&gt;") && svg.contains("0.25") && svg.contains("weight"));
        assert!(heat_maps(&[], &style()).is_ok());
        assert!(heat_maps(&[HeatMap::default()], &style()).is_ok());
    }

    #[test]
    fn too_many_columns_keep_their_largest() {
        let mut values = vec![0.0; 10_000];
        values[777] = 1.0;
        let map = HeatMap {
            columns: (0..10_000).map(|i| i.to_string()).collect(),
            rows: vec!["a".into()],
            values: vec![values],
            marked: vec![777],
            ..HeatMap::default()
        };
        let fitted = fit(&map, 1000);
        assert_eq!(fitted.columns.len(), 1000);
        assert_eq!(fitted.values[0][77], 1.0);
        assert_eq!(fitted.marked, [77]);
    }
}
