//! The run: how long it takes, the button that begins it, and how far it is.

use leptos::prelude::*;

use super::counted;
use crate::kiln::{FitProgress, Length};
use crate::parts::duration;
use crate::state::State;
use crate::teach::{HELD_BACK_FROM, HELPED_FROM, LEAST, Run};

/// How long the model can be taught.
const LENGTHS: [Length; 8] = [
    Length::Usual,
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
        Length::Usual => "as long as it takes".into(),
    }
}

/// Steps that kiln-embed times before it says how many there will be.
const TIMED: usize = 3;

/// How long to teach, the button, and how far it is.
#[component]
pub(super) fn Controls() -> impl IntoView {
    let state = expect_context::<State>();
    let teach = state.teach;
    let missing = Memo::new(move |_| LEAST.saturating_sub(teach.questions()));
    let is_ready = move || state.model.with(|model| model.info().is_some()) && !state.is_busy();
    let is_disabled = move || missing.get() > 0 || !is_ready();
    let name = move || match missing.get() {
        0 => "Teach the model".to_string(),
        1 => "Teach the model: 1 more question with a right answer, or synonym, is needed"
            .to_string(),
        n => format!(
            "Teach the model: {n} more questions with right answers, or synonyms, are needed"
        ),
    };
    let hint = move || {
        let questions = teach.questions();
        (missing.get() == 0 && questions < HELPED_FROM).then(|| {
            let held_back = if questions < HELD_BACK_FROM {
                format!("All of them are taught; from {HELD_BACK_FROM} on about a fifth")
            } else {
                "About a fifth".into()
            };
            format!(
                "These are {}. {held_back} is held back, to see whether the model has become better. So few helped a little on some texts where we tried it, and not at all on others; more help more. Compare the searches before and after.",
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
