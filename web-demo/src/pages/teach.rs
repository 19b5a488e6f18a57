//! Teach: what is right and wrong, a run that learns it, and what it did to the search.

use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::FileList;

use super::collection::{bytes, offer};
use super::search::Query;
use crate::kiln::{FitProgress, Length, Passage, Score, Taught};
use crate::parts::{FileButton, duration, megabytes};
use crate::state::State;
use crate::teach::{Compared, Ended, HELD_BACK_FROM, LEAST, Lesson, Run, Says, Titled};

/// How long the model can be taught.
const LENGTHS: [Length; 7] = [
    Length::Seconds(10),
    Length::Seconds(20),
    Length::Seconds(60),
    Length::Seconds(180),
    Length::Steps(20),
    Length::Steps(60),
    Length::Steps(200),
];

fn named(length: Length) -> String {
    match length {
        Length::Seconds(seconds) => duration(f64::from(seconds)),
        Length::Steps(steps) => format!("{steps} steps"),
    }
}

/// Steps that kiln-embed times before it says how many there will be.
const TIMED: usize = 3;

/// A button that says of a passage whether it answers what was asked.
#[component]
pub(crate) fn Mark(
    asked: String,
    passage: Passage,
    says: Says,
    /// Beside words that were found, which are no answer of the model's.
    by_words: bool,
) -> impl IntoView {
    let state = expect_context::<State>();
    let text = crate::library::embedded(&passage);
    let pressed = {
        let asked = asked.clone();
        Memo::new(move |_| state.teach.said(&asked, &text) == Some(says))
    };
    let (name, label) = match says {
        Says::Wrong => ("Wrong", format!("Wrong: {}", passage.title)),
        _ if by_words => {
            ("This is what I meant", format!("This is what I meant: {}", passage.title))
        }
        _ => ("Right", format!("Right: {}", passage.title)),
    };
    let is_up = says != Says::Wrong;
    view! {
        <button
            class="mark"
            aria-pressed=move || pressed.get().to_string()
            aria-label=label
            on:click=move |_| state.mark(&asked, &passage, says)
        >
            <svg class:down=!is_up viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
                <path d="M1 7h3v7H1zM5 7l3-6c1.4 0 2 .9 1.8 2L9.3 6H14c.8 0 1.3.7 1.1 1.5l-1.3 5.3c-.2.7-.7 1.2-1.5 1.2H5z" />
            </svg>
            {name}
        </button>
    }
}

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

/// Two words for one thing.
#[component]
fn Synonym() -> impl IntoView {
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
fn Pick(query: RwSignal<Query>) -> impl IntoView {
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
            if state.teach.said(&asked, &crate::library::embedded(&passage)) != Some(Says::Right) {
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
fn Lessons() -> impl IntoView {
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

/// How long to teach, the button, and how far it is.
#[component]
fn Controls() -> impl IntoView {
    let state = expect_context::<State>();
    let teach = state.teach;
    let missing = Memo::new(move |_| {
        let [right, _, synonyms] = teach.counts();
        LEAST.saturating_sub(right + synonyms)
    });
    let is_ready = move || state.model.with(|model| model.info().is_some()) && !state.is_busy();
    let is_disabled = move || missing.get() > 0 || !is_ready();
    let name = move || match missing.get() {
        0 => "Teach the model".to_string(),
        1 => "Teach the model: 1 more right answer or synonym is needed".to_string(),
        n => format!("Teach the model: {n} more right answers or synonyms are needed"),
    };
    let hint = move || {
        let questions = teach.questions();
        (missing.get() == 0 && questions < HELD_BACK_FROM).then(|| {
            format!(
                "These are {}. All of them are taught; from {HELD_BACK_FROM} on about a fifth is held back, to see whether the model has become better. So few have not helped measurably where we tried it: compare the searches before and after.",
                counted(questions, "question"),
            )
        })
    };
    let waiting = move || {
        let queries = teach.only_wrong();
        (!queries.is_empty()).then(|| {
            let named: Vec<String> = queries.iter().map(|query| format!("“{query}”")).collect();
            format!(
                "What is wrong is learned beside what is right: mark a right answer to {} too.",
                named.join(", ")
            )
        })
    };
    let idle = move || {
        view! {
            <div class="line">
                <button class="main" disabled=is_disabled on:click=move |_| state.teach_now(false)>
                    {name}
                </button>
                <Show when=move || teach.unfinished.get()>
                    <button disabled=move || !is_ready() on:click=move |_| state.teach_now(true)>
                        "Go on with the run that was cut off"
                    </button>
                </Show>
                <label for="teach-length">"for"</label>
                <select id="teach-length" on:change=move |event| {
                    let chosen = event_target_value(&event);
                    if let Some(length) = LENGTHS.into_iter().find(|length| named(*length) == chosen) {
                        state.change_length(length);
                    }
                }>
                    {LENGTHS
                        .map(|length| {
                            view! {
                                <option selected=move || teach.length.get() == length>{named(length)}</option>
                            }
                        })
                        .collect_view()}
                </select>
            </div>
        }
    };
    let running = Memo::new(move |_| teach.run.with(Option::is_some));
    view! {
        {move || hint().map(|hint| view! { <p class="what">{hint}</p> })}
        {move || waiting().map(|waiting| view! { <p class="what">{waiting}</p> })}
        {move || if running.get() { view! { <Running /> }.into_any() } else { idle().into_any() }}
    }
}

#[component]
fn Running() -> impl IntoView {
    let state = expect_context::<State>();
    let run = state.teach.run;
    let steps = move || match run.get() {
        Some(Run::Steps(FitProgress { step, steps: Some(steps), .. })) if step >= TIMED => {
            Some((step, steps))
        }
        _ => None,
    };
    let words = move || match run.get() {
        Some(Run::Steps(FitProgress { step, steps, loss, seconds_left })) => {
            // How many there will be is known once some were timed.
            let seconds_left = seconds_left.filter(|_| step >= TIMED);
            let of = steps.filter(|_| step >= TIMED);
            let of = of.map_or(String::new(), |steps| format!(" of {steps}"));
            let loss = loss.map_or(String::new(), |loss| format!(", loss {loss:.2}"));
            let left =
                seconds_left.map_or(String::new(), |left| format!(", {} left", duration(left)));
            format!("step {step}{of}{loss}{left}")
        }
        _ => "fetching what trains".into(),
    };
    view! {
        <div class="job">
            <label for="teaching">"Teaching"</label>
            <progress
                id="teaching"
                max=move || steps().map_or(1, |(_, steps)| steps).to_string()
                prop:value=move || steps().map_or(0.0, |(step, _)| step as f64)
            ></progress>
            <span>{words}</span>
            <button on:click=move |_| state.stop_teaching()>"Stop teaching"</button>
        </div>
    }
}

/// How the last run ended, in a sentence or two.
#[component]
fn Outcome(ended: Ended) -> impl IntoView {
    match ended {
        Ended::Failed(message) => {
            view! { <p class="error" role="alert">{format!("Nothing was learned: {message}")}</p> }
                .into_any()
        }
        Ended::Stopped => {
            view! { <p class="outcome">"Teaching was stopped; the model stays as it was."</p> }
                .into_any()
        }
        Ended::Learned(taught) => view! { <p class="outcome">{learned(&taught)}</p> }.into_any(),
    }
}

fn learned(taught: &Taught) -> String {
    let Taught { kept, taught: count, held_back, steps, before, after, seconds } = taught;
    let work = format!("{} in {}", counted(*steps, "step"), duration(*seconds));
    let scores = |before: &Score, after: &Score| {
        format!(
            "Of {held_back} questions that it was not taught, the right passage's place scores {:.2} now, and {:.2} before (mean reciprocal rank: 1 if it always comes first, 0.5 if always second).",
            after.mrr, before.mrr,
        )
    };
    match (kept, before, after) {
        (true, Some(before), Some(after)) => {
            // kiln-embed keeps what ranks answers as high as before and sets them off more.
            let alike = if after.mrr - before.mrr < 0.005 {
                " By place that is no gain; the right passages only stand out more from the rest."
            } else {
                ""
            };
            let from = counted(*count, "question");
            format!("Learned from {from}, {work}. {}{alike}", scores(before, after))
        }
        (false, Some(before), Some(after)) => format!(
            "The model stays as it was: teaching did not help. {}",
            scores(before, after).replace(" now,", " after teaching,")
        ),
        (true, ..) => format!(
            "Learned from {}, {work}. None could be held back, so whether the model has become better is not known: see for yourself.",
            counted(*count, "question")
        ),
        (false, ..) => "The model stays as it was.".into(),
    }
}

/// The last searches before and after.
#[component]
fn Comparison() -> impl IntoView {
    let state = expect_context::<State>();
    let list = |titles: &[Titled], before: Option<&[Titled]>| {
        let line = |(place, (id, title)): (usize, &Titled)| {
            let title = title.clone();
            match before.and_then(|before| moved(before, *id, place)) {
                Some(moved) => {
                    view! { <li><mark>{title}</mark> " " <small>{moved}</small></li> }.into_any()
                }
                None => view! { <li>{title}</li> }.into_any(),
            }
        };
        titles.iter().enumerate().map(line).collect_view()
    };
    let one = move |Compared { query, before, after }: Compared| {
        let after = if after.is_empty() {
            view! { <td class="none">"once the passages are indexed"</td> }.into_any()
        } else {
            view! { <td><ol>{list(&after, Some(&before))}</ol></td> }.into_any()
        };
        view! {
            <tbody>
                <tr><th scope="rowgroup" colspan="2">{query}</th></tr>
                <tr><td><ol>{list(&before, None)}</ol></td>{after}</tr>
            </tbody>
        }
    };
    move || {
        let compared = state.teach.compared.get();
        (!compared.is_empty()).then(|| {
            view! {
                <table class="compared">
                    <caption>"Your last searches"</caption>
                    <thead><tr><th scope="col">"Before"</th><th scope="col">"Now"</th></tr></thead>
                    {compared.into_iter().map(one).collect_view()}
                </table>
            }
        })
    }
}

/// How a passage's place has changed, where it has.
fn moved(before: &[Titled], id: u32, place: usize) -> Option<String> {
    match before.iter().position(|(other, _)| *other == id) {
        None => Some("new".into()),
        Some(former) if former > place => Some(format!("up {}", former - place)),
        Some(former) if former < place => Some(format!("down {}", place - former)),
        Some(_) => None,
    }
}

/// What was learned: in use or not, and as files.
#[component]
fn Learned() -> impl IntoView {
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
