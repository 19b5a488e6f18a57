//! Rankings: text-embeddings-inference's `/rerank`, and `/v1/rerank` as Cohere's and Jina's clients write it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::StatusCode;
use kiln_embed::reranker::{Ranked, ScoreActivation, ranked};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::limits::Limits;
use super::refusal::Refusal;
use super::request::{RerankProtocol, RerankRequest};
use crate::reranking::PairModel;
use crate::terminal::counted;

/// Pairs, and about as many tokens, that one request has computed before another gets its turn.
const TURN: usize = 32;
const TURN_TOKENS: usize = 4096;
/// Bytes of an entry of an answer without its text, and of its score before that.
const ENTRY: usize = 72;

/// A reranker under its name, with its turns.
pub struct ServedReranker {
    model: Arc<dyn PairModel>,
    name: String,
    revision: String,
    batch_tokens: Option<usize>,
    /// The model computes for one request at a time, with all cores.
    turn: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

/// A request's place among those in work.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServedReranker {
    /// A reranker under a name, a number for its files, and how many tokens of pairs it computes together (see
    /// [`PairModel::logits`]).
    pub fn new(
        model: Arc<dyn PairModel>,
        name: &str,
        revision: &str,
        batch_tokens: Option<usize>,
    ) -> Self {
        let (name, revision) = (name.into(), revision.into());
        let turn = Arc::new(Semaphore::new(1));
        Self { model, name, revision, batch_tokens, turn, waiting: Arc::default() }
    }

    /// Name under which it answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What `/info` says of it where nothing embeds; the label is transformers' for a model with one score.
    pub(super) fn info(&self) -> Value {
        json!({
            "model_id": self.name,
            "model_sha": self.revision,
            "model_type": { "reranker": { "id2label": { "0": "LABEL_0" }, "label2id": { "LABEL_0": 0 } } },
            "max_input_length": self.model.max_length(),
            "max_batch_tokens": TURN_TOKENS,
        })
    }

    /// A place for a request whose texts are within the limits.
    pub(super) fn admit(&self, request: &RerankRequest, limits: &Limits) -> Result<Place, Refusal> {
        let each = request.query.len();
        let expanded = request
            .texts
            .iter()
            .fold(0usize, |total, text| total.saturating_add(text.len()).saturating_add(each));
        if expanded > limits.max_expanded {
            return Err(Refusal::too_large(format!(
                "the texts have {expanded} bytes, each with the query; at most {} are taken",
                limits.max_expanded
            )));
        }
        let place = Place(self.waiting.clone());
        if self.waiting.fetch_add(1, Ordering::Relaxed) < limits.max_requests {
            return Ok(place);
        }
        Err(Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "overloaded",
            format!(
                "{} in work already; try again later",
                counted(limits.max_requests, "request is", "requests are")
            ),
        ))
    }

    /// Scores of a request's texts before the activation, and its number of tokens.
    pub(super) async fn logits(
        &self,
        request: &Arc<RerankRequest>,
    ) -> Result<(Vec<f32>, usize), Refusal> {
        let (mut logits, mut tokens) = (Vec::with_capacity(request.texts.len()), 0);
        while logits.len() < request.texts.len() {
            // The semaphore is never closed. The turn lasts as long as the work, whoever still waits for it.
            let turn = self.turn.clone().acquire_owned().await;
            let (model, shared, from) = (self.model.clone(), request.clone(), logits.len());
            let batch_tokens = self.batch_tokens;
            let worked = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                some(model.as_ref(), &shared, from, batch_tokens)
            });
            let (some, count) = worked.await.map_err(|_| {
                failed("the request could not be worked on; the server's log says why")
            })??;
            logits.extend(some);
            tokens += count;
        }
        Ok((logits, tokens))
    }

    /// Most bytes of a request's scores and their answer.
    pub(super) fn answer_bytes(request: &RerankRequest) -> usize {
        let entries = request.texts.len() * ENTRY;
        let escaped = |byte: u8| match byte {
            0..0x20 => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        };
        let texts = request.texts.iter().flat_map(|text| text.bytes()).map(escaped);
        entries + if request.return_texts { texts.sum() } else { 0 }
    }

    /// Writes an answer.
    ///
    /// # Errors
    /// None that scores can cause.
    pub(super) fn write(
        &self,
        protocol: RerankProtocol,
        request: &RerankRequest,
        logits: &[f32],
        tokens: usize,
    ) -> serde_json::Result<Vec<u8>> {
        let activation = match request.raw_scores {
            true => ScoreActivation::Identity,
            false => self.model.activation(),
        };
        let mut best = ranked(logits, activation);
        best.truncate(request.top.unwrap_or(best.len()));
        let texts = request.return_texts.then_some(request.texts.as_slice());
        let results = Entries { protocol, best: &best, texts };
        match protocol {
            RerankProtocol::Tei => serde_json::to_vec(&results),
            RerankProtocol::Cohere => serde_json::to_vec(&Cohere {
                model: &self.name,
                results,
                usage: Usage { total_tokens: tokens },
            }),
        }
    }
}

#[derive(serde::Serialize)]
struct Cohere<'a> {
    model: &'a str,
    results: Entries<'a>,
    usage: Usage,
}

#[derive(serde::Serialize)]
struct Usage {
    total_tokens: usize,
}

/// The best texts, under each protocol's names.
struct Entries<'a> {
    protocol: RerankProtocol,
    best: &'a [Ranked],
    texts: Option<&'a [String]>,
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let entry = |&place| Entry { protocol: self.protocol, place, texts: self.texts };
        to.collect_seq(self.best.iter().map(entry))
    }
}

struct Entry<'a> {
    protocol: RerankProtocol,
    place: Ranked,
    texts: Option<&'a [String]>,
}

#[derive(serde::Serialize)]
struct Document<'a> {
    text: &'a str,
}

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Ranked { index, score } = self.place;
        let text = self.texts.map(|texts| texts[index].as_str());
        let mut entry = to.serialize_map(None)?;
        entry.serialize_entry("index", &index)?;
        match self.protocol {
            RerankProtocol::Tei => {
                entry.serialize_entry("score", &score)?;
                text.map_or(Ok(()), |text| entry.serialize_entry("text", text))?;
            }
            RerankProtocol::Cohere => {
                entry.serialize_entry("relevance_score", &score)?;
                text.map_or(Ok(()), |text| entry.serialize_entry("document", &Document { text }))?;
            }
        }
        entry.end()
    }
}

/// Scores of the next pairs of a request, and their number of tokens.
fn some(
    model: &dyn PairModel,
    request: &RerankRequest,
    from: usize,
    batch_tokens: Option<usize>,
) -> Result<(Vec<f32>, usize), Refusal> {
    let (mut pairs, mut tokens) = (Vec::new(), 0);
    for text in request.texts[from..].iter().take(TURN) {
        let (length, truncated) = model.length(&request.query, text).map_err(|error| {
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "tokenizer", error.to_string())
        })?;
        if truncated && !request.truncate {
            return Err(Refusal::too_large(format!(
                "a pair has more than {} tokens; shorten it, or send \"truncate\": true",
                model.max_length()
            )));
        }
        if !pairs.is_empty() && tokens + length > TURN_TOKENS {
            break;
        }
        tokens += length;
        pairs.push((request.query.as_str(), text.as_str()));
    }
    // What was accepted is answered, after Ctrl-C too.
    let logits = model.logits(&pairs, batch_tokens, false, &mut |_| {});
    logits.map(|logits| (logits, tokens)).map_err(|error| failed(error.to_string()))
}

fn failed(message: impl AsRef<str>) -> Refusal {
    Refusal::new(StatusCode::FAILED_DEPENDENCY, "backend", message)
}
