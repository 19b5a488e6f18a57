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
        let mut texts: Vec<Vec<Tokens>> =
            jobs.iter_mut().map(|job| std::mem::take(&mut job.tokens)).collect();
        telemetry.batch_texts.observe(texts.iter().map(Vec::len).sum::<usize>() as f64);
        telemetry.batch_tokens.observe(tokens as f64);
        let together = if jobs.len() > 1 { texts.concat() } else { std::mem::take(&mut texts[0]) };
        let together = embed(model, together);
        telemetry.inference_seconds.observe(start.elapsed().as_secs_f64());
        let alone = jobs.len() == 1;
        let mut vectors = together.map(Vec::into_iter);
        // Who has gone away meanwhile does not want an answer.
        for (job, texts) in jobs.into_iter().zip(texts) {
            let answer = match &mut vectors {
                Ok(vectors) if alone => Ok(vectors.collect()),
                Ok(vectors) => Ok(vectors.by_ref().take(texts.len()).collect()),
                Err(error) if alone => Err(error.clone()),
                // One request's text that the model cannot take must not fail the others.
                Err(_) => embed(model, texts),
            };
            let _ = job.answer.send(answer);
        }
    }
}

/// Vectors of texts; a failure inside the model must not end the server.
fn embed(model: &dyn Served, texts: Vec<Tokens>) -> Result<Vec<Vec<f32>>, String> {
    match catch_unwind(AssertUnwindSafe(|| model.embed(texts))) {
        Ok(found) => found.map_err(|error| error.to_string()),
        Err(_) => Err("the model failed; the server's log says why".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Facts;
    use super::*;

    /// A model that cannot take the token 7, and panics at 8.
    struct Picky(Facts);

    impl Served for Picky {
        fn tokens(&self, _: &str, _: &str) -> kiln_core::Result<Tokens> {
            Ok(tokens(&[1]))
        }

        fn embed(&self, texts: Vec<Tokens>) -> kiln_core::Result<Vec<Vec<f32>>> {
            assert!(texts.iter().all(|text| !text.ids.contains(&8)), "the token 8");
            match texts.iter().any(|text| text.ids.contains(&7)) {
                true => Err(kiln_core::Error::invalid("the token 7")),
                false => Ok(texts.iter().map(|text| vec![text.ids[0] as f32]).collect()),
            }
        }

        fn prompt(&self, _: Option<&str>) -> kiln_core::Result<&str> {
            Ok("")
        }

        fn facts(&self) -> &Facts {
            &self.0
        }
    }

    fn tokens(ids: &[u32]) -> Tokens {
        Tokens {
            ids: ids.to_vec(),
            pooling: vec![true; ids.len()],
            offsets: vec![(0, 0); ids.len()],
            content: 0..ids.len(),
            truncated: false,
        }
    }

    #[test]
    fn one_bad_text_fails_its_own_request_alone() {
        let facts = Facts {
            name: "picky".into(),
            revision: String::new(),
            dimensions: 1,
            max_length: 8,
            pooling: "mean",
        };
        let (jobs, queue) = channel();
        let places = Arc::new(Semaphore::new(9));
        let mut answers = Vec::new();
        for ids in [vec![1], vec![7], vec![2], vec![8], vec![3]] {
            let (answer, answered) = oneshot::channel();
            let place = places.clone().try_acquire_owned().unwrap();
            let texts = vec![tokens(&ids), tokens(&ids)];
            jobs.send(Job { tokens: texts, answer, queued: Instant::now(), _place: place })
                .unwrap();
            answers.push(answered);
        }
        drop(jobs);
        work(&queue, &Picky(facts), 100, &Telemetry::new().unwrap());
        let found: Vec<Result<Vec<Vec<f32>>, String>> =
            answers.into_iter().map(|answered| answered.blocking_recv().unwrap()).collect();
        assert_eq!(found[0], Ok(vec![vec![1.0]; 2]));
        assert_eq!(found[2], Ok(vec![vec![2.0]; 2]));
        assert_eq!(found[4], Ok(vec![vec![3.0]; 2]));
        assert!(found[1].as_ref().unwrap_err().contains("the token 7"));
        assert!(found[3].as_ref().unwrap_err().contains("failed"));
        assert_eq!(places.available_permits(), 9);
    }
}
