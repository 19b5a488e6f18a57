//! What the pages share: the model, the passages, and the work that is under way.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gloo::storage::{LocalStorage as Browser, Storage as _};
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;
use web_sys::AbortController;

use crate::kiln::{Embedder, Failure, Hit, Index, Info, LoadProgress, Passage, Result, Vector};
use crate::reading;
use crate::words::Words;

/// The bundled model's address, beside the page.
pub(crate) const BUNDLED: &str = "kiln-mini.kiln";
/// Passages that are embedded at once: few, so that a search need not wait long for its turn.
const AT_ONCE: usize = 8;

/// How the model is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Model {
    Loading { name: String, progress: Option<LoadProgress> },
    Ready { name: String, info: Info, seconds: f64, bytes: f64 },
    Failed { name: String, message: String },
}

impl Model {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Loading { name, .. } | Self::Ready { name, .. } | Self::Failed { name, .. } => {
                name
            }
        }
    }

    pub(crate) fn info(&self) -> Option<&Info> {
        match self {
            Self::Ready { info, .. } => Some(info),
            _ => None,
        }
    }
}

/// Where a model comes from.
#[derive(Clone)]
pub(crate) struct Source {
    /// What the page calls it.
    pub(crate) name: String,
    /// An address, a file, or the files of a folder.
    pub(crate) value: JsValue,
}

impl Source {
    pub(crate) fn address(address: &str) -> Self {
        Self { name: address.into(), value: address.into() }
    }
}

/// How far a long job is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    pub(crate) what: String,
    pub(crate) done: usize,
    pub(crate) total: usize,
    pub(crate) per_second: f64,
}

/// A line for the reader.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Notice {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// Passages in the order of their numbers.
pub(crate) type Passages = Arc<Vec<(u32, Passage)>>;

/// Everything that the pages share.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) model: RwSignal<Model>,
    pub(crate) passages: RwSignal<Passages>,
    pub(crate) job: RwSignal<Option<Job>>,
    pub(crate) notice: RwSignal<Option<Notice>>,
    /// How the index keeps vectors.
    pub(crate) precision: RwSignal<String>,
    /// Where models are computed: `auto`, `cpu` or `webgpu`.
    pub(crate) device: RwSignal<String>,
    parts: StoredValue<Rc<RefCell<Parts>>, LocalStorage>,
}

/// What lives on the JavaScript side, and what stops its runs.
#[derive(Default)]
struct Parts {
    embedder: Option<Rc<Embedder>>,
    index: Option<Rc<Index>>,
    words: Option<Rc<Words>>,
    loading: Option<AbortController>,
    indexing: Option<AbortController>,
    /// Where the model was loaded from.
    source: Option<Source>,
    /// Passages whose turn is still to come; another model takes them over.
    waiting: Vec<(u32, Passage)>,
}

/// Seconds on a clock that only goes forward.
pub(crate) fn now() -> f64 {
    window().performance().map_or(0.0, |clock| clock.now() / 1000.0)
}

impl State {
    pub(crate) fn new() -> Self {
        let model = Model::Loading { name: BUNDLED.into(), progress: None };
        Self {
            model: RwSignal::new(model),
            passages: RwSignal::default(),
            job: RwSignal::new(None),
            notice: RwSignal::new(None),
            precision: RwSignal::new(Browser::get("precision").unwrap_or("int8".into())),
            device: RwSignal::new(Browser::get("device").unwrap_or("auto".into())),
            parts: StoredValue::new_local(Rc::default()),
        }
    }

    fn parts(&self) -> Rc<RefCell<Parts>> {
        self.parts.get_value()
    }

    pub(crate) fn say(&self, text: impl Into<String>) {
        self.notice.set(Some(Notice { text: text.into(), is_error: false }));
    }

    pub(crate) fn fail(&self, text: impl Into<String>) {
        self.notice.set(Some(Notice { text: text.into(), is_error: true }));
    }

    /// Tells of a failure, unless the reader stopped the run.
    fn tell(&self, failure: &Failure) {
        if !failure.aborted {
            self.fail(failure.message.clone());
        }
    }

    pub(crate) fn embedder(&self) -> Option<Rc<Embedder>> {
        self.parts().borrow().embedder.clone()
    }

    pub(crate) fn index(&self) -> Option<Rc<Index>> {
        self.parts().borrow().index.clone()
    }

    pub(crate) fn words(&self) -> Option<Rc<Words>> {
        self.parts().borrow().words.clone()
    }

    /// Whether passages are being added just now.
    pub(crate) fn is_busy(&self) -> bool {
        self.job.with(Option::is_some)
    }

    pub(crate) fn passage(&self, id: u32) -> Option<Passage> {
        self.passages.with(|passages| {
            let at = passages.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            Some(passages[at].1.clone())
        })
    }

    /// Loads a model in the place of the present one; the passages are then indexed by it.
    pub(crate) fn load_model(self, source: Source) {
        spawn_local(async move {
            let Ok(stop) = AbortController::new() else { return };
            {
                let parts = self.parts();
                let mut parts = parts.borrow_mut();
                if let Some(former) = parts.loading.take() {
                    former.abort();
                }
                parts.loading = Some(stop.clone());
                parts.source = Some(source.clone());
            }
            let name = source.name.clone();
            self.model.set(Model::Loading { name: name.clone(), progress: None });
            let start = now();
            let bytes = Rc::new(RefCell::new(std::collections::BTreeMap::new()));
            let seen = bytes.clone();
            let loading = name.clone();
            let signal = stop.signal();
            let listening = stop.signal();
            let device = self.device.get_untracked();
            let loaded = Embedder::load(&source.value, &device, &signal, move |progress| {
                if listening.aborted() {
                    return;
                }
                seen.borrow_mut().insert(progress.file.clone(), progress.loaded);
                let progress = Some(progress);
                self.model.set(Model::Loading { name: loading.clone(), progress });
            });
            let loaded = loaded.await.and_then(|embedder| Ok((embedder.info()?, embedder)));
            if signal.aborted() {
                if let Ok((_, embedder)) = loaded {
                    embedder.dispose();
                }
                return;
            }
            match loaded {
                Ok((info, embedder)) => {
                    let former = {
                        let parts = self.parts();
                        let mut parts = parts.borrow_mut();
                        parts.embedder.replace(Rc::new(embedder))
                    };
                    if let Some(former) = former {
                        former.dispose();
                    }
                    let seconds = now() - start;
                    let bytes = bytes.borrow().values().sum();
                    self.model.set(Model::Ready { name, info, seconds, bytes });
                    self.open_passages().await;
                }
                Err(failure) => self.model.set(Model::Failed { name, message: failure.message }),
            }
        });
    }

    /// Computes the same model elsewhere from now on.
    pub(crate) fn change_device(self, device: String) {
        // Kept for the next visit, where the browser keeps anything.
        let _ = Browser::set("device", &device);
        self.device.set(device);
        let source = self.parts().borrow().source.clone();
        self.load_model(source.unwrap_or_else(|| Source::address(BUNDLED)));
    }

    /// The index that was saved for this model; else the passages that are here, or the built-in
    /// ones, are indexed.
    async fn open_passages(self) {
        let mut here = self.passages.get_untracked();
        Arc::make_mut(&mut here).append(&mut self.parts().borrow_mut().waiting);
        if !here.is_empty() {
            return self.rebuild(here).await;
        }
        let saved = async {
            match Index::load(&self.save_name()).await? {
                Some(index) => self.read(index).await.map(Some),
                None => Ok(None),
            }
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
        if index.dimensions() != embedder.info()?.dimensions {
            return Ok(false);
        }
        let some = &passages[..passages.len().min(3)];
        let ids: Vec<u32> = some.iter().map(|(id, _)| *id).collect();
        let kept = index.vectors(&ids).await?;
        let texts: Vec<String> = some.iter().map(|(_, passage)| embedded(passage)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let ours = if some.is_empty() { Vec::new() } else { embedder.embed(&texts, None).await? };
        // Signs alone keep about 0.8 of a vector's direction.
        let enough = if index.precision() == "binary" { 0.6 } else { 0.98 };
        Ok(kept.iter().zip(&ours).all(|(kept, ours)| kept.dot(ours) > enough))
    }

    fn save_name(&self) -> String {
        self.model.with_untracked(|model| format!("web-demo {}", model.name()))
    }

    fn show(&self, index: Index, passages: Passages) {
        self.precision.set(index.precision());
        let parts = self.parts();
        let former = {
            let mut parts = parts.borrow_mut();
            parts.words = Some(Rc::new(Words::new(&passages)));
            parts.index.replace(Rc::new(index))
        };
        if let Some(former) = former {
            former.dispose();
        }
        self.passages.set(passages);
    }

    /// Indexes passages anew, with the present model and precision.
    async fn rebuild(self, passages: Passages) {
        let Some(embedder) = self.embedder() else { return };
        let created = async {
            Index::create(embedder.info()?.dimensions, &self.precision.get_untracked()).await
        };
        match created.await {
            Ok(index) => {
                self.show(index, Arc::default());
                self.add_entries(passages.to_vec(), "the passages").await;
            }
            Err(failure) => self.tell(&failure),
        }
    }

    /// Keeps vectors in another precision from now on.
    pub(crate) fn change_precision(self, precision: String) {
        if self.refuse_while_busy() {
            return;
        }
        // Kept for the next visit, where the browser keeps anything.
        let _ = Browser::set("precision", &precision);
        self.precision.set(precision);
        spawn_local(async move { self.rebuild(self.passages.get_untracked()).await });
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
        if self.index().is_none() {
            self.rebuild(Arc::default()).await;
        }
        let next =
            self.passages.with_untracked(|passages| passages.last().map_or(0, |(id, _)| id + 1));
        self.add_entries((next..).zip(passages).collect(), what).await;
    }

    async fn add_entries(self, entries: Vec<(u32, Passage)>, what: &str) {
        let (Some(embedder), Some(index), Ok(stop)) =
            (self.embedder(), self.index(), AbortController::new())
        else {
            return;
        };
        self.parts().borrow_mut().indexing = Some(stop.clone());
        let (total, start) = (entries.len(), now());
        let job = |done: usize| Job {
            what: what.into(),
            done,
            total,
            per_second: done as f64 / (now() - start).max(1e-6),
        };
        let mut done = 0;
        let mut result = Ok(());
        for some in entries.chunks(AT_ONCE) {
            self.job.set(Some(job(done)));
            self.parts().borrow_mut().waiting = entries[done..].to_vec();
            result = self.add_some(&embedder, &index, some, &stop).await;
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
        self.parts().borrow_mut().waiting.clear();
        if total > 0 {
            let passages = self.passages.get_untracked();
            self.parts().borrow_mut().words = Some(Rc::new(Words::new(&passages)));
            self.passages.notify();
        }
        match result {
            Err(failure) if !failure.aborted => return self.tell(&failure),
            Err(_) => self.say(format!("stopped: {done} of {total} passages are indexed")),
            Ok(()) if total > 0 => {
                self.say(format!("{total} passages indexed in {:.1} s", now() - start));
            }
            Ok(()) => {}
        }
        if let Err(failure) = index.save(&self.save_name()).await {
            self.fail(format!("the index is not kept for the next visit: {}", failure.message));
        }
    }

    async fn add_some(
        &self,
        embedder: &Embedder,
        index: &Index,
        entries: &[(u32, Passage)],
        stop: &AbortController,
    ) -> Result<()> {
        let texts: Vec<String> = entries.iter().map(|(_, passage)| embedded(passage)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let vectors = embedder.embed(&texts, Some(&stop.signal())).await?;
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
            self.rebuild(Arc::default()).await;
            self.say("the collection is empty");
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
                Ok(read) => {
                    let count = read.1.len();
                    self.say(match read.2 {
                        true => format!("{count} passages read"),
                        false => "the file's vectors are of another model: its passages are indexed again".into(),
                    });
                    self.open(read).await;
                    // Kept for the next visit.
                    self.add_entries(Vec::new(), "").await;
                }
                Err(failure) => self.tell(&failure),
            }
        });
    }

    /// The vector of a query.
    pub(crate) async fn query(&self, text: &str) -> Result<Vector> {
        let missing = || Failure::from("no model is loaded".to_string());
        let embedder = self.embedder().ok_or_else(missing)?;
        let vectors = embedder.embed(&[text], None).await?;
        vectors.into_iter().next().ok_or_else(missing)
    }

    /// The k nearest passages.
    pub(crate) async fn nearest(&self, vector: &Vector, k: usize) -> Result<Vec<Hit>> {
        match self.index() {
            Some(index) => index.search(vector, k).await,
            None => Ok(Vec::new()),
        }
    }
}

/// What is embedded of a passage.
pub(crate) fn embedded(passage: &Passage) -> String {
    match passage.text.starts_with(passage.title.trim_end_matches('…')) {
        true => passage.text.clone(),
        false => format!("{}\n{}", passage.title, passage.text),
    }
}
