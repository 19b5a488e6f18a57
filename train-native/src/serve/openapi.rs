//! The routes as an OpenAPI document (`/openapi.json`), and a page that shows it (`/docs`). The structs that
//! requests are read into make the schemas; what depends on the model and the limits is filled in.

use axum::response::Html;
use serde_json::{Value, json};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use super::limits::Limits;
use super::{Facts, routes};

/// A text, or several.
#[derive(serde::Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code)]
pub(super) enum Texts {
    One(String),
    Many(Vec<String>),
}

/// A text, or an object with one.
#[derive(serde::Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code)]
pub(super) enum Document {
    Text(String),
    Object { text: String },
}

/// Vectors, one for each text.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct Embeddings {
    object: String,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct Embedding {
    object: String,
    index: usize,
    embedding: Vector,
}

/// Numbers, or little-endian f32 in base64.
#[derive(serde::Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code)]
pub(super) enum Vector {
    Numbers(Vec<f32>),
    Packed(String),
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct Usage {
    prompt_tokens: Option<usize>,
    total_tokens: usize,
}

/// The most relevant text first.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct TeiPlace {
    index: usize,
    score: f32,
    text: Option<String>,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct Ranking {
    model: String,
    results: Vec<Place>,
    usage: Usage,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct Place {
    index: usize,
    relevance_score: f32,
    document: Option<Returned>,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct Returned {
    text: String,
}

/// What went wrong, as text-embeddings-inference says it.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct TeiError {
    error: String,
    error_type: String,
}

/// What went wrong, as OpenAI says it.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct OpenAiError {
    error: OpenAiErrorBody,
}

#[derive(ToSchema)]
#[allow(dead_code)]
pub(super) struct OpenAiErrorBody {
    message: String,
    r#type: String,
    param: Option<String>,
    code: Option<String>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "kiln serve",
        description = "Vectors and rankings of texts, as OpenAI's, text-embeddings-inference's and Cohere's clients ask for them."
    ),
    paths(
        routes::openai,
        routes::models,
        routes::embed,
        routes::rerank,
        routes::cohere,
        routes::info,
        routes::health,
        routes::live,
        routes::ready,
        routes::metrics,
    ),
    modifiers(&Key)
)]
struct Paths;

/// The key that `--api-key` asks for.
struct Key;

impl Modify for Key {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// The routes of a server that has these embedders and limits, and perhaps ranks.
///
/// # Errors
/// None that a server can cause.
pub(super) fn document(
    facts: &[&Facts],
    limits: &Limits,
    ranks: bool,
    has_key: bool,
) -> serde_json::Result<Value> {
    let mut document = serde_json::to_value(Paths::openapi())?;
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    if let Some(paths) = document["paths"].as_object_mut() {
        // The path of Cohere's second version, where its clients say the same.
        if let Some(mut rerank) = paths.get("/v1/rerank").cloned() {
            rerank["post"]["operationId"] = json!("cohere_v2");
            paths.insert("/v2/rerank".into(), rerank);
        }
        paths.retain(|path, _| match path.as_str() {
            "/v1/embeddings" | "/embed" => !facts.is_empty(),
            path => ranks || !path.ends_with("/rerank"),
        });
    }
    if !has_key {
        for path in
            document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut())
        {
            for operation in path.as_object_mut().into_iter().flat_map(|path| path.values_mut()) {
                if let Some(operation) = operation.as_object_mut() {
                    operation.remove("security");
                }
            }
        }
    }
    let schemas = &mut document["components"]["schemas"];
    for body in ["OpenAiBody", "TeiBody"] {
        let Some(first) = facts.first() else { break };
        let properties = &mut schemas[body]["properties"];
        // utoipa's `null` beside a type stays.
        properties["dimensions"]["minimum"] = json!(1);
        // Of several models the narrowest, and the prompts that all have.
        properties["dimensions"]["maximum"] =
            json!(facts.iter().map(|facts| facts.dimensions).min());
        let shared = first
            .prompts
            .iter()
            .filter(|name| facts.iter().all(|facts| facts.prompts.contains(name)));
        properties["prompt_name"]["enum"] =
            shared.map(|name| json!(name)).chain([Value::Null]).collect();
    }
    if facts.len() > 1 {
        let names = facts.iter().map(|facts| json!(facts.name));
        schemas["OpenAiBody"]["properties"]["model"]["enum"] = names.chain([Value::Null]).collect();
    }
    schemas["Texts"]["oneOf"][1]["minItems"] = json!(1);
    schemas["Texts"]["oneOf"][1]["maxItems"] = json!(limits.max_texts);
    if ranks {
        let documents = &mut schemas["CohereBody"]["properties"]["documents"];
        documents["minItems"] = json!(1);
        documents["maxItems"] = json!(limits.max_texts);
    }
    Ok(document)
}

/// The page: it shows the document, and fetches nothing from elsewhere.
pub(super) fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}
