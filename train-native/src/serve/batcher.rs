//! Requests wait in a queue; one thread takes as many as fit its token budget and embeds them
//! together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use anyhow::{Context as _, Result};
use kiln_core::tokenizer::Tokens;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::telemetry::Telemetry;
use super::{Limits, Served};

/// One request's texts, and where its vectors go.
struct Job {
    tokens: Vec<Tokens>,
    answer: oneshot::Sender<Result<Vec<Vec<f32>>, String>>,
    queued: Instant,
    _place: OwnedSemaphorePermit,
}

/// A place in the queue; a request has it until it is answered.
pub struct Place(OwnedSemaphorePermit);

/// The queue before the model.
#[derive(Clone)]
pub struct Batcher {
    jobs: Sender<Job>,
    places: Arc<Semaphore>,
    telemetry: Arc<Telemetry>,
}

impl Batcher {
    /// Starts the thread that embeds.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        model: Arc<dyn Served>,
        limits: Limits,
        telemetry: Arc<Telemetry>,
    ) -> Result<Self> {
        let (jobs, queue) = channel();
        let places = Arc::new(Semaphore::new(limits.max_requests));
        let counted = telemetry.clone();
        std::thread::Builder::new()
            .name("embedding".into())
            .spawn(move || work(&queue, model.as_ref(), limits.batch_tokens, &counted))
            .context("cannot start the thread that embeds")?;
        Ok(Self { jobs, places, telemetry })
    }

    /// A place for a request; `None` where all are taken.
    pub fn place(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok().map(Place)
    }

    /// Vectors of texts, when their turn has come.
    ///
    /// # Errors
    /// What the model says, or that it is gone.
    pub async fn embed(&self, tokens: Vec<Tokens>, place: Place) -> Result<Vec<Vec<f32>>, String> {
        let (answer, answered) = oneshot::channel();
        let gone = || "the model's thread has ended; restart the server".to_string();
        self.telemetry.queued.inc();
        let job = Job { tokens, answer, queued: Instant::now(), _place: place.0 };
        self.jobs.send(job).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

fn work(queue: &Receiver<Job>, model: &dyn Served, batch_tokens: usize, telemetry: &Telemetry) {
    let mut left: Option<Job> = None;
    while let Some(first) = left.take().or_else(|| queue.recv().ok()) {
        let mut jobs = vec![first];
        let size = |job: &Job| job.tokens.iter().map(|one| one.ids.len()).sum::<usize>();
        let mut tokens = size(&jobs[0]);
        // What has come meanwhile joins, as far as the budget goes.
        while let Ok(next) = queue.try_recv() {
            if tokens + size(&next) > batch_tokens {
                left = Some(next);
                break;
            }
            tokens += size(&next);
            jobs.push(next);
        }
        telemetry.queued.sub(jobs.len() as i64);
        // Nobody waits any more for those that were given up.
        jobs.retain(|job| !job.answer.is_closed());
        if jobs.is_empty() {
            continue;
        }
        let start = Instant::now();
        jobs.iter().for_each(|job| {
            telemetry.queue_seconds.observe((start - job.queued).as_secs_f64());
        });
        let counts: Vec<usize> = jobs.iter().map(|job| job.tokens.len()).collect();
        let texts: Vec<Tokens> =
            jobs.iter_mut().flat_map(|job| std::mem::take(&mut job.tokens)).collect();
        telemetry.batch_texts.observe(texts.len() as f64);
        telemetry.batch_tokens.observe(tokens as f64);
        // A failure inside the model must not end the server.
        let embedded = catch_unwind(AssertUnwindSafe(|| model.embed(texts)));
        let found = match embedded {
            Ok(Ok(vectors)) => Ok(vectors),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the model failed; the server's log says why".to_string()),
        };
        telemetry.inference_seconds.observe(start.elapsed().as_secs_f64());
        let mut vectors = found.map(Vec::into_iter);
        for (job, count) in jobs.into_iter().zip(counts) {
            let answer = match &mut vectors {
                Ok(vectors) => Ok(vectors.by_ref().take(count).collect()),
                Err(error) => Err(error.clone()),
            };
            // Who has gone away meanwhile does not want it.
            let _ = job.answer.send(answer);
        }
    }
}
