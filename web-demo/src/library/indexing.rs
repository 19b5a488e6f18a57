//! Passages to an index: by a variant, anew, in another precision, and in the place of the present one.

use std::rc::Rc;
use std::sync::Arc;

use gloo_storage::{LocalStorage as Browser, Storage as _};
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::AbortController;

use super::embedded;
use crate::kiln::{Embedder, Index, Passage, Result, Vector};
use crate::state::{Job, Passages, State, now};
use crate::teach::Variant;
use crate::words::Words;

/// Passages that are embedded in one call on the CPU: enough for several workers, who do them in
/// smaller shares, so that a search need not wait long for its turn.
const SHARED: usize = 64;
/// And on a GPU.
pub(super) const AT_ONCE: usize = 8;

impl State {
    /// Indexes passages by a variant, so many in one call, in an index of its own: the search goes on with the present
    /// one.
    pub(super) async fn index_as(
        &self,
        embedder: &Embedder,
        variant: Option<&Variant>,
        passages: &[(u32, Passage)],
        at_once: usize,
        what: &str,
        stop: &AbortController,
    ) -> Result<Index> {
        let (model, precision) = (self.fingerprint(variant), self.precision.get_untracked());
        let dimensions = embedder.info()?.dimensions;
        let index = Index::create(dimensions, &precision, model.as_deref()).await?;
        let (state, total, start) = (*self, passages.len(), now());
        let mut done = 0;
        let filled = async {
            for some in passages.chunks(at_once) {
                let texts: Vec<String> =
                    some.iter().map(|(_, passage)| embedded(passage)).collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let name = variant.map(|variant| variant.name.as_str());
                let named = what.to_string();
                let at_work = move |now: usize| {
                    state.job.set(Some(Job::at(&named, done + now, total, start)));
                };
                let vectors = embedder.embed_many(&texts, name, &stop.signal(), at_work).await?;
                let rows: Vec<(u32, &Passage, Vector)> = some
                    .iter()
                    .zip(vectors)
                    .map(|((id, passage), vector)| (*id, passage, vector))
                    .collect();
                index.add(&rows, model.as_deref()).await?;
                done += some.len();
                if self.embedder().is_some_and(|now| std::ptr::eq(&*now, embedder)) {
                    self.job.set(Some(Job::at(what, done, total, start)));
                }
            }
            Ok(())
        };
        let filled: Result<()> = filled.await;
        match filled {
            Ok(()) => Ok(index),
            Err(failure) => {
                index.dispose();
                Err(failure)
            }
        }
    }

    /// As [`State::index_anew`], and keeps them for the next visit.
    pub(super) async fn rebuild(self, passages: Passages) -> bool {
        let is_made = self.index_anew(passages).await;
        if is_made {
            self.save().await;
        }
        is_made
    }

    /// Indexes passages anew, with the present model and precision. They take the place of those that are here once all of
    /// them are done: where that is stopped, or fails, nothing of the reader's is lost. Whether they have taken it.
    pub(super) async fn index_anew(self, passages: Passages) -> bool {
        let (Some(embedder), Ok(stop)) = (self.embedder(), AbortController::new()) else {
            return false;
        };
        self.forget_notice();
        {
            let parts = self.parts();
            let mut parts = parts.borrow_mut();
            parts.indexing = Some(stop.clone());
            parts.replacing = Some(passages.clone());
        }
        let (what, total, start) = ("the passages", passages.len(), now());
        if total > 0 {
            self.job.set(Some(Job::at(what, 0, total, start)));
        }
        if self.index().is_none() {
            // They are found by their words until they are indexed.
            self.show_passages(passages.clone());
        }
        let taught = self.in_use.get_untracked();
        let at_once = shared(&embedder);
        let made = self.index_as(&embedder, taught.as_ref(), &passages, at_once, what, &stop).await;
        if !self.computes(&embedder) {
            // Another model has taken over, and indexes them.
            if let Ok(index) = made {
                index.dispose();
            }
            return false;
        }
        self.parts().borrow_mut().replacing = None;
        let is_made = made.is_ok();
        match made {
            Ok(index) => {
                self.show(index, passages);
                // Failures, of other files say, stay.
                if total > 0 && !self.has_failed() {
                    self.say(format!("{total} passages indexed in {:.1} s", now() - start));
                }
            }
            Err(failure) => {
                let present = self.index();
                if let Some(index) = &present {
                    self.set_precision(index.precision());
                }
                match (failure.aborted, present.is_some()) {
                    (false, _) => self.tell(&failure),
                    (true, true) => self.say("stopped: the search stays as it was"),
                    (true, false) => self.say(
                        "stopped: the passages are found by their words alone, and are indexed when others are added",
                    ),
                }
            }
        }
        self.job.set(None);
        is_made
    }

    /// Keeps vectors in another precision from now on.
    pub(crate) fn change_precision(self, precision: String) {
        if self.refuse_while_busy() {
            return;
        }
        self.set_precision(precision);
        spawn_local(async move {
            self.rebuild(self.passages.get_untracked()).await;
        });
    }

    fn set_precision(&self, precision: String) {
        // Kept for the next visit, where the browser keeps anything.
        let _ = Browser::set("precision", &precision);
        self.precision.set(precision);
    }

    /// Takes an index in the place of the present one, which goes a little later.
    pub(super) fn replace(&self, index: Rc<Index>) {
        let former = self.parts().borrow_mut().index.replace(index);
        self.indexes.update(|count| *count += 1);
        spawn_local(async move {
            // Searches that were under way have ended by then.
            TimeoutFuture::new(2000).await;
            if let Some(former) = former {
                former.dispose();
            }
        });
    }

    /// Takes an index and its passages in the place of the present ones.
    pub(super) fn show(&self, index: Index, passages: Passages) {
        self.precision.set(index.precision());
        self.replace(Rc::new(index));
        self.show_passages(passages);
    }

    fn show_passages(&self, passages: Passages) {
        self.words.set(None);
        self.parts().borrow_mut().known.add(&passages);
        self.passages.set(passages);
        spawn_local(self.index_words());
    }

    /// Makes the passages found by their words; those who change them meanwhile do it again.
    pub(super) async fn index_words(self) {
        let passages = self.passages.get_untracked();
        let words = Words::new(&passages, async || TimeoutFuture::new(0).await).await;
        if Arc::ptr_eq(&passages, &self.passages.get_untracked()) {
            self.words.set(Some(Rc::new(words)));
        }
    }
}

/// Passages that are embedded in one call where a search need not wait long for its turn all the same.
pub(super) fn shared(embedder: &Embedder) -> usize {
    let on_cpu = embedder.info().is_ok_and(|info| info.device.starts_with("cpu"));
    if on_cpu { SHARED } else { AT_ONCE }
}
