//! Approximate search among many vectors by a graph of their neighbours: a hierarchical navigable small world (HNSW;
//! Malkov and Yashunin, arXiv:1603.09320), which usearch builds. An index is a folder:
//!
//! | file | |
//! |---|---|
//! | `index.json` | what it was made of, and how: [`Description`] |
//! | `graph.usearch` | vectors and graph; usearch opens it in Python and elsewhere too |
//! | `.kiln-sums.json` | by which a later `kiln index --overwrite` knows that the folder is ours |
//! | `texts.jsonl`, `texts.offsets` | id and text of each row, and where each line begins (8 bytes, the lowest first); where the vectors' files had any |

mod graph;
mod sums;
mod texts;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use graph::Graph;
pub use graph::{GraphOptions, GraphPrecision};
use kiln_embed::checkpoint::{Existing, NewDirectory};
use sums::FileSum;
use texts::{RowText, TextReader, TextWriter};

use crate::interrupt;
use crate::search::{SearchHit, normalize};
use crate::shards::Settings;
use crate::terminal::Terminal;
use crate::vectors::VectorRow;

const DESCRIPTION: &str = "index.json";
const GRAPH: &str = "graph.usearch";
const TEXTS: &str = "texts.jsonl";
const OFFSETS: &str = "texts.offsets";
const VERSION: u32 = 1;

/// What an index is, in its `index.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Of this layout.
    pub version: u32,
    /// Vectors.
    pub rows: usize,
    /// Their width.
    pub dimensions: usize,
    /// How the graph was built.
    #[serde(flatten)]
    pub graph: GraphOptions,
    /// What the vectors depend on beside their texts, where `kiln embed` wrote that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Settings>,
    /// The other files.
    files: BTreeMap<String, FileSum>,
}

impl Description {
    /// Size of the files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(FileSum::bytes).sum()
    }

    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(DESCRIPTION);
        let context = || path.display().to_string();
        let bytes = std::fs::read(&path).with_context(context)?;
        let own: Self = serde_json::from_slice(&bytes)
            .context("is not what kiln index writes")
            .with_context(context)?;
        if own.version != VERSION {
            bail!(
                "{}: is of version {}, and this kiln reads {VERSION}; build the index again",
                path.display(),
                own.version
            );
        }
        Ok(own)
    }
}

/// Builds an index, row by row.
pub struct IndexBuilder {
    folder: NewDirectory,
    options: GraphOptions,
    texts: TextWriter,
    /// The graph and its width, once there is a row.
    graph: Option<(Graph, usize)>,
    rows: usize,
}

impl IndexBuilder {
    /// Begins an index, which takes its place when it is finished.
    ///
    /// # Errors
    /// Something is there already that may not be replaced.
    pub fn create(output: &Path, existing: Existing, options: GraphOptions) -> Result<Self> {
        let folder = NewDirectory::create(output, existing)?;
        let texts = TextWriter::create(folder.file(TEXTS), folder.file(OFFSETS))?;
        Ok(Self { folder, options, texts, graph: None, rows: 0 })
    }

    /// Adds rows, on all cores. The cores' order is another each time, and with it a few of the graph's edges.
    ///
    /// # Errors
    /// A row of another width than the first, no memory, a disk that is full.
    pub fn push(&mut self, mut rows: Vec<VectorRow>) -> Result<()> {
        let Some(first) = rows.first() else { return Ok(()) };
        if self.graph.is_none() {
            let width = first.vector.len();
            self.graph = Some((Graph::new(width, &self.options)?, width));
        }
        let Some((graph, width)) = &self.graph else { return Ok(()) };
        if let Some(other) = rows.iter().find(|row| row.vector.len() != *width) {
            bail!(
                "a vector of {} dimensions, and the rows before have {width}",
                other.vector.len()
            );
        }
        let needed = self.rows + rows.len();
        if needed > graph.capacity() {
            graph.reserve(needed.max(2 * self.rows), rayon::current_num_threads())?;
        }
        let before = self.rows as u64;
        rows.par_iter_mut().enumerate().try_for_each(|(at, row)| {
            normalize(&mut row.vector);
            graph.add(before + at as u64, &row.vector)
        })?;
        self.rows = needed;
        rows.into_iter().try_for_each(|row| self.texts.push(row))
    }

    /// Writes what is left, and puts the index in its place.
    ///
    /// # Errors
    /// No rows, a disk that is full, or [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    pub fn finish(self, settings: Option<Settings>, terminal: Terminal) -> Result<Description> {
        let Some((graph, dimensions)) = self.graph else { bail!("there is no vector to index") };
        mend(&graph, self.rows, &self.options, terminal)?;
        graph.save(&self.folder.file(GRAPH))?;
        let mut names = vec![GRAPH];
        if self.texts.finish()? {
            names.extend([TEXTS, OFFSETS]);
        }
        let sum = |name: &str| Ok((name.to_string(), FileSum::of(&self.folder.file(name))?));
        let files = names.into_iter().map(sum).collect::<Result<_>>()?;
        let own = Description {
            version: VERSION,
            rows: self.rows,
            dimensions,
            graph: self.options,
            settings,
            files,
        };
        std::fs::write(self.folder.file(DESCRIPTION), serde_json::to_vec_pretty(&own)?)
            .context(DESCRIPTION)?;
        self.folder.put()?;
        Ok(own)
    }
}

/// Adds again what no search would find. Rows that are added at the same time do not see one another, and a few of
/// them are left without an edge that leads to them.
fn mend(graph: &Graph, rows: usize, options: &GraphOptions, terminal: Terminal) -> Result<()> {
    const ROUNDS: usize = 3;
    // Few candidates find nearly all; a search as thorough as the building is for the others.
    const FEW: usize = 16;
    let all: Vec<u64> = (0..rows as u64).collect();
    let mut missing = lost(graph, all, FEW.min(options.expansion_add), terminal)?;
    for round in 0..=ROUNDS {
        missing = lost(graph, missing, options.expansion_add, terminal)?;
        if missing.is_empty() || round == ROUNDS {
            break;
        }
        // One after the other, so that they see one another. What leads to each stays as it was.
        missing.iter().try_for_each(|row| graph.add_again(*row))?;
    }
    if !missing.is_empty() {
        terminal.note(format!(
            "{} of {rows} rows are not found by their own vectors; raise --expansion-add or --connectivity",
            missing.len()
        ));
    }
    Ok(())
}

/// Those of some rows that a search by their own vector does not find.
fn lost(graph: &Graph, rows: Vec<u64>, expansion: usize, terminal: Terminal) -> Result<Vec<u64>> {
    let bar = terminal.progress(rows.len() as u64, "checking");
    let lost = rows.into_par_iter().filter_map(|row| {
        bar.inc(1);
        if interrupt::asked() {
            return Some(Err(kiln_embed::Error::Cancelled.into()));
        }
        graph.finds(row, expansion).map(|found| (!found).then_some(row)).transpose()
    });
    let lost = lost.collect::<Result<_>>()?;
    bar.finish_and_clear();
    Ok(lost)
}

/// An index that is searched.
pub struct ApproximateIndex {
    graph: Graph,
    texts: Option<TextReader>,
    description: Description,
}

impl ApproximateIndex {
    /// Opens an index. All of it is read once, to know that it is whole; then vectors are read as they are looked at.
    ///
    /// # Errors
    /// A folder that is none, files that are missing, cut or damaged.
    pub fn open(folder: &Path) -> Result<Self> {
        let description = Description::read(folder)?;
        for (name, sum) in &description.files {
            sum.check(&folder.join(name))?;
        }
        if !description.files.contains_key(GRAPH) {
            bail!("{}: names no graph; build the index again", folder.join(DESCRIPTION).display());
        }
        let graph = Graph::view(
            &folder.join(GRAPH),
            description.dimensions,
            description.rows,
            &description.graph,
        )?;
        let has_texts = description.files.contains_key(TEXTS);
        let texts = has_texts
            .then(|| TextReader::open(&folder.join(TEXTS), &folder.join(OFFSETS)))
            .transpose()?;
        Ok(Self { graph, texts, description })
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Whether it has the texts of its rows.
    pub fn keeps_texts(&self) -> bool {
        self.texts.is_some()
    }

    /// The `k` rows that are found to be the nearest to a vector, best first, with their cosines; `expansion`
    /// candidates are looked at (as many as the index says where 0, and `k` at least).
    ///
    /// # Errors
    /// A vector of another width, a text that cannot be read.
    pub fn search(&self, query: &[f32], k: usize, expansion: usize) -> Result<Vec<SearchHit>> {
        let text = |(row, score): (usize, f32)| {
            let RowText { id, text } =
                self.texts.as_ref().map(|texts| texts.get(row)).transpose()?.unwrap_or_default();
            Ok(SearchHit { row, score, similarity: None, id, text })
        };
        self.rows(query, k, expansion)?.into_iter().map(text).collect()
    }

    /// The same, without the texts: rows and cosines.
    ///
    /// # Errors
    /// A vector of another width.
    pub fn rows(&self, query: &[f32], k: usize, expansion: usize) -> Result<Vec<(usize, f32)>> {
        let width = self.description.dimensions;
        if query.len() != width {
            bail!("the query has {} dimensions, and the index {width}", query.len());
        }
        let mut query = query.to_vec();
        normalize(&mut query);
        let asked =
            if expansion == 0 { self.description.graph.expansion_search } else { expansion };
        let found = self.graph.search(&query, k, asked.max(k))?;
        Ok(found.into_iter().map(|(row, score)| (row as usize, score)).collect())
    }
}
