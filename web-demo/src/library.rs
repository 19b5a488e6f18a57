//! The passages and their index: opened, added to, searched, saved.

use std::rc::Rc;
use std::sync::Arc;

use gloo_storage::{LocalStorage as Browser, Storage as _};
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::AbortController;

use crate::kiln::{Embedder, Failure, Hit, Index, Passage, Result, Vector};
use crate::reading;
use crate::state::{Job, Passages, State, now};
use crate::teach::Variant;
use crate::words::Words;

/// Passages that are embedded in one call on the CPU: enough for several workers, who do them in
/// smaller shares, so that a search need not wait long for its turn.
const SHARED: usize = 64;
/// And on a GPU.
const AT_ONCE: usize = 8;

impl State {
    /// The index that was saved for this model; else the passages that are here, or the built-in
    /// ones, are indexed.
    pub(crate) async fn open_passages(self) {
        let (replacing, (adding, done)) = {
            let parts = self.parts();
            let mut parts = parts.borrow_mut();
            (parts.replacing.take(), std::mem::take(&mut parts.adding))
        };
        let mut here = replacing.unwrap_or_else(|| self.passages.get_untracked());
        if done < adding.len() {
            Arc::make_mut(&mut here).extend_from_slice(&adding[done..]);
        }
        if !here.is_empty() {
            self.rebuild(here).await;
            return;
        }
        let saved = async {
            if let Some(index) = Index::load(&self.save_name(false)).await? {
                return self.read(index).await.map(Some);
            }
            // What the model's other variant has indexed are the reader's passages too, with other vectors.
            let Some(index) = Index::load(&self.save_name(true)).await? else { return Ok(None) };
            let passages = Arc::new(index.passages()?);
            Ok(Some((index, passages, false)))
        };
        match saved.await {
            Ok(Some(read)) => self.open(read).await,
            Ok(None) => self.add_now(reading::collection(), "the built-in collection").await,
            Err(failure) => {
                self.fail(format!("{}; the built-in collection is opened", failure.message));
                self.add_now(reading::collection(), "the built-in collection").await;
            }
        }
    }

    /// What an index has, and whether its vectors are this model's.
    async fn read(&self, index: Index) -> Result<(Index, Passages, bool)> {
        let passages = index.passages()?;
        let fits = self.is_of_this_model(&index, &passages).await?;
        Ok((index, Arc::new(passages), fits))
    }

    /// Takes an index in the place of the present one; passages of another model are indexed again.
    async fn open(self, (index, passages, fits): (Index, Passages, bool)) {
        if fits {
            self.show(index, passages);
        } else {
            index.dispose();
            self.rebuild(passages).await;
        }
    }

    /// Whether an index has the vectors that this model gives: a few are computed again.
    async fn is_of_this_model(&self, index: &Index, passages: &[(u32, Passage)]) -> Result<bool> {
        let Some(embedder) = self.embedder() else { return Ok(false) };
        if index.dimensions() != embedder.info()?.dimensions || !self.is_of_variant(index) {
            return Ok(false);
        }
        let some = &passages[..passages.len().min(3)];
        let ids: Vec<u32> = some.iter().map(|(id, _)| *id).collect();
        let kept = index.vectors(&ids).await?;
        let texts: Vec<String> = some.iter().map(|(_, passage)| embedded(passage)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let ours = if some.is_empty() { Vec::new() } else { embedder.embed(&texts).await? };
        // Signs alone keep about 0.8 of a vector's direction.
        let enough = if index.precision() == "binary" { 0.6 } else { 0.98 };
        Ok(kept.iter().zip(&ours).all(|(kept, ours)| kept.dot(ours) > enough))
    }

    /// Whether an index has vectors of the variant that computes. What was taught moves them too little for a
    /// comparison to tell. Earlier versions of this page did not say whose vectors they were, and did not teach.
    fn is_of_variant(&self, index: &Index) -> bool {
        let taught = self.in_use.get_untracked();
        match index.model() {
            Some(model) => Some(model) == self.fingerprint(taught.as_ref()),
            None => taught.is_none(),
        }
    }

    /// What tells the vectors of a variant from others, where the model says so.
    fn fingerprint(&self, variant: Option<&Variant>) -> Option<String> {
        match variant {
            Some(taught) => taught.fingerprint.clone(),
            None => self.model.with_untracked(|model| model.info()?.fingerprint.clone()),
        }
    }

    /// What the index is kept under: that of the variant that computes, or of the other one.
    fn save_name(&self, other: bool) -> String {
        let taught = self.in_use.with_untracked(Option::is_some) != other;
        let name = self.model.with_untracked(|model| format!("web-demo {}", model.name()));
        if taught { format!("{name} taught") } else { name }
    }

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
        let made = match self.kept(to.as_ref(), &present, &passages).await {
            Some(index) => Ok(index),
            // Few at once, since a search waits for them.
            None => self.index_as(&embedder, to.as_ref(), &passages, AT_ONCE, what, &stop).await,
        };
        if !self.embedder().is_some_and(|now| Rc::ptr_eq(&now, &embedder)) {
            // Another model has taken over, with a job of its own.
            return Ok(false);
        }
        self.job.set(None);
        let index = Rc::new(made?);
        // Both at once: what is asked from now on is asked of both, and what was asked before of neither.
        let switched = embedder.use_adapter(to.as_ref().map(|variant| variant.name.as_str()));
        self.replace(index.clone());
        self.in_use.set(to);
        self.remember_use();
        switched.await?;
        self.save(&index).await;
        Ok(true)
    }

    /// Takes an index in the place of the present one, which goes a little later.
    fn replace(&self, index: Rc<Index>) {
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

    /// Keeps the index for the next visit.
    async fn save(&self, index: &Index) {
        if let Err(failure) = index.save(&self.save_name(false)).await {
            self.fail(format!("the index is not kept for the next visit: {}", failure.message));
        }
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

    /// Indexes passages by a variant, so many in one call, in an index of its own: the search goes on with the present
    /// one.
    async fn index_as(
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
                index.add(&rows).await?;
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

    fn show(&self, index: Index, passages: Passages) {
        self.precision.set(index.precision());
        self.replace(Rc::new(index));
        self.show_passages(passages);
    }

    fn show_passages(&self, passages: Passages) {
        self.words.set(None);
        self.passages.set(passages);
        spawn_local(self.index_words());
    }

    /// Makes the passages found by their words; those who change them meanwhile do it again.
    async fn index_words(self) {
        let passages = self.passages.get_untracked();
        let words = Words::new(&passages, async || TimeoutFuture::new(0).await).await;
        if Arc::ptr_eq(&passages, &self.passages.get_untracked()) {
            self.words.set(Some(Rc::new(words)));
        }
    }

    /// Indexes passages anew, with the present model and precision. They take the place of those that are here once all of
    /// them are done: where that is stopped, or fails, nothing of the reader's is lost. Whether they have taken it.
    async fn rebuild(self, passages: Passages) -> bool {
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
        if !self.embedder().is_some_and(|now| Rc::ptr_eq(&now, &embedder)) {
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
        if let Some(index) = self.index().filter(|_| is_made) {
            self.save(&index).await;
        }
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

    /// Whether passages are being added, which is then said.
    fn refuse_while_busy(&self) -> bool {
        let busy = self.job.with_untracked(Option::is_some);
        if busy {
            self.say("passages are being indexed; wait for them, or stop that first");
        }
        busy
    }

    /// Adds passages to those that are there.
    pub(crate) fn add(self, passages: Vec<Passage>, what: &str) {
        if self.refuse_while_busy() {
            return;
        }
        let what = what.to_string();
        spawn_local(async move { self.add_now(passages, &what).await });
    }

    async fn add_now(self, passages: Vec<Passage>, what: &str) {
        let mut here = self.passages.get_untracked();
        let next = here.last().map_or(0, |(id, _)| id + 1);
        let entries: Vec<(u32, Passage)> = (next..).zip(passages).collect();
        if self.index().is_none() {
            if !here.is_empty() {
                // These were not indexed to the end, and are now, together with those that come.
                Arc::make_mut(&mut here).extend(entries);
                self.rebuild(here).await;
                return;
            }
            if !self.rebuild(here).await {
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
        if !self.embedder().is_some_and(|now| Rc::ptr_eq(&now, &embedder)) {
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
        self.save(&index).await;
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
        let vectors = embedder
            .embed_many(&texts, embedder.in_use().as_deref(), &stop.signal(), on_progress)
            .await?;
        let rows: Vec<(u32, &Passage, Vector)> = entries
            .iter()
            .zip(vectors)
            .map(|((id, passage), vector)| (*id, passage, vector))
            .collect();
        index.add(&rows).await?;
        self.passages.update(|passages| Arc::make_mut(passages).extend_from_slice(entries));
        Ok(())
    }

    /// Stops the job that is under way; what is done stays.
    pub(crate) fn stop(&self) {
        if let Some(stop) = &self.parts().borrow().indexing {
            stop.abort();
        }
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

    /// The index as a file.
    pub(crate) async fn to_file(self) -> Result<Vec<u8>> {
        match self.index() {
            Some(index) => index.to_file().await,
            None => Err(Failure::from("there is no index yet".to_string())),
        }
    }

    /// Takes a saved index in the place of the present one.
    pub(crate) fn import(self, file: Vec<u8>) {
        if self.refuse_while_busy() {
            return;
        }
        spawn_local(async move {
            let read = async { self.read(Index::from_file(&file).await?).await };
            match read.await {
                Ok((index, passages, true)) => {
                    self.say(format!("{} passages read", passages.len()));
                    self.show(index, passages);
                    if let Some(index) = self.index() {
                        self.save(&index).await;
                    }
                }
                // Its vectors are of another model.
                Ok(read) => self.open(read).await,
                Err(failure) => self.tell(&failure),
            }
        });
    }

    /// The k nearest passages to a text. The index is taken when the text is asked, so that both are of one variant.
    pub(crate) async fn nearest_to(&self, text: &str, k: usize) -> Result<Vec<Hit>> {
        let missing = || Failure::from("no model is loaded".to_string());
        let embedder = self.embedder().ok_or_else(missing)?;
        let index = self.index();
        let vectors = embedder.embed(&[text]).await?;
        let (Some(index), Some(vector)) = (index, vectors.first()) else { return Ok(Vec::new()) };
        index.search(vector, k).await
    }
}

/// Passages that are embedded in one call where a search need not wait long for its turn all the same.
fn shared(embedder: &Embedder) -> usize {
    let on_cpu = embedder.info().is_ok_and(|info| info.device.starts_with("cpu"));
    if on_cpu { SHARED } else { AT_ONCE }
}

/// What is embedded of a passage.
pub(crate) fn embedded(passage: &Passage) -> String {
    match passage.text.starts_with(passage.title.trim_end_matches('…')) {
        true => passage.text.clone(),
        false => format!("{}\n{}", passage.title, passage.text),
    }
}
