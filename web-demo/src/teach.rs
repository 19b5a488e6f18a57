//! Teaching: a reader's lessons, the run that learns from them, and what was learned, in use or put aside.

use std::rc::Rc;

use gloo_storage::{LocalStorage as Browser, Storage as _};
use js_sys::{Uint8Array, encode_uri_component};
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortController, Cache, Response};

use crate::kiln::{
    Adapter, Embedder, Failure, FitProgress, Length, Lessons, Passage, Result, Taught, Trainer,
};
use crate::library::embedded;
use crate::state::{Model, State};

/// Pairs from which on a run makes sense: kiln-embed draws batches of them.
pub(crate) const LEAST: usize = 5;
/// Questions from which on a fifth of them are five, the fewest that kiln-embed holds back.
pub(crate) const HELD_BACK_FROM: usize = 25;
/// Steps after which kiln-embed keeps a run for the first time.
const KEPT_FROM: usize = 10;
/// Passages that right ones are to be told apart from, beside those of the lessons.
const OTHERS: usize = 60;
/// Searches that are shown before and after.
const COMPARED: usize = 5;
/// Titles that are shown of each.
pub(crate) const TITLES: usize = 5;
/// How long to teach, unless the reader chooses otherwise.
const LENGTH: Length = Length::Seconds(20);

/// The files of each kind of adapter: PEFT's, and those of an adapter of vectors.
const KINDS: [[&str; 2]; 2] =
    [["adapter_config.json", "adapter_model.safetensors"], ["config.json", "model.safetensors"]];
/// Where adapters are kept for the next visit.
const CACHE: &str = "kiln-demo-adapters";

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
    /// What was searched for, the last one last.
    asked: RwSignal<Vec<String>>,
}

impl Teach {
    pub(crate) fn new() -> Self {
        Self {
            lessons: RwSignal::new(Browser::get("lessons").unwrap_or_default()),
            length: RwSignal::new(Browser::get("teach-length").unwrap_or(LENGTH)),
            run: RwSignal::new(None),
            ended: RwSignal::new(None),
            compared: RwSignal::default(),
            latest: RwSignal::new(None),
            unfinished: RwSignal::new(false),
            asked: RwSignal::default(),
        }
    }

    /// What is said of a passage as the answer to a query.
    pub(crate) fn said(&self, query: &str, text: &str) -> Option<Says> {
        let of = |lesson: &&Lesson| {
            lesson.says != Says::Synonym && lesson.query == query && lesson.text == text
        };
        self.lessons.with(|lessons| lessons.iter().find(of).map(|lesson| lesson.says))
    }

    /// Numbers of right passages, wrong ones, and synonyms.
    pub(crate) fn counts(&self) -> [usize; 3] {
        let of = |says| {
            move |lessons: &Vec<Lesson>| lessons.iter().filter(|one| one.says == says).count()
        };
        [Says::Right, Says::Wrong, Says::Synonym].map(|says| self.lessons.with(of(says)))
    }

    /// Queries that have right answers, each once.
    pub(crate) fn questions(&self) -> usize {
        self.lessons.with(|lessons| {
            let mut queries: Vec<&str> =
                pairs(lessons).map(|lesson| lesson.query.as_str()).collect();
            queries.sort_unstable();
            queries.dedup();
            queries.len()
        })
    }

    /// Queries of which it is only said what does not answer them; these lessons wait.
    pub(crate) fn only_wrong(&self) -> Vec<String> {
        self.lessons.with(|lessons| {
            let mut queries: Vec<String> = Vec::new();
            for lesson in lessons.iter().filter(|lesson| lesson.says == Says::Wrong) {
                let has_right = pairs(lessons).any(|pair| pair.query == lesson.query);
                if !has_right && !queries.contains(&lesson.query) {
                    queries.push(lesson.query.clone());
                }
            }
            queries
        })
    }

    /// Remembers a search, to show it before and after; what was typed on the way to it is not one.
    pub(crate) fn note(&self, query: &str) {
        self.asked.update_untracked(|asked| {
            asked.retain(|former| former != query);
            if asked
                .last()
                .is_some_and(|last| query.starts_with(last.as_str()) || last.starts_with(query))
            {
                asked.pop();
            }
            asked.push(query.into());
        });
    }
}

fn pairs(lessons: &[Lesson]) -> impl Iterator<Item = &Lesson> {
    lessons.iter().filter(|lesson| lesson.says != Says::Wrong)
}

impl State {
    /// Says of a passage that it is right or wrong for a query, or, where that was said, nothing any more.
    pub(crate) fn mark(self, query: &str, passage: &Passage, says: Says) {
        let text = embedded(passage);
        let said = self.teach.said(query, &text);
        self.change_lessons(|lessons| {
            lessons.retain(|lesson| {
                lesson.says == Says::Synonym || lesson.query != query || lesson.text != text
            });
            if said != Some(says) {
                let title = passage.title.clone();
                lessons.push(Lesson { says, query: query.into(), title, text });
            }
        });
    }

    /// Says that two words mean one thing.
    pub(crate) fn add_synonym(self, word: &str, meaning: &str) {
        let lesson = Lesson {
            says: Says::Synonym,
            query: word.trim().into(),
            title: meaning.trim().into(),
            text: meaning.trim().into(),
        };
        self.change_lessons(|lessons| {
            if !lessons.contains(&lesson) {
                lessons.push(lesson);
            }
        });
    }

    /// Takes a lesson back.
    pub(crate) fn take_back(self, lesson: &Lesson) {
        self.change_lessons(|lessons| lessons.retain(|other| other != lesson));
    }

    fn change_lessons(self, change: impl FnOnce(&mut Vec<Lesson>)) {
        self.teach.lessons.update(change);
        // A run that was cut off learned from others.
        self.forget_unfinished();
        let is_over =
            |ended: &Option<Ended>| matches!(ended, Some(Ended::Stopped | Ended::Failed(_)));
        if self.teach.ended.with_untracked(is_over) {
            self.teach.ended.set(None);
        }
        let kept = self.teach.lessons.with_untracked(|lessons| Browser::set("lessons", lessons));
        if kept.is_err() {
            self.fail("the lessons are not kept for the next visit: the browser keeps nothing here, or has no room");
        }
    }

    /// How long to teach from now on.
    pub(crate) fn change_length(self, length: Length) {
        // Kept for the next visit, where the browser keeps anything.
        let _ = Browser::set("teach-length", length);
        self.teach.length.set(length);
    }

    fn model_name(&self) -> String {
        self.model.with_untracked(|model| model.name().to_string())
    }

    /// What a run is kept by until it ends.
    fn checkpoint(&self) -> String {
        format!("web-demo {}", self.model_name())
    }

    fn forget_unfinished(&self) {
        if self.teach.unfinished.get_untracked() {
            Browser::delete(unfinished_key(&self.model_name()));
            self.teach.unfinished.set(false);
        }
    }

    /// Teaches the model from the lessons, or goes on with a run that was cut off; what was learned is then used.
    pub(crate) fn teach_now(self, resume: bool) {
        if self.teach.run.get_untracked().is_some() {
            return;
        }
        let (Some(embedder), Ok(stop)) = (self.embedder(), AbortController::new()) else { return };
        self.parts().borrow_mut().teaching = Some(stop.clone());
        self.teach.ended.set(None);
        self.teach.compared.set(Vec::new());
        self.teach.run.set(Some(Run::Loading));
        spawn_local(async move {
            let key = unfinished_key(&self.model_name());
            if !resume {
                Browser::delete(&key);
            }
            let learned = self.learn(&embedder, resume, &stop).await;
            if !self.embedder().is_some_and(|now| Rc::ptr_eq(&now, &embedder))
                || matches!(self.model.get_untracked(), Model::Loading { .. })
            {
                // Another model is being loaded, and this one's run is kept.
                self.teach.run.set(None);
                return;
            }
            self.teach.run.set(None);
            let stopped = learned.as_ref().is_err_and(|failure| failure.aborted);
            if !stopped {
                Browser::delete(&key);
            }
            self.teach.unfinished.set(Browser::get(&key).unwrap_or(false));
            match learned {
                Ok((taught, adapter)) => {
                    self.teach.ended.set(Some(Ended::Learned(taught)));
                    if let Some(adapter) = adapter {
                        self.take(adapter).await;
                    }
                }
                Err(failure) if failure.aborted => self.teach.ended.set(Some(Ended::Stopped)),
                Err(failure) => self.teach.ended.set(Some(Ended::Failed(failure.message))),
            }
        });
    }

    async fn learn(
        &self,
        embedder: &Embedder,
        resume: bool,
        stop: &AbortController,
    ) -> Result<(Taught, Option<Adapter>)> {
        let signal = stop.signal();
        let trainer = embedder.trainer(&signal).await?;
        let learned = self.fit(&trainer, resume, stop).await;
        trainer.dispose();
        learned
    }

    async fn fit(
        &self,
        trainer: &Trainer,
        resume: bool,
        stop: &AbortController,
    ) -> Result<(Taught, Option<Adapter>)> {
        let signal = stop.signal();
        let (run, listening) = (self.teach.run, signal.clone());
        let key = unfinished_key(&self.model_name());
        let report = move |progress: FitProgress| {
            if listening.aborted() {
                return;
            }
            if progress.step == KEPT_FROM {
                // Where the browser keeps nothing, no run can go on either.
                let _ = Browser::set(&key, true);
            }
            run.set(Some(Run::Steps(progress)));
        };
        let length = self.teach.length.get_untracked();
        let checkpoint = self.checkpoint();
        if resume
            && let Some(learned) =
                trainer.resume(&checkpoint, length, &signal, report.clone()).await?
        {
            return Ok(learned);
        }
        // A run that had not got far enough to be kept begins anew.
        trainer.fit(&self.given(), length, &checkpoint, &signal, report).await
    }

    /// The lessons as kiln-embed takes them.
    fn given(&self) -> Lessons {
        let lessons = self.teach.lessons.get_untracked();
        let pair = |lesson: &Lesson| (lesson.query.clone(), lesson.text.clone());
        let wrong = lessons.iter().filter(|lesson| {
            lesson.says == Says::Wrong && pairs(&lessons).any(|right| right.query == lesson.query)
        });
        let others = self.passages.with_untracked(|passages| {
            passages.iter().take(OTHERS).map(|(_, passage)| embedded(passage)).collect()
        });
        Lessons {
            pairs: pairs(&lessons).map(pair).collect(),
            negatives: wrong.map(pair).collect(),
            others,
        }
    }

    /// Stops the run that is under way.
    pub(crate) fn stop_teaching(&self) {
        if let Some(stop) = &self.parts().borrow().teaching {
            stop.abort();
        }
    }

    /// Takes what was taught, here or elsewhere, keeps it, and has the search use it.
    async fn take(self, adapter: Adapter) {
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
        if !self.embedder().is_some_and(|now| Rc::ptr_eq(&now, &embedder)) {
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

fn unfinished_key(model: &str) -> String {
    format!("teaching {model}")
}

fn in_use_key(model: &str) -> String {
    format!("taught {model}")
}

/// The address under which a file of a model's adapter is kept.
fn kept_address(model: &str, file: &str) -> String {
    format!("adapters/{}/{file}", String::from(encode_uri_component(model)))
}

async fn cache() -> Result<Cache> {
    let caches = window().caches()?;
    // There is none where the page is not served securely.
    if caches.is_undefined() {
        return Err(Failure::from("the browser keeps nothing here".to_string()));
    }
    Ok(JsFuture::from(caches.open(CACHE)).await?.unchecked_into())
}

/// Keeps an adapter in the place of the one before it, of whichever kind that was.
async fn keep(model: &str, adapter: &Adapter) -> Result<()> {
    let cache = cache().await?;
    let files = adapter.files();
    for name in KINDS.as_flattened() {
        let address = kept_address(model, name);
        match files.iter().find(|(own, _)| own == name) {
            Some((_, bytes)) => {
                let response = Response::new_with_opt_u8_array(Some(&mut bytes.clone()))?;
                JsFuture::from(cache.put_with_str(&address, &response)).await?;
            }
            None => {
                JsFuture::from(cache.delete_with_str(&address)).await?;
            }
        }
    }
    Ok(())
}

async fn kept(model: &str) -> Result<Option<Adapter>> {
    let cache = cache().await?;
    for kind in KINDS {
        let mut files = Vec::new();
        for name in kind {
            let found: JsValue =
                JsFuture::from(cache.match_with_str(&kept_address(model, name))).await?;
            if found.is_undefined() {
                break;
            }
            let bytes = JsFuture::from(found.unchecked_into::<Response>().array_buffer()?).await?;
            files.push((name.to_string(), Uint8Array::new(&bytes).to_vec()));
        }
        if files.len() == kind.len() {
            return Ok(Some(Adapter::new(&files)));
        }
    }
    Ok(None)
}
