//! A run that learns from the lessons: begun, stopped, gone on with.

use gloo_storage::{LocalStorage as Browser, Storage as _};
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::AbortController;

use super::lessons::pairs;
use super::{Ended, Lesson, Run, Says};
use crate::kiln::{Adapter, Embedder, FitProgress, Length, Lessons, Result, Taught, Trainer};
use crate::library::embedded;
use crate::state::{Model, State};

/// Steps after which kiln-embed keeps a run for the first time.
const KEPT_FROM: usize = 10;
/// Passages that right ones are to be told apart from, beside those of the lessons.
const OTHERS: usize = 60;

impl State {
    /// How long to teach from now on.
    pub(crate) fn change_length(self, length: Length) {
        // Kept for the next visit, where the browser keeps anything.
        let _ = Browser::set("teach-length", length);
        self.teach.length.set(length);
    }

    /// What a run is kept by until it ends.
    fn checkpoint(&self) -> String {
        format!("web-demo {}", self.model_name())
    }

    /// What was cut off cannot go on any more.
    pub(super) fn forget_unfinished(&self) {
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
            if !self.computes(&embedder)
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
}

/// Where it is kept whether a run of a model was cut off.
pub(super) fn unfinished_key(model: &str) -> String {
    format!("teaching {model}")
}
