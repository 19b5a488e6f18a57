//! Search among vectors in the page.

use kiln_embed::checkpoint::{
    adapted_fingerprint, is_adapted, is_vector_adapter, load_vector_adapter,
};
use kiln_embed::index::{Index, IndexPrecision};
use wasm_bindgen::prelude::*;

use crate::model::ModelFiles;

/// Vectors, and exact search among what is kept of them. Rows are numbers; the package's JavaScript
/// gives them names.
#[wasm_bindgen]
pub struct VectorIndex(Index);

#[wasm_bindgen]
impl VectorIndex {
    /// An index without rows; `precision` is `f32`, `int8`, `binary` or `binary+int8`.
    ///
    /// # Errors
    /// No dimensions, or an unknown precision.
    #[wasm_bindgen(constructor)]
    pub fn new(dimensions: usize, precision: &str) -> Result<VectorIndex, JsError> {
        Ok(Self(Index::new(dimensions, IndexPrecision::from_name(precision)?)?))
    }

    /// Reads what `toBytes` wrote.
    ///
    /// # Errors
    /// Bytes that are no index, or damaged.
    #[wasm_bindgen(js_name = fromBytes)]
    pub fn from_bytes(bytes: &[u8]) -> Result<VectorIndex, JsError> {
        Ok(Self(Index::from_bytes(bytes)?))
    }

    /// The index as bytes.
    #[wasm_bindgen(js_name = toBytes)]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    /// Numbers of a vector.
    #[wasm_bindgen(getter)]
    pub fn dimensions(&self) -> usize {
        self.0.dimensions()
    }

    /// How vectors are kept.
    #[wasm_bindgen(getter)]
    pub fn precision(&self) -> String {
        self.0.precision().name().into()
    }

    /// Number of rows.
    #[wasm_bindgen(getter)]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// Adds vectors, one after another: all of them or none.
    ///
    /// # Errors
    /// Numbers that make no whole vectors, or are not finite; a vector of length 0.
    pub fn add(&mut self, vectors: &[f32]) -> Result<(), JsError> {
        let vectors = vectors.chunks(self.0.dimensions());
        for (i, vector) in vectors.clone().enumerate() {
            self.0.check(vector, format_args!("vector {i}"))?;
        }
        for vector in vectors {
            self.0.push(vector)?;
        }
        Ok(())
    }

    /// Takes a row out; the last row takes its place.
    ///
    /// # Errors
    /// No such row.
    #[wasm_bindgen(js_name = swapRemove)]
    pub fn swap_remove(&mut self, row: usize) -> Result<(), JsError> {
        Ok(self.0.swap_remove(row)?)
    }

    /// Moves all vectors into the space of an adapter of vectors; `model` is the fingerprint of the model that made them,
    /// where it is known. Gives what it is with the adapter.
    ///
    /// # Errors
    /// Files that are no adapter of vectors, or one of another model; an index that has no numbers to move.
    pub fn adapt(
        &mut self,
        files: &ModelFiles,
        model: Option<String>,
    ) -> Result<Option<String>, JsError> {
        let files = files.files();
        if !is_vector_adapter(files) {
            return Err(JsError::new(
                "LoRA adapters change the model itself; embed the index's texts again, or teach an adapter of vectors",
            ));
        }
        let (adapter, base) = load_vector_adapter(files)?;
        if model.as_deref().is_some_and(is_adapted) {
            return Err(JsError::new(
                "the index's vectors are adapted already; take the index as the model alone made it",
            ));
        }
        base.check(&adapter, self.0.dimensions(), model.as_deref())?;
        self.0 = self.0.adapted(&adapter)?;
        Ok(model.and_then(|model| adapted_fingerprint(&model, files)))
    }

    /// The vectors of rows, one after another, as exact as they are kept.
    ///
    /// # Errors
    /// No such row.
    pub fn vectors(&self, rows: &[usize]) -> Result<Vec<f32>, JsError> {
        let vectors: Result<Vec<_>, _> = rows.iter().map(|&row| self.0.vector(row)).collect();
        Ok(vectors?.concat())
    }

    /// The `k` best rows and their scores, in turn: row, score, row, score; `rescore` times `k`
    /// candidates of the binary forms are scored again.
    ///
    /// # Errors
    /// A query of another width, with numbers that are not finite, or of length 0.
    pub fn search(&self, query: &[f32], k: usize, rescore: usize) -> Result<Vec<f64>, JsError> {
        let hits = self.0.search(query, k, rescore)?;
        Ok(hits.into_iter().flat_map(|hit| [hit.row as f64, f64::from(hit.score)]).collect())
    }
}
