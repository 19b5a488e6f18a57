//! A server of embeddings and rankings: OpenAI's `/v1/embeddings`, the routes of text-embeddings-inference, and
//! `/v1/rerank`.
//!
//! `connections (how many, how long) -> access (who may ask) -> routes -> Server (body, request, tokens) ->
//! Batcher (turns, one thread with the model) -> answer`
//!
//! What a stranger can make the server hold or do is bounded by [`Limits`]; SERVING.md lists them.

mod access;
mod answer;
mod batcher;
mod body;
mod connections;
mod limits;
mod load;
mod memory;
mod openapi;
mod refusal;
mod request;
mod rerank;
mod routes;
mod server;
mod telemetry;
mod traces;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use kiln_embed::embedder::{EmbedOptions, Prompt};
use kiln_embed::tokenizer::Tokens;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use access::{Access, check_key};
pub use batcher::{Batcher, Embedded, Place};
pub use limits::{Limits, MOST_TEXTS, SMALL_BODY, SMALL_WORK, SPARE_CONNECTIONS};
pub use load::{Load, LoadLine};
pub use refusal::Refusal;
pub use request::{
    EmbeddingRequest, Protocol, RerankProtocol, RerankRequest, parse_request, parse_rerank,
};
pub use rerank::ServedReranker;
use server::Hosted;
pub use telemetry::Telemetry;
use traces::Traces;

use crate::embedding::TextModel;
use crate::interrupt;
use crate::terminal::Terminal;

/// A model as the server sees it.
pub trait Served: Send + Sync + 'static {
    /// Tokens of a text behind a prompt.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take.
    fn tokens(&self, prompt: &str, text: &str) -> kiln_embed::Result<Tokens>;

    /// Vectors of texts, in their order.
    ///
    /// # Errors
    /// Whatever hinders the model.
    fn embed(&self, tokens: Vec<Tokens>) -> kiln_embed::Result<Vec<Vec<f32>>>;

    /// Text of a prompt.
    ///
    /// # Errors
    /// An unknown name.
    fn prompt<'a>(&'a self, prompt: &'a Prompt) -> kiln_embed::Result<&'a str>;

    /// What `/info` says.
    fn facts(&self) -> &Facts;
}

/// Fixed facts of a served model.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Name under which it answers.
    pub name: String,
    /// A number for its files.
    pub revision: String,
    /// Width of its vectors.
    pub dimensions: usize,
    /// Most tokens of a text.
    pub max_length: usize,
    /// Name of the pooling head.
    pub pooling: &'static str,
    /// Whether its vectors are divided by their norm.
    pub normalized: bool,
    /// Names of its prompts.
    pub prompts: Vec<String>,
}

/// A model with what it needs to answer.
pub struct ServedModel {
    model: Arc<dyn TextModel>,
    options: EmbedOptions,
    default_prompt: Prompt,
    facts: Facts,
}

impl ServedModel {
    /// A model under a name; texts whose request names no prompt get the default one given, or else
    /// the model's.
    ///
    /// # Errors
    /// A prompt or dimensions that the model does not have.
    pub fn new(
        model: Arc<dyn TextModel>,
        name: &str,
        revision: &str,
        options: EmbedOptions,
        default_prompt: Option<String>,
    ) -> kiln_embed::Result<Self> {
        let default_prompt = Prompt::from_options(default_prompt.as_deref(), None);
        model.prompts().text(&default_prompt)?;
        model.check(&options)?;
        let facts = Facts {
            name: name.into(),
            revision: revision.into(),
            dimensions: model.dimensions(&options),
            max_length: model.tokenizer().config().max_length,
            pooling: model.shape().pooling.name(),
            normalized: model.normalizes(&options),
            prompts: model.prompts().by_name().keys().cloned().collect(),
        };
        Ok(Self { model, options, default_prompt, facts })
    }
}

impl Served for ServedModel {
    fn tokens(&self, prompt: &str, text: &str) -> kiln_embed::Result<Tokens> {
        self.model.tokenizer().encode(prompt, text)
    }

    fn embed(&self, tokens: Vec<Tokens>) -> kiln_embed::Result<Vec<Vec<f32>>> {
        // What was accepted is answered, after Ctrl-C too.
        self.model.embed_encoded(tokens, &self.options)
    }

    fn prompt<'a>(&'a self, prompt: &'a Prompt) -> kiln_embed::Result<&'a str> {
        self.model.prompts().text(match prompt {
            Prompt::Default => &self.default_prompt,
            asked => asked,
        })
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }
}

/// What requests are answered with: one model at least, or a reranker.
pub struct Loaded {
    /// What embeds; the first answers requests that name none.
    pub models: Vec<Arc<dyn Served>>,
    /// What ranks, if anything does.
    pub reranker: Option<ServedReranker>,
}

/// Serves what `load` gives until Ctrl-C or a signal to end, then answers what was accepted.
///
/// The address is taken first: one that is in use is refused before minutes of loading, and who looks after the server
/// hears from it at all times. Until the models are loaded, and again once the server ends, it lives (`/livez`) and is not
/// ready (`/readyz`). `listening` is told the address, whose port the system chose where 0 was asked for, once requests
/// are taken.
///
/// # Errors
/// An address that cannot be listened on, or what `load` and `listening` say.
pub fn serve(
    address: SocketAddr,
    limits: Limits,
    access: Access,
    terminal: Terminal,
    load: impl FnOnce() -> Result<Loaded>,
    listening: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<()> {
    let traces = Traces::from_environment(terminal)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    let listener = runtime.block_on(TcpListener::bind(address)).with_context(|| {
        format!("cannot listen on {address}; choose another with --host and --port")
    })?;
    let address = listener.local_addr()?;
    let telemetry = Arc::new(Telemetry::new()?);
    let guards = (Arc::new(access), telemetry.clone());
    let answers = memory::Memory::new(limits.memory / 3);
    let (open, routes) = watch::channel(routes::closed(Refusal::loading, guards.clone()));
    let serving = runtime.spawn(connections::serve(
        listener,
        routes,
        routes::closed(Refusal::ending, guards.clone()),
        limits.clone(),
        answers.clone(),
        asked_to_end(),
    ));

    let Loaded { models, reranker } = load()?;
    let host = |model: Arc<dyn Served>| {
        let batcher = Batcher::start(model.clone(), &limits, telemetry.clone())?;
        anyhow::Ok(Hosted { model, batcher })
    };
    let models = models.into_iter().map(host).collect::<Result<Vec<_>>>()?;
    let all = routes::routes((models, reranker), limits, guards, answers, traces.clone());
    drop(open.send_replace(all));
    // Who ends it meanwhile wants to hear of no server.
    if !interrupt::asked() {
        listening(address)?;
    }
    if !runtime.block_on(serving).context("the server broke off; its log says why")? {
        terminal.note("some connections stayed open and are closed");
    }
    runtime.shutdown_background();
    traces.end();
    Ok(())
}

async fn asked_to_end() {
    while !interrupt::asked() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
