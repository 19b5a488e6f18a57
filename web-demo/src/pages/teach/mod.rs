//! Teach: what is right and wrong, a run that learns it, and what it did to the search.

mod controls;
mod learned;
mod lessons;
mod mark;
mod outcome;

use leptos::prelude::*;

use self::controls::Controls;
use self::learned::Learned;
use self::lessons::{Lessons, Pick, Synonym};
use self::outcome::{Comparison, Outcome};
use super::search::Query;
use crate::state::State;

pub(crate) use self::mark::Mark;

/// The panel with the lessons and what is made of them.
#[component]
pub(crate) fn TeachPanel(query: RwSignal<Query>) -> impl IntoView {
    let state = expect_context::<State>();
    let teach = state.teach;
    let open = RwSignal::new(false);
    let has_news = Memo::new(move |_| {
        teach.run.with(Option::is_some)
            || teach.ended.with(Option::is_some)
            || teach.unfinished.get()
    });
    Effect::new(move |_| {
        if has_news.get() {
            open.set(true);
        }
    });
    let summary = move || {
        let [right, wrong, synonyms] = teach.counts();
        format!("{right} right, {wrong} wrong, {}", counted(synonyms, "synonym"))
    };
    view! {
        <details
            class="teach"
            prop:open=move || open.get()
            on:toggle=move |event| open.set(event_target::<web_sys::HtmlDetailsElement>(&event).open())
        >
            <summary>
                <h2>"Teach"</h2>
                <span class="lesson-count">{summary}</span>
                {move || state.in_use.with(Option::is_some).then(|| view! { <span class="tag">"taught"</span> })}
            </summary>
            <p class="what">
                "Mark what is right and what is wrong below, or say what your words mean. The model learns it in this browser; nothing is sent anywhere."
            </p>
            <Synonym />
            <Pick query />
            <Lessons />
            <Controls />
            <div aria-live="polite">{move || teach.ended.get().map(|ended| view! { <Outcome ended /> })}</div>
            <Comparison />
            <Learned />
        </details>
    }
}

/// `1 lesson`, `2 lessons`.
fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
