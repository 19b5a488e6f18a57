//! Evaluation: mteb's tasks and measures, suites of them, TREC runs, comparisons.
//!
//! `suite -> Task -> Source (files) -> tasks/ (data, vectors, metrics) -> Outcome -> results`

mod bm25;
mod compare;
mod encoder;
mod kmeans;
mod light;
mod logistic;
pub mod metrics;
mod random;
mod range;
mod recall;
mod results;
mod retrieval;
mod run;
mod sets;
mod source;
mod suite;
mod task;
mod tasks;
mod top_k;
mod trec;

pub use bm25::bm25_rankings;
pub use compare::{Comparison, Interval, Wilcoxon, paired_bootstrap, wilcoxon};
pub(crate) use encoder::key;
pub use encoder::{Cache, ModelEncoder, TextEncoder, fingerprint, short_hash};
pub use kmeans::mini_batch_kmeans;
pub use light::Light;
pub use logistic::fit_predict;
pub use random::{NumpyRandom, PythonRandom};
pub use range::checked;
pub use recall::{Judged, Recall, RecallLine};
pub use results::{
    Line, ModelResults, Summary, TaskResult, markdown_table, plain_table, read_result,
    read_results, results_folder, write_meta, write_result, write_tables,
};
pub use retrieval::{dense_rankings, ndcg};
pub use run::{LeftOut, Run, SuiteRun};
pub use sets::EvalSet;
pub use source::{Card, Missing, TaskSource, split_files};
pub use suite::Suite;
pub use task::{Outcome, Parts, PromptChoice, Task, TaskKind};
pub(crate) use tasks::labelled_texts;
pub use tasks::{Evaluation, RankedTask, evaluate, ranking_scores};
pub use top_k::ParallelTopK;
pub use trec::{Evaluated, Measure};
