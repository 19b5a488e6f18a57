//! Search: by meaning beside by words, over passages that the reader brings.

use std::ops::Range;

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::kiln::{Hit, Passage, Result};
use crate::library::embedded;
use crate::pages::collection::Collection;
use crate::pages::teach::{Mark, TeachPanel};
use crate::parts::Marked;
use crate::reading;
use crate::state::{Model, State, Turns, now};
use crate::teach::Says;

/// Hits shown of each kind.
const SHOWN: usize = 8;
/// Milliseconds without a keystroke after which the search begins.
const PAUSE: u32 = 120;

const EXAMPLES: [&str; 5] = [
    "why do leaves change colour",
    "how to keep bread from going stale",
    "ships that sail without a crew",
    "sleeping badly before an exam",
    "money that loses its worth",
];

/// What is searched for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Query {
    Text(String),
    /// Passages like this one.
    Like(u32),
}

/// A passage that was found.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    id: u32,
    passage: Passage,
    score: f32,
    marks: Vec<Range<usize>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Results {
    /// The text that was searched for.
    asked: String,
    by_meaning: Vec<Found>,
    by_words: Vec<Found>,
    milliseconds: f64,
}

/// The search page.
#[component]
pub(crate) fn Search(query: RwSignal<Query>) -> impl IntoView {
    let state = expect_context::<State>();
    let results = RwSignal::new(None::<Results>);
    // Whether what is shown is still to be replaced.
    let busy = RwSignal::new(false);
    let turns = Turns::new();
    // Passages that are added while a query stands are found by it, but not one by one.
    let settled = Memo::new(move |_| match state.job.with(Option::is_some) {
        true => 0,
        false => state.passages.with(|passages| passages.len()),
    });
    Effect::new(move |_| {
        let asked = query.get();
        settled.track();
        state.words.track();
        state.in_use.track();
        let ready = state.model.with(|model| model.info().is_some());
        let is_latest = turns.next();
        let asks = ready && asked != Query::Text(String::new());
        busy.set(asks);
        if !asks {
            results.set(None);
            return;
        }
        spawn_local(async move {
            TimeoutFuture::new(PAUSE).await;
            if !is_latest() {
                return;
            }
            let show = |found| is_latest().then(|| results.set(Some(found)));
            let searched = async {
                let found = search(state, &asked).await?;
                if show(found.clone()).is_some()
                    && let Query::Text(text) = &asked
                {
                    if is_latest() {
                        state.teach.note(text);
                    }
                    show(mark_sentences(state, text, found).await?);
                }
                Ok(())
            };
            let searched: Result<()> = searched.await;
            if is_latest() {
                busy.set(false);
                if let Err(failure) = searched {
                    state.tell(&failure);
                }
            }
        });
    });
    let text = move || match query.get() {
        Query::Text(text) => text,
        Query::Like(_) => String::new(),
    };
    let like = move || match query.get() {
        Query::Like(id) => state.passage(id).map(|passage| passage.title),
        Query::Text(_) => None,
    };
    view! {
        <div class="ask">
            <label for="query">"Search the collection"</label>
            <input
                id="query"
                type="search"
                autocomplete="off"
                placeholder="Ask in your own words"
                prop:value=text
                on:input=move |event| query.set(Query::Text(event_target_value(&event)))
            />
            {move || {
                like()
                    .map(|title| {
                        view! {
                            <p class="chip-line">
                                <span class="chip">
                                    "More like “"{title}"”"
                                    <button
                                        class="plain"
                                        aria-label="Stop searching for passages like this"
                                        on:click=move |_| query.set(Query::Text(String::new()))
                                    >
                                        "×"
                                    </button>
                                </span>
                            </p>
                        }
                    })
            }}
        </div>
        <Collection />
        <TeachPanel query />
        {move || match results.get() {
            Some(results) => view! { <Columns results query busy /> }.into_any(),
            None => view! { <Start query /> }.into_any(),
        }}
    }
}

/// What to see before anything is asked.
#[component]
fn Start(query: RwSignal<Query>) -> impl IntoView {
    let state = expect_context::<State>();
    let is_empty = move || state.passages.with(|passages| passages.is_empty());
    view! {
        <div class="start">
            {move || match state.model.get() {
                Model::Ready { .. } if is_empty() && !state.is_busy() => {
                    view! { <p>"There is nothing to search in yet: open the built-in collection, paste text, or drop files anywhere on this page."</p> }
                        .into_any()
                }
                Model::Ready { .. } => {
                    view! {
                        <p>"Try one of these, or ask what you like:"</p>
                        <ul class="examples">
                            {EXAMPLES
                                .map(|example| {
                                    view! {
                                        <li>
                                            <button on:click=move |_| {
                                                query.set(Query::Text(example.into()))
                                            }>{example}</button>
                                        </li>
                                    }
                                })
                                .collect_view()}
                        </ul>
                    }
                        .into_any()
                }
                Model::Loading { .. } => view! { <p>"The model is being loaded."</p> }.into_any(),
                Model::Failed { .. } => {
                    view! { <p>"There is no model to search with; see “Models”."</p> }.into_any()
                }
            }}
        </div>
    }
}

#[component]
fn Columns(results: Results, query: RwSignal<Query>, busy: RwSignal<bool>) -> impl IntoView {
    let note = format!("{} ms", results.milliseconds.round());
    // Only what somebody asked in words can be answered rightly or wrongly.
    let asked = matches!(query.get_untracked(), Query::Text(_)).then(|| results.asked.clone());
    view! {
        <div class="columns" data-asked=results.asked aria-busy=move || busy.get().to_string()>
            <section aria-labelledby="by-meaning">
                <h2 id="by-meaning">"By meaning " <small>{note}</small></h2>
                <Hits found=results.by_meaning query asked=asked.clone() is_cosine=true />
            </section>
            <section aria-labelledby="by-words">
                <h2 id="by-words">"By words " <small>"BM25"</small></h2>
                <Hits found=results.by_words query asked is_cosine=false />
            </section>
        </div>
    }
}

#[component]
fn Hits(
    found: Vec<Found>,
    query: RwSignal<Query>,
    /// The text that they are answers to.
    asked: Option<String>,
    is_cosine: bool,
) -> impl IntoView {
    let state = expect_context::<State>();
    if found.is_empty() {
        let text = if is_cosine { "No passages." } else { "No passage has any of these words." };
        return view! { <p class="none">{text}</p> }.into_any();
    }
    let largest = if is_cosine { 1.0 } else { found[0].score.max(1e-6) };
    let hits = found
        .into_iter()
        .map(|Found { id, passage, score, marks }| {
            let share = format!("{:.0}%", (score / largest).clamp(0.0, 1.0) * 100.0);
            let marks_of = asked.clone().map(|asked| {
                let mark = |says| view! { <Mark asked=asked.clone() passage=passage.clone() says by_words=!is_cosine /> };
                if is_cosine {
                    view! { {mark(Says::Right)} {mark(Says::Wrong)} }.into_any()
                } else {
                    mark(Says::Right).into_any()
                }
            });
            let is_answer = asked.is_some();
            let (keyed, asked) = (passage.clone(), asked.clone());
            let by_key = move |event: leptos::ev::KeyboardEvent| {
                // The browser's own, as its zoom.
                if event.ctrl_key() || event.meta_key() || event.alt_key() {
                    return;
                }
                let says = match event.key().as_str() {
                    "+" => Says::Right,
                    "-" => Says::Wrong,
                    _ => return,
                };
                if let Some(asked) = &asked {
                    event.prevent_default();
                    state.mark(asked, &keyed, says);
                }
            };
            view! {
                <li
                    class="hit"
                    tabindex=is_answer.then_some("0")
                    aria-keyshortcuts=is_answer.then_some("Plus -")
                    on:keydown=by_key
                >
                    <h3>{passage.title}</h3>
                    <p class="from">
                        {passage.source}
                        <span class="score" title="score">
                            <span class="bar" aria-hidden="true">
                                <span style:width=share></span>
                            </span>
                            {format!("{score:.2}")}
                        </span>
                    </p>
                    <p class="text">
                        <Marked text=passage.text ranges=marks />
                    </p>
                    <div class="marks">
                        {marks_of}
                        <button class="plain" on:click=move |_| query.set(Query::Like(id))>
                            "More like this"
                        </button>
                    </div>
                </li>
            }
        })
        .collect_view();
    view! { <ol class="hits">{hits}</ol> }.into_any()
}

async fn search(state: State, query: &Query) -> Result<Results> {
    let start = now();
    let (hits, like) = match query {
        Query::Text(text) => (state.nearest_to(text, SHOWN).await?, None),
        Query::Like(id) => {
            let Some(index) = state.index().filter(|_| state.passage(*id).is_some()) else {
                return Ok(Results::default());
            };
            let vectors = index.vectors(&[*id]).await?;
            let mut hits = index.search(&vectors[0], SHOWN + 1, index.model().as_deref()).await?;
            hits.retain(|hit| hit.id != *id);
            hits.truncate(SHOWN);
            (hits, Some(*id))
        }
    };
    let milliseconds = (now() - start) * 1000.0;
    let found = |hits: Vec<Hit>, marks: &dyn Fn(&str) -> Vec<Range<usize>>| {
        let one = |hit: Hit| {
            let passage = state.passage(hit.id)?;
            let marks = marks(&passage.text);
            Some(Found { id: hit.id, passage, score: hit.score, marks })
        };
        hits.into_iter().filter_map(one).collect()
    };
    let by_meaning = found(hits, &|_| Vec::new());
    let asked = match query {
        Query::Text(text) => text.clone(),
        Query::Like(id) => state.passage(*id).map_or(String::new(), |passage| embedded(&passage)),
    };
    let by_words = match state.words.get_untracked() {
        Some(words) => {
            let mut hits = words.search(&asked, SHOWN + 1);
            hits.retain(|hit| Some(hit.id) != like);
            hits.truncate(SHOWN);
            found(hits, &|text| words.matches(&asked, text))
        }
        None => Vec::new(),
    };
    Ok(Results { asked, by_meaning, by_words, milliseconds })
}

/// Marks the sentence of each passage that is nearest to the query.
async fn mark_sentences(state: State, query: &str, mut results: Results) -> Result<Results> {
    let Some(embedder) = state.embedder() else { return Ok(results) };
    let ranges: Vec<Vec<Range<usize>>> =
        results.by_meaning.iter().map(|found| reading::sentences(&found.passage.text)).collect();
    let mut texts = vec![query];
    for (found, ranges) in results.by_meaning.iter().zip(&ranges) {
        texts.extend(ranges.iter().map(|range| &found.passage.text[range.clone()]));
    }
    let mut vectors = embedder.embed(&texts).await?.into_iter();
    let Some(asked) = vectors.next() else { return Ok(results) };
    for (found, ranges) in results.by_meaning.iter_mut().zip(ranges) {
        // A passage of one sentence needs no mark.
        let scored: Vec<f32> =
            vectors.by_ref().take(ranges.len()).map(|vector| vector.dot(&asked)).collect();
        if ranges.len() > 1 {
            let best = (0..ranges.len()).max_by(|&a, &b| scored[a].total_cmp(&scored[b]));
            found.marks = best.map(|i| ranges[i].clone()).into_iter().collect();
        }
    }
    Ok(results)
}
