//! What a server counts, in Prometheus' format, under the names of text-embeddings-inference.

use anyhow::Result;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

/// Counters, gauges and histograms.
pub struct Telemetry {
    registry: Registry,
    /// Requests by method.
    pub requests: IntCounterVec,
    /// Requests that were answered with vectors, by method.
    pub successes: IntCounterVec,
    /// Requests that were refused or failed, by kind of error.
    pub failures: IntCounterVec,
    /// Texts that were embedded.
    pub texts: IntCounter,
    /// Tokens that were embedded.
    pub tokens: IntCounter,
    /// Requests that wait.
    pub queued: IntGauge,
    /// Seconds of a request from its arrival to its answer.
    pub request_seconds: Histogram,
    /// Seconds of a request in the queue.
    pub queue_seconds: Histogram,
    /// Seconds of a batch in the model.
    pub inference_seconds: Histogram,
    /// Texts of a batch.
    pub batch_texts: Histogram,
    /// Tokens of a batch.
    pub batch_tokens: Histogram,
}

impl Telemetry {
    /// All at zero.
    ///
    /// # Errors
    /// Two measures of one name, which cannot be.
    pub fn new() -> Result<Self> {
        let registry = Registry::new();
        let seconds = prometheus::exponential_buckets(0.0005, 2.0, 17)?;
        let counts = prometheus::exponential_buckets(1.0, 2.0, 17)?;
        let histogram = |name: &str, help: &str, buckets: &Vec<f64>| -> Result<Histogram> {
            let histogram =
                Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.clone()))?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let by = |name: &str, help: &str, label: &str| -> Result<IntCounterVec> {
            let counter = IntCounterVec::new(Opts::new(name, help), &[label])?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let queued = IntGauge::new("te_queue_size", "requests that wait")?;
        registry.register(Box::new(queued.clone()))?;
        Ok(Self {
            requests: by("te_request_count", "requests", "method")?,
            successes: by("te_request_success", "requests answered with vectors", "method")?,
            failures: by("te_request_failure", "requests refused or failed", "err")?,
            texts: counter("te_embed_texts", "texts embedded")?,
            tokens: counter("te_embed_tokens", "tokens embedded")?,
            queued,
            request_seconds: histogram("te_request_duration", "seconds of a request", &seconds)?,
            queue_seconds: histogram(
                "te_request_queue_duration",
                "seconds in the queue",
                &seconds,
            )?,
            inference_seconds: histogram(
                "te_request_inference_duration",
                "seconds of a batch in the model",
                &seconds,
            )?,
            batch_texts: histogram("te_batch_next_size", "texts of a batch", &counts)?,
            batch_tokens: histogram("te_batch_next_tokens", "tokens of a batch", &counts)?,
            registry,
        })
    }

    /// Everything, as Prometheus reads it.
    ///
    /// # Errors
    /// A measure that cannot be written as text.
    pub fn to_text(&self) -> Result<String> {
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }
}
