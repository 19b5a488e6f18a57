//! What precision does to the results: that of the weights, and that of the index.

use std::future::Future;

use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::AbortController;

use super::{Figures, WEIGHTS};
use crate::kiln::{Embedder, Failure, Hit, Index, Passage, Result, Vector};
use crate::library::embedded;
use crate::parts::duration;
use crate::state::{Passages, State, now};

/// How an index can keep vectors, the exact way first.
const PRECISIONS: [&str; 4] = ["f32", "int8", "binary", "binary+int8"];
/// Titles that are searched for when precisions are compared.
const ASKED: usize = 50;
/// Passages that are searched when weights are compared.
const SEARCHED: usize = 150;
const TOP: usize = 10;

/// How far a comparison is, while one is under way.
type At = RwSignal<Option<String>>;

/// Runs a comparison that gives lines of figures, and says how far it is.
fn run<F: Future<Output = Result<Vec<Vec<String>>>> + 'static>(
    state: State,
    i: At,
    lines: RwSignal<Vec<Vec<String>>>,
    compare: impl FnOnce() -> F + 'static,
) {
    lines.set(Vec::new());
    i.set(Some("Comparing…".into()));
    spawn_local(async move {
        match compare().await {
            Ok(found) => lines.set(found),
            Err(failure) => state.tell(&failure),
        }
        i.set(None);
    });
}

/// A button that begins a comparison, and then says how far it is.
#[component]
fn Begin(i: At, #[prop(into)] on_click: Callback<()>) -> impl IntoView {
    let state = expect_context::<State>();
    let enough = move || state.passages.with(|passages| passages.len() > TOP);
    view! {
        <button
            disabled=move || i.with(Option::is_some) || state.is_busy() || !enough()
            on:click=move |_| on_click.run(())
        >
            {move || i.get().unwrap_or("Compare".into())}
        </button>
    }
}

/// The model with its weights in each precision.
#[component]
pub(super) fn WeightPrecision() -> impl IntoView {
    let state = expect_context::<State>();
    let lines = RwSignal::new(Vec::new());
    let i = At::new(None);
    // Another page ends it.
    let stop = StoredValue::new_local(AbortController::new().ok());
    on_cleanup(move || {
        stop.with_value(|stop| {
            if let Some(stop) = stop {
                stop.abort();
            }
        });
    });
    let begin = move |()| {
        run(state, i, lines, move || async move {
            let stop = stop
                .get_value()
                .ok_or_else(|| Failure::from("nothing can be stopped here".to_string()))?;
            compare_weights(state, i, &stop).await
        });
    };
    view! {
        <section aria-labelledby="weight-precision">
            <h2 id="weight-precision">"Precision of the weights"</h2>
            <p class="what">
                {format!("The same model with its weights rounded as it is loaded, and what that does to its vectors, to what is found among {SEARCHED} passages, and to the speed. Weights that its file keeps in fewer bits stay as they are. Choose above what the page computes with.")}
            </p>
            <div class="buttons">
                <Begin i=i on_click=begin />
            </div>
            <Figures
                columns=&[
                    "Weights",
                    "Mean cosine to f32",
                    "Least cosine",
                    "Of f32's ten best",
                    "Texts a second",
                    "Loads in",
                ]
                rows=lines
            />
        </section>
    }
}

/// Passages and titles embedded by the model in each precision, f32 first.
async fn compare_weights(state: State, i: At, stop: &AbortController) -> Result<Vec<Vec<String>>> {
    let all = state.passages.get_untracked();
    let step = all.len().div_ceil(SEARCHED).max(1);
    let passages: Vec<String> =
        all.iter().step_by(step).map(|(_, passage)| embedded(passage)).collect();
    let titles = titles(&all);
    let mut exact: Option<(Vec<Vector>, Vec<Vec<usize>>)> = None;
    let mut lines = Vec::new();
    let order = ["f32", "kept", "int8", "int4"];
    for (number, (weights, name)) in
        order.iter().filter_map(|one| WEIGHTS.iter().find(|(known, _)| known == one)).enumerate()
    {
        let far = format!("{} of {}: {name}", number + 1, order.len());
        i.set(Some(format!("{far}, loading")));
        let device = state.device.get_untracked();
        let start = now();
        let model =
            Embedder::load(&state.source().value, &device, weights, &stop.signal(), |_| {}).await?;
        let loaded = now() - start;
        let model = Disposed(model);
        let (start, total) = (now(), passages.len());
        let texts: Vec<&str> = passages.iter().map(String::as_str).collect();
        let on_progress = move |done: usize| {
            let left = (total - done.min(total)) as f64 * (now() - start) / done.max(1) as f64;
            i.set(Some(format!("{far}, {done} of {total}, {} left", duration(left))));
        };
        let vectors = model.0.embed_many(&texts, None, &stop.signal(), on_progress).await?;
        let rate = total as f64 / (now() - start).max(1e-6);
        let queries = model.0.embed(&titles).await?;
        let best: Vec<Vec<usize>> = queries.iter().map(|query| nearest(query, &vectors)).collect();
        let (vectors_of_f32, best_of_f32) =
            exact.get_or_insert_with(|| (vectors.clone(), best.clone()));
        let cosines: Vec<f32> = vectors
            .iter()
            .zip(vectors_of_f32.iter())
            .map(|(one, other)| one.cosine(other))
            .collect();
        let mean = cosines.iter().sum::<f32>() / cosines.len().max(1) as f32;
        let least = cosines.iter().copied().fold(1.0, f32::min);
        let expected: usize = best_of_f32.iter().map(Vec::len).sum();
        let found: usize = (best.iter().zip(best_of_f32.iter()))
            .map(|(best, exact)| exact.iter().filter(|one| best.contains(one)).count())
            .sum();
        let name = match (*weights, model.0.info()?.weights) {
            ("kept", Some(kept)) => format!("{name} ({kept})"),
            _ => name.to_string(),
        };
        lines.push(vec![
            name,
            format!("{mean:.4}"),
            format!("{least:.4}"),
            format!("{:.1} %", found as f64 * 100.0 / expected.max(1) as f64),
            format!("{rate:.1}"),
            format!("{loaded:.2} s"),
        ]);
    }
    Ok(lines)
}

/// A model that is let go with this.
struct Disposed(Embedder);

impl Drop for Disposed {
    fn drop(&mut self) {
        self.0.dispose();
    }
}

/// Places of the vectors nearest to a query, the best first.
fn nearest(query: &Vector, vectors: &[Vector]) -> Vec<usize> {
    let mut scored: Vec<(f32, usize)> =
        vectors.iter().enumerate().map(|(i, vector)| (query.dot(vector), i)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().take(TOP).map(|(_, i)| i).collect()
}

/// Titles from all over the collection.
fn titles(passages: &Passages) -> Vec<&str> {
    let step = passages.len().div_ceil(ASKED).max(1);
    passages.iter().step_by(step).map(|(_, passage)| passage.title.as_str()).collect()
}

/// The index in each precision.
#[component]
pub(super) fn IndexPrecision() -> impl IntoView {
    let state = expect_context::<State>();
    let lines = RwSignal::new(Vec::new());
    let i = At::new(None);
    let begin = move |()| run(state, i, lines, move || compare_indexes(state, i));
    view! {
        <section aria-labelledby="precision">
            <h2 id="precision">"Precision of the index"</h2>
            <p class="what">
                "How vectors are kept decides how much memory a collection takes, and what is found. Compared on the collection that is open, with its own titles as queries."
            </p>
            <div class="buttons">
                <Begin i=i on_click=begin />
                <label for="precision-used">"Used for the search"</label>
                <select
                    id="precision-used"
                    disabled=move || state.is_busy()
                    prop:value=move || state.precision.get()
                    on:change=move |event| state.change_precision(event_target_value(&event))
                >
                    {PRECISIONS
                        .map(|one| {
                            view! {
                                <option value=one selected=move || state.precision.get() == one>{one}</option>
                            }
                        })
                        .collect_view()}
                </select>
            </div>
            <Figures
                columns=&[
                    "Precision",
                    "Bytes a vector",
                    "Of f32's ten best",
                    "Scores differ by",
                    "A search takes",
                ]
                rows=lines
            />
        </section>
    }
}

/// Embeds the collection once, and keeps it in each precision. `i` says how far this is.
async fn compare_indexes(state: State, i: At) -> Result<Vec<Vec<String>>> {
    let missing = || Failure::from("no model is loaded".to_string());
    let embedder = state.embedder().ok_or_else(missing)?;
    let passages = state.passages.get_untracked();
    let start = now();
    let mut vectors: Vec<Vector> = Vec::new();
    for some in passages.chunks(8) {
        let left =
            (passages.len() - vectors.len()) as f64 * (now() - start) / vectors.len().max(1) as f64;
        let left =
            if vectors.is_empty() { String::new() } else { format!(", {} left", duration(left)) };
        i.set(Some(format!("{} of {}{left}", vectors.len(), passages.len())));
        let texts: Vec<String> = some.iter().map(|(_, passage)| embedded(passage)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        vectors.extend(embedder.embed(&texts).await?);
    }
    let queries = embedder.embed(&titles(&passages)).await?;
    let mut exact: Vec<Vec<Hit>> = Vec::new();
    let mut lines = Vec::new();
    for precision in PRECISIONS {
        i.set(Some(format!("searching in {precision}")));
        let index = Index::create(embedder.info()?.dimensions, precision, None).await?;
        let rows: Vec<(u32, &Passage, Vector)> = passages
            .iter()
            .zip(&vectors)
            .map(|((id, passage), vector)| (*id, passage, vector.clone()))
            .collect();
        index.add(&rows, None).await?;
        let start = now();
        let mut hits = Vec::new();
        for query in &queries {
            hits.push(index.search(query, TOP, None).await?);
        }
        let milliseconds = (now() - start) * 1000.0 / queries.len() as f64;
        if exact.is_empty() {
            exact = hits.clone();
        }
        // Hits that f32 has too, and how far their scores are from f32's.
        let same = exact.iter().zip(&hits).flat_map(|(exact, hits)| {
            exact
                .iter()
                .filter_map(|hit| Some((hit, hits.iter().find(|other| other.id == hit.id)?)))
        });
        let off: Vec<f64> =
            same.map(|(exact, hit)| f64::from((exact.score - hit.score).abs())).collect();
        let bytes = index.to_bytes().await?.len() as f64 / passages.len() as f64;
        let expected: usize = exact.iter().map(Vec::len).sum();
        lines.push(vec![
            precision.to_string(),
            format!("{bytes:.0}"),
            format!("{:.1} %", off.len() as f64 * 100.0 / expected.max(1) as f64),
            format!("{:.4}", off.iter().sum::<f64>() / off.len().max(1) as f64),
            format!("{milliseconds:.2} ms"),
        ]);
        index.dispose();
    }
    Ok(lines)
}
