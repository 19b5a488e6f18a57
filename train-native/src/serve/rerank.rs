//! Rankings: text-embeddings-inference's `/rerank`, and `/v1/rerank` as Cohere's and Jina's clients write it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use kiln_embed::reranker::ranked;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::limits::{Limits, SMALL_BODY};
use super::refusal::Refusal;
use super::request::{RerankProtocol, RerankRequest};
use crate::reranking::PairModel;

/// Pairs that one request has computed before another gets its turn.
const TURN: usize = 32;

/// A reranker under its name, with its turns.
pub struct ServedReranker {
    model: Arc<dyn PairModel>,
    name: String,
    /// The model computes for one request at a time, with all cores.
    turn: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A request's place among those in work.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ServedReranker {
    /// A reranker under a name.
    pub fn new(model: Arc<dyn PairModel>, name: &str) -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self { model, name: name.into(), turn, waiting: AtomicUsize::new(0) }
    }

    /// Name under which it answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn place(&self, limits: &Limits) -> Result<Place<'_>, Refusal> {
        let place = Place(&self.waiting);
        if self.waiting.fetch_add(1, Ordering::Relaxed) < limits.max_requests {
            return Ok(place);
        }
        Err(Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "overloaded",
            format!("{} requests are in work already; try again later", limits.max_requests),
        ))
    }

    /// The answer to a request, and its number of tokens.
    pub(super) async fn answer(
        &self,
        protocol: RerankProtocol,
        request: RerankRequest,
        limits: &Limits,
    ) -> Result<(Response, usize), Refusal> {
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
        let _place = self.place(limits)?;
        let request = Arc::new(request);
        let (mut logits, mut tokens) = (Vec::with_capacity(request.texts.len()), 0);
        while logits.len() < request.texts.len() {
            // The semaphore is never closed. The turn lasts as long as the work, whoever still waits for it.
            let turn = self.turn.clone().acquire_owned().await;
            let (model, shared, from) = (self.model.clone(), request.clone(), logits.len());
            let batch_tokens = limits.batch_tokens;
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
        Ok((Json(self.ranking(protocol, &request, &logits, tokens)).into_response(), tokens))
    }

    fn ranking(
        &self,
        protocol: RerankProtocol,
        request: &RerankRequest,
        logits: &[f32],
        tokens: usize,
    ) -> Value {
        let activation = self.model.activation();
        let scores: Vec<f32> = match request.raw_scores {
            true => logits.to_vec(),
            false => logits.iter().map(|&score| activation.of(score)).collect(),
        };
        let best = ranked(&scores).into_iter().take(request.top.unwrap_or(scores.len()));
        let entry = |score_key: &str, index: usize, score: f32| {
            let mut entry = json!({ "index": index });
            entry[score_key] = json!(score);
            entry
        };
        match protocol {
            RerankProtocol::Tei => best
                .map(|place| {
                    let mut entry = entry("score", place.index, place.score);
                    if request.return_texts {
                        entry["text"] = json!(request.texts[place.index]);
                    }
                    entry
                })
                .collect(),
            RerankProtocol::Cohere => {
                let results: Vec<Value> = best
                    .map(|place| {
                        let mut entry = entry("relevance_score", place.index, place.score);
                        if request.return_texts {
                            entry["document"] = json!({ "text": request.texts[place.index] });
                        }
                        entry
                    })
                    .collect();
                json!({ "model": self.name, "results": results, "usage": { "total_tokens": tokens } })
            }
        }
    }
}

/// Scores of the next pairs of a request, and their number of tokens.
fn some(
    model: &dyn PairModel,
    request: &RerankRequest,
    from: usize,
    batch_tokens: usize,
) -> Result<(Vec<f32>, usize), Refusal> {
    let texts = &request.texts[from..request.texts.len().min(from + TURN)];
    let mut tokens = 0;
    for text in texts {
        let (length, truncated) = model.length(&request.query, text).map_err(|error| {
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "tokenizer", error.to_string())
        })?;
        if truncated && !request.truncate {
            return Err(Refusal::too_large(format!(
                "a pair has more than {} tokens; shorten it, or send \"truncate\": true",
                model.max_length()
            )));
        }
        tokens += length;
    }
    let pairs: Vec<(&str, &str)> =
        texts.iter().map(|text| (request.query.as_str(), text.as_str())).collect();
    // What was accepted is answered, after Ctrl-C too.
    let logits = model.logits(&pairs, Some(batch_tokens.min(1024)), false, &mut |_| {});
    logits.map(|logits| (logits, tokens)).map_err(|error| failed(error.to_string()))
}

fn failed(message: impl AsRef<str>) -> Refusal {
    Refusal::new(StatusCode::FAILED_DEPENDENCY, "backend", message)
}

/// Which protocol a path speaks.
pub(super) fn protocol(request: &Request<axum::body::Body>) -> RerankProtocol {
    match request.uri().path() {
        "/rerank" => RerankProtocol::Tei,
        _ => RerankProtocol::Cohere,
    }
}

/// Whether a request is so small that it is read where it comes in.
pub(super) fn is_quick(body: &[u8]) -> bool {
    body.len() <= SMALL_BODY
}
