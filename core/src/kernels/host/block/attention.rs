//! Attention of texts without padding, and its gradient; the weights of attention are not kept but
//! computed again from their logarithmic sums (FlashAttention-2, arXiv:2307.08691, section 3.1).

use std::ops::Range;

use multiversion::multiversion;

use super::places::Places;
use super::{Primitive, floats};
use crate::kernels::Heads;
use crate::kernels::host::attention::{add_bias, rotate, softmax, weight};
use crate::kernels::host::product::{Strided, add_product};
use crate::kernels::host::right::Right;
use crate::parallel::{each_part, map};

/// Queries whose scores are held at once.
const TILE: usize = 64;
/// Rows of a core.
const PART: usize = 64;

/// What attention has seen and what its gradient needs.
pub(super) struct Attended {
    pub heads: Heads,
    /// Queries, keys and values of each token, rotated.
    pub qkv: Vec<f32>,
    /// Logarithm of the sum of each query's weights: `[tokens, queries]`.
    pub sums: Vec<f32>,
    /// Cosines and sines of each position: `[seq, width]`.
    pub angles: Option<[Primitive; 2]>,
    /// `[batch, seq, seq]`, or `[1, seq, seq]` for all texts, in bytes: 1 where attention is masked.
    pub mask: Option<Primitive>,
    /// What is added to scores, `[queries, 2 seq - 1]`.
    pub bias: Option<Primitive>,
}

/// The heads of queries of a text that share one of keys.
struct Group {
    /// The text's tokens among all.
    tokens: Range<usize>,
    /// First of the text's mask, if there is one.
    mask: usize,
    /// Which head of keys.
    key: usize,
}

/// What a group computes, for its own tokens.
struct Context {
    /// `[tokens, queries of the group, width]`.
    values: Vec<f32>,
    /// `[tokens, queries of the group]`.
    sums: Vec<f32>,
}

/// Gradients of a group, for its own tokens.
struct OfGroup {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Of what is added to the scores of each of the group's queries, by distance; empty where nobody asks.
    bias: Vec<f32>,
}

/// Rotates queries and keys of all tokens, or, for gradients, back.
pub(super) fn rotate_all(
    qkv: &mut [f32],
    heads: Heads,
    angles: &[Primitive; 2],
    places: &Places,
    back: bool,
) {
    let [cos, sin] = angles.each_ref().map(floats);
    let row = heads.row();
    let rotated = (heads.queries + heads.keys) * heads.width;
    let starts: Vec<usize> =
        places.texts.iter().flat_map(|text| std::iter::repeat_n(text.start, text.len())).collect();
    each_part(qkv, PART * row, |number, rows| {
        for (i, token) in rows.chunks_exact_mut(row).enumerate() {
            // Positions count from the text's first token.
            let token_number = number * PART + i;
            let position = token_number - starts[token_number];
            let place = position * heads.width..(position + 1) * heads.width;
            let (cos, sin) = (&cos[place.clone()], &sin[place]);
            for head in token[..rotated].chunks_exact_mut(heads.width) {
                if back { rotate_back(head, cos, sin) } else { rotate(head, cos, sin) }
            }
        }
    });
}

/// The transpose of [`rotate`].
fn rotate_back(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (first[i], second[i]);
        first[i] = a * cos[i] + b * sin[half + i];
        second[i] = b * cos[half + i] - a * sin[i];
    }
}

impl Attended {
    fn groups(&self, places: &Places) -> Vec<Group> {
        let mut groups = Vec::new();
        for (text, tokens) in places.texts.iter().enumerate() {
            let start = places.padded[text].start;
            let of_text = match &self.mask {
                Some(mask) if mask.layout().shape()[0] > 1 => text,
                _ => 0,
            };
            let mask = (of_text * places.seq + start) * places.seq + start;
            let keys = 0..self.heads.keys;
            groups.extend(keys.map(|key| Group { tokens: tokens.clone(), mask, key }));
        }
        groups
    }

    /// Queries in a group.
    fn times(&self) -> usize {
        self.heads.queries / self.heads.keys.max(1)
    }

    /// Part of each token's row, for the tokens of a group from one on.
    fn part(&self, group: &Group, token: usize, part: usize) -> Strided<'_> {
        let row = self.heads.row();
        let from = (group.tokens.start + token) * row + part * self.heads.width;
        Strided { values: &self.qkv[from..], row, column: 1 }
    }

    /// The keys of a group, one a column, for its queries to meet.
    fn keys(&self, group: &Group) -> Right<'_> {
        let Heads { queries, width, .. } = self.heads;
        let keys = transposed(self.part(group, 0, queries + group.key));
        Right::new(keys, [width, group.tokens.len()])
    }

    /// Scaled scores of some queries of a head, hidden ones far below all others.
    fn scores(
        &self,
        group: &Group,
        query: usize,
        queries: Range<usize>,
        keys: &Right<'_>,
        seq: usize,
        scores: &mut [f32],
    ) {
        let tokens = group.tokens.len();
        let x = self.part(group, queries.start, query);
        let scale = (self.heads.width as f32).powf(-0.5);
        keys.product(x, queries.len(), scale, scores, tokens);
        if let Some(bias) = &self.bias {
            for (i, scores) in scores.chunks_exact_mut(tokens).enumerate().take(queries.len()) {
                add_bias(scores, floats(bias), query, queries.start + i, seq);
            }
        }
        if let Some(mask) = &self.mask {
            for (i, scores) in scores.chunks_exact_mut(tokens).enumerate().take(queries.len()) {
                let mask = &mask.bytes()[group.mask + (queries.start + i) * seq..][..tokens];
                for (score, hidden) in scores.iter_mut().zip(mask) {
                    *score = if *hidden != 0 { -3e4 } else { *score };
                }
            }
        }
    }

    /// Weighted sums of values: `[tokens, queries width]`; fills `sums`.
    pub(super) fn forward(&mut self, places: &Places) -> Vec<f32> {
        let Heads { queries, keys, width } = self.heads;
        let (times, groups) = (self.times(), self.groups(places));
        let parts = map(&groups, |group| {
            let tokens = group.tokens.len();
            let mut of_group = Context {
                values: vec![0.0; tokens * times * width],
                sums: vec![0.0; tokens * times],
            };
            let mut scores = vec![0.0; TILE.min(tokens) * tokens];
            let values = self.part(group, 0, queries + keys + group.key);
            let (keys, values) = (self.keys(group), Right::new(values, [tokens, width]));
            for first in (0..tokens).step_by(TILE) {
                let rows = first..tokens.min(first + TILE);
                for side in 0..times {
                    let scores = &mut scores[..rows.len() * tokens];
                    let query = group.key * times + side;
                    self.scores(group, query, rows.clone(), &keys, places.seq, scores);
                    for (i, scores) in scores.chunks_exact_mut(tokens).enumerate() {
                        of_group.sums[(first + i) * times + side] = softmax(scores);
                    }
                    let weights = Strided::rows(scores, tokens);
                    let to = &mut of_group.values[(first * times + side) * width..];
                    values.product(weights, rows.len(), 1.0, to, times * width);
                }
            }
            of_group
        });
        let mut context = vec![0.0; places.tokens() * queries * width];
        self.sums = vec![0.0; places.tokens() * queries];
        for (group, part) in groups.iter().zip(&parts) {
            for (i, token) in group.tokens.clone().enumerate() {
                let to = token * queries + group.key * times;
                self.sums[to..to + times].copy_from_slice(&part.sums[i * times..(i + 1) * times]);
                context[to * width..(to + times) * width]
                    .copy_from_slice(&part.values[i * times * width..(i + 1) * times * width]);
            }
        }
        context
    }

    /// Gradient of queries, keys and values `[tokens, row]` before their rotation, for the gradient
    /// `[tokens, queries width]` of their context; and of what is added to scores, if that is wanted.
    pub(super) fn backward(
        &self,
        gradient: &[f32],
        places: &Places,
        wants_bias: bool,
    ) -> (Vec<f32>, Option<Vec<f32>>) {
        let Heads { queries, keys, width } = self.heads;
        let (times, groups, row) = (self.times(), self.groups(places), self.heads.row());
        let scale = (width as f32).powf(-0.5);
        let parts = map(&groups, |group| {
            let tokens = group.tokens.len();
            let distances = if wants_bias { (2 * tokens).saturating_sub(1) } else { 0 };
            let mut of_group = OfGroup {
                queries: vec![0.0; tokens * times * width],
                keys: vec![0.0; tokens * width],
                values: vec![0.0; tokens * width],
                bias: vec![0.0; times * distances],
            };
            let size = TILE.min(tokens) * tokens;
            let (mut weights, mut changes) = (vec![0.0; size], vec![0.0; size]);
            let key = self.part(group, 0, queries + group.key);
            let value = self.part(group, 0, queries + keys + group.key);
            let key_columns = self.keys(group);
            let value_columns = Right::new(transposed(value), [width, tokens]);
            let key = Right::new(key, [tokens, width]);
            for first in (0..tokens).step_by(TILE) {
                let rows = first..tokens.min(first + TILE);
                let size = rows.len() * tokens;
                let (weights, changes) = (&mut weights[..size], &mut changes[..size]);
                for side in 0..times {
                    let head = group.key * times + side;
                    self.scores(group, head, rows.clone(), &key_columns, places.seq, weights);
                    let of_context =
                        &gradient[((group.tokens.start + first) * queries + head) * width..];
                    let of_context =
                        Strided { values: of_context, row: queries * width, column: 1 };
                    value_columns.product(of_context, rows.len(), 1.0, changes, tokens);
                    let sums = &self.sums[(group.tokens.start + first) * queries + head..];
                    for ((weights, changes), sum) in weights
                        .chunks_exact_mut(tokens)
                        .zip(changes.chunks_exact_mut(tokens))
                        .zip(sums.iter().step_by(queries))
                    {
                        softmax_backward(weights, changes, *sum, scale);
                    }
                    if wants_bias {
                        let of_bias = &mut of_group.bias[side * distances..][..distances];
                        for (i, changes) in changes.chunks_exact(tokens).enumerate() {
                            let from = tokens - 1 - (first + i);
                            for (sum, change) in of_bias[from..].iter_mut().zip(changes) {
                                *sum += change / scale;
                            }
                        }
                    }
                    let (weights, changes) =
                        (Strided::rows(weights, tokens), Strided::rows(changes, tokens));
                    let shape = [tokens, rows.len(), width];
                    add_product(1, transposed(weights), of_context, shape, &mut of_group.values);
                    let query = self.part(group, first, head);
                    add_product(1, transposed(changes), query, shape, &mut of_group.keys);
                    let to = &mut of_group.queries[(first * times + side) * width..];
                    key.product(changes, rows.len(), 1.0, to, times * width);
                }
            }
            of_group
        });
        let mut of_qkv = vec![0.0; places.tokens() * row];
        for (group, part) in groups.iter().zip(&parts) {
            let mut copy = |from: &[f32], first: usize| {
                let size = from.len() / group.tokens.len().max(1);
                for (token, from) in group.tokens.clone().zip(from.chunks_exact(size.max(1))) {
                    of_qkv[token * row + first * width..][..size].copy_from_slice(from);
                }
            };
            copy(&part.queries, group.key * times);
            copy(&part.keys, queries + group.key);
            copy(&part.values, queries + keys + group.key);
        }
        if let Some(angles) = &self.angles {
            rotate_all(&mut of_qkv, self.heads, angles, places, true);
        }
        let of_bias = wants_bias.then(|| {
            let distances = 2 * places.seq - 1;
            let mut of_bias = vec![0.0; queries * distances];
            for (group, part) in groups.iter().zip(&parts) {
                let own = (2 * group.tokens.len()).saturating_sub(1);
                for (side, part) in part.bias.chunks_exact(own.max(1)).enumerate() {
                    let head = group.key * times + side;
                    let from = head * distances + places.seq - group.tokens.len();
                    for (sum, part) in of_bias[from..].iter_mut().zip(part) {
                        *sum += part;
                    }
                }
            }
            of_bias
        });
        (of_qkv, of_bias)
    }
}

/// The transpose.
fn transposed(x: Strided<'_>) -> Strided<'_> {
    Strided { values: x.values, row: x.column, column: x.row }
}

/// Turns scores into weights, and gradients of weights into those of scores before their scale.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn softmax_backward(scores: &mut [f32], changes: &mut [f32], sum: f32, scale: f32) {
    let (chunks, rest) = scores.as_chunks_mut::<16>();
    let (others, other_rest) = changes.as_chunks_mut::<16>();
    let mut levels = [0.0f32; 16];
    for (scores, changes) in chunks.iter_mut().zip(&*others) {
        for ((score, change), level) in scores.iter_mut().zip(changes).zip(&mut levels) {
            *score = weight(*score - sum);
            *level += *score * change;
        }
    }
    let mut level: f32 = levels.iter().sum();
    for (score, change) in rest.iter_mut().zip(&*other_rest) {
        *score = weight(*score - sum);
        level += *score * change;
    }
    for (score, change) in scores.iter().zip(changes) {
        *change = score * (*change - level) * scale;
    }
}
