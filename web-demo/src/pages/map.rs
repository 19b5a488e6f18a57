//! Map: the collection in the plane, coloured by cluster.

use js_sys::{Float32Array, Object, Reflect};
use leptos::prelude::*;
use leptos::task::spawn_local;
use std::sync::Arc;
use wasm_bindgen::prelude::*;
use web_sys::{MessageEvent, Worker, WorkerOptions, WorkerType};

use crate::kiln::{Failure, Result};
use crate::library::embedded;
use crate::state::{State, Turns};
use crate::words::distinctive;

/// Passages on the map at most: more would take minutes to lay out.
const LARGEST: usize = 3000;
/// Words that a cluster is named by.
const NAMED_BY: usize = 3;

/// A passage on the map.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    id: u32,
    title: String,
    /// Between 0 and 1000.
    x: f32,
    y: f32,
    cluster: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Drawn {
    Nothing,
    Working(f64),
    Points(Arc<Vec<Point>>),
    Failed(String),
}

/// What part of the map is seen: its centre and its width.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    x: f64,
    y: f64,
    size: f64,
}

const WHOLE: Window = Window { x: 500.0, y: 500.0, size: 1080.0 };

impl Window {
    fn zoomed(self, by: f64) -> Self {
        let size = (self.size * by).clamp(40.0, WHOLE.size);
        Self { size, ..self }.inside()
    }

    fn moved(self, x: f64, y: f64) -> Self {
        Self { x: self.x + x, y: self.y + y, ..self }.inside()
    }

    fn inside(self) -> Self {
        Self { x: self.x.clamp(0.0, 1000.0), y: self.y.clamp(0.0, 1000.0), ..self }
    }
}

/// The map page; `select` searches for passages like one.
#[component]
pub(crate) fn Map(
    visible: Signal<bool>,
    select: impl Fn(u32) + Copy + Send + Sync + 'static,
) -> impl IntoView {
    let state = expect_context::<State>();
    let drawn = RwSignal::new(Drawn::Nothing);
    let turns = Turns::new();
    let worker = StoredValue::new_local(None::<Worker>);
    let chosen = RwSignal::new(None::<u32>);
    // Laid out when the page is looked at and the passages are complete.
    let ids = Memo::new(move |former: Option<&Vec<u32>>| {
        state.indexes.track();
        match visible.get() && !state.job.with(Option::is_some) {
            // Those of an index whose making was stopped have no vectors.
            true if state.index().is_none() => Vec::new(),
            true => {
                state.passages.with(|all| all.iter().take(LARGEST).map(|(id, _)| *id).collect())
            }
            false => former.cloned().unwrap_or_default(),
        }
    });
    Effect::new(move |_| {
        let ids = ids.get();
        // Another model, or what it was taught, comes with an index of its own.
        state.indexes.track();
        let is_latest = turns.next();
        chosen.set(None);
        drawn.set(Drawn::Nothing);
        if ids.len() < 8 {
            return;
        }
        drawn.set(Drawn::Working(0.0));
        spawn_local(async move {
            let made = lay_out(state, &ids, worker, drawn).await;
            if !is_latest() {
                return;
            }
            match made {
                Ok(points) => drawn.set(Drawn::Points(Arc::new(points))),
                Err(failure) => drawn.set(Drawn::Failed(failure.message)),
            }
        });
    });
    view! {
        {move || match drawn.get() {
            Drawn::Nothing => {
                view! { <p class="none">"A map needs eight passages at least; add some under “Search”."</p> }.into_any()
            }
            Drawn::Failed(message) => view! { <p class="none">{message}</p> }.into_any(),
            Drawn::Working(share) => {
                view! {
                    <div class="job">
                        <label for="layout">"Laying the passages out"</label>
                        <progress id="layout" max="1" prop:value=share></progress>
                        <span>{format!("{:.0} %", share * 100.0)}</span>
                    </div>
                }
                    .into_any()
            }
            Drawn::Points(points) => view! { <Plane points chosen select /> }.into_any(),
        }}
    }
}

#[component]
fn Plane(
    points: Arc<Vec<Point>>,
    chosen: RwSignal<Option<u32>>,
    select: impl Fn(u32) + Copy + Send + Sync + 'static,
) -> impl IntoView {
    let state = expect_context::<State>();
    let seen = RwSignal::new(WHOLE);
    let only = RwSignal::new(None::<usize>);
    let grabbed = RwSignal::new(None::<(f64, f64)>);
    let plane = NodeRef::<leptos::svg::Svg>::new();
    let area = move || plane.get().map(|plane| plane.get_bounding_client_rect());
    // Units of the map in a pixel of the screen.
    let unit = move || area().map_or(1.0, |area| seen.get_untracked().size / area.width().max(1.0));

    let on_wheel = move |event: leptos::ev::WheelEvent| {
        event.prevent_default();
        let by = if event.delta_y() > 0.0 { 1.2 } else { 1.0 / 1.2 };
        // What is under the pointer stays there.
        if let Some(area) = area() {
            let from = |place: f64, start: f64, size: f64| place - start - size / 2.0;
            let (x, y) = (
                from(f64::from(event.client_x()), area.left(), area.width()) * unit(),
                from(f64::from(event.client_y()), area.top(), area.height()) * unit(),
            );
            seen.update(|seen| {
                let zoomed = seen.zoomed(by);
                let share = 1.0 - zoomed.size / seen.size;
                *seen = zoomed.moved(x * share, y * share);
            });
        }
    };
    let on_down = move |event: leptos::ev::PointerEvent| {
        grabbed.set(Some((f64::from(event.client_x()), f64::from(event.client_y()))));
    };
    let on_move = move |event: leptos::ev::PointerEvent| {
        if event.buttons() == 0 {
            grabbed.set(None);
        }
        let Some((x, y)) = grabbed.get() else { return };
        let to = (f64::from(event.client_x()), f64::from(event.client_y()));
        let unit = unit();
        seen.update(|seen| *seen = seen.moved((x - to.0) * unit, (y - to.1) * unit));
        grabbed.set(Some(to));
    };
    let in_order = StoredValue::new({
        // By cluster, and from left to right: the way that the arrow keys go.
        let mut order: Vec<(usize, f32, u32)> =
            points.iter().map(|point| (point.cluster, point.x, point.id)).collect();
        order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        order.into_iter().map(|(_, _, id)| id).collect::<Vec<u32>>()
    });
    let on_key = move |event: leptos::ev::KeyboardEvent| {
        // The browser's own, as its zoom.
        if event.ctrl_key() || event.meta_key() || event.alt_key() {
            return;
        }
        let step = |by: isize| {
            in_order.with_value(|order| {
                let i = chosen.get().and_then(|id| order.iter().position(|&other| other == id));
                let last = order.len() as isize - 1;
                let to = i.map_or(0, |i| (i as isize + by).clamp(0, last));
                chosen.set(order.get(to as usize).copied());
            });
        };
        match event.key().as_str() {
            "ArrowRight" | "ArrowDown" => step(1),
            "ArrowLeft" | "ArrowUp" => step(-1),
            "+" | "=" => seen.update(|seen| *seen = seen.zoomed(1.0 / 1.3)),
            "-" => seen.update(|seen| *seen = seen.zoomed(1.3)),
            "0" => seen.set(WHOLE),
            "Enter" => {
                if let Some(id) = chosen.get() {
                    select(id);
                }
            }
            _ => return,
        }
        event.prevent_default();
    };
    let view_box = move || {
        let Window { x, y, size } = seen.get();
        format!("{} {} {size} {size}", x - size / 2.0, y - size / 2.0)
    };
    let names = cluster_names(state, &points);
    let circles = points
        .iter()
        .cloned()
        .map(|Point { id, title, x, y, cluster }| {
            view! {
                <circle
                    class=format!("point c{cluster}")
                    class:chosen=move || chosen.get() == Some(id)
                    class:faded=move || only.get().is_some_and(|only| only != cluster)
                    cx=x.to_string()
                    cy=y.to_string()
                    r=move || format!("{:.1}", 7.0 * (seen.get().size / WHOLE.size).powf(0.6))
                    on:click=move |_| chosen.set(Some(id))
                >
                    <title>{title}</title>
                </circle>
            }
        })
        .collect_view();
    let count = points.len();
    view! {
        <div class="map">
            <div>
                <svg
                    node_ref=plane
                    viewBox=view_box
                    tabindex="0"
                    role="application"
                    aria-label=format!(
                        "Map of {count} passages. Arrow keys go from one to the next, plus and minus zoom, Enter searches for passages like it.",
                    )
                    on:wheel=on_wheel
                    on:pointerdown=on_down
                    on:pointermove=on_move
                    on:pointerup=move |_| grabbed.set(None)
                    on:keydown=on_key
                >
                    {circles}
                </svg>
                <div class="buttons">
                    <button aria-label="Zoom in" on:click=move |_| seen.update(|seen| *seen = seen.zoomed(1.0 / 1.5))>"+"</button>
                    <button aria-label="Zoom out" on:click=move |_| seen.update(|seen| *seen = seen.zoomed(1.5))>"−"</button>
                    <button on:click=move |_| seen.set(WHOLE)>"Whole map"</button>
                </div>
            </div>
            <div class="aside">
                <div class="chosen-passage" aria-live="polite">
                    {move || match chosen.get().and_then(|id| Some((id, state.passage(id)?))) {
                        Some((id, passage)) => {
                            view! {
                                <h2>{passage.title}</h2>
                                <p class="from">{passage.source}</p>
                                <p class="text">{passage.text}</p>
                                <button on:click=move |_| select(id)>"More like this"</button>
                            }
                                .into_any()
                        }
                        None => {
                            view! {
                                <p class="what">
                                    "Passages that are near in meaning are near on the map (t-SNE), and of one colour (k-means). Choose one to read it."
                                </p>
                            }
                                .into_any()
                        }
                    }}
                </div>
                <h2>"Clusters"</h2>
                <ul class="legend">
                    {names
                        .into_iter()
                        .map(|(cluster, name, size)| {
                            view! {
                                <li>
                                    <button
                                        class="plain"
                                        aria-pressed=move || (only.get() == Some(cluster)).to_string()
                                        on:click=move |_| {
                                            only.update(|only| *only = (*only != Some(cluster)).then_some(cluster))
                                        }
                                    >
                                        <span class=format!("swatch c{cluster}") aria-hidden="true"></span>
                                        {format!("{name} ({size})")}
                                    </button>
                                </li>
                            }
                        })
                        .collect_view()}
                </ul>
            </div>
        </div>
    }
}

/// Clusters with the words that set them apart, and how many passages they have.
fn cluster_names(state: State, points: &[Point]) -> Vec<(usize, String, usize)> {
    let clusters = points.iter().map(|point| point.cluster + 1).max().unwrap_or(0);
    let mut texts = vec![Vec::new(); clusters];
    for point in points {
        let passage = state.passage(point.id);
        texts[point.cluster].extend(passage.map(|passage| embedded(&passage)));
    }
    let names = distinctive(&texts, NAMED_BY).into_iter().map(|words| words.join(", "));
    let named = names.zip(texts).enumerate().map(|(cluster, (name, texts))| {
        let name = if name.is_empty() { format!("cluster {}", cluster + 1) } else { name };
        (cluster, name, texts.len())
    });
    named.filter(|(_, _, size)| *size > 0).collect()
}

/// Has a worker lay the passages' vectors out; a former worker is ended.
async fn lay_out(
    state: State,
    ids: &[u32],
    slot: StoredValue<Option<Worker>, LocalStorage>,
    drawn: RwSignal<Drawn>,
) -> Result<Vec<Point>> {
    let Some(index) = state.index() else { return Ok(Vec::new()) };
    let dimensions = index.dimensions();
    let vectors: Vec<f32> =
        index.vectors(ids).await?.iter().flat_map(|vector| vector.to_vec()).collect();
    let options = WorkerOptions::new();
    options.set_type(WorkerType::Module);
    let worker = Worker::new_with_options("./map-worker.js", &options)?;
    if let Some(former) = slot.try_update_value(|slot| slot.replace(worker.clone())).flatten() {
        former.terminate();
    }
    let message = Object::new();
    Reflect::set(&message, &"vectors".into(), &Float32Array::from(vectors.as_slice()))?;
    Reflect::set(&message, &"dimensions".into(), &(dimensions as f64).into())?;
    let answer = js_sys::Promise::new(&mut |resolve, reject| {
        let failed = reject.clone();
        let on_message = Closure::<dyn FnMut(MessageEvent)>::new(move |event: MessageEvent| {
            let data = event.data();
            let get = |key: &str| Reflect::get(&data, &key.into()).unwrap_or_default();
            if let Some(share) = get("share").as_f64() {
                drawn.set(Drawn::Working(share));
            } else if let Some(error) = get("error").as_string() {
                let _ = reject.call1(&JsValue::NULL, &js_sys::Error::new(&error));
            } else {
                let _ = resolve.call1(&JsValue::NULL, &get("places"));
            }
        });
        worker.set_onmessage(Some(on_message.into_js_value().unchecked_ref()));
        let on_error = Closure::<dyn FnMut(JsValue)>::new(move |_| {
            let error = js_sys::Error::new("the map's worker could not be run");
            let _ = failed.call1(&JsValue::NULL, &error);
        });
        worker.set_onerror(Some(on_error.into_js_value().unchecked_ref()));
    });
    worker.post_message(&message)?;
    let places = wasm_bindgen_futures::JsFuture::from(answer).await;
    worker.terminate();
    let places: Float32Array = places.map_err(Failure::from)?.unchecked_into();
    let places = places.to_vec();
    let (places, _) = places.as_chunks::<3>();

    let range = |axis: usize| {
        let values = places.iter().map(|place| place[axis]);
        let least = values.clone().fold(f32::MAX, f32::min);
        (least, (values.fold(f32::MIN, f32::max) - least).max(1e-6))
    };
    let (x, y) = (range(0), range(1));
    let point = |(&id, place): (&u32, &[f32; 3])| Point {
        id,
        title: state.passage(id).map_or(String::new(), |passage| passage.title),
        x: (place[0] - x.0) / x.1 * 1000.0,
        y: (place[1] - y.0) / y.1 * 1000.0,
        cluster: place[2] as usize,
    };
    Ok(ids.iter().zip(places).map(point).collect())
}
