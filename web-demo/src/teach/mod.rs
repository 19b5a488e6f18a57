//! Teaching: a reader's lessons, the run that learns from them, and what was learned, in use or put aside.

mod files;
mod lessons;
mod run;
mod taught;

use gloo_storage::{LocalStorage as Browser, Storage as _};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use crate::kiln::{FitProgress, Length, Taught};

/// Questions from which on a run makes sense: they are told apart from one another, in batches.
pub(crate) const LEAST: usize = 5;
/// Questions from which on a fifth of them are five, the fewest that kiln-embed holds back.
pub(crate) const HELD_BACK_FROM: usize = 25;
/// Fewer questions helped little, or not at all, where that was measured (`wasm/RESULTS.md`).
pub(crate) const HELPED_FROM: usize = 100;
/// How long to teach, unless the reader chooses otherwise.
const LENGTH: Length = Length::Usual;
/// Where the lessons are kept.
const LESSONS: &str = "lessons";

/// What a lesson says of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Says {
    Right,
    Wrong,
    /// Two words for one thing.
    Synonym,
}

/// What a reader says of a query and a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lesson {
    pub(crate) says: Says,
    pub(crate) query: String,
    /// What the page calls the text.
    pub(crate) title: String,
    pub(crate) text: String,
}

/// What a model was taught, by the name that the embedder knows it by, and what tells its vectors from others.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) fingerprint: Option<String>,
}

/// A run that is under way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Run {
    /// The part that trains is fetched, and the model loaded once more.
    Loading,
    Steps(FitProgress),
}

/// A passage that was found, by number and title.
pub(crate) type Titled = (u32, String);

/// A search before the lessons and after them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Compared {
    pub(crate) query: String,
    pub(crate) before: Vec<Titled>,
    /// Empty as long as the passages are indexed.
    pub(crate) after: Vec<Titled>,
}

/// How the last run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ended {
    Learned(Taught),
    Stopped,
    Failed(String),
}

/// What the pages know of teaching.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Teach {
    pub(crate) lessons: RwSignal<Vec<Lesson>>,
    pub(crate) length: RwSignal<Length>,
    pub(crate) run: RwSignal<Option<Run>>,
    pub(crate) ended: RwSignal<Option<Ended>>,
    pub(crate) compared: RwSignal<Vec<Compared>>,
    /// What was taught last, in use or not.
    pub(crate) latest: RwSignal<Option<Variant>>,
    /// Whether a run was cut off that can go on.
    pub(crate) unfinished: RwSignal<bool>,
    /// Whether the lessons are newer than what is kept of them.
    unkept: RwSignal<bool>,
    /// What was searched for, the last one last.
    asked: RwSignal<Vec<String>>,
}

impl Teach {
    pub(crate) fn new() -> Self {
        Self {
            lessons: RwSignal::new(Browser::get(LESSONS).unwrap_or_default()),
            length: RwSignal::new(Browser::get("teach-length").unwrap_or(LENGTH)),
            run: RwSignal::new(None),
            ended: RwSignal::new(None),
            compared: RwSignal::default(),
            latest: RwSignal::new(None),
            unfinished: RwSignal::new(false),
            unkept: RwSignal::new(false),
            asked: RwSignal::default(),
        }
    }
}
