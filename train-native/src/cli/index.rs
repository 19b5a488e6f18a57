//! `kiln index`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::ranges::{NEIGHBOURS, whole};
use super::{Global, Overwrite};

/// Build an approximate index over many vectors.
///
/// `kiln search --index DIR` then looks at some hundred vectors a query, however many there are, and finds nearly all of
/// the best: --recall measures how many. The graph (HNSW) is usearch's: graph.usearch opens in Python and elsewhere too.
/// Fewer than some 100,000 vectors are searched exactly in no time; `kiln search` does so without an index.
#[derive(Debug, Args)]
pub(super) struct IndexArgs {
    /// Vectors from `kiln embed` (repeatable): a file, a folder, a pattern, or an address of an object store
    #[arg(long, short, value_name = "FILE|DIR|PATTERN|URL", required = true)]
    input: Vec<String>,
    /// Folder to write the index to
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    overwrite: Overwrite,
    /// Precision to keep the vectors in: int8, a fourth of the memory, or f32
    #[arg(long, value_name = "NAME", default_value = "int8")]
    precision: String,
    /// Neighbours of each vector; more find more, and take more memory
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = whole(2, 256))]
    connectivity: usize,
    /// Candidates that are looked at for each vector while building; more find more, and take longer
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole(1, NEIGHBOURS))]
    expansion_add: usize,
    /// Candidates that are looked at for each query; `kiln search --expansion` may ask for others
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = whole(1, NEIGHBOURS))]
    expansion_search: usize,
    /// Measure with so many of the rows as queries how many of the best --top-k are found, against exact search in f32; the
    /// vectors are read twice more for it
    #[arg(long, value_name = "N", value_parser = whole(1, 10_000))]
    recall: Option<usize>,
    /// Hits per query that --recall compares
    #[arg(long, short = 'k', value_name = "K", default_value_t = 10, value_parser = whole(1, 1000))]
    top_k: usize,
}

#[cfg(not(feature = "hnsw"))]
pub(super) fn run(args: &IndexArgs, _: &Global) -> Result<()> {
    anyhow::bail!("{}: {}", args.output.display(), super::WITHOUT_HNSW)
}

#[cfg(feature = "hnsw")]
pub(super) use built::run;

#[cfg(feature = "hnsw")]
mod built {
    use std::time::Instant;

    use anyhow::bail;
    use kiln_embed::embedder::Similarity;
    use rand::SeedableRng as _;
    use rand::seq::IteratorRandom as _;
    use rand_chacha::ChaCha8Rng;
    use serde::Serialize;

    use super::{Global, IndexArgs, Result};
    use crate::embedding::BLOCK;
    use crate::hnsw::{ApproximateIndex, GraphOptions, IndexBuilder};
    use crate::interrupt;
    use crate::search::Search;
    use crate::shards::{VectorFiles, is_address};
    use crate::terminal::{Terminal, counted};

    #[derive(Serialize)]
    struct Summary {
        output: String,
        rows: usize,
        dimensions: usize,
        bytes: u64,
        seconds: f64,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        recall: Vec<Setting>,
    }

    /// What one number of candidates finds.
    #[derive(Serialize)]
    struct Setting {
        expansion: usize,
        /// Share of the exact best that are found.
        recall: f64,
        /// Median of a query's milliseconds, one query at a time.
        p50_ms: f64,
        queries_per_second: f64,
    }

    pub(in super::super) fn run(args: &IndexArgs, global: &Global) -> Result<()> {
        if let Some(output) = args.output.to_str().filter(|output| is_address(output)) {
            anyhow::bail!(
                "{output}: an index is written to a folder, from which it is mapped; name a folder"
            );
        }
        let terminal = global.terminal();
        let options = GraphOptions {
            precision: args.precision.parse().map_err(anyhow::Error::msg)?,
            connectivity: args.connectivity,
            expansion_add: args.expansion_add,
            expansion_search: args.expansion_search,
        };
        let files = args
            .input
            .iter()
            .map(|input| VectorFiles::find(input, terminal))
            .collect::<Result<Vec<_>>>()?;
        let settings = common(&args.input, &files)?;
        let mut builder = IndexBuilder::create(&args.output, args.overwrite.rule(), options)?;
        let start = Instant::now();
        let bar = terminal.counter("indexing");
        each_block(&files, |block| {
            bar.inc(block.len() as u64);
            builder.push(block)
        })?;
        bar.finish_and_clear();
        let done = builder.finish(settings, terminal)?;
        let seconds = start.elapsed().as_secs_f64();
        let recall = match args.recall {
            Some(queries) => measured(args, &files, queries.min(done.rows), done.rows, terminal)?,
            None => Vec::new(),
        };
        let summary = Summary {
            output: args.output.display().to_string(),
            rows: done.rows,
            dimensions: done.dimensions,
            bytes: done.bytes(),
            seconds,
            recall,
        };
        terminal.result(&summary, || summary.text(args.top_k))
    }

    /// What all inputs say that their vectors are made by.
    fn common(inputs: &[String], files: &[VectorFiles]) -> Result<Option<crate::shards::Settings>> {
        let said: Vec<_> = inputs
            .iter()
            .zip(files)
            .filter_map(|(input, files)| Some((input, files.settings()?)))
            .collect();
        let Some((first, settings)) = said.first() else { return Ok(None) };
        for (input, other) in &said[1..] {
            if !settings.is_same_space(other) {
                bail!(
                    "{input}: has vectors of {} (prompt {:?}), and {first} of {} (prompt {:?}); an index has those of one model",
                    other.model,
                    other.prompt,
                    settings.model,
                    settings.prompt
                );
            }
        }
        Ok((said.len() == files.len()).then(|| (*settings).clone()))
    }

    fn each_block(
        files: &[VectorFiles],
        mut each: impl FnMut(crate::vectors::Block) -> Result<()>,
    ) -> Result<()> {
        for files in files {
            files.read(BLOCK, |block| {
                if interrupt::asked() {
                    return Err(kiln_embed::Error::Cancelled.into());
                }
                each(block)
            })?;
        }
        Ok(())
    }

    /// Recall with rows drawn at random as queries, each without itself, and how long a query takes.
    fn measured(
        args: &IndexArgs,
        files: &[VectorFiles],
        queries: usize,
        rows: usize,
        terminal: Terminal,
    ) -> Result<Vec<Setting>> {
        let mut drawn = (0..rows).choose_multiple(&mut ChaCha8Rng::seed_from_u64(0), queries);
        drawn.sort_unstable();
        let (mut vectors, mut at) = (Vec::with_capacity(queries), 0);
        each_block(files, |block| {
            let here = drawn[vectors.len()..].iter().take_while(|row| **row < at + block.len());
            let here: Vec<usize> = here.map(|row| row - at).collect();
            at += block.len();
            vectors.extend(here.into_iter().map(|row| block[row].vector.clone()));
            Ok(())
        })?;
        // One more, since a row finds itself.
        let mut search = Search::new(vectors.clone(), args.top_k + 1, Similarity::Cosine)?;
        let bar = terminal.progress(rows as u64, "searching exactly");
        each_block(files, |block| {
            bar.inc(block.len() as u64);
            search.push(block)
        })?;
        bar.finish_and_clear();
        let without = |own: usize, found: Vec<usize>| -> Vec<usize> {
            found.into_iter().filter(|row| *row != own).take(args.top_k).collect()
        };
        let exact: Vec<Vec<usize>> = search
            .finish()
            .into_iter()
            .zip(&drawn)
            .map(|(hits, own)| without(*own, hits.into_iter().map(|hit| hit.row).collect()))
            .collect();
        let index = ApproximateIndex::open(&args.output)?;
        // The graph comes into memory.
        vectors.iter().try_for_each(|vector| index.rows(vector, args.top_k + 1, 0).map(drop))?;
        let usual = args.expansion_search;
        [usual / 2, usual, usual * 2, usual * 4]
            .into_iter()
            .map(|expansion| {
                let expansion = expansion.max(args.top_k + 1);
                let (mut found, mut possible, mut times) = (0, 0, Vec::new());
                for ((vector, own), exact) in vectors.iter().zip(&drawn).zip(&exact) {
                    let start = Instant::now();
                    let hits = index.rows(vector, args.top_k + 1, expansion)?;
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                    let hits = without(*own, hits.into_iter().map(|(row, _)| row).collect());
                    found += exact.iter().filter(|row| hits.contains(row)).count();
                    possible += exact.len();
                }
                times.sort_unstable_by(f64::total_cmp);
                Ok(Setting {
                    expansion,
                    recall: found as f64 / possible.max(1) as f64,
                    p50_ms: times[times.len() / 2],
                    queries_per_second: times.len() as f64 / times.iter().sum::<f64>() * 1e3,
                })
            })
            .collect()
    }

    impl Summary {
        fn text(&self, k: usize) -> String {
            let mut lines = vec![format!(
                "{} of {} dimensions -> {} ({:.1} MB) in {:.1} s",
                counted(self.rows, "vector", "vectors"),
                self.dimensions,
                self.output,
                self.bytes as f64 / 1e6,
                self.seconds
            )];
            if !self.recall.is_empty() {
                lines.push(format!("expansion  recall@{k}   p50 ms  queries/s"));
            }
            for one in &self.recall {
                lines.push(format!(
                    "{:>9}  {:>9.4}  {:>7.3}  {:>9.0}",
                    one.expansion, one.recall, one.p50_ms, one.queries_per_second
                ));
            }
            lines.join("\n")
        }
    }
}
