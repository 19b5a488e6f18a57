//! A passage that was found, marked right or wrong.

use leptos::prelude::*;

use crate::kiln::Passage;
use crate::library::embedded;
use crate::state::State;
use crate::teach::Says;

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
    let text = embedded(&passage);
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
