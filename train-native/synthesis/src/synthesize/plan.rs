//! What is asked, in which order: the same for the same settings, material and answers.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use kiln_data::data::mixed;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::draw::{Placeholders, Words, draw};
use super::kind::{ExampleKind, Shares};
use super::material::Material;
use super::row::{SkippedChecks, SynthesizedRow, Texts, Wanted};
use crate::documents::Passage;
use crate::language::{Language, Mixture};
use crate::llm::{Answer, EndpointList, Question, Role, key, texts_schema};
use crate::prompts::Prompts;

/// Numbers of samples begin here, so that they are other examples than the rows.
const SAMPLES: u64 = 1 << 40;
/// Examples whose query is a place of the task's list.
const TASK: u64 = 1 << 48;

/// What decides which questions are asked. Kept beside the answers, and compared when a run goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Seed.
    pub seed: u64,
    /// Kinds of examples, where they are free.
    pub types: Shares,
    /// Negatives in one answer: 1 (E5-Mistral), 2 (NV-Embed) or 4 (Negative Matters).
    pub levels: usize,
    /// Languages ([`Mixture::parse`]).
    pub languages: String,
    /// Most queries of a passage.
    pub queries: usize,
    /// Questions for tasks, of each kind.
    pub brainstorms: usize,
    /// Tasks in each answer to them.
    pub tasks: usize,
    /// Samples by the models with the role `seed` that stand before the others' prompts, of each kind.
    pub samples: usize,
    /// How often an example is asked for until it passes.
    pub attempts: u32,
    /// Checks that are left out.
    pub left_out: SkippedChecks,
}

/// What a run is compared by: its settings, and all else that its questions depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Signature {
    #[serde(flatten)]
    settings: Settings,
    material: String,
    models: Vec<(String, f64, Vec<Role>)>,
    prompts: Vec<String>,
}

impl Signature {
    pub(super) fn new(
        settings: &Settings,
        material: &Material,
        list: &EndpointList,
        prompts: &Prompts,
    ) -> Self {
        let models = list.of_models().into_iter();
        let models = models.map(|(model, share, roles)| (model.into(), share, roles.to_vec()));
        Self {
            settings: settings.clone(),
            material: material.name(),
            models: models.collect(),
            prompts: templates(settings, material)
                .into_iter()
                .map(|name| prompts.version(name).into())
                .collect(),
        }
    }

    /// The first thing in which two differ of what the questions of this run depend on, which asks these roles.
    pub(super) fn difference(&self, other: &Self, asked: &[Role]) -> Option<String> {
        let [own, other] = [self, other].map(|one| one.of_questions(asked));
        let fields = own.as_object()?;
        let (name, value) =
            fields.iter().find(|(name, value)| other.get(name.as_str()) != Some(*value))?;
        Some(format!("{name} was {value}, and is {}", other[name.as_str()]))
    }
}

impl Signature {
    /// Without what only says which answers pass, and whom nobody asks.
    fn of_questions(&self, asked: &[Role]) -> Value {
        let mut own = self.clone();
        for (_, _, roles) in &mut own.models {
            roles.retain(|role| asked.contains(role));
        }
        own.models.retain(|(_, _, roles)| !roles.is_empty());
        let mut value = serde_json::to_value(own).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !matches!(name.as_str(), "left_out" | "attempts"));
        }
        value
    }
}

/// The templates of a run's questions.
fn templates(settings: &Settings, material: &Material) -> Vec<&'static str> {
    let mut names = vec!["samples"];
    match material {
        Material::Tasks(own) => {
            let kinds = || settings.types.0.iter().map(|(kind, _)| *kind);
            names.extend(kinds().map(ExampleKind::template));
            names.extend(kinds().filter(|_| own.is_none()).filter_map(ExampleKind::tasks));
        }
        Material::Corpus(_) => names.push(ExampleKind::Corpus.template()),
        Material::Pairs(..) => names.push(ExampleKind::Regenerated.template()),
    }
    names
}

/// Answers that are kept are of other questions: what they cost would be lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "{folder}: holds answers to other questions: {difference}; go on as before, or choose another --output"
)]
pub struct OtherQuestions {
    pub(super) folder: String,
    /// The first thing in which they differ.
    pub(super) difference: String,
}

/// The plan of a run.
pub(super) struct SynthesisPlan<'a> {
    pub(super) settings: &'a Settings,
    pub(super) material: &'a Material,
    pub(super) prompts: &'a Prompts,
    pub(super) endpoints: &'a EndpointList,
    pub(super) mixture: Mixture,
    /// Passages or pairs, in the order in which they are taken.
    pub(super) order: Vec<u32>,
    /// Tasks of each kind.
    pub(super) tasks: BTreeMap<ExampleKind, Vec<String>>,
    /// What a strong model wrote, of each kind.
    pub(super) samples: BTreeMap<ExampleKind, Vec<String>>,
}

/// One example to ask for.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) kind: ExampleKind,
    /// Its place among the examples, or the number of what is given.
    number: u64,
    pub(super) language: Language,
    pub(super) task: Option<String>,
    given: Option<Given>,
    query: Words,
    documents: Words,
    /// Similarities that were asked for, of the positive and of the nearest negative.
    scores: Option<[f32; 2]>,
    pub(super) prompt: String,
    endpoint: usize,
}

/// What an example is written for.
#[derive(Debug, Clone)]
enum Given {
    /// A passage, and the text of it that is embedded, title and headings first.
    Passage(Passage, String),
    /// A pair by its place: instruction, query and positive.
    Pair(u32, [String; 3]),
}

impl Given {
    /// Instruction, query and positive, as far as they are there.
    fn texts(&self) -> [&str; 3] {
        match self {
            Self::Passage(_, embedded) => ["", "", embedded],
            Self::Pair(_, texts) => texts.each_ref().map(String::as_str),
        }
    }

    /// Where it comes from.
    fn source(&self) -> String {
        match self {
            Self::Passage(passage, _) => passage.id.clone(),
            Self::Pair(place, _) => place.to_string(),
        }
    }

    /// The passage that it is.
    fn passage(&self) -> Option<&Passage> {
        match self {
            Self::Passage(passage, _) => Some(passage),
            Self::Pair(..) => None,
        }
    }
}

impl<'a> SynthesisPlan<'a> {
    pub(super) fn new(
        settings: &'a Settings,
        material: &'a Material,
        prompts: &'a Prompts,
        endpoints: &'a EndpointList,
    ) -> Result<Self> {
        Ok(Self {
            settings,
            material,
            prompts,
            endpoints,
            mixture: Mixture::parse(&settings.languages)?,
            order: material.order(settings.seed),
            tasks: BTreeMap::new(),
            samples: BTreeMap::new(),
        })
    }

    /// Kinds whose tasks a model thinks of.
    pub(super) fn kinds_with_tasks(&self) -> Vec<(ExampleKind, &'static str)> {
        let Material::Tasks(None) = self.material else { return Vec::new() };
        let kinds = self.settings.types.0.iter();
        kinds.filter_map(|(kind, _)| kind.tasks().map(|template| (*kind, template))).collect()
    }

    /// Kinds that a strong model writes samples of.
    pub(super) fn kinds_with_samples(&self) -> Vec<ExampleKind> {
        match self.material {
            Material::Tasks(_) if self.settings.samples > 0 => {
                self.settings.types.0.iter().map(|(kind, _)| *kind).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The roles that are asked.
    pub(super) fn roles(&self) -> Vec<Role> {
        match self.kinds_with_tasks().is_empty() && self.kinds_with_samples().is_empty() {
            true => vec![Role::Write],
            false => vec![Role::Seed, Role::Write],
        }
    }

    /// A question for tasks.
    pub(super) fn task_question(
        &self,
        kind: ExampleKind,
        template: &str,
        number: u64,
    ) -> Result<Question> {
        let prompt = self.prompts.fill(template, json!({"count": self.settings.tasks}))?;
        let endpoint =
            self.endpoints.pick(Role::Seed, &[self.settings.seed, TASK, kind as u64, number])?;
        let model = &self.endpoints.endpoints[endpoint].model;
        let seed = self.settings.seed.to_string();
        let list = json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2 * self.settings.tasks});
        Ok(Question {
            key: key(&["tasks", model, &prompt, &seed, &number.to_string()]),
            endpoint,
            system: None,
            prompt,
            schema: Some(json!({
                "title": "tasks", "type": "object", "properties": {"tasks": list}, "required": ["tasks"],
                "additionalProperties": false,
            })),
            temperature: 1.0,
            label: format!("tasks of {} {number}", kind.name()),
        })
    }

    /// An example by its place.
    pub(super) fn item(&self, place: u64) -> Result<Item> {
        let row = self.order.get(place as usize).copied();
        let number = row.map_or(place, |row| self.material.numbers()[row as usize]);
        let mut rng = ChaCha8Rng::seed_from_u64(mixed(&[self.settings.seed, number]));
        let kind = match self.material {
            Material::Tasks(_) => self.settings.types.at(rng.random()),
            Material::Corpus(_) => ExampleKind::Corpus,
            Material::Pairs(..) => ExampleKind::Regenerated,
        };
        let given = row.map(|row| self.given(row)).transpose()?;
        self.item_of(kind, number, Role::Write, given, rng)
    }

    /// What stands at a place of the material.
    fn given(&self, row: u32) -> Result<Given> {
        match self.material {
            Material::Tasks(_) => bail!("tasks have no rows"),
            Material::Corpus(passages) => {
                let passage = passages.get(row as usize)?;
                let embedded = passage.embedded();
                Ok(Given::Passage(passage, embedded))
            }
            Material::Pairs(set, _) => {
                let example = set.get(row as usize)?;
                let positive = example.pos.into_iter().next().unwrap_or_default();
                let instruction = example.instruction.unwrap_or_default();
                Ok(Given::Pair(row, [instruction, example.query, positive]))
            }
        }
    }

    /// A sample of a kind, for a strong model.
    pub(super) fn sample(&self, kind: ExampleKind, number: u64) -> Result<Item> {
        let number = SAMPLES + number;
        let rng = ChaCha8Rng::seed_from_u64(mixed(&[self.settings.seed, number, kind as u64]));
        self.item_of(kind, number, Role::Seed, None, rng)
    }

    fn item_of(
        &self,
        kind: ExampleKind,
        number: u64,
        role: Role,
        given: Option<Given>,
        mut rng: ChaCha8Rng,
    ) -> Result<Item> {
        let settings = self.settings;
        let language = self.mixture.at(rng.random());
        // Where all is in one language, a translation is between that and English.
        let other = self.mixture.at(rng.random());
        let other = if other == language { Language::ENGLISH } else { other };
        let drawn = draw(kind, settings.levels, other, &mut rng);
        let mut placeholders = serde_json::to_value(&drawn.placeholders)?;
        placeholders["levels"] = settings.levels.into();
        placeholders["language"] = language.name.into();
        placeholders["keys"] = json!(kind.keys(settings.levels));
        let samples = if role == Role::Seed { None } else { self.samples.get(&kind) };
        placeholders["samples"] = json!(samples.map_or(&[][..], |samples| samples));
        let task = match kind.tasks() {
            Some(_) => Some(self.task(kind, &mut rng)?),
            None => None,
        };
        if let Some(task) = &task {
            placeholders["task"] = task.clone().into();
        }
        if let Some(given) = &given {
            self.present(given, &mut placeholders);
        }
        Ok(Item {
            kind,
            number,
            language,
            task,
            given,
            query: drawn.query,
            documents: drawn.documents,
            scores: match &drawn.placeholders {
                Placeholders::Similar { high_score, low_scores, .. } => {
                    low_scores.first().map(|low| [*high_score, *low])
                }
                _ => None,
            },
            prompt: self.prompts.fill(kind.template(), placeholders)?,
            endpoint: self.endpoints.pick(role, &[settings.seed, number])?,
        })
    }

    /// One of a kind's tasks.
    fn task(&self, kind: ExampleKind, rng: &mut ChaCha8Rng) -> Result<String> {
        let own = match self.material {
            Material::Tasks(own) => own.as_ref(),
            _ => None,
        };
        let tasks = own.or_else(|| self.tasks.get(&kind)).filter(|tasks| !tasks.is_empty());
        let tasks = tasks.with_context(|| format!("there is no task of {}", kind.name()))?;
        Ok(tasks[rng.random_range(0..tasks.len())].clone())
    }

    /// What a prompt is told of it, between marks that nobody who wrote it can know.
    fn present(&self, given: &Given, placeholders: &mut Value) {
        let [instruction, query, positive] = given.texts();
        let seed = self.settings.seed.to_string();
        let mark = key(&["mark", &seed, instruction, query, positive]) as u64;
        placeholders["mark"] = format!("{mark:016x}").into();
        match given {
            Given::Passage(passage, _) => {
                placeholders["passage"] = passage.text.clone().into();
                placeholders["title"] = passage.title.clone().into();
                placeholders["count"] = self.settings.queries.into();
            }
            Given::Pair(..) => {
                placeholders["instruction"] = instruction.into();
                placeholders["query"] = query.into();
                placeholders["positive"] = positive.into();
            }
        }
    }

    /// What an item's answer is to be.
    pub(super) fn wanted<'b>(&self, item: &'b Item) -> Wanted<'b> {
        Wanted {
            kind: item.kind,
            levels: self.settings.levels,
            language: item.language,
            query: item.query,
            documents: item.documents,
            left_out: self.settings.left_out,
            queries: self.settings.queries,
            task: item.task.as_deref(),
            given: item.given.as_ref().map(Given::texts),
        }
    }

    /// The question for an item, at an attempt from 0.
    pub(super) fn question(&self, item: &Item, attempt: u32) -> Question {
        let endpoint = &self.endpoints.endpoints[item.endpoint];
        let numbers =
            [self.settings.seed, item.number, attempt.into()].map(|number| number.to_string());
        let [seed, number, attempt] = numbers.each_ref().map(String::as_str);
        Question {
            key: key(&["example", &endpoint.model, &item.prompt, seed, number, attempt]),
            endpoint: item.endpoint,
            system: None,
            prompt: item.prompt.clone(),
            schema: Some(self.schema(item.kind)),
            temperature: 1.0,
            label: format!("{} {}.{attempt}", item.kind.name(), item.number),
        }
    }

    fn schema(&self, kind: ExampleKind) -> Value {
        let keys = kind.keys(self.settings.levels);
        let mut schema = texts_schema("example", keys.iter().map(String::as_str));
        if kind == ExampleKind::Corpus {
            schema["properties"]["queries"] = json!({
                "type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": self.settings.queries,
            });
        }
        schema
    }

    /// Rows of an answer that is good.
    pub(super) fn rows(&self, item: &Item, texts: Texts, answer: &Answer) -> Vec<SynthesizedRow> {
        let Texts { instruction, queries, positive, negatives } = texts;
        let passage = item.given.as_ref().and_then(Given::passage);
        let rows = queries.into_iter().enumerate().map(|(place, query)| {
            // Negatives of a passage are written for its first query.
            let own: &[String] = if place == 0 { &negatives } else { &[] };
            let graded = self.settings.levels > 1;
            let levels =
                own.iter().enumerate().map(|(i, text)| (format!("n{}", i + 1), text.clone()));
            SynthesizedRow {
                instruction: instruction.clone(),
                query,
                pos: vec![positive.clone()],
                neg: if graded { Vec::new() } else { own.to_vec() },
                negatives: if graded { levels.collect() } else { BTreeMap::new() },
                kind: item.kind.name().into(),
                language: if item.kind == ExampleKind::Regenerated {
                    String::new()
                } else {
                    item.language.code.into()
                },
                generator: answer.model.clone(),
                prompt_version: self.prompts.version(item.kind.template()).into(),
                seed: Some(self.settings.seed),
                tokens: Some(answer.usage),
                positive_score: item.scores.map(|[high, _]| high),
                negative_score: item.scores.map(|[_, low]| low),
                source: item.given.as_ref().map(Given::source),
                document: passage.map(|passage| passage.document.clone()),
                split: passage.map(|passage| passage.split),
            }
        });
        rows.collect()
    }

    /// About how many tokens an item's answer has.
    pub(super) fn expected_tokens(&self, item: &Item) -> u64 {
        let documents = match item.kind {
            ExampleKind::ShortLong => item.documents.expected() * (1 + self.settings.levels.max(1)),
            ExampleKind::LongLong if self.settings.levels < 2 => 700,
            ExampleKind::LongLong => 350 * (2 + self.settings.levels),
            ExampleKind::LongShort => item.query.expected() + 4 * (1 + self.settings.levels),
            ExampleKind::ShortShort | ExampleKind::Sts | ExampleKind::Bitext => {
                20 * (2 + self.settings.levels)
            }
            ExampleKind::Corpus | ExampleKind::Regenerated => {
                let passage =
                    item.given.as_ref().map_or(0, |given| crate::words::count(given.texts()[2]));
                let levels = if self.settings.levels > 1 || item.kind == ExampleKind::Regenerated {
                    self.settings.levels
                } else {
                    0
                };
                15 * self.settings.queries + passage * levels
            }
        };
        // Four tokens for three words, and the keys.
        (documents as u64 * 4 / 3) + 20
    }
}
