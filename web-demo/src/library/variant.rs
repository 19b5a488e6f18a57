//! What a model was taught, and its passages: another variant takes over once it has indexed them.

use std::rc::Rc;

use leptos::prelude::*;
use web_sys::AbortController;

use super::indexing::AT_ONCE;
use crate::kiln::{Adapter, Index, Passage, Result};
use crate::state::{Job, State, now};
use crate::teach::Variant;

impl State {
    /// Has the search compute with another variant, or as the model was, once the passages are indexed by it; until then
    /// it finds what it found. Whether it does now.
    pub(crate) async fn change_variant(self, to: Option<Variant>) -> Result<bool> {
        if self.in_use.get_untracked() == to || self.refuse_while_busy() {
            return Ok(false);
        }
        let (Some(embedder), Some(present), Ok(stop)) =
            (self.embedder(), self.index(), AbortController::new())
        else {
            self.say("the passages are to be indexed first: add some, or choose a precision");
            return Ok(false);
        };
        let passages = self.passages.get_untracked();
        self.forget_notice();
        self.parts().borrow_mut().indexing = Some(stop.clone());
        let what = match to {
            Some(_) => "the passages as taught",
            None => "the passages as it was",
        };
        self.job.set(Some(Job::at(what, 0, passages.len(), now())));
        let ready = match (self.kept(to.as_ref(), &present, &passages).await, &to) {
            (None, Some(taught)) => self.moved(taught, &present).await,
            (kept, _) => kept,
        };
        let made = match ready {
            Some(index) => Ok(index),
            // Few at once, since a search waits for them.
            None => self.index_as(&embedder, to.as_ref(), &passages, AT_ONCE, what, &stop).await,
        };
        if !self.computes(&embedder) {
            // Another model has taken over, with a job of its own.
            if let Ok(index) = made {
                index.dispose();
            }
            return Ok(false);
        }
        self.job.set(None);
        let index = Rc::new(made?);
        // Both at once: what is asked from now on is asked of both, and what was asked before of neither.
        let switched = embedder.use_adapter(to.as_ref().map(|variant| variant.name.as_str()));
        self.replace(index);
        self.in_use.set(to);
        self.remember_use();
        switched.await?;
        self.save().await;
        Ok(true)
    }

    /// The index of the model as it was, moved by what was taught where that is an adapter of vectors: nothing is embedded.
    async fn moved(&self, to: &Variant, present: &Index) -> Option<Index> {
        if self.in_use.with_untracked(Option::is_some) {
            return None;
        }
        let adapter = self.parts().borrow().adapter.clone();
        let adapter = adapter.filter(Adapter::is_of_vectors)?;
        // Signs alone cannot be moved, as binary keeps them; the passages are then embedded.
        let index = present.adapted(&adapter).await.ok()?;
        if index.model() == to.fingerprint {
            return Some(index);
        }
        index.dispose();
        None
    }

    /// The index that a variant has made of these very passages before.
    async fn kept(
        &self,
        of: Option<&Variant>,
        present: &Index,
        passages: &[(u32, Passage)],
    ) -> Option<Index> {
        let fingerprint = self.fingerprint(of)?;
        let index = Index::load(&self.save_name(true)).await.ok()??;
        let fits = index.model() == Some(fingerprint)
            && index.precision() == present.precision()
            && index.dimensions() == present.dimensions()
            && index.passages().is_ok_and(|kept| kept == passages);
        if fits {
            return Some(index);
        }
        index.dispose();
        None
    }

    /// Whether an index has vectors of the variant that computes. What was taught moves them too little for a
    /// comparison to tell. Earlier versions of this page did not say whose vectors they were, and did not teach.
    pub(super) fn is_of_variant(&self, index: &Index) -> bool {
        let taught = self.in_use.get_untracked();
        match index.model() {
            Some(model) => Some(model) == self.fingerprint(taught.as_ref()),
            None => taught.is_none(),
        }
    }

    /// What tells the vectors that are computed now from others, where the model says so.
    pub(super) fn present_fingerprint(&self) -> Option<String> {
        self.fingerprint(self.in_use.get_untracked().as_ref())
    }

    /// What tells the vectors of a variant from others, where the model says so.
    pub(super) fn fingerprint(&self, variant: Option<&Variant>) -> Option<String> {
        match variant {
            Some(taught) => taught.fingerprint.clone(),
            None => self.model.with_untracked(|model| model.info()?.fingerprint.clone()),
        }
    }
}
