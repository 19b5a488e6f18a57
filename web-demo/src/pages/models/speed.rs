//! How fast the model is here.

use leptos::prelude::*;
use leptos::task::spawn_local;

use super::Figures;
use crate::kiln::{Failure, Result};
use crate::state::{State, now};

/// Words of the texts whose speed is measured.
const LENGTHS: [usize; 3] = [10, 50, 150];
/// Seconds that each of them is measured for.
const MEASURED: f64 = 1.5;

/// Texts a second at some lengths.
#[component]
pub(super) fn Speed() -> impl IntoView {
    let state = expect_context::<State>();
    let measured = RwSignal::new(Vec::<(usize, f64, f64)>::new());
    let running = RwSignal::new(false);
    let run = move |_| {
        running.set(true);
        measured.set(Vec::new());
        spawn_local(async move {
            for words in LENGTHS {
                match speed(state, words).await {
                    Ok((rate, first)) => measured.update(|all| all.push((words, rate, first))),
                    Err(failure) => {
                        state.fail(failure.message);
                        break;
                    }
                }
            }
            running.set(false);
        });
    };
    view! {
        <section aria-labelledby="speed">
            <h2 id="speed">"Speed here"</h2>
            <p class="what">"Where the model is computed now, from a worker; each line is measured for a second and a half."</p>
            <button disabled=move || running.get() || state.is_busy() on:click=run>
                {move || if running.get() { "Measuring…" } else { "Measure" }}
            </button>
            <Figures
                columns=&["Words a text", "Texts a second", "One text alone"]
                rows=Signal::derive(move || {
                    let line = |(words, rate, one): (usize, f64, f64)| {
                        vec![words.to_string(), format!("{rate:.1}"), format!("{:.1} ms", one * 1000.0)]
                    };
                    measured.get().into_iter().map(line).collect()
                })
            />
        </section>
    }
}

/// Texts a second in batches, and seconds for a text alone.
async fn speed(state: State, words: usize) -> Result<(f64, f64)> {
    let missing = || Failure::from("no model is loaded".to_string());
    let embedder = state.embedder().ok_or_else(missing)?;
    // Real words: the collection's, one text after another.
    let all: Vec<String> = crate::reading::collection()
        .iter()
        .flat_map(|passage| passage.text.split(' ').map(String::from).collect::<Vec<_>>())
        .collect();
    let texts: Vec<String> = all.chunks_exact(words).take(8).map(|words| words.join(" ")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    // Once for what only the first run does.
    embedder.embed(&texts[..1]).await?;
    let start = now();
    embedder.embed(&texts[..1]).await?;
    let one = now() - start;
    let (start, mut done) = (now(), 0);
    while done == 0 || now() - start < MEASURED {
        embedder.embed(&texts).await?;
        done += texts.len();
    }
    Ok((done as f64 / (now() - start), one))
}
