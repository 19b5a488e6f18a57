//! What the pages share: the model, the passages, and the work that is under way.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use gloo_storage::{LocalStorage as Browser, Storage as _};
use leptos::prelude::*;
use leptos::task::spawn_local;
use wasm_bindgen::JsValue;
use web_sys::AbortController;

use crate::kiln::{Adapter, Embedder, Failure, Index, Info, LoadProgress, Passage};
use crate::known::Known;
use crate::teach::{Teach, Variant};
use crate::words::Words;

/// The bundled model's address, beside the page.
pub(crate) const BUNDLED: &str = "kiln-mini.kiln";

/// How the model is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Model {
    Loading { name: String, progress: Option<LoadProgress> },
    Ready { name: String, info: Info, seconds: f64, bytes: f64 },
    Failed { name: String, message: String },
}

impl Model {
    pub(crate) fn info(&self) -> Option<&Info> {
        match self {
            Self::Ready { info, .. } => Some(info),
            _ => None,
        }
    }
}

/// Where a model comes from.
#[derive(Clone)]
pub(crate) struct ModelSource {
    /// What the page calls it.
    pub(crate) name: String,
    /// An address, a file, or the files of a folder.
    pub(crate) value: JsValue,
}

impl ModelSource {
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

impl Job {
    /// One that began at a time of [`now`].
    pub(crate) fn at(what: &str, done: usize, total: usize, start: f64) -> Self {
        let per_second = done as f64 / (now() - start).max(1e-6);
        Self { what: what.into(), done, total, per_second }
    }
}

/// A line for the reader.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Notice {
    pub(crate) text: String,
    pub(crate) is_error: bool,
}

/// Whether what is here is kept for the next visit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Keeping {
    /// As far as it is indexed.
    Kept,
    Saving,
    /// The browser keeps nothing here, or has no room.
    Failed,
    /// Nothing is saved in the place of passages that this page has not shown: why, and what to do, in one line.
    Held(String),
}

/// Passages in the order of their numbers.
pub(crate) type Passages = Arc<Vec<(u32, Passage)>>;

/// Everything that the pages share.
#[derive(Clone, Copy)]
pub(crate) struct State {
    pub(crate) model: RwSignal<Model>,
    pub(crate) passages: RwSignal<Passages>,
    /// The passages by their words, once these are taken up.
    pub(crate) words: RwSignal<Option<Rc<Words>>, LocalStorage>,
    pub(crate) job: RwSignal<Option<Job>>,
    /// Whether what was saved is still to be read, or what was here to be indexed by another model.
    pub(crate) opening: RwSignal<bool>,
    pub(crate) keeping: RwSignal<Keeping>,
    /// Saves of the index, the latest of which counts.
    pub(crate) saves: Turns,
    pub(crate) notice: RwSignal<Option<Notice>>,
    /// How the index keeps vectors.
    pub(crate) precision: RwSignal<String>,
    /// Counts the indexes that took each other's place.
    pub(crate) indexes: RwSignal<usize>,
    /// Where models are computed: `auto`, `cpu` or `webgpu`.
    pub(crate) device: RwSignal<String>,
    /// What their weights are computed with: as they are `kept`, `f32`, `int8` or `int4`.
    pub(crate) weights: RwSignal<String>,
    /// What the model is taught.
    pub(crate) teach: Teach,
    /// What the model was taught that the search computes with; none where it computes as it was.
    pub(crate) in_use: RwSignal<Option<Variant>>,
    parts: StoredValue<Rc<RefCell<Parts>>, LocalStorage>,
}

/// What lives on the JavaScript side, and what stops its runs.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) embedder: Option<Rc<Embedder>>,
    /// What the page calls the model that computes, while another one is loaded too.
    name: String,
    pub(crate) index: Option<Rc<Index>>,
    loading: Option<AbortController>,
    pub(crate) indexing: Option<AbortController>,
    pub(crate) teaching: Option<AbortController>,
    /// What the model was taught last.
    pub(crate) adapter: Option<Adapter>,
    /// Where the model was loaded from.
    source: Option<ModelSource>,
    /// Passages that are being added, and how many of them are done; another model takes over the rest.
    pub(crate) adding: (Rc<Vec<(u32, Passage)>>, usize),
    /// Passages that are being indexed to take the place of those that are here; another model takes them over.
    pub(crate) replacing: Option<Passages>,
    pub(crate) known: Known,
}

/// Tells the latest of several runs from those before it.
#[derive(Clone, Copy)]
pub(crate) struct Turns(StoredValue<u32>);

impl Turns {
    pub(crate) fn new() -> Self {
        Self(StoredValue::new(0))
    }

    /// Begins a run; what it gives says whether no later one has begun.
    pub(crate) fn next(self) -> impl Fn() -> bool + Copy + 'static {
        self.0.update_value(|turn| *turn = turn.wrapping_add(1));
        let own = self.0.get_value();
        move || self.0.try_get_value() == Some(own)
    }
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
            words: RwSignal::new_local(None),
            job: RwSignal::new(None),
            opening: RwSignal::new(false),
            keeping: RwSignal::new(Keeping::Kept),
            saves: Turns::new(),
            notice: RwSignal::new(None),
            precision: RwSignal::new(Browser::get("precision").unwrap_or("int8".into())),
            indexes: RwSignal::new(0),
            device: RwSignal::new(Browser::get("device").unwrap_or("auto".into())),
            weights: RwSignal::new(Browser::get("weights").unwrap_or("kept".into())),
            teach: Teach::new(),
            in_use: RwSignal::new(None),
            parts: StoredValue::new_local(Rc::default()),
        }
    }

    pub(crate) fn parts(&self) -> Rc<RefCell<Parts>> {
        self.parts.get_value()
    }

    pub(crate) fn say(&self, text: impl Into<String>) {
        self.notice.set(Some(Notice { text: text.into(), is_error: false }));
    }

    pub(crate) fn fail(&self, text: impl Into<String>) {
        self.notice.set(Some(Notice { text: text.into(), is_error: true }));
    }

    /// Whether a failure is told of just now.
    pub(crate) fn has_failed(&self) -> bool {
        self.notice.with_untracked(|notice| notice.as_ref().is_some_and(|notice| notice.is_error))
    }

    /// What was said of an earlier run is no longer so; failures stay.
    pub(crate) fn forget_notice(&self) {
        self.notice.update(|notice| *notice = notice.take().filter(|notice| notice.is_error));
    }

    /// Tells of a failure, unless the reader stopped the run.
    pub(crate) fn tell(&self, failure: &Failure) {
        if !failure.aborted {
            self.fail(failure.message.clone());
        }
    }

    pub(crate) fn embedder(&self) -> Option<Rc<Embedder>> {
        self.parts().borrow().embedder.clone()
    }

    /// Whether a model still computes, and no other one has taken its place.
    pub(crate) fn computes(&self, embedder: &Rc<Embedder>) -> bool {
        self.embedder().is_some_and(|now| Rc::ptr_eq(&now, embedder))
    }

    /// What the page calls the model that computes.
    pub(crate) fn model_name(&self) -> String {
        self.parts().borrow().name.clone()
    }

    pub(crate) fn index(&self) -> Option<Rc<Index>> {
        self.parts().borrow().index.clone()
    }

    /// Whether passages are being opened or added just now.
    pub(crate) fn is_busy(&self) -> bool {
        self.opening.get() || self.job.with(Option::is_some)
    }

    pub(crate) fn passage(&self, id: u32) -> Option<Passage> {
        self.passages.with(|passages| {
            let i = passages.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            Some(passages[i].1.clone())
        })
    }

    /// Loads a model in the place of the present one; the passages are then indexed by it.
    pub(crate) fn load_model(self, source: ModelSource) {
        spawn_local(async move {
            let Ok(stop) = AbortController::new() else { return };
            {
                let parts = self.parts();
                let mut parts = parts.borrow_mut();
                for former in [parts.loading.take(), parts.teaching.take()].into_iter().flatten() {
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
            let weights = self.weights.get_untracked();
            let loaded =
                Embedder::load(&source.value, &device, &weights, &signal, move |progress| {
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
                    self.forget_notice();
                    let taught = self.take_up(&name, &embedder).await;
                    if signal.aborted() {
                        embedder.dispose();
                        return;
                    }
                    let former = {
                        let parts = self.parts();
                        let mut parts = parts.borrow_mut();
                        parts.name.clone_from(&name);
                        (parts.embedder.replace(Rc::new(embedder)), parts.index.take())
                    };
                    if let Some(embedder) = former.0 {
                        embedder.dispose();
                    }
                    // Its vectors are not this model's.
                    if let Some(index) = former.1 {
                        index.dispose();
                    }
                    self.in_use.set(taught);
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
        self.load_model(self.source());
    }

    /// Computes the same model with its weights in other numbers from now on.
    pub(crate) fn change_weights(self, weights: String) {
        let _ = Browser::set("weights", &weights);
        self.weights.set(weights);
        self.load_model(self.source());
    }

    /// Where the model was loaded from, to load it again.
    pub(crate) fn source(&self) -> ModelSource {
        let source = self.parts().borrow().source.clone();
        source.unwrap_or_else(|| ModelSource::address(BUNDLED))
    }
}
