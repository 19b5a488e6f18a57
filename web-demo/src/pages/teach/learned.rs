//! What was learned: in use or not, and as files that go out and come in.

use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::FileList;

use crate::pages::collection::{bytes, offer};
use crate::parts::{FileButton, megabytes};
use crate::state::State;

/// What was learned: in use or not, and as files.
#[component]
pub(super) fn Learned() -> impl IntoView {
    let state = expect_context::<State>();
    let latest = state.teach.latest;
    let is_free = move || {
        !state.is_busy()
            && state.teach.run.with(Option::is_none)
            && state.model.with(|model| model.info().is_some())
    };
    let files = move || {
        latest.track();
        state.parts().borrow().adapter.as_ref().map(|adapter| adapter.files()).unwrap_or_default()
    };
    let download = move |name: String, bytes: Vec<u8>| {
        let text = format!("{name} ({})", megabytes(bytes.len() as f64));
        let offered = move |_| {
            if let Err(failure) = offer(&name, &bytes) {
                state.fail(failure.message);
            }
        };
        view! { <button on:click=offered>{text}</button> }
    };
    view! {
        <div class="buttons learned">
            <Show when=move || state.in_use.with(Option::is_some)>
                <button disabled=move || !is_free() on:click=move |_| state.use_variant(false)>
                    "Undo: search as it was"
                </button>
            </Show>
            <Show when=move || latest.get().is_some() && latest.get() != state.in_use.get()>
                <button disabled=move || !is_free() on:click=move |_| state.use_variant(true)>
                    "Search as taught"
                </button>
            </Show>
            <Show when=move || latest.with(Option::is_some)>
                <span class="label">"Export what was learned:"</span>
                {move || files().into_iter().map(|(name, bytes)| download(name, bytes)).collect_view()}
            </Show>
            <FileButton
                id="adapter"
                text="Import what was learned"
                accept=".json,.safetensors"
                take=move |files| import(state, files)
            />
        </div>
    }
}

/// Reads an adapter's two files.
fn import(state: State, files: FileList) {
    if state.is_busy() || state.teach.run.with_untracked(Option::is_some) {
        return state.say("wait until the passages are indexed, and teaching is over");
    }
    let files: Vec<web_sys::File> = (0..files.length()).filter_map(|i| files.get(i)).collect();
    spawn_local(async move {
        let mut read = Vec::new();
        for file in files {
            let name = file.name();
            match bytes(file).await {
                Ok(bytes) => read.push((name, bytes)),
                Err(error) => return state.fail(error),
            }
        }
        state.import_adapter(read);
    });
}
