//! A bounded load on a server: how long requests take, and how many texts it embeds in a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use crate::interrupt;
use crate::terminal::{ProgressBar, Terminal, counted};

/// Most bytes of an answer that are read for each text: vectors of 40,000 numbers.
const LONGEST_ANSWER: usize = 1 << 20;

/// What is asked of the server.
#[derive(Debug, Clone)]
pub struct Load {
    /// Address, without a path (`http://127.0.0.1:8080`).
    pub url: String,
    /// API key.
    pub key: Option<String>,
    /// Texts; requests take them in turn.
    pub texts: Vec<String>,
    /// Texts of a request.
    pub batches: Vec<usize>,
    /// Requests at a time.
    pub connections: Vec<usize>,
    /// Requests of each measurement.
    pub requests: usize,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadLine {
    /// Requests at a time.
    pub connections: usize,
    /// Texts of a request.
    pub batch: usize,
    /// Requests that got all their vectors.
    pub answered: usize,
    /// Requests that were refused because the queue was full (429); they were sent again.
    pub refused: usize,
    /// Requests that got anything else, or nothing.
    pub lost: usize,
    /// Milliseconds within which half of the requests were answered.
    pub p50_ms: f64,
    /// .. 95 of 100.
    pub p95_ms: f64,
    /// .. 99 of 100.
    pub p99_ms: f64,
    /// Texts embedded in a second.
    pub texts_per_second: f64,
}

/// What the connections of one measurement share.
struct ServerState {
    client: reqwest::Client,
    load: Load,
    batch: usize,
    dimensions: usize,
    next: AtomicUsize,
    refused: AtomicUsize,
    lost: AtomicUsize,
}

impl Load {
    /// Measures every number of connections with every size of batch.
    ///
    /// # Errors
    /// No server there, or Ctrl-C.
    pub fn run(&self, terminal: Terminal) -> Result<Vec<LoadLine>> {
        if self.texts.is_empty() {
            bail!("nothing to send: no texts");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = crate::http::client().timeout(Duration::from_secs(300)).build()?;
            let info = client.get(format!("{}/health", self.url)).send().await;
            info.with_context(|| format!("{}: no server answers", self.url))?;
            // The first request also says how wide vectors are.
            let probe = send(&client, self, &self.texts[..1]).await?;
            let dimensions = match probe {
                Sent::Vectors(vectors) => vectors.first().map_or(0, Vec::len),
                Sent::Refused => bail!("{}: refuses the first request", self.url),
                Sent::Failed(reason) => bail!("{}: {reason}", self.url),
            };
            let measurements = (self.batches.len() * self.connections.len()) as u64;
            let total = measurements.saturating_mul(self.requests as u64);
            let bar = terminal.progress(total, "requests");
            let mut lines = Vec::new();
            for &batch in &self.batches {
                for &connections in &self.connections {
                    let shared = Arc::new(ServerState {
                        client: client.clone(),
                        load: self.clone(),
                        batch,
                        dimensions,
                        next: AtomicUsize::new(0),
                        refused: AtomicUsize::new(0),
                        lost: AtomicUsize::new(0),
                    });
                    lines.push(measure(&shared, connections, &bar).await?);
                }
            }
            bar.finish_and_clear();
            Ok(lines)
        })
    }
}

async fn measure(
    shared: &Arc<ServerState>,
    connections: usize,
    bar: &ProgressBar,
) -> Result<LoadLine> {
    let start = Instant::now();
    let workers: Vec<_> =
        (0..connections).map(|_| tokio::spawn(connection(shared.clone(), bar.clone()))).collect();
    let mut times = Histogram::<u64>::new(3)?;
    for worker in workers {
        times.add(worker.await??)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let at = |share: f64| times.value_at_quantile(share) as f64 / 1000.0;
    let answered = times.len() as usize;
    Ok(LoadLine {
        connections,
        batch: shared.batch,
        answered,
        refused: shared.refused.load(Ordering::Relaxed),
        lost: shared.lost.load(Ordering::Relaxed),
        p50_ms: at(0.5),
        p95_ms: at(0.95),
        p99_ms: at(0.99),
        texts_per_second: (answered * shared.batch) as f64 / seconds,
    })
}

/// Sends requests one after another; microseconds of each that was answered.
async fn connection(shared: Arc<ServerState>, bar: ProgressBar) -> Result<Histogram<u64>> {
    let mut times = Histogram::<u64>::new(3)?;
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= shared.load.requests {
            return Ok(times);
        }
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        let texts: Vec<String> = (0..shared.batch)
            .map(|i| {
                shared.load.texts[(number * shared.batch + i) % shared.load.texts.len()].clone()
            })
            .collect();
        let start = Instant::now();
        loop {
            match send(&shared.client, &shared.load, &texts).await {
                Ok(Sent::Vectors(vectors)) => {
                    let whole = vectors.len() == texts.len()
                        && vectors.iter().all(|vector| vector.len() == shared.dimensions);
                    match whole {
                        true => times.record(start.elapsed().as_micros() as u64)?,
                        false => _ = shared.lost.fetch_add(1, Ordering::Relaxed),
                    }
                    break;
                }
                Ok(Sent::Refused) => {
                    shared.refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok(Sent::Failed(_)) | Err(_) => {
                    shared.lost.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
        bar.inc(1);
    }
}

/// What a request got.
enum Sent {
    Vectors(Vec<Vec<f64>>),
    Refused,
    Failed(String),
}

async fn send(client: &reqwest::Client, load: &Load, texts: &[String]) -> Result<Sent> {
    let mut request =
        client.post(format!("{}/v1/embeddings", load.url)).json(&json!({ "input": texts }));
    if let Some(key) = &load.key {
        request = request.bearer_auth(key);
    }
    let mut response = request.send().await?;
    let status = response.status();
    if status == reqwest::StatusCode::TOO_MANY_REQUESTS {
        return Ok(Sent::Refused);
    }
    let most = LONGEST_ANSWER * (1 + texts.len());
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        if body.len() + part.len() > most {
            let texts = counted(texts.len(), "text", "texts");
            bail!("an answer of more than {most} bytes to {texts}");
        }
        body.extend_from_slice(&part);
    }
    let body: Value = serde_json::from_slice(&body)
        .with_context(|| format!("{status}: the answer is not JSON"))?;
    if !status.is_success() {
        return Ok(Sent::Failed(format!("{status}: {}", body["error"]["message"])));
    }
    let vector = |entry: &Value| serde_json::from_value(entry["embedding"].clone());
    let data = body["data"].as_array().context("the answer has no data")?;
    Ok(Sent::Vectors(data.iter().map(vector).collect::<Result<_, _>>()?))
}
