//! Pooling lens: what each way of pooling looks at in a sentence, and two sentences token by token.

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::kiln::{Failure, HeadView, Lens, Token};
use crate::parts::HeatMap;
use crate::state::{State, Turns};

/// Tokens of which heat maps are drawn, at most.
const DRAWN: usize = 96;
const PAUSE: u32 = 200;

/// What a head does, in a sentence.
fn explained(name: &str) -> &'static str {
    match name {
        "mean" => "Every token counts the same.",
        "cls" => "Only the first token's state is taken, as BERT was trained for.",
        "last_token" => "Only the last token's state is taken, as decoders are often pooled.",
        "weighted_mean" => "Later tokens count more: weights 1, 2, 3 and so on (SGPT).",
        "anchor" => {
            "Tokens count as much as the attention that others pay to them (anchor-token-aware)."
        }
        "latent_attention" => {
            "Tokens look at trained latents, and the mean is taken then (NV-Embed)."
        }
        "self_attention" => "Tokens look at one another once more, and the mean is taken then.",
        "last_layer_trainable" => "Trained latents look at the last layer's tokens.",
        "multi_layer_trainable" => "Trained latents look at one state a layer.",
        _ => "",
    }
}

/// A name for people.
fn title(name: &str) -> String {
    match name {
        "cls" => "First token".into(),
        "anchor" => "Attention drawn (ATA)".into(),
        name => {
            let mut words = name.replace('_', " ");
            if let Some(first) = words.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            words
        }
    }
}

/// The lens page.
#[component]
pub(crate) fn LensPage() -> impl IntoView {
    let state = expect_context::<State>();
    let first = RwSignal::new("The bank raised the interest on its loans.".to_string());
    let second = RwSignal::new("We had lunch on the bank of the river.".to_string());
    let as_it_was = RwSignal::new(false);
    let seen_first = looked_at(state, first, as_it_was);
    let seen_second = looked_at(state, second, as_it_was);
    let field = |id: &'static str, label: &'static str, text: RwSignal<String>| {
        view! {
            <label for=id>{label}</label>
            <input
                id=id
                autocomplete="off"
                prop:value=move || text.get()
                on:input=move |event| text.set(event_target_value(&event))
            />
        }
    };
    view! {
        <div class="ask">{field("first", "A sentence", first)}</div>
        <div class="ask">{field("second", "Another one, to compare", second)}</div>
        <Show when=move || state.in_use.with(Option::is_some)>
            <div class="line" role="group" aria-label="The model that is looked at">
                {[(false, "As taught"), (true, "As it was")]
                    .map(|(was, name)| {
                        view! {
                            <button
                                aria-pressed=move || (as_it_was.get() == was).to_string()
                                on:click=move |_| as_it_was.set(was)
                            >
                                {name}
                            </button>
                        }
                    })
                    .collect_view()}
            </div>
        </Show>
        {move || match seen_first.get() {
            None => {
                view! { <p class="none">"Nothing to look at yet: the model is being loaded, or there is no text."</p> }
                    .into_any()
            }
            Some(seen) => {
                let pair = seen.clone();
                view! {
                    <Heads seen=seen.clone() />
                    {move || seen_second.get().map(|other| view! { <Pair seen=pair.clone() other /> })}
                    <Layers seen=seen.clone() />
                    <Attention seen />
                }
                    .into_any()
            }
        }}
    }
}

/// A text and what the lens shows of it.
#[derive(Clone, PartialEq)]
struct Looked {
    /// The tokens as they stand in the text.
    names: Vec<String>,
    lens: Lens,
    /// The model's own head.
    pooling: String,
    vector: Vec<f32>,
    /// The vector as taught, and as it was, where the model that searches was taught.
    both: Option<[Vec<f32>; 2]>,
}

/// The lens over a text, anew where text or model change.
fn looked_at(
    state: State,
    text: RwSignal<String>,
    as_it_was: RwSignal<bool>,
) -> RwSignal<Option<Looked>> {
    let seen = RwSignal::new(None);
    let turns = Turns::new();
    Effect::new(move |_| {
        let text = text.get();
        let pooling = state.model.with(|model| model.info().map(|info| info.pooling.clone()));
        let taught = state.in_use.get().map(|variant| variant.name);
        let adapter = taught.clone().filter(|_| !as_it_was.get());
        let is_latest = turns.next();
        let Some(pooling) = pooling.filter(|_| !text.trim().is_empty()) else {
            seen.set(None);
            return;
        };
        spawn_local(async move {
            TimeoutFuture::new(PAUSE).await;
            let Some(embedder) = state.embedder().filter(|_| is_latest()) else { return };
            let look = async {
                let lens = embedder.lens(&text, adapter.as_deref()).await?;
                let names = lens.own.tokens.iter().map(|token| shown(&text, token)).collect();
                let vector = async |adapter: Option<&str>| {
                    let found = embedder.embed_as(&[&text], adapter).await?;
                    Ok::<_, Failure>(
                        found.first().map(|vector| vector.to_vec()).unwrap_or_default(),
                    )
                };
                let was = vector(None).await?;
                let (vector, both) = match taught.as_deref() {
                    None => (was, None),
                    Some(name) => {
                        let now = vector(Some(name)).await?;
                        let own = if adapter.is_some() { now.clone() } else { was.clone() };
                        (own, Some([now, was]))
                    }
                };
                Ok::<_, Failure>(Looked { names, lens, pooling, vector, both })
            };
            match look.await {
                Ok(looked) if is_latest() => seen.set(Some(looked)),
                Err(failure) if is_latest() && !failure.aborted => state.fail(failure.message),
                _ => {}
            }
        });
    });
    seen
}

/// A token as it stands in the text, or by its own name where it is not of the text.
fn shown(text: &str, token: &Token) -> String {
    let units: Vec<u16> = text.encode_utf16().collect();
    match units.get(token.start..token.end) {
        Some(part) if !part.is_empty() => String::from_utf16_lossy(part).trim().into(),
        _ => token.token.replace('Ġ', ""),
    }
}

/// The heads, each as the sentence shaded by its weights.
#[component]
fn Heads(seen: Looked) -> impl IntoView {
    let Looked { names: tokens, lens, pooling, .. } = seen;
    // The model's own first.
    let own =
        lens.own.weights.map(|weights| HeadView { name: pooling.clone(), weights, cosine: None });
    let others = lens.heads.into_iter().filter(|head| head.name != pooling);
    let rows = own
        .into_iter()
        .chain(others)
        .map(|head| {
            let largest = head.weights.iter().copied().fold(1e-6f32, f32::max);
            let is_own = head.name == pooling;
            let chips = tokens
                .iter()
                .zip(&head.weights)
                .map(|(token, weight)| {
                    let share = format!("{:.0}%", (weight / largest * 70.0).clamp(0.0, 70.0));
                    let words = format!("“{token}” has {:.1} % of the weight", weight * 100.0);
                    view! {
                        <span class="token" style:--weight=share title=words.clone()>
                            {token.clone()}
                            <span class="visually-hidden">{format!(" {:.0} %", weight * 100.0)}</span>
                        </span>
                    }
                })
                .collect_view();
            let cosine = match (is_own, head.cosine) {
                (true, _) => "this model's own".to_string(),
                (false, Some(cosine)) => format!("cosine to this model's vector {cosine:.3}"),
                (false, None) => String::new(),
            };
            view! {
                <li class="head" class:own=is_own>
                    <h3>{title(&head.name)} " " <small>{cosine}</small></h3>
                    <p class="what">{explained(&head.name)}</p>
                    <p class="tokens">{chips}</p>
                </li>
            }
        })
        .collect_view();
    let latents = lens.own.latents.map(|maps| {
        let names: Vec<String> = tokens.iter().take(DRAWN).cloned().collect();
        let maps = maps
            .into_iter()
            .enumerate()
            .map(|(head, map)| {
                let count = map.first().map_or(0, Vec::len);
                let columns = (0..count).map(|latent| format!("latent {latent}")).collect();
                let values = map.into_iter().take(DRAWN).flatten().collect();
                let label = format!(
                    "Head {}: attention between {} tokens and {count} latents",
                    head + 1,
                    names.len()
                );
                view! {
                    <figure>
                        <HeatMap rows=names.clone() columns values label />
                        <figcaption>{format!("head {}", head + 1)}</figcaption>
                    </figure>
                }
            })
            .collect_view();
        view! {
            <section aria-labelledby="latents">
                <h2 id="latents">"Latents"</h2>
                <p class="what">"Rows are tokens, columns the trained latents; a shade says how much one looks at the other."</p>
                <div class="figures">{maps}</div>
            </section>
        }
    });
    view! {
        <section aria-labelledby="heads">
            <h2 id="heads">"What pooling looks at"</h2>
            <ul class="heads">{rows}</ul>
        </section>
        {latents}
    }
}

/// Two sentences, token by token.
#[component]
fn Pair(seen: Looked, other: Looked) -> impl IntoView {
    let states = |seen: &Looked| -> Vec<Vec<f32>> {
        let width = seen.lens.states.len() / seen.names.len().max(1);
        let rows = seen.lens.states.chunks_exact(width.max(1));
        rows.take(DRAWN).map(<[f32]>::to_vec).collect()
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let (rows, columns) = (states(&seen), states(&other));
    let values: Vec<f32> =
        rows.iter().flat_map(|row| columns.iter().map(|column| dot(row, column))).collect();
    let names = |seen: &Looked| seen.names.iter().take(DRAWN).cloned().collect::<Vec<_>>();
    // Special tokens and full stops stand in every text and say nothing.
    let is_word = |seen: &Looked, i: usize| {
        let of_text = seen.lens.own.tokens.get(i).is_some_and(|token| token.end > token.start);
        of_text && seen.names.get(i).is_some_and(|name| name.chars().any(char::is_alphanumeric))
    };
    let nearest = (0..values.len())
        .filter(|i| is_word(&seen, i / columns.len()) && is_word(&other, i % columns.len()))
        .max_by(|&a, &b| values[a].total_cmp(&values[b]));
    let nearest = nearest.map_or(String::new(), |i| {
        let (a, b) = (&seen.names[i / columns.len()], &other.names[i % columns.len()]);
        format!(" The nearest two tokens are “{a}” and “{b}” with {:.2}.", values[i])
    });
    let length = |x: &[f32]| dot(x, x).sqrt().max(1e-12);
    let between = |a: &[f32], b: &[f32]| dot(a, b) / length(a) / length(b);
    let cosine = match (&seen.both, &other.both) {
        (Some([now, was]), Some([other_now, other_was])) => format!(
            "cosine of their vectors {:.3} as taught, {:.3} as it was",
            between(now, other_now),
            between(was, other_was)
        ),
        _ => format!("cosine of their vectors {:.3}", between(&seen.vector, &other.vector)),
    };
    let label = format!(
        "Cosines between the {} tokens of the first sentence and the {} of the second.{nearest}",
        rows.len(),
        columns.len()
    );
    let words = (names(&seen).join(" "), names(&other).join(" "));
    view! {
        <section aria-labelledby="pair">
            <h2 id="pair">"Two sentences " <small>{cosine}</small></h2>
            <p class="what">
                {format!(
                    "Rows are the tokens of the first sentence, columns those of the second; a shade is the cosine of their states.{nearest}",
                )}
            </p>
            <figure class="large">
                <HeatMap rows=names(&seen) columns=names(&other) values label />
                <figcaption>"↓ " {words.0} " → " {words.1}</figcaption>
            </figure>
        </section>
    }
}

/// How near the mean state comes to its last place, layer by layer; or the weights of the layers,
/// where the model's own head has some.
#[component]
fn Layers(seen: Looked) -> impl IntoView {
    let lens = seen.lens;
    let (what, values) = match lens.own.layers {
        Some(weights) => ("The weight that this model's pooling gives to each layer.", weights),
        None => {
            let what = "Cosine between the mean state after each layer and after the last: how early the sentence's meaning is there.";
            (what, lens.layers)
        }
    };
    let is_from_embeddings = values.len() > 1;
    let bars = values
        .into_iter()
        .enumerate()
        .map(|(i, value)| {
            let name = match i {
                0 if is_from_embeddings => "embeddings".to_string(),
                i => format!("layer {i}"),
            };
            let share = format!("{:.0}%", value.clamp(0.0, 1.0) * 100.0);
            view! {
                <tr>
                    <th scope="row">{name}</th>
                    <td class="wide">
                        <span class="bar" aria-hidden="true"><span style:width=share></span></span>
                    </td>
                    <td>{format!("{value:.3}")}</td>
                </tr>
            }
        })
        .collect_view();
    view! {
        <section aria-labelledby="layers">
            <h2 id="layers">"Layers"</h2>
            <p class="what">{what}</p>
            <table class="bars"><tbody>{bars}</tbody></table>
        </section>
    }
}

/// The last layer's attention, head by head.
#[component]
fn Attention(seen: Looked) -> impl IntoView {
    let count = seen.names.len();
    let drawn = count.min(DRAWN);
    let names: Vec<String> = seen.names.into_iter().take(DRAWN).collect();
    let heads = (0..seen.lens.attention_heads)
        .map(|head| {
            let map = &seen.lens.attention[head * count * count..(head + 1) * count * count];
            let values: Vec<f32> =
                map.chunks(count).take(drawn).flat_map(|row| &row[..drawn]).copied().collect();
            let label = format!("Head {}: attention of {drawn} tokens to one another", head + 1);
            view! {
                <figure>
                    <HeatMap rows=names.clone() columns=names.clone() values label />
                    <figcaption>{format!("head {}", head + 1)}</figcaption>
                </figure>
            }
        })
        .collect_view();
    let cut = (drawn < count).then(|| format!(" The first {drawn} of {count} tokens are drawn."));
    view! {
        <section aria-labelledby="attention">
            <h2 id="attention">"Attention of the last layer"</h2>
            <p class="what">
                "Rows look at columns; point at a cell, or move with the arrow keys, to read it." {cut}
            </p>
            <div class="figures">{heads}</div>
        </section>
    }
}
