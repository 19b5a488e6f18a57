//! What is searched in: how passages come in and go out.

use gloo_file::{Blob, futures::read_as_bytes};
use js_sys::{Array, Uint8Array};
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsCast as _;
use web_sys::{FileList, HtmlAnchorElement, Url};

use crate::kiln::Result;
use crate::parts::{FileButton, duration};
use crate::reading;
use crate::state::{Keeping, State};

/// What is searched in, and how it changes.
#[component]
pub(crate) fn Collection() -> impl IntoView {
    let state = expect_context::<State>();
    let pasting = RwSignal::new(false);
    let pasted = RwSignal::new(String::new());
    let count = move || state.passages.with(|passages| passages.len());
    let is_ready = move || state.model.with(|model| model.info().is_some());
    let is_idle = move || is_ready() && !state.is_busy();
    let add_pasted = move |_| match reading::passages("pasted text", pasted.get().as_bytes()) {
        Ok(passages) => {
            state.add(passages, "the pasted text");
            pasted.set(String::new());
            pasting.set(false);
        }
        Err(error) => state.fail(error),
    };
    view! {
        <div class="collection">
            {move || match state.job.get() {
                Some(job) => {
                    let left = (job.total - job.done) as f64 / job.per_second.max(1e-6);
                    let rate = match job.done {
                        0 => String::new(),
                        _ => format!(", {:.0} passages/s, {} left", job.per_second, duration(left)),
                    };
                    view! {
                        <div class="job">
                            <label for="job">{format!("Indexing {}", job.what)}</label>
                            <progress id="job" max=job.total.to_string() prop:value=job.done as f64></progress>
                            <span>{format!("{} of {}{rate}", job.done, job.total)}</span>
                            <button on:click=move |_| state.stop()>"Stop"</button>
                        </div>
                    }
                        .into_any()
                }
                None => {
                    let count = count();
                    let passages = if count == 1 { "passage" } else { "passages" };
                    let kept = match state.keeping.get() {
                        Keeping::Kept => "kept in this browser",
                        Keeping::Saving => "being saved",
                        Keeping::Failed | Keeping::Held(_) => "not kept for the next visit",
                    };
                    let text = match count == 0 && state.opening.get() {
                        true => "The passages are being opened".to_string(),
                        false => format!("{count} {passages}, {kept}"),
                    };
                    view! { <p class="count">{text}</p> }.into_any()
                }
            }}
            <div class="buttons">
                <button
                    disabled=move || !is_idle()
                    on:click=move |_| {
                        state.add(reading::collection(), "the built-in collection")
                    }
                >
                    "Add the built-in collection"
                </button>
                <button
                    disabled=move || !is_idle()
                    aria-expanded=move || pasting.get().to_string()
                    on:click=move |_| pasting.update(|pasting| *pasting = !*pasting)
                >
                    "Paste text"
                </button>
                <FileButton
                    id="files"
                    text="Add files"
                    accept=reading::ACCEPTED
                    take=move |files| add_files(state, files)
                />
                <FileButton id="import" text="Import" accept=".kilnindex" take=move |files| import(state, files) />
                <button disabled=move || !is_idle() || count() == 0 on:click=move |_| export(state)>
                    "Export"
                </button>
                <button disabled=move || !is_idle() || count() == 0 on:click=move |_| state.clear()>
                    "Empty"
                </button>
            </div>
            <Show when=move || pasting.get()>
                <div class="paste">
                    <label for="pasted">"Text to search in"</label>
                    <textarea
                        id="pasted"
                        rows="6"
                        prop:value=move || pasted.get()
                        on:input=move |event| pasted.set(event_target_value(&event))
                    ></textarea>
                    <button disabled=move || !is_idle() || pasted.with(|text| text.trim().is_empty()) on:click=add_pasted>
                        "Add it"
                    </button>
                </div>
            </Show>
        </div>
    }
}

/// Why these passages are not kept, where others are saved in their place, and the way to save them all the same.
#[component]
pub(crate) fn HeldLine() -> impl IntoView {
    let state = expect_context::<State>();
    move || match state.keeping.get() {
        Keeping::Held(why) => Some(view! {
            <p class="held" role="alert">
                {why}
                <button disabled=move || state.is_busy() on:click=move |_| state.save_over()>
                    "Save over them"
                </button>
            </p>
        }),
        _ => None,
    }
}

/// A file's bytes, or why there are none.
pub(crate) async fn bytes(file: web_sys::File) -> std::result::Result<Vec<u8>, String> {
    let name = file.name();
    let blob = Blob::from(web_sys::Blob::from(file));
    read_as_bytes(&blob).await.map_err(|error| format!("{name} cannot be read: {error}"))
}

/// Adds the passages of files that were chosen or dropped.
pub(crate) fn add_files(state: State, files: FileList) {
    let files: Vec<web_sys::File> = (0..files.length()).filter_map(|i| files.get(i)).collect();
    spawn_local(async move {
        let mut passages = Vec::new();
        let mut errors = Vec::new();
        let count = files.len();
        for file in files {
            let name = file.name();
            let read = async { reading::passages(&name, &bytes(file).await?) };
            match read.await {
                Ok(found) => passages.extend(found),
                Err(error) => errors.push(error),
            }
        }
        if !passages.is_empty() {
            let what = if count == 1 { "the file".into() } else { format!("{count} files") };
            state.add(passages, &what);
        }
        if !errors.is_empty() {
            state.fail(errors.join("; "));
        }
    });
}

fn import(state: State, files: FileList) {
    let Some(file) = files.get(0) else { return };
    spawn_local(async move {
        match bytes(file).await {
            Ok(file) => state.import(file),
            Err(error) => state.fail(error),
        }
    });
}

/// Hands the index to the browser as a download.
fn export(state: State) {
    spawn_local(async move {
        let offered = async { offer("passages.kilnindex", &state.to_file().await?) };
        if let Err(failure) = offered.await {
            state.fail(failure.message);
        }
    });
}

/// Hands a file to the browser as a download.
pub(crate) fn offer(name: &str, file: &[u8]) -> Result<()> {
    let parts = Array::of1(&Uint8Array::from(file));
    let blob = web_sys::Blob::new_with_u8_array_sequence(&parts)?;
    let address = Url::create_object_url_with_blob(&blob)?;
    let link: HtmlAnchorElement = document().create_element("a")?.unchecked_into();
    link.set_href(&address);
    link.set_download(name);
    link.click();
    Url::revoke_object_url(&address)?;
    Ok(())
}
