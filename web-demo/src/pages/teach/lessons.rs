//! What the reader says beside marks: synonyms, passages that were meant; and all lessons, to be taken back.

use leptos::prelude::*;

use crate::kiln::Passage;
use crate::library::embedded;
use crate::pages::search::Query;
use crate::state::State;
use crate::teach::{Lesson, Says};

/// Two words for one thing.
#[component]
pub(super) fn Synonym() -> impl IntoView {
    let state = expect_context::<State>();
    let (word, meaning) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let is_empty =
        move || [word, meaning].iter().any(|text| text.with(|text| text.trim().is_empty()));
    let add = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        if !is_empty() {
            state.add_synonym(&word.get(), &meaning.get());
            word.set(String::new());
            meaning.set(String::new());
        }
    };
    view! {
        <form class="line" on:submit=add>
            <label for="word">"When I say"</label>
            <input id="word" autocomplete="off" prop:value=move || word.get() on:input=move |event| word.set(event_target_value(&event)) />
            <label for="meaning">"I mean"</label>
            <input id="meaning" autocomplete="off" prop:value=move || meaning.get() on:input=move |event| meaning.set(event_target_value(&event)) />
            <button disabled=is_empty>"Add"</button>
        </form>
    }
}

/// A passage of the collection that was meant, found or not.
#[component]
pub(super) fn Pick(query: RwSignal<Query>) -> impl IntoView {
    let state = expect_context::<State>();
    let title = RwSignal::new(String::new());
    let asked = Memo::new(move |_| match query.get() {
        Query::Text(text) if !text.trim().is_empty() => Some(text),
        _ => None,
    });
    let meant = move || {
        let title = title.get();
        state
            .passages
            .with(|all| all.iter().find(|(_, one)| one.title == title).map(|(_, one)| one.clone()))
    };
    let add = move |event: leptos::ev::SubmitEvent| {
        event.prevent_default();
        if let (Some(asked), Some(passage)) = (asked.get(), meant()) {
            if state.teach.said(&asked, &embedded(&passage)) != Some(Says::Right) {
                state.mark(&asked, &passage, Says::Right);
            }
            title.set(String::new());
        }
    };
    view! {
        <Show when=move || asked.get().is_some()>
            <form class="line" on:submit=add>
                <label for="meant">{move || format!("With “{}” I meant", asked.get().unwrap_or_default())}</label>
                <input
                    id="meant"
                    list="titles"
                    autocomplete="off"
                    placeholder="a passage's title"
                    prop:value=move || title.get()
                    on:input=move |event| title.set(event_target_value(&event))
                />
                <datalist id="titles">
                    {move || {
                        let title = |(_, one): &(u32, Passage)| view! { <option value=one.title.clone()></option> };
                        state.passages.with(|all| all.iter().map(title).collect_view())
                    }}
                </datalist>
                <button disabled=move || meant().is_none()>"Add"</button>
            </form>
        </Show>
    }
}

/// The lessons, each of which can be taken back; pairs have the numbers that messages call them by.
#[component]
pub(super) fn Lessons() -> impl IntoView {
    let state = expect_context::<State>();
    let line = move |lesson: &Lesson| {
        let (says, joined) = match lesson.says {
            Says::Right => ("right", "is answered by"),
            Says::Wrong => ("wrong", "is not answered by"),
            Says::Synonym => ("synonym", "means"),
        };
        let text = format!("“{}” {joined} “{}”", lesson.query, lesson.title);
        let label = format!("Take back: {text}");
        let lesson = lesson.clone();
        view! {
            <li class=says>
                {text}
                <button class="plain" aria-label=label on:click=move |_| state.take_back(&lesson)>
                    "Take back"
                </button>
            </li>
        }
    };
    move || {
        state.teach.lessons.with(|lessons| {
            let of = |wrong: bool| {
                let some = lessons
                    .iter()
                    .rev()
                    .filter(move |lesson| (lesson.says == Says::Wrong) == wrong);
                some.map(line).collect_view()
            };
            let pairs = lessons.iter().filter(|lesson| lesson.says != Says::Wrong).count();
            (!lessons.is_empty()).then(|| {
                view! {
                    <div class="lessons">
                        <ol reversed start=pairs.to_string() aria-label="Right">{of(false)}</ol>
                        <ul aria-label="Wrong">{of(true)}</ul>
                    </div>
                }
            })
        })
    }
}
