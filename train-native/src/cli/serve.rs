//! `kiln serve`

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::builder::RangedU64ValueParser;
use clap::{ArgGroup, Args};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::quant::WeightPrecision;
use serde_json::json;

use super::reranker::RerankerFlags;
use super::{Global, ModelOverrides, with_adapter};
use crate::device;
use crate::eval::fingerprint;
use crate::model::{folders, load_resident, model_name};
use crate::serve::{
    Access, Limits, Loaded, MOST_TEXTS, SPARE_CONNECTIONS, Served, ServedModel, ServedReranker,
    serve,
};
use crate::terminal::{field, print, print_json};

/// Serve a model over HTTP with the APIs of OpenAI and text-embeddings-inference.
///
/// OpenAI's /v1/embeddings and /v1/models, text-embeddings-inference's /embed, /info, /health and /metrics
/// (Prometheus), and with --reranker, beside --model or alone, its /rerank and /v1/rerank as Cohere's and Jina's
/// clients ask.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("served").args(["model", "reranker"]).required(true).multiple(true))]
pub(super) struct ServeArgs {
    /// Model: a folder, a .kiln file, or a Hub id (owner/name[@revision]), which is downloaded into
    /// huggingface_hub's cache. MODEL#NAME picks one of its adapters
    #[arg(long, short, value_name = "DIR|FILE|HUB_ID")]
    model: Option<String>,
    /// Use the adapter of this name (as MODEL#NAME), such as jina-embeddings-v3's retrieval.query
    #[arg(long, value_name = "NAME", requires = "model")]
    adapter: Option<String>,
    #[command(flatten)]
    overrides: ModelOverrides,
    /// Also serve this model (repeatable): a folder, a .kiln file or a Hub id; OpenAI's requests choose by `model`, all
    /// others get the first. Options that override a model's settings are for all
    #[arg(long, value_name = "DIR|FILE|HUB_ID", requires = "model")]
    also: Vec<String>,
    /// Serve this reranker at /rerank, /v1/rerank and /v2/rerank, beside --model or alone: a folder, a .kiln file or a
    /// Hub id, as `kiln rerank --model` takes
    #[arg(long, value_name = "DIR|FILE|HUB_ID")]
    reranker: Option<String>,
    #[command(flatten)]
    reranker_flags: RerankerFlags,
    /// Address to listen on; the default is reachable from this machine only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Name of the model in requests and answers [default: its folder's name or Hub id]
    #[arg(long, value_name = "NAME", requires = "model")]
    name: Option<String>,
    /// Require this key (Authorization: Bearer KEY) on every route but the probes (/livez, /readyz, /health), /metrics,
    /// /openapi.json and /docs
    #[arg(long, value_name = "KEY", env = "KILN_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Answer requests for this host name, besides localhost and --host, and for no others
    /// (repeatable) [default: any name; on a loopback address without a key, none besides those two]
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Allow web pages of this origin (CORS), such as https://example.org, or * for any
    /// (repeatable) [default: the server's own]
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Maximum number of tokens in a batch
    #[arg(long, value_name = "TOKENS", default_value_t = Limits::default().batch_tokens, value_parser = up_to(1 << 24))]
    max_batch_tokens: usize,
    /// Maximum number of requests running or waiting; more are answered with 429
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_requests, value_parser = up_to(65_536))]
    max_concurrent_requests: usize,
    /// Maximum number of connections, above --max-concurrent-requests; beyond it, the connection
    /// that has waited longest for its client is closed [default: 256 more than requests]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    max_connections: Option<usize>,
    /// Maximum number of texts in a request; more are answered with 413, as for the next two limits
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_texts, value_parser = up_to(MOST_TEXTS as u64))]
    max_client_batch_size: usize,
    /// Maximum size of a request in bytes
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body, value_parser = up_to(1 << 30))]
    payload_limit: usize,
    /// Maximum size in bytes of a request's texts with their prompts
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_expanded, value_parser = up_to(1 << 32))]
    expanded_limit: usize,
    /// Memory in bytes that all requests share for bodies, long texts, vectors and answers; large
    /// requests wait for it. Small requests (64 KiB to read, 256 KiB to answer) do not wait, and
    /// come on top
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().memory, value_parser = up_to(1 << 40))]
    request_memory: usize,
    /// Seconds until a request times out, from reading its body to the model's answer
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().timeout.as_secs(), value_parser = seconds())]
    timeout: u64,
    /// Seconds until a request's head must have arrived; idle connections close after as long
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().head_timeout.as_secs(), value_parser = seconds())]
    header_timeout: u64,
    /// Seconds without a byte until a request body, or an answer that nobody reads, is given up
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().stall_timeout.as_secs(), value_parser = seconds())]
    stall_timeout: u64,
    /// Refuse texts that are too long instead of truncating them
    #[arg(long)]
    no_truncate: bool,
    /// Name of the model's prompt for requests that name none
    #[arg(long, value_name = "NAME", requires = "model")]
    default_prompt_name: Option<String>,
    /// Truncate vectors to their first N dimensions (Matryoshka)
    #[arg(long, value_name = "N", requires = "model")]
    dimensions: Option<usize>,
    /// Precision to run the weights in: kept (that of the file), f32, or rounded while loading to
    /// bf16, int8, int4, fp8-e4m3 or fp8-e5m2
    #[arg(long, value_name = "PRECISION", default_value_t = WeightPrecision::Kept, requires = "model")]
    weights: WeightPrecision,
}

/// A number of things, one at least.
pub(super) fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most.min(usize::MAX as u64))
}

/// A second to a day.
fn seconds() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..=86_400)
}

pub(super) fn run(args: &ServeArgs, global: &Global) -> Result<()> {
    // What can be wrong with the rest is said before the model is loaded.
    let access =
        Access::new(args.host, args.api_key.clone(), &args.allow_host, &args.allow_origin)?;
    let requests = args.max_concurrent_requests;
    let connections = args.max_connections.unwrap_or(requests + SPARE_CONNECTIONS);
    if connections <= requests {
        bail!(
            "--max-connections {connections} leaves none to listen to beside --max-concurrent-requests {requests}"
        );
    }
    let terminal = global.terminal();
    let overrides = LoadOptions { precision: args.weights, ..args.overrides.load_options() };
    let first = args.model.as_deref().map(|model| with_adapter(model, args.adapter.as_deref()));
    let models: Vec<&str> =
        first.as_deref().into_iter().chain(args.also.iter().map(String::as_str)).collect();
    let mut names: Vec<String> = models.iter().map(|id| model_name(id)).collect();
    if let (Some(first), Some(name)) = (names.first_mut(), &args.name) {
        first.clone_from(name);
    }
    if let Some(twice) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
        bail!("two models would answer as {:?}; rename a folder, or use --name", names[twice]);
    }
    let ranking = args.reranker.as_deref().map(model_name);
    let device = device::open(global.device)?;
    let load = || -> Result<Loaded> {
        let mut loaded: Vec<Arc<dyn Served>> = Vec::new();
        for (id, name) in models.into_iter().zip(&names) {
            let revision = fingerprint(&folders(id, terminal)?, &overrides, args.dimensions)?;
            let options = EmbedOptions { dimensions: args.dimensions, ..EmbedOptions::default() };
            let model = load_resident(id, &overrides, &device, terminal)?;
            let prompt = args.default_prompt_name.clone();
            let served = ServedModel::new(model, name, &revision, options, prompt);
            loaded.push(Arc::new(served.with_context(|| name.clone())?));
        }
        let reranker = match (&args.reranker, &ranking) {
            (Some(id), Some(name)) => {
                let flags = &args.reranker_flags;
                let model = flags.load(id, global)?;
                // `/info` says it where nothing embeds.
                let revision = match loaded.is_empty() {
                    true => fingerprint(&folders(id, terminal)?, &flags.load_options(), None)?,
                    false => String::new(),
                };
                Some(ServedReranker::new(model, name, &revision, flags.batch_tokens()))
            }
            _ => None,
        };
        Ok(Loaded { models: loaded, reranker })
    };
    let limits = Limits {
        max_requests: requests,
        max_texts: args.max_client_batch_size,
        max_body: args.payload_limit,
        max_expanded: args.expanded_limit,
        batch_tokens: args.max_batch_tokens,
        memory: args.request_memory,
        max_connections: connections,
        timeout: Duration::from_secs(args.timeout),
        head_timeout: Duration::from_secs(args.header_timeout),
        stall_timeout: Duration::from_secs(args.stall_timeout),
        truncate: !args.no_truncate,
    };
    if args.api_key.is_none() && !args.host.is_loopback() {
        terminal.note("no --api-key: whoever reaches this address may ask");
    }
    let address = SocketAddr::new(args.host, args.port);
    serve(address, limits, access, terminal, load, |address| {
        let url = format!("http://{address}");
        let names: Vec<&str> = names.iter().map(String::as_str).chain(ranking.as_deref()).collect();
        if global.json {
            return print_json(&json!({
                "url": url, "model": names.first(), "models": names, "device": device.to_string(),
            }));
        }
        print(&format!(
            "{} on {device}, serving at {url} (Ctrl-C ends it)",
            field(&names.join(", "))
        ))
    })
}
