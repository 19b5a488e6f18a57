//! The graph itself: usearch's, with Kiln's own products.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};

use anyhow::{Context as _, Result, bail};
use kiln_embed::index::{cosine_int8, dot, quantize_int8};
use serde::{Deserialize, Serialize};
use usearch::{Index, IndexOptions, MetricKind, ScalarKind, VectorType};

/// How a graph keeps its vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphPrecision {
    /// Four bytes a dimension.
    F32,
    /// One byte a dimension, `x * 127 / max |x|`.
    Int8,
}

impl GraphPrecision {
    /// Its name on command lines and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }

    fn kind(self) -> ScalarKind {
        match self {
            Self::F32 => ScalarKind::F32,
            Self::Int8 => ScalarKind::I8,
        }
    }
}

impl FromStr for GraphPrecision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::F32, Self::Int8]
            .into_iter()
            .find(|one| one.name() == name)
            .ok_or_else(|| format!("{name:?} is neither f32 nor int8"))
    }
}

impl Display for GraphPrecision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// How a graph is built (Malkov and Yashunin, arXiv:1603.09320).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOptions {
    /// How the vectors are kept.
    pub precision: GraphPrecision,
    /// Neighbours of a vector (the paper's M); twice as many in the lowest layer.
    pub connectivity: usize,
    /// Candidates that are looked at for each vector that is added (efConstruction).
    pub expansion_add: usize,
    /// Candidates that are looked at for each query (ef), unless another number is asked for.
    pub expansion_search: usize,
}

/// Vectors in a graph of their neighbours.
pub(super) struct Graph {
    index: Index,
    precision: GraphPrecision,
    dimensions: usize,
    /// Candidates that the index is set to look at.
    expansion: RwLock<usize>,
}

impl Graph {
    /// A graph without vectors.
    ///
    /// # Errors
    /// Options that usearch refuses.
    pub(super) fn new(dimensions: usize, options: &GraphOptions) -> Result<Self> {
        Self::bare(dimensions, options).map(Self::measured)
    }

    fn bare(dimensions: usize, options: &GraphOptions) -> Result<Self> {
        let index = Index::new(&IndexOptions {
            dimensions,
            metric: MetricKind::Cos,
            quantization: options.precision.kind(),
            connectivity: options.connectivity,
            expansion_add: options.expansion_add,
            expansion_search: options.expansion_search,
            multi: false,
        })?;
        let expansion = RwLock::new(options.expansion_search);
        Ok(Self { index, precision: options.precision, dimensions, expansion })
    }

    /// Puts Kiln's products in the place of usearch's, whose file says "cosine" either way.
    #[expect(unsafe_code, reason = "a metric is given its vectors as pointers; with the proof")]
    fn measured(mut self) -> Self {
        let width = self.dimensions;
        match self.precision {
            GraphPrecision::F32 => {
                self.index.change_metric(Box::new(move |a: *const f32, b: *const f32| {
                    // SAFETY: usearch gives two vectors of the width that it was made for, as they were added; in a
                    // mapped file they begin at byte 8 or 16 and follow one another, so that f32 is aligned.
                    let (a, b) = unsafe {
                        (std::slice::from_raw_parts(a, width), std::slice::from_raw_parts(b, width))
                    };
                    1.0 - dot(a, b)
                }))
            }
            GraphPrecision::Int8 => {
                self.index.change_metric(Box::new(move |a: *const i8, b: *const i8| {
                    // SAFETY: as above.
                    let (a, b) = unsafe {
                        (std::slice::from_raw_parts(a, width), std::slice::from_raw_parts(b, width))
                    };
                    1.0 - cosine_int8(a, b)
                }))
            }
        }
        self
    }

    /// Makes room for so many vectors in all, which `threads` threads may then add at the same time.
    ///
    /// # Errors
    /// No memory for them.
    pub(super) fn reserve(&self, rows: usize, threads: usize) -> Result<()> {
        let context = || format!("no memory for {rows} vectors of {} dimensions", self.dimensions);
        self.index.reserve_capacity_and_threads(rows, threads).with_context(context)
    }

    /// Vectors that there is room for.
    pub(super) fn capacity(&self) -> usize {
        self.index.capacity()
    }

    /// Adds a vector of length 1; threads may do so at the same time, each for other rows.
    ///
    /// # Errors
    /// No room for it.
    pub(super) fn add(&self, row: u64, vector: &[f32]) -> Result<()> {
        match self.precision {
            GraphPrecision::F32 => self.index.add(row, vector)?,
            GraphPrecision::Int8 => self.index.add(row, &quantize_int8(vector))?,
        }
        Ok(())
    }

    /// Rows near a vector of length 1, nearest first, with their cosines; `expansion` candidates are looked at.
    ///
    /// # Errors
    /// No memory for the candidates.
    pub(super) fn search(
        &self,
        vector: &[f32],
        k: usize,
        expansion: usize,
    ) -> Result<Vec<(u64, f32)>> {
        let (keys, distances) = match self.precision {
            GraphPrecision::F32 => self.nearest(vector, k, expansion)?,
            GraphPrecision::Int8 => self.nearest(&quantize_int8(vector), k, expansion)?,
        };
        Ok(keys.into_iter().zip(distances.into_iter().map(|distance| 1.0 - distance)).collect())
    }

    /// Rows and their distances. Searches at the same time share a number of candidates; one with another waits for them.
    fn nearest<T: VectorType>(
        &self,
        vector: &[T],
        k: usize,
        expansion: usize,
    ) -> Result<(Vec<u64>, Vec<f32>)> {
        loop {
            let set = self.expansion.read().unwrap_or_else(PoisonError::into_inner);
            if *set == expansion {
                let found = self.index.search(vector, k)?;
                return Ok((found.keys, found.distances));
            }
            drop(set);
            let mut set = self.expansion.write().unwrap_or_else(PoisonError::into_inner);
            self.index.change_expansion_search(expansion);
            *set = expansion;
        }
    }

    /// Whether a row is among the ten that are nearest to its own vector, or ten others have the same vector.
    ///
    /// # Errors
    /// No such row.
    pub(super) fn finds(&self, row: u64, expansion: usize) -> Result<bool> {
        match self.precision {
            GraphPrecision::F32 => self.finds_as::<f32>(row, expansion),
            GraphPrecision::Int8 => self.finds_as::<i8>(row, expansion),
        }
    }

    fn finds_as<T: VectorType + Clone + Default>(
        &self,
        row: u64,
        expansion: usize,
    ) -> Result<bool> {
        const NEAREST: usize = 10;
        let (keys, distances) = self.nearest(&self.kept::<T>(row)?, NEAREST, expansion)?;
        let same = distances.iter().filter(|distance| **distance < 1e-6).count();
        Ok(keys.contains(&row) || same == NEAREST)
    }

    /// Takes a row out and adds it again.
    ///
    /// # Errors
    /// No such row.
    pub(super) fn add_again(&self, row: u64) -> Result<()> {
        match self.precision {
            GraphPrecision::F32 => self.add_again_as::<f32>(row),
            GraphPrecision::Int8 => self.add_again_as::<i8>(row),
        }
    }

    fn add_again_as<T: VectorType + Clone + Default>(&self, row: u64) -> Result<()> {
        let vector = self.kept::<T>(row)?;
        self.index.remove(row)?;
        Ok(self.index.add(row, &vector)?)
    }

    /// A row's vector as it is kept.
    fn kept<T: VectorType + Clone + Default>(&self, row: u64) -> Result<Vec<T>> {
        let mut vector = vec![T::default(); self.dimensions];
        match self.index.get(row, &mut vector)? {
            1 => Ok(vector),
            _ => bail!("the graph has no row {row}"),
        }
    }

    /// Writes the graph to a file.
    ///
    /// # Errors
    /// A disk that is full, a path that is no UTF-8.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let context = || path.display().to_string();
        let name = path.to_str().context("its name is no UTF-8").with_context(context)?;
        self.index.save(name).with_context(context)
    }

    /// Maps a graph's file, whose vectors come into memory as they are looked at.
    ///
    /// # Errors
    /// A file of another kind, or of another size or precision.
    pub(super) fn view(
        path: &Path,
        dimensions: usize,
        rows: usize,
        options: &GraphOptions,
    ) -> Result<Self> {
        let context = || path.display().to_string();
        let name = path.to_str().context("its name is no UTF-8").with_context(context)?;
        // What usearch itself would take as it comes.
        let head = Index::metadata(name).with_context(context)?;
        if head.dimensions != dimensions as u64
            || head.quantization != options.precision.kind()
            || head.metric != MetricKind::Cos
        {
            bail!("{}: is not the graph of its index", path.display());
        }
        let graph = Self::bare(dimensions, options)?;
        graph.index.view(name).with_context(context)?;
        let graph = graph.measured();
        if graph.index.size() != rows {
            bail!("{}: has {} vectors, and its index {rows}", path.display(), graph.index.size());
        }
        Ok(graph)
    }
}
