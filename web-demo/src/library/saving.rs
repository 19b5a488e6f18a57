//! How the index is kept for the next visit, and what it is not saved over.

use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::kiln::{Failure, Index, Result};
use crate::state::{Keeping, State};

/// What is said of passages that another tab has saved, or that are left from another visit.
const OTHERS: &str = "Other passages were saved by another tab or at another visit. They are left as they are, and what is here is not saved: “Export” keeps it as a file, and then reload the page to see them, or save over them.";

/// What is said of saved passages that cannot be read.
pub(super) fn unreadable(failure: &Failure) -> String {
    format!(
        "The saved passages cannot be read: {}. They are left as they are, and what is here is not saved: reload the page to try again, or save over them.",
        failure.message
    )
}

impl State {
    /// What the index is kept under: that of the variant that computes, or of the other one.
    pub(super) fn save_name(&self, other: bool) -> String {
        let taught = self.in_use.with_untracked(Option::is_some) != other;
        let name = format!("web-demo {}", self.model_name());
        if taught { format!("{name} taught") } else { name }
    }

    /// Saves nothing from now on, unless the reader asks for it.
    pub(super) fn hold(&self, why: String) {
        self.keeping.set(Keeping::Held(why));
    }

    /// Keeps the index for the next visit. What is saved in its place is looked at first: passages that this page has not
    /// shown stay there. Another tab that saves in the moment between the two is not seen.
    pub(super) async fn save(&self) {
        if self.keeping.with_untracked(|keeping| matches!(keeping, Keeping::Held(_))) {
            return;
        }
        let Some(index) = self.index() else { return };
        let (name, is_latest) = (self.save_name(false), self.saves.next());
        self.keeping.set(Keeping::Saving);
        let others = self.has_others(&name).await;
        // A later one saves more.
        if !is_latest() {
            return;
        }
        match others {
            Ok(false) => self.put(&index, &name, is_latest).await,
            Ok(true) => self.hold(OTHERS.into()),
            Err(failure) => self.hold(unreadable(&failure)),
        }
    }

    /// Saves the index over whatever is saved in its place, as the reader asks for.
    pub(crate) fn save_over(self) {
        if self.refuse_while_busy() {
            return;
        }
        let Some(index) = self.index() else {
            return self
                .say("the passages are to be indexed first: add some, or choose a precision");
        };
        let (name, is_latest) = (self.save_name(false), self.saves.next());
        self.keeping.set(Keeping::Saving);
        spawn_local(async move { self.put(&index, &name, is_latest).await });
    }

    async fn put(&self, index: &Index, name: &str, is_latest: impl Fn() -> bool) {
        let saved = index.save(name).await;
        if !is_latest() {
            return;
        }
        match saved {
            Ok(()) => self.keeping.set(Keeping::Kept),
            Err(failure) => {
                self.keeping.set(Keeping::Failed);
                self.fail(format!("the index is not kept for the next visit: {}", failure.message));
            }
        }
    }

    /// Whether passages are saved under a name that this page has not shown.
    async fn has_others(&self, name: &str) -> Result<bool> {
        let saved = Index::saved_passages(name).await?.unwrap_or_default();
        let parts = self.parts();
        let parts = parts.borrow();
        Ok(saved.iter().any(|(_, passage)| !parts.known.has(passage)))
    }
}
