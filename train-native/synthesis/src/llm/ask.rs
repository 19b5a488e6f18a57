//! Asks many questions at once, within what the servers bear and the budget allows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use kiln_terminal::interrupt;
use kiln_terminal::terminal::{Terminal, counted};
use rand::Rng as _;
use serde::Serialize;
use tokio::task::{JoinError, JoinSet};

use super::answer::{Answer, Finish, Usage, Used};
use super::client::{Failure, Llm};
use super::journal::{Journal, Written};
use super::pace::Pace;
use super::question::Question;

/// How often a wait looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);
/// The longest pause that a server may ask for, and the longest that we make by ourselves.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// Questions that wait where there are several endpoints, at most, for each that may be under way: one that wants to be left
/// alone holds many, and others are to be asked meanwhile.
const MOST_WAITING: usize = 64;
/// Questions that fail in a row, with no answer between, before an endpoint is given up.
const MOST_LOST: u32 = 8;
/// Tries of a server that never answered.
const TRIES_OF_NOBODY: u32 = 2;

/// How much may be asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Questions under way at a time, at most.
    pub concurrency: usize,
    /// How often a question is sent again where the server or the network fails.
    pub retries: u32,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Requests of this run.
    pub max_requests: Option<u64>,
    /// Those that were sent before these questions, which count too.
    pub requests_before: u64,
    /// Tokens of prompts and answers, those in the journal included.
    pub max_tokens: Option<u64>,
    /// Money, in the unit of the endpoints' prices, what the journal's answers cost included.
    pub max_cost: Option<f64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            concurrency: 16,
            retries: 5,
            timeout: Duration::from_secs(120),
            max_requests: None,
            requests_before: 0,
            max_tokens: None,
            max_cost: None,
        }
    }
}

/// Why a run ended before all questions were answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// A limit was reached, which is named.
    Budget(String),
    /// Ctrl-C.
    Interrupted,
}

/// What a run used.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Spent {
    /// Requests that were sent.
    pub requests: u64,
    /// Questions answered by a server.
    pub answered: u64,
    /// Questions that the journal answered.
    pub known: u64,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens of answers.
    pub completion_tokens: u64,
    /// Money, where prices are known.
    pub cost: f64,
    /// Questions without an answer, after all tries.
    pub failed: u64,
    /// Mean number of questions under way while there were some left.
    pub in_flight: f64,
    /// Why it ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stop>,
}

impl Spent {
    /// Adds another run's.
    pub fn add(&mut self, other: Spent) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.known += other.known;
        self.prompt_tokens += other.prompt_tokens;
        self.completion_tokens += other.completion_tokens;
        self.cost += other.cost;
        self.failed += other.failed;
        self.in_flight = self.in_flight.max(other.in_flight);
        self.stopped = self.stopped.take().or(other.stopped);
    }
}

impl Limits {
    /// The limit of tokens or money that so much reaches.
    fn reached_by(&self, tokens: f64, cost: f64) -> Option<String> {
        if let Some(most) = self.max_tokens.filter(|most| tokens >= *most as f64) {
            return Some(format!("{most} tokens"));
        }
        let most = self.max_cost.filter(|most| cost >= *most)?;
        Some(format!("{most} of money"))
    }
}

/// A question that waits for its turn.
struct Waiting {
    question: Arc<Question>,
    tries: u32,
    not_before: Instant,
}

/// What a request brought.
struct Done {
    question: Arc<Question>,
    tries: u32,
    asked: Instant,
    /// An answer, which is in the journal if that could be written.
    result: Result<(Answer, Result<Written>), Failure>,
}

/// How an endpoint does.
struct Line {
    pace: Pace,
    waiting: VecDeque<Waiting>,
    in_flight: usize,
    answered: bool,
    lost: u32,
}

impl Line {
    /// Whether another question may be under way.
    fn has_room(&self) -> bool {
        self.in_flight < self.pace.limit()
    }
}

/// Asks what the journal does not know. `check` sees every answer, the journal's too, and may return a question
/// to ask in its place. The order of questions is kept as far as answers allow; what is held in memory grows
/// with [`Limits::concurrency`] alone.
///
/// # Errors
/// A server that cannot be asked at all, a question that cannot be made, a journal that cannot be written; every
/// answer that came is kept even then.
pub fn ask(
    llm: &Arc<Llm>,
    journal: &mut Journal,
    limits: &Limits,
    terminal: Terminal,
    (what, total): (&str, u64),
    questions: &mut dyn Iterator<Item = Result<Question>>,
    check: &mut dyn FnMut(&Question, &Answer) -> Result<Option<Question>>,
) -> Result<Spent> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let lines = llm.endpoints.endpoints.iter().map(|_| Line {
        pace: Pace::new(limits.concurrency),
        waiting: VecDeque::new(),
        in_flight: 0,
        answered: false,
        lost: 0,
    });
    let mut asking = Asking {
        llm,
        journal,
        limits,
        lines: lines.collect(),
        tasks: JoinSet::new(),
        spent: Spent::default(),
        bar: terminal.progress(total, what),
        questions,
        check,
        unread: VecDeque::new(),
        over: false,
        reserved: Used::default(),
        busy: (Duration::ZERO, 0.0),
    };
    let result = runtime.block_on(asking.run());
    asking.bar.finish_and_clear();
    let synced = asking.journal.sync();
    let (time, area) = asking.busy;
    let mut spent = asking.spent;
    spent.in_flight = if time.is_zero() { 0.0 } else { area / time.as_secs_f64() };
    runtime.shutdown_background();
    result?;
    synced?;
    Ok(spent)
}

struct Asking<'a> {
    llm: &'a Arc<Llm>,
    journal: &'a mut Journal,
    limits: &'a Limits,
    lines: Vec<Line>,
    tasks: JoinSet<Done>,
    spent: Spent,
    bar: kiln_terminal::terminal::ProgressBar,
    questions: &'a mut dyn Iterator<Item = Result<Question>>,
    check: &'a mut dyn FnMut(&Question, &Answer) -> Result<Option<Question>>,
    /// What came and is kept, and not read yet.
    unread: VecDeque<(Arc<Question>, Answer)>,
    /// No question is left.
    over: bool,
    /// What the requests under way may use at most.
    reserved: Used,
    /// Time while questions were left, and the requests under way over it.
    busy: (Duration, f64),
}

impl Asking<'_> {
    async fn run(&mut self) -> Result<()> {
        loop {
            // Ctrl-C does not wait for what is under way; a budget does, as that is paid for.
            if interrupt::asked() {
                self.spent.stopped = Some(Stop::Interrupted);
                return self.keep_what_came().await;
            }
            self.send()?;
            if self.tasks.is_empty() && self.unread.is_empty() {
                if self.over && self.waiting() == 0 {
                    return Ok(());
                }
                self.spent.stopped = self.over_budget().map(Stop::Budget);
                if self.spent.stopped.is_some() {
                    return Ok(());
                }
            }
            if self.unread.is_empty() {
                let done = self.wait().await;
                self.arrives(done).await?;
            }
            while let Some(done) = self.tasks.try_join_next() {
                self.arrives(Some(done)).await?;
            }
            // One at a time: the server is not to wait until all are read.
            self.send_waiting();
            if let Some((question, answer)) = self.unread.pop_front() {
                self.follow(&question, &answer)?;
            }
        }
    }

    /// The next that ends, if one does soon.
    async fn wait(&mut self) -> Option<Result<Done, JoinError>> {
        let since = Instant::now();
        let under_way = self.tasks.len();
        let done = match under_way {
            0 => {
                tokio::time::sleep(self.idle()).await;
                None
            }
            _ => tokio::time::timeout(self.idle(), self.tasks.join_next()).await.ok().flatten(),
        };
        if !self.over {
            self.busy.0 += since.elapsed();
            self.busy.1 += since.elapsed().as_secs_f64() * under_way as f64;
        }
        done
    }

    /// Makes room for another question, and has what came wait to be read.
    async fn arrives(&mut self, done: Option<Result<Done, JoinError>>) -> Result<()> {
        let taken = match done {
            None => return Ok(()),
            Some(Ok(done)) => self.take(done),
            Some(Err(error)) => Err(anyhow!("a request ended without a result: {error}")),
        };
        if taken.is_err() {
            // What is wrong first is said.
            let _ = self.keep_what_came().await;
        }
        taken
    }

    /// Ends the requests that are under way, and counts the answers that came while others were read: they are paid for.
    async fn keep_what_came(&mut self) -> Result<()> {
        self.tasks.abort_all();
        let mut wrong = Ok(());
        while let Some(done) = self.tasks.join_next().await {
            let Ok(Done { result: Ok((_, written)), .. }) = done else { continue };
            match written {
                Ok(written) => self.count(written),
                Err(error) => wrong = wrong.and(Err(error)),
            }
        }
        wrong
    }

    /// Questions that wait.
    fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// How long to wait at most before looking again.
    fn idle(&self) -> Duration {
        if self.tasks.len() >= self.limits.concurrency || self.over_budget().is_some() {
            return TICK;
        }
        let now = Instant::now();
        let due = self.lines.iter().filter(|line| line.has_room()).filter_map(|line| {
            let first = line
                .waiting
                .iter()
                .map(|one| one.not_before.saturating_duration_since(now))
                .min()?;
            Some(first.max(line.pace.held(now)))
        });
        due.min().unwrap_or(TICK).clamp(Duration::from_millis(1), TICK)
    }

    /// Sends what may be sent now, and makes some questions that are sent as soon as others are answered.
    fn send(&mut self) -> Result<()> {
        // What waits for one endpoint does not keep others from theirs, unless it is very much.
        let most = self.limits.concurrency.saturating_mul(match self.lines.len() {
            1 => 1,
            _ => MOST_WAITING,
        });
        loop {
            self.send_waiting();
            let (full, waiting) = (self.tasks.len() >= self.limits.concurrency, self.waiting());
            if self.over || waiting >= most || (full && waiting >= self.limits.concurrency) {
                return Ok(());
            }
            match self.questions.next() {
                Some(question) => self.enter(question?)?,
                None => self.over = true,
            }
            if interrupt::asked() {
                return Ok(());
            }
        }
    }

    /// Sends what waits and may be sent now. Each that is sent brings the end of the budget nearer.
    fn send_waiting(&mut self) {
        while self.may_send() {
            let Some((endpoint, place)) = self.next_waiting() else { return };
            let line = &mut self.lines[endpoint];
            let Some(one) = line.waiting.remove(place) else { return };
            line.in_flight += 1;
            let (usage, cost) = self.most(&one.question);
            self.reserved.add(usage, cost);
            self.spent.requests += 1;
            let (llm, timeout, pen) = (self.llm.clone(), self.limits.timeout, self.journal.pen());
            self.tasks.spawn(async move {
                let (asked, question) = (Instant::now(), one.question);
                // Written while it counts as under way: a killed process loses no more than that.
                let result = llm.ask(&question, timeout).await.map(|answer| {
                    let Usage { prompt, completion, .. } = answer.usage;
                    let cost = llm.endpoints.endpoints[question.endpoint].cost(prompt, completion);
                    let written = pen.write(question.key, &question.label, &answer, cost);
                    (answer, written)
                });
                Done { question, tries: one.tries + 1, asked, result }
            });
        }
    }

    /// Whether another may be under way. What waits to be read is not to be ever more.
    fn may_send(&self) -> bool {
        self.tasks.len() < self.limits.concurrency
            && self.unread.len() <= self.limits.concurrency
            && !interrupt::asked()
            && self.over_budget().is_none()
    }

    /// A question that may be sent: its endpoint and place there.
    fn next_waiting(&self) -> Option<(usize, usize)> {
        let now = Instant::now();
        self.lines.iter().enumerate().find_map(|(endpoint, line)| {
            if !line.has_room() || !line.pace.held(now).is_zero() {
                return None;
            }
            let place = line.waiting.iter().position(|one| one.not_before <= now)?;
            Some((endpoint, place))
        })
    }

    /// Takes a new question: to the journal first.
    fn enter(&mut self, mut question: Question) -> Result<()> {
        while let Some(answer) = self.journal.get(question.key)? {
            match (self.check)(&question, &answer)? {
                Some(next) if next.key != question.key => question = next,
                _ => {
                    self.spent.known += 1;
                    self.bar.inc(1);
                    return Ok(());
                }
            }
        }
        let Some(line) = self.lines.get_mut(question.endpoint) else {
            bail!(
                "a question names endpoint {}, and there are {}",
                question.endpoint,
                self.lines.len()
            );
        };
        line.waiting.push_back(Waiting {
            question: question.into(),
            tries: 0,
            not_before: Instant::now(),
        });
        Ok(())
    }

    /// What a request may use at most.
    fn most(&self, question: &Question) -> (Usage, f64) {
        let endpoint = &self.llm.endpoints.endpoints[question.endpoint];
        let prompt = Usage::estimate(&question.prompt, "").prompt;
        let completion = endpoint.answer_tokens.into();
        let usage = Usage { prompt, completion, estimated: true };
        (usage, endpoint.cost(prompt, completion))
    }

    fn take(&mut self, done: Done) -> Result<()> {
        let Done { question, tries, asked, result } = done;
        self.release(&question);
        let line = &mut self.lines[question.endpoint];
        line.in_flight -= 1;
        let failure = match result {
            Ok((answer, written)) => {
                line.pace.good();
                (line.answered, line.lost) = (true, 0);
                self.count(written?);
                self.unread.push_back((question, answer));
                return self.journal.sync_now_and_then();
            }
            Err(failure) => failure,
        };
        let name = || self.llm.name(question.endpoint);
        let (words, pause) = match failure {
            Failure::Fatal(words) => bail!("{}: {words}; the answers so far are kept", name()),
            Failure::Unsupported => {
                line.waiting.push_front(Waiting {
                    question,
                    tries: tries - 1,
                    not_before: Instant::now(),
                });
                return Ok(());
            }
            Failure::Bad(words) => return self.refuse(&question, words),
            Failure::Busy(words, pause) => {
                line.pace.slow(asked, pause);
                (words, pause)
            }
            Failure::Ill(words, pause) => {
                line.pace.ill(asked, pause);
                (words, pause)
            }
            Failure::Absent(words) => {
                line.pace.slow(asked, None);
                if !line.answered && tries >= TRIES_OF_NOBODY {
                    bail!("{}: {words}; is the server running there?", name());
                }
                (words, None)
            }
        };
        if pause.is_some_and(|pause| pause > LONGEST_PAUSE) {
            let seconds = pause.unwrap_or_default().as_secs();
            bail!(
                "{}: {words}, and asks to wait for {seconds} seconds; the answers so far are kept",
                name()
            );
        }
        if tries > self.limits.retries {
            self.bar.inc(1);
            return self.lose(&question, &words);
        }
        let doubled =
            FIRST_BACKOFF.saturating_mul(1 << tries.min(16).saturating_sub(1)).min(LONGEST_BACKOFF);
        let wait =
            doubled.mul_f64(rand::rng().random_range(0.75..1.25)).max(pause.unwrap_or_default());
        line.waiting.push_back(Waiting { question, tries, not_before: Instant::now() + wait });
        self.show();
        Ok(())
    }

    /// Takes back what was reserved for a request.
    fn release(&mut self, question: &Question) {
        let (usage, cost) = self.most(question);
        self.reserved.prompt = self.reserved.prompt.saturating_sub(usage.prompt);
        self.reserved.completion = self.reserved.completion.saturating_sub(usage.completion);
        self.reserved.cost -= cost;
    }

    /// Counts an answer that is in the journal, and what it cost.
    fn count(&mut self, written: Written) {
        let usage = written.usage;
        let spent = &mut self.spent;
        spent.answered += 1;
        spent.prompt_tokens = spent.prompt_tokens.saturating_add(usage.prompt);
        spent.completion_tokens = spent.completion_tokens.saturating_add(usage.completion);
        spent.cost += written.cost;
        self.journal.know(written);
    }

    /// A server that answers others refuses this question: that is kept, so that it is not asked again and again.
    fn refuse(&mut self, question: &Question, words: String) -> Result<()> {
        if !self.lines[question.endpoint].answered {
            // All may be wrong with what is asked for, which can be mended.
            self.bar.inc(1);
            return self.lose(question, &words);
        }
        self.lose(question, &words)?;
        let model = self.llm.endpoints.endpoints[question.endpoint].model.clone();
        let answer =
            Answer { text: words, finish: Finish::Refused, usage: Usage::default(), model };
        self.journal.keep(question.key, &question.label, &answer, 0.0)?;
        self.follow(question, &answer)
    }

    /// Asks what is to be asked instead, if anything.
    fn follow(&mut self, question: &Question, answer: &Answer) -> Result<()> {
        match (self.check)(question, answer)? {
            Some(next) if next.key != question.key => self.enter(next)?,
            _ => self.bar.inc(1),
        }
        self.show();
        Ok(())
    }

    fn lose(&mut self, question: &Question, words: &str) -> Result<()> {
        self.spent.failed += 1;
        self.show();
        let line = &mut self.lines[question.endpoint];
        line.lost += 1;
        if line.lost >= MOST_LOST {
            let name = self.llm.name(question.endpoint);
            bail!(
                "{name}: {} questions in a row without an answer: {words}; the answers so far are kept",
                line.lost
            );
        }
        Ok(())
    }

    fn show(&self) {
        // Of all that the journal has, as budgets count it.
        let used = self.journal.used();
        let mut line =
            format!("{} tokens", kiln_terminal::terminal::thousands(used.tokens() as usize));
        if used.cost > 0.0 {
            line += &format!(", cost {:.4}", used.cost);
        }
        if self.spent.failed > 0 {
            line += &format!(", {} failed", self.spent.failed);
        }
        let limit: usize = self.lines.iter().map(|line| line.pace.limit()).sum();
        if limit < self.limits.concurrency {
            line += &format!(", busy: {limit} at a time");
        }
        self.bar.set_prefix(line);
    }

    fn no_more_requests(&self) -> bool {
        let sent = self.limits.requests_before.saturating_add(self.spent.requests);
        self.limits.max_requests.is_some_and(|most| sent >= most)
    }

    /// The limit that is reached, what is under way counted as the mean of what came; as the most that it may be
    /// while nothing came yet.
    fn over_budget(&self) -> Option<String> {
        let limits = self.limits;
        if self.no_more_requests() {
            let most = limits.max_requests.unwrap_or_default() as usize;
            return Some(counted(most, "request", "requests"));
        }
        if limits.max_tokens.is_none() && limits.max_cost.is_none() {
            return None;
        }
        let used = self.journal.used();
        if used.tokens() == 0 {
            let under_way = if self.tasks.is_empty() { Used::default() } else { self.reserved };
            return limits.reached_by(under_way.tokens() as f64, under_way.cost);
        }
        let ahead = 1.0 + self.tasks.len() as f64 / (self.journal.len().max(1) as f64);
        limits.reached_by(used.tokens() as f64 * ahead, used.cost * ahead)
    }
}
