//! The routes: what a request must be, and what it gets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use kiln_embed::embedder::Prompt;
use kiln_embed::tokenizer::Tokens;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::access::{Guards, authorize, guard, takes_json};
use super::answer::{self, Answer, NUMBER};
use super::batcher::{Batcher, Place};
use super::body;
use super::connections::Client;
use super::limits::{SMALL_BODY, SMALL_WORK};
use super::memory::{Held, Memory};
use super::openapi::{self, Embeddings, OpenAiError, Ranking, TeiError, TeiPlace};
use super::refusal::Refusal;
use super::request::{
    CohereBody, EmbeddingRequest, Normalize, OpenAiBody, Protocol, RerankProtocol, TeiBody,
    TeiRerankBody, expanded_bytes, parse_request, parse_rerank,
};
use super::rerank::ServedReranker;
use super::telemetry::Telemetry;
use super::traces::{Trace, Traces, traced};
use super::{Facts, Limits, Served};
use crate::interrupt;
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
    models: Vec<Arc<Hosted>>,
    reranker: Option<Arc<ServedReranker>>,
    limits: Limits,
    telemetry: Arc<Telemetry>,
    /// What bodies may hold, what texts that become tokens may, and what vectors and answers may.
    bodies: Memory,
    windows: Memory,
    answers: Memory,
    /// Turns of work that takes a core, one for each.
    cores: Arc<Semaphore>,
    /// Whether a key is asked for.
    has_key: bool,
}

pub(super) type ServerState = State<Arc<Server>>;

/// All routes; `answers` is what vectors and answers may hold.
pub(super) fn routes(
    (hosted, reranker): (Vec<Hosted>, Option<ServedReranker>),
    limits: Limits,
    guards: Guards,
    answers: Memory,
    traces: Traces,
) -> Router {
    let third = limits.memory / 3;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let server = Arc::new(Server {
        models: hosted.into_iter().map(Arc::new).collect(),
        reranker: reranker.map(Arc::new),
        limits,
        telemetry: guards.1.clone(),
        bodies: Memory::new(third),
        windows: Memory::new(third),
        answers,
        cores: Arc::new(Semaphore::new(cores)),
        has_key: guards.0.has_key(),
    });
    let posted = Router::new()
        .route("/v1/embeddings", post(openai))
        .route("/embed", post(embed))
        .route("/rerank", post(rerank))
        .route("/v1/rerank", post(cohere))
        .route("/v2/rerank", post(cohere))
        .route_layer(from_fn_with_state(guards.clone(), takes_json));
    let guarded = Router::new()
        .route("/v1/models", get(models))
        .route("/info", get(info))
        .merge(posted)
        .route_layer(from_fn_with_state(guards.clone(), authorize))
        .route_layer(from_fn_with_state(traces, traced));
    let routes = Router::new()
        .route("/health", get(health))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/openapi.json", get(openapi))
        .route("/docs", get(|| async { openapi::page() }))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .with_state(server);
    behind(guards, routes)
}

/// The routes of a server that takes no requests, before its models are loaded and once it ends: it lives, says what it
/// has counted, and why all else is refused.
pub(super) fn closed(why: fn() -> Refusal, guards: Guards) -> Router {
    let telemetry = guards.1.clone();
    let counted = move || async move { measures(&telemetry) };
    let refuse = move |request: Request| async move {
        why().in_protocol(Protocol::of(request.uri().path()))
    };
    let routes =
        Router::new().route("/livez", get(live)).route("/metrics", get(counted)).fallback(refuse);
    behind(guards, routes)
}

/// Routes for those alone who may ask.
fn behind(guards: Guards, mut routes: Router) -> Router {
    if let Some(cors) = guards.0.cors() {
        routes = routes.layer(cors);
    }
    routes.layer(from_fn_with_state(guards, guard))
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

fn failed(message: impl AsRef<str>) -> Refusal {
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
    async fn answer(
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
    async fn in_time(
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

    async fn ranking(
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

/// Vectors of texts, in OpenAI's protocol.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    request_body = OpenAiBody,
    responses(
        (status = 200, description = "The vectors", body = Embeddings),
        (status = 400, description = "No such request", body = OpenAiError),
        (status = 401, description = "The key is missing or wrong", body = OpenAiError),
        (status = 404, description = "No model of that name", body = OpenAiError),
        (status = 413, description = "More or longer texts than are taken", body = OpenAiError),
        (status = 415, description = "The body does not call itself JSON", body = OpenAiError),
        (status = 429, description = "Too many requests are in work", body = OpenAiError),
        (status = 503, description = "Not done in time, or no requests are taken", body = OpenAiError),
    ),
    security(("key" = []))
)]
pub(super) async fn openai(
    State(server): ServerState,
    Extension(client): Extension<Arc<Client>>,
    request: Request,
) -> Result<Response, Refusal> {
    server.answer(Protocol::OpenAi, "openai", &client, request).await
}

/// Vectors of texts, in text-embeddings-inference's protocol.
#[utoipa::path(
    post,
    path = "/embed",
    request_body = TeiBody,
    responses(
        (status = 200, description = "A vector for each text", body = Vec<Vec<f32>>),
        (status = 401, description = "The key is missing or wrong", body = TeiError),
        (status = 413, description = "More or longer texts than are taken", body = TeiError),
        (status = 415, description = "The body does not call itself JSON", body = TeiError),
        (status = 422, description = "No such request", body = TeiError),
        (status = 429, description = "Too many requests are in work", body = TeiError),
        (status = 503, description = "Not done in time, or no requests are taken", body = TeiError),
    ),
    security(("key" = []))
)]
pub(super) async fn embed(
    State(server): ServerState,
    Extension(client): Extension<Arc<Client>>,
    request: Request,
) -> Result<Response, Refusal> {
    server.answer(Protocol::Tei, "embed", &client, request).await
}

/// Texts by how relevant they are to a query, in text-embeddings-inference's protocol.
#[utoipa::path(
    post,
    path = "/rerank",
    request_body = TeiRerankBody,
    responses(
        (status = 200, description = "The texts' places and scores", body = Vec<TeiPlace>),
        (status = 401, description = "The key is missing or wrong", body = TeiError),
        (status = 413, description = "More or longer texts than are taken", body = TeiError),
        (status = 415, description = "The body does not call itself JSON", body = TeiError),
        (status = 422, description = "No such request", body = TeiError),
        (status = 429, description = "Too many requests are in work", body = TeiError),
        (status = 503, description = "Not done in time, or no requests are taken", body = TeiError),
    ),
    security(("key" = []))
)]
pub(super) async fn rerank(
    State(server): ServerState,
    Extension(client): Extension<Arc<Client>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = server.ranking(RerankProtocol::Tei, &client, request);
    server.in_time("rerank", &client, work).await
}

/// Texts by how relevant they are to a query, as Cohere's and Jina's clients ask; `/v2/rerank` is the same.
#[utoipa::path(
    post,
    path = "/v1/rerank",
    request_body = CohereBody,
    responses(
        (status = 200, description = "The best texts' places and scores", body = Ranking),
        (status = 401, description = "The key is missing or wrong", body = OpenAiError),
        (status = 413, description = "More or longer texts than are taken", body = TeiError),
        (status = 415, description = "The body does not call itself JSON", body = OpenAiError),
        (status = 422, description = "No such request", body = TeiError),
        (status = 429, description = "Too many requests are in work", body = TeiError),
        (status = 503, description = "Not done in time, or no requests are taken", body = TeiError),
    ),
    security(("key" = []))
)]
pub(super) async fn cohere(
    State(server): ServerState,
    Extension(client): Extension<Arc<Client>>,
    request: Request,
) -> Result<Response, Refusal> {
    let work = server.ranking(RerankProtocol::Cohere, &client, request);
    server.in_time("rerank", &client, work).await
}

/// The models that are served, as OpenAI's clients list them.
#[utoipa::path(
    get,
    path = "/v1/models",
    responses(
        (status = 200, description = "The models", body = Value),
        (status = 401, description = "The key is missing or wrong", body = OpenAiError),
        (status = 503, description = "No requests are taken", body = OpenAiError),
    ),
    security(("key" = []))
)]
pub(super) async fn models(State(server): ServerState) -> Json<Value> {
    let model =
        |name: &str| json!({ "id": name, "object": "model", "created": 0, "owned_by": "kiln" });
    let names = server.models.iter().map(|hosted| hosted.model.facts().name.as_str());
    let names = names.chain(server.reranker.as_deref().map(ServedReranker::name));
    Json(json!({ "object": "list", "data": names.map(model).collect::<Vec<_>>() }))
}

/// What is served, and its limits.
#[utoipa::path(
    get,
    path = "/info",
    responses(
        (status = 200, description = "The model and the limits", body = Value),
        (status = 401, description = "The key is missing or wrong", body = TeiError),
        (status = 503, description = "No requests are taken", body = TeiError),
    ),
    security(("key" = []))
)]
pub(super) async fn info(State(server): ServerState) -> Json<Value> {
    let limits = &server.limits;
    let embedder = server.models.first().map(|hosted| {
        let facts = hosted.model.facts();
        json!({
            "model_id": facts.name,
            "model_sha": facts.revision,
            "model_type": { "embedding": { "pooling": facts.pooling } },
            "dimensions": facts.dimensions,
            "max_input_length": facts.max_length,
            "max_batch_tokens": limits.batch_tokens,
        })
    });
    let reranker = || server.reranker.as_deref().map(ServedReranker::info);
    let mut info = embedder.or_else(reranker).unwrap_or_default();
    info["model_dtype"] = json!("float32");
    info["max_concurrent_requests"] = json!(limits.max_requests);
    info["max_client_batch_size"] = json!(limits.max_texts);
    info["auto_truncate"] = json!(limits.truncate);
    info["version"] = json!(env!("CARGO_PKG_VERSION"));
    Json(info)
}

/// Whether requests are taken, as text-embeddings-inference says it.
#[utoipa::path(get, path = "/health", responses(
    (status = 200, description = "Requests are taken"),
    (status = 503, description = "The models are being loaded, or the server ends", body = TeiError),
))]
pub(super) async fn health() -> Result<(), Refusal> {
    ready().await
}

/// Whether the process answers at all; one that does not is to be started anew.
#[utoipa::path(get, path = "/livez", responses((status = 200, description = "The process answers")))]
pub(super) async fn live() -> StatusCode {
    StatusCode::OK
}

/// Whether requests are taken: not before the models are loaded, nor once the server was asked to end, while it answers
/// those that it has.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Requests are taken"),
    (status = 503, description = "The models are being loaded, or the server ends", body = TeiError),
))]
pub(super) async fn ready() -> Result<(), Refusal> {
    // The connection was there before the server was asked to end.
    match interrupt::asked() {
        true => Err(Refusal::ending()),
        false => Ok(()),
    }
}

/// The routes, for programs.
async fn openapi(State(server): ServerState) -> Response {
    let ranks = server.reranker.is_some();
    let facts: Vec<&Facts> = server.models.iter().map(|hosted| hosted.model.facts()).collect();
    match openapi::document(&facts, &server.limits, ranks, server.has_key) {
        Ok(document) => Json(document).into_response(),
        Err(error) => failed(error.to_string()).into_response(),
    }
}

/// Counters and times, for Prometheus.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "The measures", body = String, content_type = "text/plain"),
))]
pub(super) async fn metrics(State(server): ServerState) -> Response {
    measures(&server.telemetry)
}

fn measures(telemetry: &Telemetry) -> Response {
    match telemetry.to_text() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
