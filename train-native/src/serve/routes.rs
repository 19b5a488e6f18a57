//! The routes: what a request must be, and what it gets.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::batcher::Batcher;
use super::telemetry::Telemetry;
use super::{Limits, Served};
use crate::search::normalize;

/// What every route knows.
struct Server {
    model: Arc<dyn Served>,
    batcher: Batcher,
    limits: Limits,
    key: Option<String>,
    telemetry: Arc<Telemetry>,
}

type Shared = State<Arc<Server>>;

/// All routes.
pub(super) fn routes(
    model: Arc<dyn Served>,
    batcher: Batcher,
    limits: Limits,
    key: Option<String>,
    telemetry: Arc<Telemetry>,
) -> Router {
    let max_body = limits.max_body;
    let server = Arc::new(Server { model, batcher, limits, key, telemetry });
    let guarded = Router::new()
        .route("/v1/embeddings", post(openai))
        .route("/v1/models", get(models))
        .route("/embed", post(embed))
        .route("/info", get(info))
        .route_layer(from_fn_with_state(server.clone(), authorize));
    Router::new()
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics))
        .merge(guarded)
        .layer(DefaultBodyLimit::max(max_body))
        .with_state(server)
}

/// A refusal, with the status and the kind of each of the two protocols.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    kind: &'static str,
    message: String,
    /// OpenAI's form of an error, else text-embeddings-inference's.
    openai: bool,
}

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), openai: false }
    }

    fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation", message)
    }

    /// As OpenAI's clients read it.
    fn openai(mut self) -> Self {
        self.openai = true;
        if self.status == StatusCode::UNPROCESSABLE_ENTITY {
            self.status = StatusCode::BAD_REQUEST;
        }
        self
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = match self.openai {
            true => {
                let kind = match self.kind {
                    "validation" => "invalid_request_error",
                    "overloaded" => "rate_limit_error",
                    "unauthorized" => "authentication_error",
                    _ => "server_error",
                };
                json!({ "error": { "message": self.message, "type": kind, "param": null, "code": null } })
            }
            false => json!({ "error": self.message, "error_type": self.kind }),
        };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

/// Compares in a time that does not tell how much is right.
fn same_secret(a: &[u8], b: &[u8]) -> bool {
    let differ =
        a.iter().zip(b).fold(a.len() ^ b.len(), |differ, (x, y)| differ | usize::from(x ^ y));
    differ == 0
}

async fn authorize(
    State(server): Shared,
    headers: HeaderMap,
    request: Request,
    next: Next,
) -> Response {
    if let Some(key) = &server.key {
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        if !same_secret(sent.as_bytes(), key.as_bytes()) {
            server.telemetry.failures.with_label_values(&["unauthorized"]).inc();
            let refusal = Refusal::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            );
            let openai = request.uri().path().starts_with("/v1/");
            return if openai { refusal.openai() } else { refusal }.into_response();
        }
    }
    next.run(request).await
}

/// A text, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Input {
    One(String),
    Many(Vec<String>),
    /// Token numbers, which mean something to another tokenizer alone.
    Tokens(#[allow(dead_code)] Value),
}

impl Input {
    fn texts(self) -> Result<Vec<String>, Refusal> {
        match self {
            Self::One(text) => Ok(vec![text]),
            Self::Many(texts) => Ok(texts),
            Self::Tokens(_) => Err(Refusal::invalid(
                "the input is neither a text nor a list of texts; token numbers are not taken",
            )),
        }
    }
}

/// A body, or why it could not be taken.
type Body = Result<Bytes, BytesRejection>;

/// Reads a body; what is wrong with it is told.
fn body<T: serde::de::DeserializeOwned>(bytes: &Body, limits: &Limits) -> Result<T, Refusal> {
    let bytes = bytes.as_ref().map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "validation",
            format!("the body is larger than {} bytes", limits.max_body),
        ),
        _ => Refusal::invalid(rejection.body_text()),
    })?;
    serde_json::from_slice(bytes).map_err(|error| Refusal::invalid(format!("the body: {error}")))
}

/// Vectors of texts, and the number of their tokens.
struct Embedded {
    vectors: Vec<Vec<f32>>,
    tokens: usize,
}

impl Server {
    async fn embed(
        self: &Arc<Self>,
        texts: Vec<String>,
        prompt_name: Option<&str>,
        prompt: Option<&str>,
        truncate: bool,
        dimensions: Option<usize>,
    ) -> Result<Embedded, Refusal> {
        let limits = &self.limits;
        let too_large =
            |message| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "validation", message);
        if texts.is_empty() {
            return Err(Refusal::invalid("the input is empty"));
        }
        if texts.len() > limits.max_texts {
            return Err(too_large(format!(
                "{} texts in one request; at most {} are taken",
                texts.len(),
                limits.max_texts
            )));
        }
        let facts = self.model.facts();
        if let Some(wanted) = dimensions
            && (wanted == 0 || wanted > facts.dimensions)
        {
            return Err(Refusal::invalid(format!(
                "{wanted} dimensions asked of a model that gives {}",
                facts.dimensions
            )));
        }
        let Some(place) = self.batcher.place() else {
            return Err(Refusal::new(
                StatusCode::TOO_MANY_REQUESTS,
                "overloaded",
                format!("{} requests are in work already; try again later", limits.max_requests),
            ));
        };
        let prompt = match prompt {
            Some(prompt) => prompt.to_string(),
            None => self
                .model
                .prompt(prompt_name)
                .map_err(|error| Refusal::invalid(error.to_string()))?
                .to_string(),
        };
        let model = self.model.clone();
        let encode = move || {
            texts
                .iter()
                .map(|text| model.tokens(&prompt, text))
                .collect::<kiln_core::Result<Vec<_>>>()
        };
        let failed =
            |message: String| Refusal::new(StatusCode::FAILED_DEPENDENCY, "backend", message);
        let tokens = tokio::task::spawn_blocking(encode)
            .await
            .map_err(|_| failed("the tokenizer failed".into()))?
            .map_err(|error| {
                Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "tokenizer", error.to_string())
            })?;
        if !truncate && tokens.iter().any(|text| text.truncated) {
            return Err(too_large(format!(
                "a text has more than {} tokens; shorten it, or send \"truncate\": true",
                facts.max_length
            )));
        }
        let count = tokens.iter().map(|text| text.ids.len()).sum();
        let texts = tokens.len();
        let embedded =
            tokio::time::timeout(limits.timeout, self.batcher.embed(tokens, place)).await;
        let mut vectors = match embedded {
            Ok(found) => found.map_err(failed)?,
            Err(_) => {
                return Err(Refusal::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "timeout",
                    format!("not done within {} s", limits.timeout.as_secs()),
                ));
            }
        };
        if let Some(dimensions) = dimensions {
            for vector in &mut vectors {
                vector.truncate(dimensions);
                normalize(vector);
            }
        }
        self.telemetry.texts.inc_by(texts as u64);
        self.telemetry.tokens.inc_by(count as u64);
        Ok(Embedded { vectors, tokens: count })
    }

    /// Counts a request and its end.
    async fn counted<T>(
        &self,
        method: &str,
        work: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        let start = Instant::now();
        self.telemetry.requests.with_label_values(&[method]).inc();
        let found = work.await;
        self.telemetry.request_seconds.observe(start.elapsed().as_secs_f64());
        match &found {
            Ok(_) => self.telemetry.successes.with_label_values(&[method]).inc(),
            Err(refusal) => self.telemetry.failures.with_label_values(&[refusal.kind]).inc(),
        }
        found
    }
}

/// OpenAI's request; fields of theirs that change nothing here are taken and passed over.
#[derive(Debug, Deserialize)]
struct OpenAiRequest {
    input: Input,
    #[serde(default)]
    encoding_format: Encoding,
    dimensions: Option<usize>,
    /// Ours: a prompt of the model by name.
    prompt_name: Option<String>,
    /// Ours: a prompt's text.
    prompt: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

async fn openai(State(server): Shared, bytes: Body) -> Result<Json<Value>, Refusal> {
    let work = async {
        let request: OpenAiRequest = body(&bytes, &server.limits)?;
        let texts = request.input.texts()?;
        let (name, prompt) = (request.prompt_name.as_deref(), request.prompt.as_deref());
        let truncate = server.limits.truncate;
        let found = server.embed(texts, name, prompt, truncate, request.dimensions).await?;
        let data: Vec<Value> = found
            .vectors
            .iter()
            .enumerate()
            .map(|(index, vector)| {
                let embedding = match request.encoding_format {
                    Encoding::Float => json!(vector),
                    Encoding::Base64 => {
                        let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                        STANDARD.encode(bytes).into()
                    }
                };
                json!({ "object": "embedding", "index": index, "embedding": embedding })
            })
            .collect();
        Ok(Json(json!({
            "object": "list",
            "data": data,
            "model": server.model.facts().name,
            "usage": { "prompt_tokens": found.tokens, "total_tokens": found.tokens },
        })))
    };
    server.counted("openai", work).await.map_err(Refusal::openai)
}

async fn models(State(server): Shared) -> Json<Value> {
    let facts = server.model.facts();
    let model = json!({ "id": facts.name, "object": "model", "created": 0, "owned_by": "kiln" });
    Json(json!({ "object": "list", "data": [model] }))
}

/// The request of text-embeddings-inference.
#[derive(Debug, Deserialize)]
struct EmbedRequest {
    inputs: Input,
    truncate: Option<bool>,
    normalize: Option<bool>,
    prompt_name: Option<String>,
    dimensions: Option<usize>,
}

async fn embed(State(server): Shared, bytes: Body) -> Result<Json<Vec<Vec<f32>>>, Refusal> {
    let work = async {
        let request: EmbedRequest = body(&bytes, &server.limits)?;
        let truncate = request.truncate.unwrap_or(server.limits.truncate);
        let texts = request.inputs.texts()?;
        let name = request.prompt_name.as_deref();
        let mut found = server.embed(texts, name, None, truncate, request.dimensions).await?;
        if request.normalize.unwrap_or(true) {
            found.vectors.iter_mut().for_each(|vector| normalize(vector));
        }
        Ok(Json(found.vectors))
    };
    server.counted("embed", work).await
}

async fn info(State(server): Shared) -> Json<Value> {
    let (facts, limits) = (server.model.facts(), &server.limits);
    Json(json!({
        "model_id": facts.name,
        "model_sha": facts.revision,
        "model_dtype": "float32",
        "model_type": { "embedding": { "pooling": facts.pooling } },
        "dimensions": facts.dimensions,
        "max_concurrent_requests": limits.max_requests,
        "max_input_length": facts.max_length,
        "max_batch_tokens": limits.batch_tokens,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": limits.truncate,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

async fn metrics(State(server): Shared) -> Response {
    match server.telemetry.to_text() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
