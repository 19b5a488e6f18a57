//! What is opened: the saved index of a model, what was here before, or a file.

use std::rc::Rc;
use std::sync::Arc;

use leptos::prelude::*;
use leptos::task::spawn_local;

use super::saving::unreadable;
use super::{embedded, next_number};
use crate::kiln::{Embedder, Index, Passage, Result};
use crate::reading;
use crate::state::{Keeping, Passages, State};

/// An index, what it has, and whether its vectors are those that this model gives.
type Read = (Index, Passages, bool);

impl State {
    /// The index that was saved for this model; where passages are here, these are indexed beside the saved ones, and where
    /// there are none at all, the built-in ones. They can be changed once this has ended.
    pub(crate) async fn open_passages(self) {
        let Some(embedder) = self.embedder() else { return };
        // A save that has not ended is another model's.
        let _ = self.saves.next();
        self.keeping.set(Keeping::Kept);
        self.opening.set(true);
        let here = self.here();
        if here.is_empty() {
            self.open_saved(&embedder).await;
        } else {
            self.open_beside(here, &embedder).await;
        }
        if self.computes(&embedder) {
            self.opening.set(false);
        }
    }

    /// Passages that are here, or that the model before was at work on.
    fn here(&self) -> Passages {
        let parts = self.parts();
        let parts = parts.borrow();
        let mut here = parts.replacing.clone().unwrap_or_else(|| self.passages.get_untracked());
        let (adding, done) = &parts.adding;
        if *done < adding.len() {
            Arc::make_mut(&mut here).extend_from_slice(&adding[*done..]);
        }
        here
    }

    /// The model before has nothing more to do: this one does it.
    fn take_over(&self) {
        let parts = self.parts();
        let mut parts = parts.borrow_mut();
        parts.replacing = None;
        parts.adding = Default::default();
    }

    /// Opens what was saved for this model, else the built-in collection. What cannot be read is left as it is.
    async fn open_saved(self, embedder: &Rc<Embedder>) {
        let saved = self.saved().await;
        if !self.computes(embedder) {
            // Another model has taken over meanwhile, and opens its own.
            if let Ok(Some((index, ..))) = saved {
                index.dispose();
            }
            return;
        }
        self.take_over();
        match saved {
            Ok(Some(read)) => return self.open(read).await,
            Ok(None) => {}
            Err(failure) => self.hold(unreadable(&failure)),
        }
        self.add_now(reading::collection(), "the built-in collection").await;
    }

    async fn saved(&self) -> Result<Option<Read>> {
        let [own, other] = [false, true].map(|other| self.save_name(other));
        if let Some(index) = Index::load(&own).await? {
            return self.read(index).await.map(Some);
        }
        // What the model's other variant has indexed are the reader's passages too, with other vectors.
        let Some(index) = Index::load(&other).await? else { return Ok(None) };
        let passages = Arc::new(index.passages()?);
        Ok(Some((index, passages, false)))
    }

    /// Indexes passages that are here, and with them those that are saved for this model and were not seen here.
    async fn open_beside(self, mut here: Passages, embedder: &Rc<Embedder>) {
        let saved = self.saved_passages().await;
        if !self.computes(embedder) {
            // Another model has taken over meanwhile, with all that is here.
            return;
        }
        self.take_over();
        match saved {
            Ok(saved) => {
                let parts = self.parts();
                let mut parts = parts.borrow_mut();
                parts.known.add(&here);
                let others = saved.into_iter().map(|(_, passage)| passage);
                let others = others.filter(|passage| !parts.known.has(passage));
                let others: Vec<(u32, Passage)> = (next_number(&here)..).zip(others).collect();
                if !others.is_empty() {
                    Arc::make_mut(&mut here).extend(others);
                }
            }
            Err(failure) => self.hold(unreadable(&failure)),
        }
        self.rebuild(here).await;
    }

    async fn saved_passages(&self) -> Result<Vec<(u32, Passage)>> {
        for name in [false, true].map(|other| self.save_name(other)) {
            if let Some(passages) = Index::saved_passages(&name).await? {
                return Ok(passages);
            }
        }
        Ok(Vec::new())
    }

    /// What an index has, and whether its vectors are this model's.
    async fn read(&self, index: Index) -> Result<Read> {
        let passages = index.passages()?;
        let fits = self.is_of_this_model(&index, &passages).await?;
        Ok((index, Arc::new(passages), fits))
    }

    /// Takes an index in the place of the present one; passages of another model are indexed again.
    async fn open(self, (index, passages, fits): Read) {
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
                    self.save().await;
                }
                // Its vectors are of another model.
                Ok(read) => self.open(read).await,
                Err(failure) => self.tell(&failure),
            }
        });
    }
}
