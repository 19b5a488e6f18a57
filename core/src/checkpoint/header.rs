//! What the header of a file of tensors says, whatever its format.

use std::ops::Range;

use safetensors::tensor::Dtype;

/// Largest header and shard index that are read: a hundred thousand tensors take 10 MB, and parsed
/// JSON takes many times its length in memory.
pub(super) const LARGEST_HEADER: u64 = 1 << 24;
/// What to do about a damaged file.
pub(super) const REMEDY: &str = "download or copy the file again";

/// One tensor of a file.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    /// From one element to the next along each dimension, in elements; `None` where they follow
    /// one another in row-major order.
    pub(super) strides: Option<Vec<usize>>,
    /// Where its bytes are in the file: with strides, from its first element to its last.
    pub(super) bytes: Range<u64>,
}
