//! How the run ended, and the last searches before and after it.

use leptos::prelude::*;

use super::counted;
use crate::kiln::{Score, Taught};
use crate::parts::duration;
use crate::state::State;
use crate::teach::{Compared, Ended, Titled};

/// How the last run ended, in a sentence or two.
#[component]
pub(super) fn Outcome(ended: Ended) -> impl IntoView {
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
    let Taught { kept, taught: count, held_back, steps, before, after, new_words, seconds } =
        taught;
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
            let alike = if after.mrr - before.mrr >= 0.005 {
                ""
            } else if before.mrr > 0.995 {
                " They came first before, too, and so cannot show a gain: other questions may even be answered a little worse. See for yourself, and undo it if so."
            } else {
                " By place that is no gain; the right passages only stand out more from the rest."
            };
            let from = counted(*count, "question");
            let longer = if *new_words {
                " These words are new to the model, so it practised longer: other questions may be answered a little worse."
            } else {
                ""
            };
            format!("Learned from {from}, {work}. {}{alike}{longer}", scores(before, after))
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
pub(super) fn Comparison() -> impl IntoView {
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
