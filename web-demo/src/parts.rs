//! Pieces that several pages show.

use leptos::prelude::*;
use wasm_bindgen::{Clamped, JsCast as _};
use web_sys::{CanvasRenderingContext2d, FileList, HtmlInputElement, ImageData};

/// Text with some byte ranges marked.
#[component]
pub(crate) fn Marked(text: String, ranges: Vec<std::ops::Range<usize>>) -> impl IntoView {
    let mut parts = Vec::new();
    let mut i = 0;
    for range in ranges {
        if range.start < i {
            continue;
        }
        parts.push(view! { {text[i..range.start].to_string()} }.into_any());
        parts.push(view! { <mark>{text[range.clone()].to_string()}</mark> }.into_any());
        i = range.end;
    }
    parts.push(view! { {text[i..].to_string()} }.into_any());
    parts
}

/// A button that asks for files.
#[component]
pub(crate) fn FileButton(
    id: &'static str,
    text: &'static str,
    accept: &'static str,
    #[prop(optional)] folder: bool,
    take: impl Fn(FileList) + 'static,
) -> impl IntoView {
    let input = NodeRef::<leptos::html::Input>::new();
    Effect::new(move |_| {
        if let Some(input) = input.get() {
            input.set_webkitdirectory(folder);
        }
    });
    let open = move |_| {
        if let Some(input) = input.get() {
            input.click();
        }
    };
    let chosen = move |event: leptos::ev::Event| {
        let input: HtmlInputElement = event_target(&event);
        if let Some(files) = input.files().filter(|files| files.length() > 0) {
            take(files);
        }
        // The same file may be chosen again.
        input.set_value("");
    };
    view! {
        <button on:click=open>{text}</button>
        <input
            node_ref=input
            id=id
            type="file"
            multiple=accept != ".kilnindex"
            accept=accept
            hidden
            aria-hidden="true"
            tabindex="-1"
            on:change=chosen
        />
    }
}

/// A time for people: `12 s`, `3 min`.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => "less than a second".into(),
        s if s < 100.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

/// A size for people.
pub(crate) fn megabytes(bytes: f64) -> String {
    match bytes {
        b if b < 1e5 => format!("{:.1} kB", b / 1e3),
        b => format!("{:.1} MB", b / 1e6),
    }
}

/// A table of numbers as shades, from the least to the largest, with the cell under the pointer, or chosen by the
/// arrow keys, put into words.
#[component]
pub(crate) fn HeatMap(
    /// What the rows and columns are called.
    rows: Vec<String>,
    columns: Vec<String>,
    /// `[row][column]`.
    values: Vec<f32>,
    /// What the map shows, for those who cannot see it.
    label: String,
) -> impl IntoView {
    let canvas = NodeRef::<leptos::html::Canvas>::new();
    let (height, width) = (rows.len(), columns.len());
    let largest = values.iter().copied().fold(f32::MIN, f32::max);
    let least = values.iter().copied().fold(f32::MAX, f32::min);
    let shades = values.clone();
    Effect::new(move |_| {
        let Some(canvas) = canvas.get() else { return };
        if width * height == 0 {
            return;
        }
        let paint = || {
            let context = canvas.get_context("2d").ok()??;
            let context: CanvasRenderingContext2d = context.dyn_into().ok()?;
            // Transparency over the page's own background, so that light and dark both work.
            let pixels: Vec<u8> = shades
                .iter()
                .flat_map(|value| {
                    let share =
                        ((value - least) / (largest - least).max(1e-6)).clamp(0.0, 1.0).sqrt();
                    [217, 93, 30, (share * 255.0) as u8]
                })
                .collect();
            let image =
                ImageData::new_with_u8_clamped_array(Clamped(&pixels), width as u32).ok()?;
            context.put_image_data(&image, 0.0, 0.0).ok()
        };
        let _ = paint();
    });
    let cell = RwSignal::new(None::<(usize, usize)>);
    let names = StoredValue::new((rows, columns, values));
    let at_pointer = move |event: leptos::ev::PointerEvent| {
        let Some(canvas) = canvas.get() else { return };
        let area = canvas.get_bounding_client_rect();
        let share = |place: f64, from: f64, size: f64| ((place - from) / size).clamp(0.0, 0.999);
        let row = share(f64::from(event.client_y()), area.top(), area.height()) * height as f64;
        let column = share(f64::from(event.client_x()), area.left(), area.width()) * width as f64;
        cell.set(Some((row as usize, column as usize)));
    };
    let by_key = move |event: leptos::ev::KeyboardEvent| {
        // The browser's own, as its way back.
        if event.ctrl_key() || event.meta_key() || event.alt_key() {
            return;
        }
        let (row, column) = cell.get().unwrap_or_default();
        let to = match event.key().as_str() {
            "ArrowUp" => (row.saturating_sub(1), column),
            "ArrowDown" => ((row + 1).min(height.saturating_sub(1)), column),
            "ArrowLeft" => (row, column.saturating_sub(1)),
            "ArrowRight" => (row, (column + 1).min(width.saturating_sub(1))),
            _ => return,
        };
        event.prevent_default();
        cell.set(Some(to));
    };
    view! {
        <div class="heat">
            <canvas
                node_ref=canvas
                width=width.to_string()
                height=height.to_string()
                tabindex="0"
                role="img"
                aria-label=label
                style:aspect-ratio=move || format!("{width} / {height}")
                on:pointermove=at_pointer
                on:pointerleave=move |_| cell.set(None)
                on:keydown=by_key
            ></canvas>
            <p class="readout" aria-live="polite">
                {move || {
                    names
                        .with_value(|(rows, columns, values)| {
                            let (row, column) = cell.get()?;
                            Some(
                                format!(
                                    "{} → {}: {:.3}",
                                    rows.get(row)?,
                                    columns.get(column)?,
                                    values.get(row * width + column)?,
                                ),
                            )
                        })
                        .unwrap_or("\u{a0}".into())
                }}
            </p>
        </div>
    }
}
