//! Requests wait in a queue; one thread embeds some of their texts together, turn by turn. Who has had least
//! is first, so that a small request does not wait for the end of a large one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kiln_embed::tokenizer::Tokens;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::telemetry::Telemetry;
use super::{Limits, Served};

/// How long a turn should take at most: what comes meanwhile waits for its end.
const TURN: Duration = Duration::from_millis(500);
/// Tokens of the first turn, before it is known how long one takes, and the fewest of a later one.
const FIRST: usize = 1024;
const FEWEST: usize = 256;
/// Requests that have had as much, in steps of so many tokens, take turns in the order in which they came.
const STEP: usize = 512;

/// Some texts of one request, and where their vectors go.
struct Job {
    texts: VecDeque<Tokens>,
    vectors: Vec<Vec<f32>>,
    /// Tokens that the request has had.
    had: usize,
    answer: oneshot::Sender<Result<Embedded, String>>,
    /// Since when, until its first turn.
    queued: Option<Instant>,
    /// How long that was.
    waited: Duration,
    _place: Place,
}

/// What the model makes of some texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embedded {
    /// Their vectors, in their order.
    pub vectors: Vec<Vec<f32>>,
    /// How long they waited for their first turn.
    pub waited: Duration,
}

/// A place in the queue; a request has it until all of its work has ended.
#[derive(Clone)]
pub struct Place(#[allow(dead_code)] Arc<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)>);

/// The queue before the model.
#[derive(Clone)]
pub struct Batcher {
    jobs: Sender<Job>,
    places: Arc<Semaphore>,
    /// Of these, how many may be large requests'.
    large: Arc<Semaphore>,
    telemetry: Arc<Telemetry>,
}

impl Batcher {
    /// Starts the thread that embeds.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        model: Arc<dyn Served>,
        limits: &Limits,
        telemetry: Arc<Telemetry>,
    ) -> Result<Self> {
        let (jobs, queue) = channel();
        let places = Arc::new(Semaphore::new(limits.max_requests));
        let large = Arc::new(Semaphore::new((limits.max_requests * 3).div_ceil(4)));
        let (counted, most) = (telemetry.clone(), limits.batch_tokens);
        std::thread::Builder::new()
            .name("embedding".into())
            .spawn(move || work(&queue, model.as_ref(), most, &counted))
            .context("cannot start the thread that embeds")?;
        Ok(Self { jobs, places, large, telemetry })
    }

    /// A place for a request; `None` where all are taken. Large requests, which have theirs for long, leave
    /// some to the others.
    pub fn place(&self, large: bool) -> Option<Place> {
        let of_large = match large {
            true => Some(self.large.clone().try_acquire_owned().ok()?),
            false => None,
        };
        let place = self.places.clone().try_acquire_owned().ok()?;
        Some(Place(Arc::new((place, of_large))))
    }

    /// Vectors of some texts of a request that has had so many tokens already. Who drops this is not
    /// embedded for any longer than the present turn.
    ///
    /// # Errors
    /// What the model says, or that it is gone.
    pub async fn embed(
        &self,
        texts: Vec<Tokens>,
        had: usize,
        place: Place,
    ) -> Result<Embedded, String> {
        if texts.is_empty() {
            return Ok(Embedded::default());
        }
        let (answer, answered) = oneshot::channel();
        let gone = || "the model's thread has ended; restart the server".to_string();
        self.telemetry.queued.inc();
        self.jobs.send(Job::new(texts, had, answer, place)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

impl Job {
    fn new(
        texts: Vec<Tokens>,
        had: usize,
        answer: oneshot::Sender<Result<Embedded, String>>,
        place: Place,
    ) -> Self {
        let vectors = Vec::with_capacity(texts.len());
        let queued = Some(Instant::now());
        Self {
            texts: texts.into(),
            vectors,
            had,
            answer,
            queued,
            waited: Duration::ZERO,
            _place: place,
        }
    }

    /// The wait is over, by a turn or because nobody waits any more.
    fn leave_queue(&mut self, telemetry: &Telemetry) -> Option<Duration> {
        let waited = self.queued.take()?.elapsed();
        telemetry.queued.dec();
        Some(waited)
    }
}

fn work(queue: &Receiver<Job>, model: &dyn Served, most: usize, telemetry: &Telemetry) {
    let mut jobs: Vec<Job> = Vec::new();
    let mut budget = most.min(FIRST);
    loop {
        if jobs.is_empty() {
            let Ok(job) = queue.recv() else { return };
            jobs.push(job);
        }
        jobs.extend(queue.try_iter());
        jobs.retain_mut(|job| {
            let wanted = !job.answer.is_closed();
            if !wanted {
                job.leave_queue(telemetry);
            }
            wanted
        });
        let parts = take(&mut jobs, budget);
        let tokens: usize = parts.iter().flatten().map(|text| text.ids.len()).sum();
        if tokens == 0 {
            continue;
        }
        for (job, part) in jobs.iter_mut().zip(&parts) {
            if !part.is_empty()
                && let Some(waited) = job.leave_queue(telemetry)
            {
                telemetry.queue_seconds.observe(waited.as_secs_f64());
                job.waited = waited;
            }
        }
        telemetry.batch_texts.observe(parts.iter().map(Vec::len).sum::<usize>() as f64);
        telemetry.batch_tokens.observe(tokens as f64);
        let start = Instant::now();
        let results = embed_parts(model, parts);
        let took = start.elapsed();
        telemetry.inference_seconds.observe(took.as_secs_f64());
        budget = next_budget(budget, most, took);

        let mut left = Vec::with_capacity(jobs.len());
        for (mut job, result) in jobs.into_iter().zip(results) {
            match result {
                Ok(vectors) => job.vectors.extend(vectors),
                Err(error) => {
                    // Who has gone away meanwhile does not want an answer; so below.
                    let _ = job.answer.send(Err(error));
                    continue;
                }
            }
            if job.texts.is_empty() {
                let Job { vectors, waited, .. } = job;
                let _ = job.answer.send(Ok(Embedded { vectors, waited }));
            } else {
                left.push(job);
            }
        }
        jobs = left;
    }
}

/// Takes the texts of a turn, for each job its own: those whose requests have had least first, of a length
/// of `budget` tokens together or one text.
fn take(jobs: &mut [Job], budget: usize) -> Vec<Vec<Tokens>> {
    let mut parts: Vec<Vec<Tokens>> = jobs.iter().map(|_| Vec::new()).collect();
    let mut order: BinaryHeap<Reverse<(usize, usize)>> =
        jobs.iter().enumerate().map(|(i, job)| Reverse((job.had / STEP, i))).collect();
    let mut taken = 0;
    while let Some(Reverse((_, i))) = order.pop() {
        let job = &mut jobs[i];
        let Some(text) = job.texts.pop_front() else { continue };
        let tokens = text.ids.len();
        if taken > 0 && taken + tokens > budget {
            job.texts.push_front(text);
            break;
        }
        taken += tokens;
        job.had += tokens;
        parts[i].push(text);
        order.push(Reverse((job.had / STEP, i)));
    }
    parts
}

/// Tokens of the next turn, by how long one took: half as many where that was too long, twice as many where
/// there is room.
fn next_budget(budget: usize, most: usize, took: Duration) -> usize {
    let next = match took {
        took if took > TURN => budget / 2,
        took if took < TURN / 3 => budget.saturating_mul(2),
        _ => budget,
    };
    next.clamp(FEWEST.min(most), most)
}

/// Vectors of the parts of some jobs, each part's own.
fn embed_parts(model: &dyn Served, parts: Vec<Vec<Tokens>>) -> Vec<Result<Vec<Vec<f32>>, String>> {
    let nothing = |part: &Vec<Tokens>| part.is_empty();
    if parts.iter().filter(|part| !nothing(part)).count() > 1 {
        let sizes: Vec<usize> = parts.iter().map(Vec::len).collect();
        if let Ok(together) = embed(model, parts.concat()) {
            let mut together = together.into_iter();
            return sizes.iter().map(|&size| Ok(together.by_ref().take(size).collect())).collect();
        }
    }
    // One request's text that the model cannot take must not fail the others.
    parts
        .into_iter()
        .map(|part| if nothing(&part) { Ok(Vec::new()) } else { embed(model, part) })
        .collect()
}

/// Vectors of texts; a failure inside the model must not end the server.
fn embed(model: &dyn Served, texts: Vec<Tokens>) -> Result<Vec<Vec<f32>>, String> {
    match catch_unwind(AssertUnwindSafe(|| model.embed(texts))) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the model failed; the server's log says why".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use kiln_embed::embedder::Prompt;

    use super::super::Facts;
    use super::*;

    /// A model that cannot take the token 7, and panics at 8.
    struct Picky(Facts);

    impl Served for Picky {
        fn tokens(&self, _: &str, _: &str) -> kiln_embed::Result<Tokens> {
            Ok(tokens(&[1]))
        }

        fn embed(&self, texts: Vec<Tokens>) -> kiln_embed::Result<Vec<Vec<f32>>> {
            assert!(texts.iter().all(|text| !text.ids.contains(&8)), "the token 8");
            match texts.iter().any(|text| text.ids.contains(&7)) {
                true => Err(kiln_embed::Error::invalid("the token 7")),
                false => Ok(texts.iter().map(|text| vec![text.ids[0] as f32]).collect()),
            }
        }

        fn prompt<'a>(&'a self, _: &'a Prompt) -> kiln_embed::Result<&'a str> {
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
            types: Vec::new(),
        }
    }

    type Answered = oneshot::Receiver<Result<Embedded, String>>;

    fn job(places: &Arc<Semaphore>, texts: Vec<Tokens>, had: usize) -> (Job, Answered) {
        let (answer, answered) = oneshot::channel();
        let place = Place(Arc::new((places.clone().try_acquire_owned().unwrap(), None)));
        (Job::new(texts, had, answer, place), answered)
    }

    #[test]
    fn one_bad_text_fails_its_own_request_alone() {
        let facts = Facts {
            name: "picky".into(),
            revision: String::new(),
            dimensions: 1,
            max_length: 8,
            pooling: "mean",
            normalized: false,
            prompts: Vec::new(),
        };
        let (jobs, queue) = channel();
        let places = Arc::new(Semaphore::new(9));
        let mut answers = Vec::new();
        for ids in [vec![1], vec![7], vec![2], vec![8], vec![3]] {
            let (job, answered) = job(&places, vec![tokens(&ids), tokens(&ids)], 0);
            jobs.send(job).unwrap();
            answers.push(answered);
        }
        drop(jobs);
        work(&queue, &Picky(facts), 100, &Telemetry::new().unwrap());
        let vectors = |answered: Answered| answered.blocking_recv().unwrap().map(|all| all.vectors);
        let found: Vec<Result<Vec<Vec<f32>>, String>> = answers.into_iter().map(vectors).collect();
        assert_eq!(found[0], Ok(vec![vec![1.0]; 2]));
        assert_eq!(found[2], Ok(vec![vec![2.0]; 2]));
        assert_eq!(found[4], Ok(vec![vec![3.0]; 2]));
        assert!(found[1].as_ref().unwrap_err().contains("the token 7"));
        assert!(found[3].as_ref().unwrap_err().contains("failed"));
        assert_eq!(places.available_permits(), 9);
    }

    #[test]
    fn who_has_had_least_is_first_and_no_turn_is_larger_than_its_budget() {
        let places = Arc::new(Semaphore::new(9));
        let text = || tokens(&[1; 100]);
        let (large, _a) = job(&places, (0..50).map(|_| text()).collect(), 5 * STEP);
        let (other, _b) = job(&places, (0..50).map(|_| text()).collect(), 0);
        let (small, _c) = job(&places, vec![text(), text()], 0);
        let mut jobs = [large, other, small];
        let sizes = |parts: Vec<Vec<Tokens>>| parts.iter().map(Vec::len).collect::<Vec<_>>();
        // The other until it has had a step, then the small one, then the other again.
        assert_eq!(sizes(take(&mut jobs, 1000)), [0, 8, 2]);
        // Both wait at the same level now and then; the first that came is served first.
        assert_eq!(sizes(take(&mut jobs, 2000)), [2, 18, 0]);
        assert_eq!(sizes(take(&mut jobs, 10)), [1, 0, 0], "one text at least");
        assert_eq!(jobs.iter().map(|job| job.texts.len()).sum::<usize>(), 71);
    }

    #[test]
    fn turns_become_as_long_as_they_may_take() {
        let slow = (0..9).fold(FIRST, |budget, _| next_budget(budget, 16_384, TURN * 2));
        let fast = (0..9).fold(FIRST, |budget, _| next_budget(budget, 16_384, TURN / 9));
        assert_eq!((slow, fast), (FEWEST, 16_384));
        assert_eq!((next_budget(64, 64, TURN * 2), next_budget(64, 64, TURN / 9)), (64, 64));
        assert_eq!(next_budget(FIRST, 16_384, TURN / 2), FIRST);
    }
}
