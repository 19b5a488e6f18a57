//! How many questions an endpoint gets at once.

use std::time::{Duration, Instant};

/// Additive increase, multiplicative decrease: one more for each round of good answers, half as many when the
/// server has too much to do.
#[derive(Debug)]
pub(super) struct Pace {
    most: f64,
    limit: f64,
    /// No question before this.
    hold: Option<Instant>,
    slowed: Option<Instant>,
    /// Good answers since one failed.
    good: usize,
}

impl Pace {
    pub(super) fn new(most: usize) -> Self {
        Self { most: most as f64, limit: most as f64, hold: None, slowed: None, good: most }
    }

    /// Questions that may be under way at a time.
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// How long the server wants to be left alone.
    pub(super) fn held(&self, now: Instant) -> Duration {
        self.hold.map_or(Duration::ZERO, |hold| hold.saturating_duration_since(now))
    }

    pub(super) fn good(&mut self) {
        self.good = self.good.saturating_add(1);
        self.limit = (self.limit + 1.0 / self.limit).min(self.most);
    }

    /// A question failed that was asked at `asked`. One of many says nothing of the load; where another failed in the same
    /// round, or the server asks to wait, it has too much to do.
    pub(super) fn ill(&mut self, asked: Instant, pause: Option<Duration>) {
        if pause.is_some() || self.good < self.most as usize {
            self.slow(asked, pause);
        }
        self.good = 0;
    }

    /// The server has too much to do, as a question says that was asked at `asked`.
    pub(super) fn slow(&mut self, asked: Instant, pause: Option<Duration>) {
        let now = Instant::now();
        if let Some(pause) = pause {
            self.hold = self.hold.max(Some(now + pause));
        }
        // Those that were under way when it was slowed down say nothing new.
        if self.slowed.is_none_or(|slowed| asked > slowed) {
            self.limit = (self.limit / 2.0).max(1.0);
            self.slowed = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_server_gets_half_and_then_more_again() {
        let mut pace = Pace::new(64);
        let asked = Instant::now();
        for _ in 0..64 {
            pace.slow(asked, None);
        }
        assert_eq!(pace.limit(), 32);
        for _ in 0..33 * 34 {
            pace.good();
        }
        assert!((50..=64).contains(&pace.limit()), "{}", pace.limit());
        (0..10_000).for_each(|_| pace.good());
        assert_eq!(pace.limit(), 64);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1));
            pace.slow(Instant::now(), Some(Duration::from_secs(5)));
        }
        assert_eq!(pace.limit(), 1);
        assert!(pace.held(Instant::now()) > Duration::from_secs(4));
    }

    #[test]
    fn one_failure_of_many_answers_changes_nothing() {
        let mut pace = Pace::new(64);
        for _ in 0..5 {
            pace.ill(Instant::now(), None);
            (0..64).for_each(|_| pace.good());
        }
        assert_eq!(pace.limit(), 64);
        pace.ill(Instant::now(), None);
        (0..63).for_each(|_| pace.good());
        pace.ill(Instant::now(), None);
        assert_eq!(pace.limit(), 32);
        (0..10_000).for_each(|_| pace.good());
        pace.ill(Instant::now(), Some(Duration::from_secs(1)));
        assert_eq!(pace.limit(), 32);
    }
}
