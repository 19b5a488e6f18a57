//! Passages that are added to those that are here, and all of them taken out.

use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::AbortController;

use super::indexing::shared;
use super::{embedded, next_number};
use crate::kiln::{Embedder, Index, Passage, Result, Vector};
use crate::state::{Job, State, now};

impl State {
    /// Adds passages to those that are there.
    pub(crate) fn add(self, passages: Vec<Passage>, what: &str) {
        if self.refuse_while_busy() {
            return;
        }
        let what = what.to_string();
        spawn_local(async move { self.add_now(passages, &what).await });
    }

    /// As [`State::add`], whatever else is being done.
    pub(super) async fn add_now(self, passages: Vec<Passage>, what: &str) {
        let mut here = self.passages.get_untracked();
        let entries: Vec<(u32, Passage)> = (next_number(&here)..).zip(passages).collect();
        if self.index().is_none() {
            if !here.is_empty() {
                // These were not indexed to the end, and are now, together with those that come.
                Arc::make_mut(&mut here).extend(entries);
                self.rebuild(here).await;
                return;
            }
            // Kept with the first passages in it: none at all are no reader's.
            if !self.index_anew(here).await {
                return;
            }
        }
        self.add_entries(entries, what).await;
    }

    async fn add_entries(self, entries: Vec<(u32, Passage)>, what: &str) {
        let (Some(embedder), Some(index), Ok(stop)) =
            (self.embedder(), self.index(), AbortController::new())
        else {
            return;
        };
        let entries = Rc::new(entries);
        self.forget_notice();
        self.parts().borrow_mut().indexing = Some(stop.clone());
        let (total, start) = (entries.len(), now());
        let what: Rc<str> = what.into();
        let job = move |what: &str, done: usize| Job::at(what, done, total, start);
        let mut done = 0;
        let mut result = Ok(());
        for some in entries.chunks(shared(&embedder)) {
            self.job.set(Some(job(&what, done)));
            self.parts().borrow_mut().adding = (entries.clone(), done);
            let named = what.clone();
            let at_work = move |now| self.job.set(Some(job(&named, done + now)));
            result = self.add_some(&embedder, &index, some, &stop, at_work).await;
            if result.is_err() {
                break;
            }
            done += some.len();
        }
        self.job.set(None);
        if !self.computes(&embedder) {
            // Another model has taken over.
            return;
        }
        self.parts().borrow_mut().adding = Default::default();
        if total > 0 {
            spawn_local(self.index_words());
        }
        match result {
            Err(failure) if !failure.aborted => self.tell(&failure),
            Err(_) => self.say(format!("stopped: {done} of {total} passages are indexed")),
            // Failures, of other files say, stay.
            Ok(()) if total > 0 && !self.has_failed() => {
                self.say(format!("{total} passages indexed in {:.1} s", now() - start));
            }
            Ok(()) => {}
        }
        self.save().await;
    }

    async fn add_some(
        &self,
        embedder: &Embedder,
        index: &Index,
        entries: &[(u32, Passage)],
        stop: &AbortController,
        on_progress: impl FnMut(usize) + 'static,
    ) -> Result<()> {
        let texts: Vec<String> = entries.iter().map(|(_, passage)| embedded(passage)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let model = self.present_fingerprint();
        let vectors = embedder
            .embed_many(&texts, embedder.in_use().as_deref(), &stop.signal(), on_progress)
            .await?;
        let rows: Vec<(u32, &Passage, Vector)> = entries
            .iter()
            .zip(vectors)
            .map(|((id, passage), vector)| (*id, passage, vector))
            .collect();
        index.add(&rows, model.as_deref()).await?;
        self.parts().borrow_mut().known.add(entries);
        self.passages.update(|passages| Arc::make_mut(passages).extend_from_slice(entries));
        Ok(())
    }

    /// Takes all passages out.
    pub(crate) fn clear(self) {
        if self.refuse_while_busy() {
            return;
        }
        spawn_local(async move {
            if self.rebuild(Arc::default()).await {
                self.say("the collection is empty");
            }
        });
    }
}
