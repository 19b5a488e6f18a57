//! Evaluation: mteb's tasks and measures, suites of them, TREC runs, comparisons.
//!
//! `suite -> Task -> Source (files) -> tasks/ (data, vectors, metrics) -> TaskOutcome -> results`

mod bm25;
mod compare;
mod encoder;
mod light;
mod recall;
mod results;
mod run;
mod run_files;
mod sets;
mod source;
mod suite;
mod systems;
mod task;
mod tasks;

pub use bm25::bm25_rankings;
pub use compare::{Comparison, Standings};
pub(crate) use encoder::key;
pub use encoder::{Cache, ModelEncoder, TextEncoder, fingerprint, short_hash};
pub use kiln_metrics::{
    self as metrics, Evaluated, Interval, Measure, NumpyRandom, ParallelTopK, PythonRandom,
    ScoreParts, Wilcoxon, checked, dense_rankings, fit_predict, mini_batch_kmeans, ndcg,
    paired_bootstrap, wilcoxon,
};
pub use light::Light;
pub use recall::{Judged, Recall, RecallLine};
pub use results::{
    ModelResults, SuiteSummary, SummaryLine, TaskResult, markdown_table, plain_table, read_result,
    read_results, results_folder, write_meta, write_result, write_tables,
};
pub use run::{EvalRun, SkippedTask, SuiteRun};
pub use run_files::{RankedDocuments, RunFiles};
pub use sets::{EvalSet, MEAN, MRR, Model, scores};
pub use source::{Card, Missing, TaskSource, split_files};
pub use suite::Suite;
pub use systems::{BM25, Difference, System, Systems};
pub use task::{AirBench, PromptChoice, Task, TaskKind, TaskOutcome};
pub(crate) use tasks::labelled_texts;
pub use tasks::{Evaluation, RankedTask, Reranking, evaluate, judged_split, ranking_scores};
