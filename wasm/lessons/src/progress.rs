//! How far a run is, and what became of it.

use serde::{Deserialize, Serialize};

use crate::check::Score;

/// What a call of [`Trainer::step`](crate::Trainer::step) did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Steps that are done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// As many as were planned, which [`Trainer::set_steps`](crate::Trainer::set_steps) does not go beyond.
    pub most: usize,
    /// The batch's loss; none where the model was only asked.
    pub loss: Option<f64>,
    /// How well the held-back lessons' answers are found now, where that was looked at.
    pub score: Option<Score>,
    /// Where the run is.
    pub phase: Phase,
    /// Texts that are still to be embedded before the first step, of an adapter of vectors.
    pub waiting: usize,
    /// Whether words that are new to the model are practised, for longer than usual; known once the lessons that are held
    /// back were asked.
    pub new_words: bool,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Texts are embedded, of an adapter of vectors.
    Embedding,
    /// It goes on.
    Training,
    /// All steps are done, or there was no gain any more.
    Done,
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Lessons that were taught.
    pub taught: usize,
    /// Lessons that were held back.
    pub held_back: usize,
    /// Steps that were done.
    pub steps: usize,
    /// The step whose adapters these are.
    pub best_step: usize,
    /// How well held-back lessons were answered before.
    pub before: Option<Score>,
    /// How well they are answered by these adapters; where they are not kept, by the last ones.
    pub after: Option<Score>,
    /// Whether the adapters are kept: not where none of the run answers held-back lessons better than before.
    pub kept: bool,
    /// Whether words that were new to the model were practised, for longer than usual.
    pub new_words: bool,
}

/// How far a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps that are done.
    pub step: usize,
    /// The score before the first step.
    pub before: Option<Score>,
    /// The best score since, and after which step.
    pub best: Option<(usize, Score)>,
    /// The last score.
    pub last: Option<Score>,
    /// After which step that was looked at.
    pub looked: usize,
    /// Looks since the best score.
    pub without_gain: usize,
    /// Whether it is over.
    pub done: bool,
    /// Whether words that are new to the model are practised.
    #[serde(default)]
    pub new_words: bool,
}
