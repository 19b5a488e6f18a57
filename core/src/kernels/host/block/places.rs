//! Rows without padding: where each token of a batch is.

use std::ops::Range;

use crate::parallel::each_part;

/// Rows that are copied by one core at a time.
const PART: usize = 256;

/// The tokens of a batch, text after text.
#[derive(Debug)]
pub(super) struct Places {
    /// Extent of each text in the padded batch's rows.
    pub padded: Vec<Range<usize>>,
    /// Extent of each text among the tokens.
    pub texts: Vec<Range<usize>>,
    /// Row of the padded batch of each token.
    pub rows: Vec<usize>,
    pub batch: usize,
    pub seq: usize,
}

impl Places {
    /// Of texts that are at `extents` of their rows.
    pub(super) fn new(extents: &[Range<usize>], seq: usize) -> Self {
        let (mut texts, mut rows) = (Vec::with_capacity(extents.len()), Vec::new());
        for (text, extent) in extents.iter().enumerate() {
            texts.push(rows.len()..rows.len() + extent.len());
            rows.extend(extent.clone().map(|token| text * seq + token));
        }
        Self { padded: extents.to_vec(), texts, rows, batch: extents.len(), seq }
    }

    pub(super) fn tokens(&self) -> usize {
        self.rows.len()
    }

    /// `[batch, seq, width]` to `[tokens, width]`.
    pub(super) fn gather(&self, padded: &[f32], width: usize) -> Vec<f32> {
        let mut to = vec![0.0; self.tokens() * width];
        each_part(&mut to, PART * width, |number, to| {
            for (to, row) in to.chunks_exact_mut(width).zip(&self.rows[number * PART..]) {
                to.copy_from_slice(&padded[row * width..][..width]);
            }
        });
        to
    }

    /// `[tokens, width]` to `[batch, seq, width]`, zero at padding; the values themselves where nothing is padded.
    pub(super) fn scatter(&self, values: Vec<f32>, width: usize) -> Vec<f32> {
        if self.tokens() == self.batch * self.seq {
            return values;
        }
        let mut to = vec![0.0; self.batch * self.seq * width];
        each_part(&mut to, self.seq * width, |text, to| {
            let to = &mut to[self.padded[text].start * width..self.padded[text].end * width];
            to.copy_from_slice(
                &values[self.texts[text].start * width..self.texts[text].end * width],
            );
        });
        to
    }
}
