//! Two models beside each other: differences of tasks, whether a kind of task differs (Wilcoxon's
//! signed-rank test over its tasks), whether a task differs (paired bootstrap over its parts).

use kiln_metrics::{Interval, Wilcoxon, paired_bootstrap, wilcoxon};
use serde::Serialize;

use super::results::{ModelResults, TaskResult};
use super::task::TaskKind;

/// Fewest tasks of a kind for a signed-rank test, as in Pooling and Attention (arXiv:2409.02727, section
/// 4). On two sides five tasks cannot reach 0.05 either, as the least p is 0.0625; six can.
const FEWEST: usize = 5;

/// A task in both models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskDifference {
    /// Task.
    pub task: String,
    /// Kind.
    pub kind: TaskKind,
    /// Name of the score.
    pub metric: String,
    /// The first model's score.
    pub a: f64,
    /// The second's.
    pub b: f64,
    /// Second less first.
    pub difference: f64,
    /// The bootstrap over the task's parts.
    pub bootstrap: Option<Interval>,
}

/// A kind of task in both models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindDifference {
    /// Kind, or "all".
    pub kind: String,
    /// Tasks of the kind that both have.
    pub tasks: usize,
    /// Mean of the first model.
    pub a: f64,
    /// Mean of the second.
    pub b: f64,
    /// Second less first.
    pub difference: f64,
    /// Tasks that the second does better.
    pub wins: usize,
    /// The signed-rank test; refused for 4 or fewer tasks.
    pub wilcoxon: Option<Wilcoxon>,
}

/// Two models beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The first model.
    pub a: String,
    /// The second.
    pub b: String,
    /// Tasks that both have.
    pub tasks: Vec<TaskDifference>,
    /// Kinds, and all tasks together.
    pub kinds: Vec<KindDifference>,
    /// Tasks that only one has, that were measured by another split or other files, or whose score is not defined.
    pub left_out: Vec<String>,
}

/// Another model's result that can stand beside one: of the same task, kind, measure, split and files, both with a score.
fn beside<'a>(ours: &TaskResult, other: &'a ModelResults) -> Option<&'a TaskResult> {
    let theirs = other.tasks.iter().find(|theirs| theirs.task.name == ours.task.name)?;
    let is_same = theirs.task.kind == ours.task.kind
        && theirs.task.main_score() == ours.task.main_score()
        && theirs.split == ours.split
        && !theirs.is_of_other_data(ours.data.as_deref());
    (is_same && ours.main_score().is_some() && theirs.main_score().is_some()).then_some(theirs)
}

impl Comparison {
    /// Compares what both models have.
    pub fn of(a: &ModelResults, b: &ModelResults) -> Self {
        let name = |results: &ModelResults| format!("{} ({})", results.model, results.revision);
        let mut tasks = Vec::new();
        let mut left_out = Vec::new();
        for ours in &a.tasks {
            let theirs = beside(ours, b);
            let scores = theirs.and_then(|theirs| Some((ours.main_score()?, theirs.main_score()?)));
            let (Some(theirs), Some((score_a, score_b))) = (theirs, scores) else {
                left_out.push(ours.task.name.clone());
                continue;
            };
            tasks.push(TaskDifference {
                task: ours.task.name.clone(),
                kind: ours.task.kind,
                metric: ours.task.main_score().into(),
                a: score_a,
                b: score_b,
                difference: score_b - score_a,
                bootstrap: paired_bootstrap((&ours.parts, score_a), (&theirs.parts, score_b)),
            });
        }
        let only_b = b
            .tasks
            .iter()
            .filter(|theirs| !a.tasks.iter().any(|ours| ours.task.name == theirs.task.name));
        left_out.extend(only_b.map(|theirs| theirs.task.name.clone()));
        let kinds: std::collections::BTreeSet<TaskKind> =
            tasks.iter().map(|task| task.kind).collect();
        let summary = |name: String, tasks: Vec<&TaskDifference>| {
            let mean = |of: fn(&TaskDifference) -> f64| {
                tasks.iter().map(|task| of(task)).sum::<f64>() / tasks.len() as f64
            };
            let differences: Vec<f64> = tasks.iter().map(|task| task.difference).collect();
            KindDifference {
                kind: name,
                tasks: tasks.len(),
                a: mean(|task| task.a),
                b: mean(|task| task.b),
                difference: mean(|task| task.difference),
                wins: differences.iter().filter(|&&difference| difference > 0.0).count(),
                wilcoxon: (tasks.len() >= FEWEST).then(|| wilcoxon(&differences)),
            }
        };
        let mut rows: Vec<KindDifference> = kinds
            .into_iter()
            .map(|kind| {
                summary(kind.to_string(), tasks.iter().filter(|task| task.kind == kind).collect())
            })
            .collect();
        if !tasks.is_empty() {
            rows.push(summary("all".into(), tasks.iter().collect()));
        }
        Self { a: name(a), b: name(b), tasks, kinds: rows, left_out }
    }

    /// The tasks as rows of cells.
    pub fn task_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            ["type", "task", "measure", "A", "B", "B - A", "95 % of draws", "p"]
                .map(String::from)
                .to_vec(),
        ];
        rows.extend(self.tasks.iter().map(|task| {
            let (range, p) = match task.bootstrap {
                Some(result) => (
                    format!("{:+.2} to {:+.2}", 100.0 * result.low, 100.0 * result.high),
                    format!("{:.3}", result.p),
                ),
                None => ("not drawn".into(), String::new()),
            };
            let points = |score: f64| format!("{:.2}", 100.0 * score);
            let kind = task.kind.to_string();
            let difference = format!("{:+.2}", 100.0 * task.difference);
            let metric = task.metric.clone();
            vec![
                kind,
                task.task.clone(),
                metric,
                points(task.a),
                points(task.b),
                difference,
                range,
                p,
            ]
        }));
        rows
    }

    /// The kinds as rows of cells: the papers' table of effects.
    pub fn kind_rows(&self) -> Vec<Vec<String>> {
        let mut rows = vec![
            ["type", "tasks", "A", "B", "B - A", "B better in", "signed-rank p"]
                .map(String::from)
                .to_vec(),
        ];
        rows.extend(self.kinds.iter().map(|kind| {
            let p = match kind.wilcoxon {
                Some(test) => {
                    let mark = if test.p < 0.05 { " *" } else { "" };
                    let how = if test.exact { "" } else { " (normal)" };
                    format!("{:.4}{mark}{how}", test.p)
                }
                None => format!("refused: {FEWEST} tasks are needed"),
            };
            vec![
                kind.kind.clone(),
                kind.tasks.to_string(),
                format!("{:.2}", 100.0 * kind.a),
                format!("{:.2}", 100.0 * kind.b),
                format!("{:+.2}", 100.0 * kind.difference),
                kind.wins.to_string(),
                p,
            ]
        }));
        rows
    }
}

/// Several models beside a first one, by kinds of tasks: tables 2 to 5 of Pooling and Attention.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standings {
    /// The model that the others are compared with.
    pub baseline: String,
    /// The kinds of tasks that all have, and "all".
    pub kinds: Vec<String>,
    /// The baseline's mean of each kind.
    pub baseline_means: Vec<f64>,
    /// The others, each beside the baseline.
    pub others: Vec<Standing>,
    /// Tasks that not all have of the same kind, split and files, with a score.
    pub left_out: Vec<String>,
}

/// One model beside the baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Its name.
    pub model: String,
    /// Each kind of tasks; `b` is this model.
    pub kinds: Vec<KindDifference>,
}

impl Standings {
    /// Compares models with a first one, on the tasks that all of them have.
    pub fn of(baseline: &ModelResults, others: &[ModelResults]) -> Self {
        let all_have = |task: &TaskResult| {
            let found: Option<Vec<&TaskResult>> =
                others.iter().map(|model| beside(task, model)).collect();
            // Two that are of other files may both stand beside one of which that is not known.
            found.is_some_and(|found| {
                found.iter().enumerate().all(|(i, one)| {
                    found[..i].iter().all(|other| !other.is_of_other_data(one.data.as_deref()))
                })
            })
        };
        let mut left_out: Vec<String> = Vec::new();
        for task in [baseline].into_iter().chain(others).flat_map(|model| &model.tasks) {
            let name = &task.task.name;
            let kept = baseline.tasks.iter().any(|own| own.task.name == *name && all_have(own));
            if !kept && !left_out.contains(name) {
                left_out.push(name.clone());
            }
        }
        let mut baseline = baseline.clone();
        baseline.tasks.retain(all_have);
        // A comparison is of the tasks that both have, and all have these.
        let comparison = |model| Comparison::of(&baseline, model);
        let others: Vec<Standing> = others
            .iter()
            .map(comparison)
            .map(|Comparison { b, kinds, .. }| Standing { model: b, kinds })
            .collect();
        let first = others.first().map(|other| other.kinds.as_slice()).unwrap_or_default();
        Self {
            baseline: format!("{} ({})", baseline.model, baseline.revision),
            kinds: first.iter().map(|kind| format!("{} ({})", kind.kind, kind.tasks)).collect(),
            baseline_means: first.iter().map(|kind| kind.a).collect(),
            others,
            left_out,
        }
    }

    /// A row for each model, a column for each kind; `*` where the signed-rank test finds p < 0.05.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let header = ["model".to_string()].into_iter().chain(self.kinds.iter().cloned());
        let points = |score: f64| format!("{:.2}", 100.0 * score);
        let baseline = [self.baseline.clone()]
            .into_iter()
            .chain(self.baseline_means.iter().map(|mean| points(*mean)));
        let mut rows = vec![header.collect(), baseline.collect::<Vec<_>>()];
        rows.extend(self.others.iter().map(|other| {
            let cell = |kind: &KindDifference| {
                let star = kind.wilcoxon.as_ref().is_some_and(|test| test.p < 0.05);
                format!("{}{}", points(kind.b), if star { " *" } else { "" })
            };
            [other.model.clone()].into_iter().chain(other.kinds.iter().map(cell)).collect()
        }));
        rows
    }
}

#[cfg(test)]
mod tests {
    use kiln_metrics::ScoreParts;

    use super::super::task::Task;
    use super::*;

    fn result(name: &str, kind: TaskKind, score: f64) -> TaskResult {
        TaskResult {
            task: Task::new(name, kind),
            split: "test".into(),
            data: Some("files".into()),
            prompts: Default::default(),
            scores: [(kind.main_score().to_string(), Some(score))].into(),
            seconds: 1.0,
            parts: ScoreParts::Mean { values: vec![score; 3] },
        }
    }

    fn model(name: &str, score: f64) -> ModelResults {
        let sts = ["S0", "S1", "S2", "S3", "S4"].map(|name| result(name, TaskKind::Sts, score));
        let mut tasks = sts.to_vec();
        tasks.push(result("R", TaskKind::Retrieval, score));
        ModelResults { model: name.into(), revision: "1".into(), tasks }
    }

    #[test]
    fn a_table_has_the_tasks_that_all_models_have_alike() {
        let (baseline, mut a, mut b) = (model("base", 0.5), model("a", 0.6), model("b", 0.7));
        a.tasks.push(result("own", TaskKind::Sts, 0.1));
        b.tasks[0].split = "dev".into();
        b.tasks[5].data = Some("other files".into());
        let standings = Standings::of(&baseline, &[a.clone(), b.clone()]);
        assert_eq!(standings.kinds, ["STS (4)", "all (4)"]);
        assert_eq!(standings.left_out, ["S0", "R", "own"]);
        let expected = [
            ["model", "STS (4)", "all (4)"],
            ["base (1)", "50.00", "50.00"],
            ["a (1)", "60.00", "60.00"],
            ["b (1)", "70.00", "70.00"],
        ];
        assert_eq!(standings.rows(), expected);
        // Nor may two be of other files than each other, where the baseline's are not known.
        let mut unknown = baseline;
        unknown.tasks.iter_mut().for_each(|task| task.data = None);
        let standings = Standings::of(&unknown, &[a, b]);
        assert_eq!(standings.left_out, ["S0", "R", "own"]);
    }

    #[test]
    fn a_star_is_where_the_signed_ranks_tell() {
        // Eight tasks of STS and five of retrieval, whose least p is 2 / 2^5; sizes of differences are 1 to 13 points.
        let model = |name: &str, sign: fn(usize) -> f64| {
            let task = |size: usize| {
                let kind = if size <= 8 { TaskKind::Sts } else { TaskKind::Retrieval };
                result(&format!("T{size}"), kind, 0.5 + sign(size) * 0.01 * size as f64)
            };
            let tasks = (1..=13).map(task).collect();
            ModelResults { model: name.into(), revision: "1".into(), tasks }
        };
        let standings = Standings::of(
            &model("base", |_| 0.0),
            &[
                model("better", |_| 1.0),
                model("worse", |_| -1.0),
                // Ranks 1 and 2 against the rest: p = 10 / 2^8. Ranks 1 and 3: 14 / 2^8.
                model("mostly", |size| if [1, 2].contains(&size) { -1.0 } else { 1.0 }),
                model("perhaps", |size| if [1, 3].contains(&size) { -1.0 } else { 1.0 }),
            ],
        );
        let expected = [
            ["model", "Retrieval (5)", "STS (8)", "all (13)"],
            ["base (1)", "50.00", "50.00", "50.00"],
            ["better (1)", "61.00", "54.50 *", "57.00 *"],
            ["worse (1)", "39.00", "45.50 *", "43.00 *"],
            ["mostly (1)", "61.00", "53.75 *", "56.54 *"],
            ["perhaps (1)", "61.00", "53.50", "56.38 *"],
        ];
        assert_eq!(standings.rows(), expected);
    }
}
