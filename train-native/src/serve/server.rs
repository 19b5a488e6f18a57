//! What becomes of a request: its body is read, its texts become tokens and vectors or scores, and these an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use kiln_embed::embedder::Prompt;
use kiln_embed::tokenizer::Tokens;
use tokio::sync::Semaphore;

use super::answer::{self, Answer, NUMBER};
use super::batcher::{Batcher, Place};
use super::body;
use super::connections::Client;
use super::limits::{SMALL_BODY, SMALL_WORK};
use super::memory::{Held, Memory};
use super::refusal::Refusal;
use super::request::{
    EmbeddingRequest, Normalize, Protocol, RerankProtocol, expanded_bytes, parse_request,
    parse_rerank,
};
use super::rerank::ServedReranker;
use super::telemetry::Telemetry;
use super::traces::Trace;
use super::{Limits, Served};
use crate::search::normalize;
use crate::terminal::counted;

/// Tokens that a request has ready for the model, about, and as many again that it gets ready meanwhile.
const PIECE: usize = 4096;
/// Bytes of texts after which a piece ends in any case.
const PIECE_BYTES: usize = 65_536;
/// Bytes of a token: its number, and whether it is pooled.
const TOKEN: usize = 5;
/// Bytes that a byte of a text takes while it becomes tokens, and the most of a text that does at a time.
const TOKENIZING: usize = 450;
const WINDOW: usize = 1 << 18;
/// Texts up to so many bytes, and what else is as quick, are worked on where the request is read.
const QUICK: usize = 4096;

/// A model with the queue before it.
pub(super) struct Hosted {
    pub(super) model: Arc<dyn Served>,
    pub(super) batcher: Batcher,
}

/// What every route knows.
pub(super) struct Server {
    /// Where there are none, there is a reranker.
    pub(super) models: Vec<Arc<Hosted>>,
    pub(super) reranker: Option<Arc<ServedReranker>>,
    pub(super) limits: Limits,
    pub(super) telemetry: Arc<Telemetry>,
    /// What bodies may hold, what texts that become tokens may, and what vectors and answers may.
    pub(super) bodies: Memory,
    pub(super) windows: Memory,
    pub(super) answers: Memory,
    /// Turns of work that takes a core, one for each.
    pub(super) cores: Arc<Semaphore>,
    /// Whether a key is asked for.
    pub(super) has_key: bool,
}

/// A request's texts while they become tokens.
struct Texts {
    hosted: Arc<Hosted>,
    request: EmbeddingRequest,
    prompt: String,
    /// Whether small enough to be worked on at once.
    quick: bool,
    /// Bytes of the longest.
    longest: usize,
    given_up: AtomicBool,
    place: Place,
    trace: Trace,
    _held: Held,
}

/// Gives a request's texts up when it is dropped: at its end, or with the request.
struct Wanted(Arc<Texts>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

/// Some texts as tokens.
struct Piece {
    tokens: Vec<Tokens>,
    count: usize,
    /// Where the next piece begins.
    end: usize,
}

pub(super) fn failed(message: impl AsRef<str>) -> Refusal {
    Refusal::new(StatusCode::FAILED_DEPENDENCY, "backend", message)
}

/// An answer that gives its memory back when it is sent.
fn answered(bytes: Vec<u8>, held: Held) -> Response {
    let body = Bytes::from_owner(Answer { bytes, _held: held });
    ([(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response()
}

impl Server {
    /// The model that a request names. Where there is one alone it is meant, whatever clients call it; a request
    /// that names none means the first.
    fn hosted(&self, name: Option<&str>) -> Result<&Arc<Hosted>, Refusal> {
        let named =
            |name: &str| self.models.iter().find(|hosted| hosted.model.facts().name == name);
        match (&self.models[..], name) {
            ([], _) => {
                Err(Refusal::invalid("no embedder is served here; start the server with --model"))
            }
            ([only], _) | ([only, ..], None) => Ok(only),
            (models, Some(name)) => named(name).ok_or_else(|| {
                let known = models.iter().map(|hosted| hosted.model.facts().name.as_str());
                let known = known.collect::<Vec<_>>().join(", ");
                let message = format!("no model {name:?} is served here; there are {known}");
                Refusal::new(StatusCode::NOT_FOUND, "not_found", message)
            }),
        }
    }

    /// Answers a request, unless it takes too long or its client goes away.
    pub(super) async fn answer(
        &self,
        protocol: Protocol,
        method: &str,
        client: &Client,
        request: Request,
    ) -> Result<Response, Refusal> {
        let work = self.vectors(protocol, client, request);
        self.in_time(method, client, work).await.map_err(|refusal| refusal.in_protocol(protocol))
    }

    /// Does a request's work, unless it takes too long or its client goes away, and counts it.
    pub(super) async fn in_time(
        &self,
        method: &str,
        client: &Client,
        work: impl Future<Output = Result<Response, Refusal>>,
    ) -> Result<Response, Refusal> {
        let start = Instant::now();
        self.telemetry.requests.with_label_values(&[method]).inc();
        let timeout = self.limits.timeout;
        let result = tokio::select! {
            result = tokio::time::timeout(timeout, work) => {
                result.unwrap_or_else(|_| Err(Refusal::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "timeout",
                    format!("not done within {} s", timeout.as_secs()),
                )))
            }
            () = client.gone() => Err(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "gone",
                "the client closed the connection before the answer was ready",
            )),
        };
        self.telemetry.request_seconds.observe(start.elapsed().as_secs_f64());
        match &result {
            Ok(_) => self.telemetry.successes.with_label_values(&[method]).inc(),
            Err(refusal) => self.telemetry.failures.with_label_values(&[refusal.kind()]).inc(),
        }
        result
    }

    /// Texts in the order of their scores.
    pub(super) async fn ranking(
        &self,
        protocol: RerankProtocol,
        client: &Client,
        request: Request,
    ) -> Result<Response, Refusal> {
        let Some(reranker) = &self.reranker else {
            return Err(Refusal::invalid(
                "no reranker is served here; start the server with --reranker",
            ));
        };
        let limits = &self.limits;
        let (head, body) = request.into_parts();
        let trace = Trace::of(&head.extensions);
        let step = trace.step("read");
        let (body, _held) = body::read(&head.headers, body, limits, &self.bodies, client).await?;
        let known = limits.clone();
        let request =
            self.work(body.len() <= SMALL_BODY, move || parse_rerank(protocol, &body, &known));
        let request = Arc::new(request.await??);
        step.end();
        trace.name("gen_ai.request.model", reranker.name());
        trace.count("kiln.texts", request.texts.len());
        let _place = reranker.admit(&request, limits)?;
        let size = ServedReranker::answer_bytes(&request);
        let large = size > SMALL_WORK;
        let answer_held = if large { self.answers.get(size).await } else { Held::default() };
        let step = trace.step("rank");
        let (logits, tokens) = reranker.logits(&request).await?;
        step.end();
        self.telemetry.tokens.inc_by(tokens as u64);
        trace.count("gen_ai.usage.input_tokens", tokens);

        let _step = trace.step("write");
        let reranker = reranker.clone();
        let write = move || reranker.write(protocol, &request, &logits, tokens);
        let bytes = self.work(!large, write).await?.map_err(|error| failed(error.to_string()))?;
        client.holds_memory(large);
        Ok(answered(bytes, answer_held))
    }

    async fn vectors(
        &self,
        protocol: Protocol,
        client: &Client,
        request: Request,
    ) -> Result<Response, Refusal> {
        // A server without any refuses whatever the body says.
        self.hosted(None)?;
        let limits = &self.limits;
        let (head, body) = request.into_parts();
        let trace = Trace::of(&head.extensions);
        let step = trace.step("read");
        let (body, held) = body::read(&head.headers, body, limits, &self.bodies, client).await?;
        let (quick, known) = (body.len() <= SMALL_BODY, limits.clone());
        let request = self.work(quick, move || parse_request(protocol, &body, &known)).await??;
        step.end();

        let hosted = self.hosted(request.model.as_deref())?;
        trace.name("gen_ai.operation.name", "embeddings");
        trace.name("gen_ai.request.model", &hosted.model.facts().name);
        trace.count("kiln.texts", request.texts.len());
        if let Some(name) = &request.unused_prompt {
            let known = hosted.model.prompt(&Prompt::Named(name.clone())).map(drop);
            known.map_err(|error| Refusal::invalid(error.to_string()))?;
        }
        let prompt = hosted.model.prompt(&request.prompt);
        let prompt = prompt.map_err(|error| Refusal::invalid(error.to_string()))?;
        let expanded = expanded_bytes(&request.texts, prompt);
        if expanded > limits.max_expanded {
            return Err(Refusal::too_large(format!(
                "the texts have {expanded} bytes, each with its prompt; at most {} are taken",
                limits.max_expanded
            )));
        }
        let facts = hosted.model.facts();
        let width = request.dimensions.unwrap_or(facts.dimensions);
        if width == 0 || width > facts.dimensions {
            return Err(Refusal::invalid(format!(
                "{width} dimensions asked of a model that gives {}",
                facts.dimensions
            )));
        }
        let count = request.texts.len();
        let numbers = count.saturating_mul(4 * facts.dimensions + NUMBER * width);
        let tokens = (expanded + 8 * count).min(2 * PIECE) * TOKEN;
        let size = numbers.saturating_add(tokens);
        let small = size <= SMALL_WORK && expanded <= SMALL_BODY;
        let Some(place) = hosted.batcher.place(!small) else {
            return Err(Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                "overloaded",
                format!(
                    "{} in work already, or large ones have their share; try again later",
                    counted(limits.max_requests, "request is", "requests are")
                ),
            ));
        };
        let held_by_answer = size > SMALL_WORK;
        let answer_held =
            if held_by_answer { self.answers.get(size).await } else { Held::default() };

        let texts = Arc::new(Texts {
            hosted: hosted.clone(),
            prompt: prompt.to_string(),
            quick: expanded <= QUICK,
            longest: request.texts.iter().map(String::len).max().unwrap_or(0) + prompt.len(),
            request,
            given_up: AtomicBool::new(false),
            place,
            trace: trace.clone(),
            _held: held,
        });
        let wanted = Wanted(texts.clone());
        let (vectors, tokens) = self.embed(&texts, width).await?;
        drop(wanted);
        self.telemetry.texts.inc_by(count as u64);
        self.telemetry.tokens.inc_by(tokens as u64);
        trace.count("gen_ai.usage.input_tokens", tokens);

        let _step = trace.step("write");
        let (base64, model) = (texts.request.base64, hosted.model.clone());
        drop(texts);
        let bytes = self
            .work(size <= SMALL_WORK, move || {
                answer::write(protocol, &model.facts().name, &vectors, base64, tokens)
            })
            .await?
            .map_err(|error| failed(error.to_string()))?;
        client.holds_memory(held_by_answer);
        Ok(answered(bytes, answer_held))
    }

    /// Vectors of texts and the number of their tokens, piece by piece: while the model has one, the next
    /// becomes tokens.
    async fn embed(
        &self,
        texts: &Arc<Texts>,
        width: usize,
    ) -> Result<(Vec<Vec<f32>>, usize), Refusal> {
        let request = &texts.request;
        let hosted = &texts.hosted;
        let cut = width < hosted.model.facts().dimensions;
        let (mut vectors, mut tokens) = (Vec::with_capacity(request.texts.len()), 0);
        let mut ready = self.tokenize(texts, 0).await?;
        loop {
            let (end, had) = (ready.end, tokens);
            tokens += ready.count;
            let embedding = async {
                let since = SystemTime::now();
                let place = texts.place.clone();
                let embedded =
                    hosted.batcher.embed(ready.tokens, had, place).await.map_err(failed)?;
                texts.trace.waited(since, embedded.waited);
                Ok(embedded.vectors)
            };
            let (result, next) = tokio::try_join!(embedding, self.tokenize(texts, end))?;
            vectors.extend(result.into_iter().map(|mut vector| {
                if cut {
                    vector.truncate(width);
                    vector.shrink_to_fit();
                }
                // Not twice: the last bits would change.
                let normalizes = match request.normalize {
                    Normalize::Always => cut || !hosted.model.facts().normalized,
                    Normalize::WhereCut => cut,
                    Normalize::Never => false,
                };
                if normalizes {
                    normalize(&mut vector);
                }
                vector
            }));
            if end == request.texts.len() {
                return Ok((vectors, tokens));
            }
            ready = next;
        }
    }

    /// The next piece of some texts; empty at their end. Who drops this stops it before the next text.
    async fn tokenize(&self, texts: &Arc<Texts>, start: usize) -> Result<Piece, Refusal> {
        if start == texts.request.texts.len() {
            return Ok(Piece { tokens: Vec::new(), count: 0, end: start });
        }
        let _step = texts.trace.step("tokenize");
        let window = match texts.quick {
            true => Held::default(),
            false => self.windows.get(texts.longest.min(WINDOW) * TOKENIZING).await,
        };
        let (model, shared) = (texts.hosted.model.clone(), texts.clone());
        let piece = move || {
            let _window = window;
            piece(model.as_ref(), &shared, start)
        };
        self.work(texts.quick, piece).await?
    }

    /// Does what takes a core: at once where it is quick, else in turn, so that waiting connections are
    /// never kept.
    async fn work<T: Send + 'static>(
        &self,
        quick: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let broken = "the request could not be worked on; the server's log says why";
        if quick {
            return catch_unwind(AssertUnwindSafe(work)).map_err(|_| failed(broken));
        }
        // The semaphore is never closed. The turn lasts as long as the work, whoever still waits for it.
        let turn = self.cores.clone().acquire_owned().await;
        let worked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        worked.await.map_err(|_| failed(broken))
    }
}

fn piece(model: &dyn Served, texts: &Texts, start: usize) -> Result<Piece, Refusal> {
    let mut piece = Piece { tokens: Vec::new(), count: 0, end: start };
    let mut bytes = 0;
    for text in &texts.request.texts[start..] {
        if piece.count >= PIECE || bytes >= PIECE_BYTES || texts.given_up.load(Ordering::Relaxed) {
            break;
        }
        let mut tokens = model.tokens(&texts.prompt, text).map_err(|error| {
            Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "tokenizer", error.to_string())
        })?;
        if tokens.truncated && !texts.request.truncate {
            return Err(Refusal::too_large(format!(
                "a text has more than {} tokens; shorten it, or send \"truncate\": true",
                model.facts().max_length
            )));
        }
        piece.count += tokens.ids.len();
        bytes += texts.prompt.len() + text.len();
        // Where they were in the text, which no vector needs, takes most of their memory.
        tokens.offsets = Vec::new();
        piece.tokens.push(tokens);
        piece.end += 1;
    }
    Ok(piece)
}
