//! The routes: who may ask for what, and what a request gets.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::access::{Guards, authorize, guard, takes_json};
use super::connections::Client;
use super::memory::Memory;
use super::openapi::{self, Embeddings, OpenAiError, Ranking, TeiError, TeiPlace};
use super::refusal::Refusal;
use super::request::{CohereBody, OpenAiBody, Protocol, RerankProtocol, TeiBody, TeiRerankBody};
use super::rerank::ServedReranker;
use super::server::{Hosted, Server, failed};
use super::telemetry::Telemetry;
use super::traces::{Traces, traced};
use super::{Facts, Limits};
use crate::interrupt;

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
