//! Models: what is loaded, how fast it is here, and what precision does to the results.

mod precision;
mod speed;

use js_sys::Array;
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::FileList;

use self::precision::{IndexPrecision, WeightPrecision};
use self::speed::Speed;
use crate::kiln::{clear_cache, knows_webgpu};
use crate::parts::{FileButton, megabytes};
use crate::state::{BUNDLED, Model, ModelSource, State};

/// What a model's weights can be computed with, and what the page calls it.
const WEIGHTS: [(&str, &str); 4] =
    [("kept", "as in the file"), ("f32", "f32"), ("int8", "int8"), ("int4", "int4")];

/// The models page.
#[component]
pub(crate) fn Models() -> impl IntoView {
    let state = expect_context::<State>();
    view! {
        <Loaded />
        <Load />
        <Show when=move || state.model.with(|model| model.info().is_some())>
            <Speed />
            <WeightPrecision />
            <IndexPrecision />
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
                            state.weights.set("kept".into());
                            state.load_model(ModelSource::address(BUNDLED));
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
                <label for="weights">"with weights"</label>
                <select id="weights" on:change=move |event| state.change_weights(event_target_value(&event))>
                    {WEIGHTS
                        .map(|(one, name)| {
                            view! { <option value=one selected=move || state.weights.get() == one>{name}</option> }
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
            state.load_model(ModelSource::address(address.trim()));
        }
    };
    let from_files = move |files: FileList| {
        let Some(first) = files.get(0) else { return };
        let several = files.length() > 1;
        let value = if several { Array::from(&files).into() } else { first.clone().into() };
        state.load_model(ModelSource { name: first.name(), value });
    };
    let from_folder = move |files: FileList| {
        let all = Array::from(&files);
        let path = js_sys::Reflect::get(&all.get(0), &"webkitRelativePath".into());
        let path = path.ok().and_then(|path| path.as_string()).unwrap_or_default();
        let name = path.split('/').next().unwrap_or("a folder").to_string();
        state.load_model(ModelSource { name, value: all.into() });
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
                <code>"kiln export"</code>
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
                <button on:click=move |_| state.load_model(ModelSource::address(BUNDLED))>"kiln-mini"</button>
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
