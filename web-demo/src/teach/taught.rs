//! What was learned: taken, in use or put aside, before and after, and taken up at the next visit.

use gloo_storage::{LocalStorage as Browser, Storage as _};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::files::{keep, kept};
use super::run::unfinished_key;
use super::{Compared, Ended, Titled, Variant};
use crate::kiln::{Adapter, Embedder, Result};
use crate::state::State;

/// Searches that are shown before and after.
const COMPARED: usize = 5;
/// Titles that are shown of each.
const TITLES: usize = 5;

impl State {
    /// Takes what was taught, here or elsewhere, keeps it, and has the search use it.
    pub(super) async fn take(self, adapter: Adapter) {
        let Some(embedder) = self.embedder() else { return };
        let model = self.model_name();
        // The one that computes until the passages are indexed anew stays as it is.
        let name = match embedder.in_use().as_deref() {
            Some("taught") => "taught again",
            _ => "taught",
        };
        let fingerprint = match embedder.add_adapter(name, &adapter).await {
            Ok(fingerprint) => fingerprint,
            Err(failure) => return self.teach.ended.set(Some(Ended::Failed(failure.message))),
        };
        // Another model may have been chosen meanwhile, whose own adapter this is not.
        if !self.computes(&embedder) {
            return;
        }
        let variant = Variant { name: name.into(), fingerprint };
        self.parts().borrow_mut().adapter = Some(adapter.clone());
        self.teach.latest.set(Some(variant.clone()));
        if let Err(failure) = keep(&model, &adapter).await {
            self.fail(format!(
                "what was taught is not kept for the next visit: {}",
                failure.message
            ));
        }
        self.use_now(Some(variant)).await;
    }

    /// Takes an adapter's files.
    pub(crate) fn import_adapter(self, files: Vec<(String, Vec<u8>)>) {
        self.teach.ended.set(None);
        self.teach.compared.set(Vec::new());
        spawn_local(async move { self.take(Adapter::new(&files)).await });
    }

    /// Has the search use what was taught last, or the model as it was.
    pub(crate) fn use_variant(self, taught: bool) {
        let to = if taught { self.teach.latest.get_untracked() } else { None };
        self.teach.compared.set(Vec::new());
        spawn_local(async move { self.use_now(to).await });
    }

    async fn use_now(self, to: Option<Variant>) {
        let queries = self.compared_queries();
        let compared = async {
            let mut compared = Vec::new();
            for query in queries {
                let before = self.titles(&query).await?;
                compared.push(Compared { query, before, after: Vec::new() });
            }
            self.teach.compared.set(compared.clone());
            if !self.change_variant(to).await? {
                self.teach.compared.set(Vec::new());
                return Ok(());
            }
            for one in &mut compared {
                one.after = self.titles(&one.query).await?;
            }
            self.teach.compared.set(compared);
            Ok(())
        };
        let compared: Result<()> = compared.await;
        if let Err(failure) = compared {
            self.teach.compared.set(Vec::new());
            match failure.aborted {
                true => self.say("stopped: the search stays as it was"),
                false => self.tell(&failure),
            }
        }
    }

    /// The last searches, and then the last lessons' queries.
    fn compared_queries(&self) -> Vec<String> {
        let mut queries = Vec::new();
        let lessons = self.teach.lessons.get_untracked();
        let taught = lessons.iter().rev().map(|lesson| &lesson.query);
        for query in self.teach.asked.get_untracked().iter().rev().chain(taught) {
            if queries.len() < COMPARED && !queries.contains(query) {
                queries.push(query.clone());
            }
        }
        queries
    }

    async fn titles(&self, query: &str) -> Result<Vec<Titled>> {
        let hits = self.nearest_to(query, TITLES).await?;
        let title = |id| {
            self.passages.with_untracked(|passages| {
                let at = passages.binary_search_by_key(&id, |(id, _)| *id).ok()?;
                Some((id, passages[at].1.title.clone()))
            })
        };
        Ok(hits.into_iter().filter_map(|hit| title(hit.id)).collect())
    }

    /// Keeps for the next visit whether what was taught is in use.
    pub(crate) fn remember_use(&self) {
        // Where the browser keeps anything.
        let _ = Browser::set(
            in_use_key(&self.model_name()),
            self.in_use.with_untracked(Option::is_some),
        );
    }

    /// What a model that was just loaded has been taught before: it computes with it where it did at the last visit.
    pub(crate) async fn take_up(&self, model: &str, embedder: &Embedder) -> Option<Variant> {
        self.teach.ended.set(None);
        self.teach.compared.set(Vec::new());
        self.teach.latest.set(None);
        self.parts().borrow_mut().adapter = None;
        self.teach.unfinished.set(Browser::get(unfinished_key(model)).unwrap_or(false));
        let adapter = kept(model).await.ok()??;
        let taken = async {
            let name = "taught".to_string();
            let fingerprint = embedder.add_adapter(&name, &adapter).await?;
            let variant = Variant { name, fingerprint };
            let in_use = Browser::get(in_use_key(model)).unwrap_or(false);
            if in_use {
                embedder.use_adapter(Some(&variant.name)).await?;
            }
            Ok((variant, in_use))
        };
        let taken: Result<(Variant, bool)> = taken.await;
        match taken {
            Ok((variant, in_use)) => {
                self.parts().borrow_mut().adapter = Some(adapter);
                self.teach.latest.set(Some(variant.clone()));
                in_use.then_some(variant)
            }
            Err(failure) => {
                self.fail(format!(
                    "what this model was taught cannot be used: {}",
                    failure.message
                ));
                None
            }
        }
    }
}

fn in_use_key(model: &str) -> String {
    format!("taught {model}")
}
