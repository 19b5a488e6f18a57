//! The lessons: said by the reader, counted, taken back, kept.

use std::collections::HashSet;

use gloo_storage::errors::StorageError;
use gloo_storage::{LocalStorage as Browser, Storage as _};
use leptos::prelude::*;

use super::{Ended, LESSONS, Lesson, Says, Teach};
use crate::kiln::Passage;
use crate::library::embedded;
use crate::state::State;

impl Teach {
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

    /// Queries that have right answers, each once, as kiln-embed counts them: whatever their case.
    pub(crate) fn questions(&self) -> usize {
        let key = |lesson: &Lesson| lesson.query.trim().to_lowercase();
        self.lessons.with(|lessons| pairs(lessons).map(key).collect::<HashSet<_>>().len())
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

/// Right passages, and synonyms.
pub(super) fn pairs(lessons: &[Lesson]) -> impl Iterator<Item = &Lesson> {
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

    /// Changes the lessons as they are kept now, by another tab too.
    fn change_lessons(self, change: impl FnOnce(&mut Vec<Lesson>)) {
        let kept = self.kept_lessons();
        // Those that lack this page's own last change are not taken.
        let is_whole = !self.teach.unkept.get_untracked();
        self.teach.lessons.update(|lessons| {
            if let Ok(Some(kept)) = &kept
                && is_whole
            {
                lessons.clone_from(kept);
            }
            change(lessons);
        });
        // A run that was cut off learned from others.
        self.forget_unfinished();
        let is_over =
            |ended: &Option<Ended>| matches!(ended, Some(Ended::Stopped | Ended::Failed(_)));
        if self.teach.ended.with_untracked(is_over) {
            self.teach.ended.set(None);
        }
        let keep = |lessons: &Vec<Lesson>| Browser::set(LESSONS, lessons);
        let unkept = kept.is_err() || self.teach.lessons.with_untracked(keep).is_err();
        self.teach.unkept.set(unkept);
        if unkept {
            self.fail("the lessons are not kept for the next visit: the browser keeps nothing here, or has no room");
        }
    }

    /// The lessons as they are kept, where there are some. Those that cannot be read are set aside first.
    fn kept_lessons(&self) -> gloo_storage::Result<Option<Vec<Lesson>>> {
        match Browser::get(LESSONS) {
            Ok(lessons) => Ok(Some(lessons)),
            Err(StorageError::SerdeError(error)) => {
                let text = Browser::raw().get_item(LESSONS).ok().flatten().unwrap_or_default();
                let aside = format!("{LESSONS} set aside {}", js_sys::Date::now());
                Browser::set(&aside, text)?;
                self.fail(format!("the lessons of earlier visits cannot be read: {error}. They are kept in this browser's storage as “{aside}”"));
                Ok(None)
            }
            Err(_) => Ok(None),
        }
    }
}
