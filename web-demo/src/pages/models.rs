//! Models: what is loaded, how fast it is here, and what precision does to the results.

use js_sys::Array;
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::FileList;

use crate::kiln::{Failure, Hit, Index, Result, Vector, clear_cache, knows_webgpu};
use crate::library::embedded;
use crate::parts::{FileButton, duration, megabytes};
use crate::state::{BUNDLED, Model, Source, State, now};

/// Words of the texts whose speed is measured.
const LENGTHS: [usize; 3] = [10, 50, 150];
/// Seconds that each of them is measured for.
const MEASURED: f64 = 1.5;
const PRECISIONS: [&str; 4] = ["f32", "int8", "binary", "binary+int8"];
/// Titles that are searched for when precisions are compared.
const ASKED: usize = 50;
const TOP: usize = 10;

/// The models page.
#[component]
pub(crate) fn Models() -> impl IntoView {
    let state = expect_context::<State>();
    view! {
        <Loaded />
        <Load />
        <Show when=move || state.model.with(|model| model.info().is_some())>
            <Speed />
            <Precisions />
        </Show>
    }
}

/// What is loaded.
#[component]
fn Loaded() -> impl IntoView {
    let state = expect_context::<State>();
    let row = |name: &'static str, value: String| {
        view! { <tr><th scope="row">{name}</th><td>{value}</td></tr> }
    };
    view! {
        <section aria-labelledby="loaded">
            <h2 id="loaded">"The model"</h2>
            {move || match state.model.get() {
                Model::Loading { name, progress } => {
                    let progress = progress.filter(|progress| progress.stage == "download");
                    let (done, total) = progress
                        .as_ref()
                        .map_or((0.0, None), |progress| (progress.loaded, progress.total));
                    view! {
                        <div class="job">
                            <label for="loading">{format!("Loading {name}")}</label>
                            <progress
                                id="loading"
                                max="1"
                                prop:value=total.map(|total| done / total.max(1.0))
                            ></progress>
                            <span>{megabytes(done)}</span>
                        </div>
                    }
                        .into_any()
                }
                Model::Failed { name, message } => {
                    view! {
                        <p class="error" role="alert">{format!("{name} is not loaded: {message}")}</p>
                        <button on:click=move |_| {
                            state.device.set("auto".into());
                            state.load_model(Source::address(BUNDLED));
                        }>"Load kiln-mini"</button>
                    }
                        .into_any()
                }
                Model::Ready { name, info, seconds, bytes } => {
                    let size = if bytes > 0.0 { megabytes(bytes) } else { "from a file".into() };
                    let prompts: Vec<String> = info.prompts.keys().cloned().collect();
                    view! {
                        <table>
                            <tbody>
                                {row("Name", name)}
                                {row("Computed on", info.device)}
                                {row("Weights", info.weights.unwrap_or("as in its file".into()))}
                                {row("Size", size)}
                                {row("Loaded in", format!("{seconds:.2} s"))}
                                {row("Dimensions of a vector", info.dimensions.to_string())}
                                {row("Layers", format!("{} of width {}", info.layers, info.hidden_size))}
                                {row("Vocabulary", format!("{} tokens", info.vocabulary_size))}
                                {row("Reads of a text", format!("{} tokens", info.max_length))}
                                {row("Pooling", info.pooling.replace('_', " "))}
                                {row(
                                    "Prompts",
                                    if prompts.is_empty() { "none".into() } else { prompts.join(", ") },
                                )}
                            </tbody>
                        </table>
                    }
                        .into_any()
                }
            }}
            <div class="buttons">
                <label for="device">"Compute on"</label>
                <select id="device" on:change=move |event| state.change_device(event_target_value(&event))>
                    {[("auto", "the faster one"), ("cpu", "CPU"), ("webgpu", "WebGPU")]
                        .map(|(one, name)| {
                            view! {
                                <option
                                    value=one
                                    selected=move || state.device.get() == one
                                    disabled=one == "webgpu" && !knows_webgpu()
                                >
                                    {name}
                                </option>
                            }
                        })
                        .collect_view()}
                </select>
                {(!knows_webgpu())
                    .then(|| view! { <span class="what">"This browser has no WebGPU; the CPU does it all."</span> })}
            </div>
        </section>
    }
}

/// Another model, by address or from files.
#[component]
fn Load() -> impl IntoView {
    let state = expect_context::<State>();
    let address = RwSignal::new(String::new());
    let load = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        let address = address.get();
        if !address.trim().is_empty() {
            state.load_model(Source::address(address.trim()));
        }
    };
    let from_files = move |files: FileList| {
        let Some(first) = files.get(0) else { return };
        let several = files.length() > 1;
        let value = if several { Array::from(&files).into() } else { first.clone().into() };
        state.load_model(Source { name: first.name(), value });
    };
    let from_folder = move |files: FileList| {
        let all = Array::from(&files);
        let path = js_sys::Reflect::get(&all.get(0), &"webkitRelativePath".into());
        let path = path.ok().and_then(|path| path.as_string()).unwrap_or_default();
        let name = path.split('/').next().unwrap_or("a folder").to_string();
        state.load_model(Source { name, value: all.into() });
    };
    let forget = move |_| {
        spawn_local(async move {
            match clear_cache().await {
                Ok(()) => state
                    .say("downloaded models are forgotten; they are fetched again the next time"),
                Err(failure) => state.fail(failure.message),
            }
        });
    };
    view! {
        <section aria-labelledby="load">
            <h2 id="load">"Another model"</h2>
            <p class="what">
                "A .kiln file, or a folder with config.json, tokenizer.json and model.safetensors, as "
                <code>"train-native export"</code>
                " and sentence-transformers write them. The passages are then indexed anew."
            </p>
            <form class="line" on:submit=load>
                <label for="address">"Address"</label>
                <input
                    id="address"
                    type="text"
                    inputmode="url"
                    placeholder="https://… or a path beside this page"
                    prop:value=move || address.get()
                    on:input=move |event| address.set(event_target_value(&event))
                />
                <button type="submit">"Load"</button>
            </form>
            <div class="buttons">
                <FileButton id="model-file" text="From a file" accept=".kiln" take=from_files />
                <FileButton id="model-folder" text="From a folder" accept="" folder=true take=from_folder />
                <button on:click=move |_| state.load_model(Source::address(BUNDLED))>"kiln-mini"</button>
                <button on:click=forget>"Forget downloads"</button>
            </div>
        </section>
    }
}

/// Lines of figures under the names of their columns; nothing where there are none.
#[component]
fn Figures(
    columns: &'static [&'static str],
    #[prop(into)] rows: Signal<Vec<Vec<String>>>,
) -> impl IntoView {
    let line = |cells: Vec<String>| {
        let mut cells = cells.into_iter();
        let name = cells.next();
        view! { <tr><th scope="row">{name}</th>{cells.map(|cell| view! { <td>{cell}</td> }).collect_view()}</tr> }
    };
    view! {
        <Show when=move || rows.with(|rows| !rows.is_empty())>
            <table aria-live="polite">
                <thead>
                    <tr>
                        {columns.iter().map(|name| view! { <th scope="col">{*name}</th> }).collect_view()}
                    </tr>
                </thead>
                <tbody>{move || rows.get().into_iter().map(line).collect_view()}</tbody>
            </table>
        </Show>
    }
}

/// Texts a second at some lengths.
#[component]
fn Speed() -> impl IntoView {
    let state = expect_context::<State>();
    let measured = RwSignal::new(Vec::<(usize, f64, f64)>::new());
    let running = RwSignal::new(false);
    let run = move |_| {
        running.set(true);
        measured.set(Vec::new());
        spawn_local(async move {
            for words in LENGTHS {
                match speed(state, words).await {
                    Ok((rate, first)) => measured.update(|all| all.push((words, rate, first))),
                    Err(failure) => {
                        state.fail(failure.message);
                        break;
                    }
                }
            }
            running.set(false);
        });
    };
    view! {
        <section aria-labelledby="speed">
            <h2 id="speed">"Speed here"</h2>
            <p class="what">"Where the model is computed now, from a worker; each line is measured for a second and a half."</p>
            <button disabled=move || running.get() || state.is_busy() on:click=run>
                {move || if running.get() { "Measuring…" } else { "Measure" }}
            </button>
            <Figures
                columns=&["Words a text", "Texts a second", "One text alone"]
                rows=Signal::derive(move || {
                    let line = |(words, rate, one): (usize, f64, f64)| {
                        vec![words.to_string(), format!("{rate:.1}"), format!("{:.1} ms", one * 1000.0)]
                    };
                    measured.get().into_iter().map(line).collect()
                })
            />
        </section>
    }
}

/// Texts a second in batches, and seconds for a text alone.
async fn speed(state: State, words: usize) -> Result<(f64, f64)> {
    let missing = || Failure::from("no model is loaded".to_string());
    let embedder = state.embedder().ok_or_else(missing)?;
    // Real words: the collection's, one text after another.
    let all: Vec<String> = crate::reading::collection()
        .iter()
        .flat_map(|passage| passage.text.split(' ').map(String::from).collect::<Vec<_>>())
        .collect();
    let texts: Vec<String> = all.chunks_exact(words).take(8).map(|words| words.join(" ")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    // Once for what only the first run does.
    embedder.embed(&texts[..1]).await?;
    let start = now();
    embedder.embed(&texts[..1]).await?;
    let one = now() - start;
    let (start, mut done) = (now(), 0);
    while done == 0 || now() - start < MEASURED {
        embedder.embed(&texts).await?;
        done += texts.len();
    }
    Ok((done as f64 / (now() - start), one))
}

/// What a precision of the index costs and gives.
#[derive(Debug, Clone, PartialEq)]
struct Compared {
    precision: &'static str,
    /// Bytes of a vector.
    bytes: f64,
    /// Share of the ten best of f32 that are found.
    found: f64,
    /// Mean difference of the scores from f32's.
    off: f64,
    milliseconds: f64,
}

/// The index in each precision.
#[component]
fn Precisions() -> impl IntoView {
    let state = expect_context::<State>();
    let compared = RwSignal::new(Vec::<Compared>::new());
    let at = RwSignal::new(None::<String>);
    let run = move |_| {
        compared.set(Vec::new());
        spawn_local(async move {
            match compare(state, at).await {
                Ok(all) => compared.set(all),
                Err(failure) => state.fail(failure.message),
            }
            at.set(None);
        });
    };
    let enough = move || state.passages.with(|passages| passages.len() > TOP);
    view! {
        <section aria-labelledby="precision">
            <h2 id="precision">"Precision of the index"</h2>
            <p class="what">
                "How vectors are kept decides how much memory a collection takes, and what is found. Compared on the collection that is open, with its own titles as queries."
            </p>
            <div class="buttons">
                <button
                    disabled=move || at.with(Option::is_some) || state.is_busy() || !enough()
                    on:click=run
                >
                    {move || at.get().unwrap_or("Compare".into())}
                </button>
                <label for="precision-used">"Used for the search"</label>
                <select
                    id="precision-used"
                    disabled=move || state.is_busy()
                    prop:value=move || state.precision.get()
                    on:change=move |event| state.change_precision(event_target_value(&event))
                >
                    {PRECISIONS
                        .map(|one| {
                            view! {
                                <option value=one selected=move || state.precision.get() == one>{one}</option>
                            }
                        })
                        .collect_view()}
                </select>
            </div>
            <Figures
                columns=&[
                    "Precision",
                    "Bytes a vector",
                    "Of f32's ten best",
                    "Scores differ by",
                    "A search takes",
                ]
                rows=Signal::derive(move || {
                    let line = |one: Compared| {
                        vec![
                            one.precision.to_string(),
                            format!("{:.0}", one.bytes),
                            format!("{:.1} %", one.found * 100.0),
                            format!("{:.4}", one.off),
                            format!("{:.2} ms", one.milliseconds),
                        ]
                    };
                    compared.get().into_iter().map(line).collect()
                })
            />
        </section>
    }
}

/// Embeds the collection once, and keeps it in each precision. `at` says how far this is.
async fn compare(state: State, at: RwSignal<Option<String>>) -> Result<Vec<Compared>> {
    let missing = || Failure::from("no model is loaded".to_string());
    let embedder = state.embedder().ok_or_else(missing)?;
    let passages = state.passages.get_untracked();
    let start = now();
    let mut vectors: Vec<Vector> = Vec::new();
    for some in passages.chunks(8) {
        let left =
            (passages.len() - vectors.len()) as f64 * (now() - start) / vectors.len().max(1) as f64;
        let left =
            if vectors.is_empty() { String::new() } else { format!(", {} left", duration(left)) };
        at.set(Some(format!("{} of {}{left}", vectors.len(), passages.len())));
        let texts: Vec<String> = some.iter().map(|(_, passage)| embedded(passage)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        vectors.extend(embedder.embed(&texts).await?);
    }
    // Titles from all over the collection.
    let step = passages.len().div_ceil(ASKED).max(1);
    let titles: Vec<&str> =
        passages.iter().step_by(step).map(|(_, passage)| passage.title.as_str()).collect();
    let queries = embedder.embed(&titles).await?;
    let mut exact: Vec<Vec<Hit>> = Vec::new();
    let mut all = Vec::new();
    for precision in PRECISIONS {
        at.set(Some(format!("searching in {precision}")));
        let index = Index::create(embedder.info()?.dimensions, precision).await?;
        let rows: Vec<_> = passages
            .iter()
            .zip(&vectors)
            .map(|((id, passage), vector)| (*id, passage, vector.clone()))
            .collect();
        index.add(&rows).await?;
        let start = now();
        let mut hits = Vec::new();
        for query in &queries {
            hits.push(index.search(query, TOP).await?);
        }
        let milliseconds = (now() - start) * 1000.0 / queries.len() as f64;
        if exact.is_empty() {
            exact = hits.clone();
        }
        let (mut found, mut off, mut both) = (0, 0.0, 0);
        for (exact, hits) in exact.iter().zip(&hits) {
            for hit in exact {
                if let Some(same) = hits.iter().find(|other| other.id == hit.id) {
                    found += 1;
                    both += 1;
                    off += f64::from((same.score - hit.score).abs());
                }
            }
        }
        let bytes = index.to_bytes().await?.len() as f64 / passages.len() as f64;
        let expected: usize = exact.iter().map(Vec::len).sum();
        all.push(Compared {
            precision,
            bytes,
            found: f64::from(found) / expected.max(1) as f64,
            off: off / f64::from(both.max(1)),
            milliseconds,
        });
        index.dispose();
    }
    Ok(all)
}
