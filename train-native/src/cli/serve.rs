//! `train-native serve`

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use kiln_core::checkpoint::LoadOptions;
use kiln_core::embedder::EmbedOptions;
use kiln_core::quant::Precision;
use serde_json::json;

use super::{Global, ModelArgs};
use crate::eval::fingerprint;
use crate::model::{folders, load_embedder};
use crate::serve::{Limits, Served, ServedModel, serve};
use crate::terminal::print;
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
    /// Most tokens that are embedded together
    #[arg(long, value_name = "TOKENS", default_value_t = 16_384)]
    max_batch_tokens: usize,
    /// Most requests in work or waiting; the next is answered 429
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_concurrent_requests: usize,
    /// Most texts of a request
    #[arg(long, value_name = "N", default_value_t = 2048)]
    max_client_batch_size: usize,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 8_000_000)]
    payload_limit: usize,
    /// Seconds after which a request is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
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
    #[arg(long, value_name = "NUMBERS", default_value_t = Precision::Kept)]
    weights: Precision,
}

pub(super) fn run(args: &ServeArgs, global: &Global) -> Result<()> {
    let positive = [
        ("--max-batch-tokens", args.max_batch_tokens),
        ("--max-concurrent-requests", args.max_concurrent_requests),
        ("--max-client-batch-size", args.max_client_batch_size),
        ("--timeout", args.timeout as usize),
    ];
    if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
        bail!("{name} must be at least 1");
    }
    if args.api_key.as_ref().is_some_and(String::is_empty) {
        bail!("--api-key is empty");
    }
    let terminal = global.terminal();
    let folders = folders(&args.model.model, terminal)?;
    let overrides = LoadOptions { precision: args.weights, ..args.model.load_options() };
    let revision = fingerprint(&folders, &overrides, args.dimensions)?;
    let name = args.name.clone().unwrap_or_else(|| super::eval::model_name(&args.model.model));
    let options = EmbedOptions { dimensions: args.dimensions, ..EmbedOptions::default() };
    let device = device::open(global.device)?;
    let model: Arc<dyn Served> = with_backend!(&device, B, handle => {
        let mut embedder = load_embedder::<B>(&args.model.model, &overrides, &handle, terminal)?;
        if let Some(name) = &args.default_prompt_name {
            embedder.prompts.get(Some(name))?;
            embedder.prompts.default = Some(name.clone());
        }
        embedder.check(&options)?;
        Arc::new(ServedModel::new(embedder, &name, &revision, options))
    });
    let limits = Limits {
        max_requests: args.max_concurrent_requests,
        max_texts: args.max_client_batch_size,
        max_body: args.payload_limit,
        batch_tokens: args.max_batch_tokens,
        timeout: Duration::from_secs(args.timeout),
        truncate: !args.no_truncate,
    };
    let address = SocketAddr::new(args.host, args.port);
    serve(model, address, limits, args.api_key.clone(), terminal, |address| {
        let url = format!("http://{address}");
        let line = match global.json {
            true => json!({ "url": url, "model": name, "device": device.to_string() }).to_string(),
            false => format!("{name} on {device}, serving at {url} (Ctrl-C ends it)"),
        };
        print(&line)
    })
}
