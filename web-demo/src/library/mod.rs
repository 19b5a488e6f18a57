//! The passages and their index: opened, added to, searched, saved.

mod adding;
mod indexing;
mod opening;
mod saving;
mod variant;

use leptos::prelude::*;

use crate::kiln::{Failure, Hit, Passage, Result};
use crate::state::State;

impl State {
    /// Whether passages cannot be changed now, which is then said.
    fn refuse_while_busy(&self) -> bool {
        let why = if self.embedder().is_none() {
            "passages are indexed by a model; wait until one is loaded"
        } else if self.job.with_untracked(Option::is_some) {
            "passages are being indexed; wait for them, or stop that first"
        } else if self.opening.get_untracked() {
            "the passages are being opened; wait for them"
        } else {
            return false;
        };
        self.say(why);
        true
    }

    /// Stops the job that is under way; what is done stays.
    pub(crate) fn stop(&self) {
        if let Some(stop) = &self.parts().borrow().indexing {
            stop.abort();
        }
    }

    /// The index as a file.
    pub(crate) async fn to_file(self) -> Result<Vec<u8>> {
        match self.index() {
            Some(index) => index.to_file().await,
            None => Err(Failure::from("there is no index yet".to_string())),
        }
    }

    /// The k nearest passages to a text. The index is taken when the text is asked, so that both are of one variant, which
    /// it is told.
    pub(crate) async fn nearest_to(&self, text: &str, k: usize) -> Result<Vec<Hit>> {
        let missing = || Failure::from("no model is loaded".to_string());
        let embedder = self.embedder().ok_or_else(missing)?;
        let (index, model) = (self.index(), self.present_fingerprint());
        let vectors = embedder.embed(&[text]).await?;
        let (Some(index), Some(vector)) = (index, vectors.first()) else { return Ok(Vec::new()) };
        index.search(vector, k, model.as_deref()).await
    }
}

/// What is embedded of a passage.
pub(crate) fn embedded(passage: &Passage) -> String {
    match passage.text.starts_with(passage.title.trim_end_matches('…')) {
        true => passage.text.clone(),
        false => format!("{}\n{}", passage.title, passage.text),
    }
}

/// The number of the passage that comes next.
fn next_number(passages: &[(u32, Passage)]) -> u32 {
    passages.last().map_or(0, |(id, _)| id + 1)
}
