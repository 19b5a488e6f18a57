//! Kiln's demo page: semantic search, what pooling looks at, a map of the collection, and the models.
//!
//! Everything is computed in the browser by kiln-embed (`kiln/`); the pages (`pages/`) share a
//! [`state::State`].

mod kiln;
mod known;
mod layout;
mod library;
mod pages;
mod parts;
mod reading;
mod state;
mod teach;
mod words;

use gloo_storage::{LocalStorage, Storage as _};
use leptos::prelude::*;
use wasm_bindgen::JsCast as _;

use pages::collection::{HeldLine, add_files};
use pages::lens::LensPage;
use pages::map::Map;
use pages::models::Models;
use pages::search::{Query, Search};
use parts::megabytes;
use state::{BUNDLED, Model, ModelSource, State};

fn main() {
    // The map's worker runs this module too, and has no page.
    if web_sys::window().is_some() {
        if let Some(waiting) = document().get_element_by_id("waiting") {
            waiting.remove();
        }
        mount_to_body(App);
    }
}

/// The pages, by the name that the address has after `#`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Page {
    Search,
    Lens,
    Map,
    Models,
}

impl Page {
    const ALL: [Self; 4] = [Self::Search, Self::Lens, Self::Map, Self::Models];

    fn name(self) -> &'static str {
        match self {
            Self::Search => "search",
            Self::Lens => "lens",
            Self::Map => "map",
            Self::Models => "models",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Search => "Search",
            Self::Lens => "Pooling lens",
            Self::Map => "Map",
            Self::Models => "Models",
        }
    }

    /// The page of the present address.
    fn current() -> Self {
        let hash = window().location().hash().unwrap_or_default();
        let named = |page: &Self| page.name() == hash.trim_start_matches('#');
        Self::ALL.into_iter().find(named).unwrap_or(Self::Search)
    }
}

#[component]
fn App() -> impl IntoView {
    let state = State::new();
    provide_context(state);
    let page = RwSignal::new(Page::current());
    let query = RwSignal::new(Query::Text(String::new()));
    let _ = window_event_listener(leptos::ev::hashchange, move |_| page.set(Page::current()));
    let _ = window_event_listener(leptos::ev::keydown, move |event| {
        let typing = document().active_element().is_some_and(|element| {
            ["INPUT", "TEXTAREA", "SELECT"].contains(&element.tag_name().as_str())
        });
        if event.key() == "/" && !typing && !event.ctrl_key() && !event.meta_key() {
            event.prevent_default();
            go(Page::Search);
            page.set(Page::Search);
            // After the page is shown.
            request_animation_frame(|| {
                let field = document().get_element_by_id("query");
                if let Some(field) =
                    field.and_then(|field| field.dyn_into::<web_sys::HtmlElement>().ok())
                {
                    let _ = field.focus();
                }
            });
        }
    });
    state.load_model(ModelSource::address(BUNDLED));
    // start.js waits for it.
    Effect::new(move || {
        if !matches!(state.model.get(), Model::Loading { .. })
            && let Ok(event) = web_sys::Event::new("kiln-model")
        {
            let _ = window().dispatch_event(&event);
        }
    });

    let dropping = RwSignal::new(false);
    let over = move |event: leptos::ev::DragEvent| {
        event.prevent_default();
        dropping.set(true);
    };
    let dropped = move |event: leptos::ev::DragEvent| {
        event.prevent_default();
        dropping.set(false);
        let files = event.data_transfer().and_then(|data| data.files());
        if let Some(files) = files.filter(|files| files.length() > 0) {
            add_files(state, files);
        }
    };
    let select = move |id| {
        query.set(Query::Like(id));
        go(Page::Search);
    };
    let shown = move |this: Page| Signal::derive(move || page.get() == this);
    let section = move |this: Page, content: AnyView| {
        view! {
            <div id=this.name().to_string() + "-page" hidden=move || page.get() != this>
                {content}
            </div>
        }
    };
    view! {
        <a class="skip" href="#main" on:click=|event| {
            event.prevent_default();
            let main = document().get_element_by_id("main");
            if let Some(main) = main.and_then(|main| main.dyn_into::<web_sys::HtmlElement>().ok()) {
                let _ = main.focus();
            }
        }>"To the content"</a>
        <header>
            <p class="name">"Kiln"</p>
            <nav aria-label="Pages">
                {Page::ALL
                    .map(|this| {
                        view! {
                            <a
                                href=format!("#{}", this.name())
                                aria-current=move || (page.get() == this).then_some("page")
                            >
                                {this.title()}
                            </a>
                        }
                    })
                    .collect_view()}
            </nav>
            <Status />
            <Theme />
        </header>
        <main
            id="main"
            tabindex="-1"
            class:dropping=move || dropping.get()
            on:dragover=over
            on:dragleave=move |_| dropping.set(false)
            on:drop=dropped
        >
            <h1 class="visually-hidden">{move || format!("Kiln: {}", page.get().title())}</h1>
            <NoticeLine />
            <HeldLine />
            {section(Page::Search, view! { <Search query /> }.into_any())}
            {section(Page::Lens, view! { <LensPage /> }.into_any())}
            {section(Page::Map, view! { <Map visible=shown(Page::Map) select /> }.into_any())}
            {section(Page::Models, view! { <Models /> }.into_any())}
        </main>
        <footer>
            <p>"Everything is computed in this browser; nothing that you type or add leaves it. Press / to search."</p>
        </footer>
    }
}

/// Goes to a page by its address, so that the way back works.
fn go(page: Page) {
    let _ = window().location().set_hash(page.name());
}

/// How the model is, in the header.
#[component]
fn Status() -> impl IntoView {
    let state = expect_context::<State>();
    view! {
        <p class="status" role="status">
            {move || match state.model.get() {
                Model::Loading { progress: Some(progress), .. } if progress.stage == "download" => {
                    let of = progress.total.map_or(String::new(), |total| format!(" of {}", megabytes(total)));
                    let how = if progress.cached { "reading the kept model" } else { "loading the model" };
                    format!("{how}: {}{of}", megabytes(progress.loaded))
                }
                Model::Loading { .. } => "loading the model".into(),
                Model::Ready { name, info, .. } => {
                    let name = name.rsplit('/').next().unwrap_or_default().trim_end_matches(".kiln");
                    format!("{name} on {}", info.device)
                }
                Model::Failed { .. } => "no model: see “Models”".into(),
            }}
        </p>
    }
}

/// The last thing that has to be said, until it is closed.
#[component]
fn NoticeLine() -> impl IntoView {
    let state = expect_context::<State>();
    view! {
        <div aria-live="polite">
            {move || {
                state
                    .notice
                    .get()
                    .map(|notice| {
                        view! {
                            <p class="notice" class:error=notice.is_error role=notice.is_error.then_some("alert")>
                                {notice.text}
                                <button class="plain" aria-label="Close" on:click=move |_| state.notice.set(None)>
                                    "×"
                                </button>
                            </p>
                        }
                    })
            }}
        </div>
    }
}

/// Light, dark, or as the system has it.
#[component]
fn Theme() -> impl IntoView {
    const THEMES: [&str; 3] = ["auto", "light", "dark"];
    let theme = RwSignal::new(LocalStorage::get("theme").unwrap_or("auto".to_string()));
    Effect::new(move |_| {
        let theme = theme.get();
        if let Some(root) = document().document_element() {
            let _ = root.set_attribute("data-theme", &theme);
        }
        // Kept for the next visit, where the browser keeps anything.
        let _ = LocalStorage::set("theme", theme);
    });
    view! {
        <label class="visually-hidden" for="theme">"Colours"</label>
        <select id="theme" on:change=move |event| theme.set(event_target_value(&event))>
            {THEMES
                .map(|one| {
                    view! { <option value=one selected=move || theme.get() == one>{one}</option> }
                })
                .collect_view()}
        </select>
    }
}
