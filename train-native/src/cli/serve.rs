//! `kiln serve`

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::quant::WeightPrecision;
use serde_json::json;

use super::{Global, ModelArgs};
use crate::eval::fingerprint;
use crate::model::{folders, load_into_memory};
use crate::serve::{Access, Limits, MOST_TEXTS, SPARE_CONNECTIONS, Served, ServedModel, serve};
use crate::terminal::{field, print, print_json};
use crate::{device, with_backend};

/// Serve a model over HTTP: OpenAI's /v1/embeddings and /v1/models, and the /embed, /info, /health
/// and /metrics (Prometheus) of text-embeddings-inference.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on; other machines reach it only if you choose another than this
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Name under which the model answers [default: its folder's name or Hub id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Ask for this key (Authorization: Bearer KEY) on all routes but /health and /metrics
    #[arg(long, value_name = "KEY", env = "KILN_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Another name under which the server may be asked (repeatable). On a loopback address and without a key
    /// it is asked as localhost, or by that address; with this option it has no other names anywhere
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Web pages of this origin may ask, as https://example.org, or * for any (repeatable) [default: the
    /// server's own]
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Most tokens that are embedded together
    #[arg(long, value_name = "TOKENS", default_value_t = Limits::default().batch_tokens, value_parser = up_to(1 << 24))]
    max_batch_tokens: usize,
    /// Most requests in work or waiting; the next is answered 429
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_requests, value_parser = up_to(65_536))]
    max_concurrent_requests: usize,
    /// Most connections, more than requests; beyond them the one that waits longest for its client is closed
    /// [default: 256 more than requests]
    #[arg(long, value_name = "N", value_parser = up_to(1 << 20))]
    max_connections: Option<usize>,
    /// Most texts of a request; the answer to more is 413, as for the next two
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_texts, value_parser = up_to(MOST_TEXTS as u64))]
    max_client_batch_size: usize,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_body, value_parser = up_to(1 << 30))]
    payload_limit: usize,
    /// Most bytes of a request's texts, each with its prompt
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().max_expanded, value_parser = up_to(1 << 32))]
    expanded_limit: usize,
    /// Bytes that all requests may hold together, as bodies, long texts, vectors and answers; larger requests
    /// wait for them. Small ones (64 KiB to read, 256 KiB to answer) do not, and come on top
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().memory, value_parser = up_to(1 << 40))]
    request_memory: usize,
    /// Seconds after which a request is given up: its body, its tokens, the queue and the model together
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().timeout.as_secs(), value_parser = seconds())]
    timeout: u64,
    /// Seconds within which a request's head comes, and after which an idle connection is closed
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().head_timeout.as_secs(), value_parser = seconds())]
    header_timeout: u64,
    /// Seconds without a byte after which a body is given up, and an answer that is not read
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().stall_timeout.as_secs(), value_parser = seconds())]
    stall_timeout: u64,
    /// Refuse texts that are too long instead of cutting them
    #[arg(long)]
    no_truncate: bool,
    /// Prompt of the model that requests get which name none
    #[arg(long, value_name = "NAME")]
    default_prompt_name: Option<String>,
    /// Keep only the first dimensions (Matryoshka)
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Compute with the weights in int8, int4 (rounded as they are loaded), f32, or kept as in the model's file
    #[arg(long, value_name = "NUMBERS", default_value_t = WeightPrecision::Kept)]
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
    let folders = folders(&args.model.model, terminal)?;
    let overrides = LoadOptions { precision: args.weights, ..args.model.load_options() };
    let revision = fingerprint(&folders, &overrides, args.dimensions)?;
    let name = args.name.clone().unwrap_or_else(|| super::eval::model_name(&args.model.model));
    let options = EmbedOptions { dimensions: args.dimensions, ..EmbedOptions::default() };
    let device = device::open(global.device)?;
    let model: Arc<dyn Served> = with_backend!(&device, B, handle => {
        let mut embedder = load_into_memory::<B>(&args.model.model, &overrides, &handle, terminal)?;
        if let Some(name) = &args.default_prompt_name {
            let prompts = embedder.prompts().clone().with_default(name)?;
            embedder = embedder.with_prompts(prompts);
        }
        embedder.check(&options)?;
        Arc::new(ServedModel::new(embedder, &name, &revision, options))
    });
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
    serve(model, address, limits, access, terminal, |address| {
        let url = format!("http://{address}");
        if global.json {
            return print_json(&json!({ "url": url, "model": name, "device": device.to_string() }));
        }
        print(&format!("{} on {device}, serving at {url} (Ctrl-C ends it)", field(&name)))
    })
}
