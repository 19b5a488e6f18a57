//! Attention of texts without padding, and its gradient; the weights of attention are not kept but
//! computed again from their logarithmic sums (FlashAttention-2, arXiv:2307.08691, section 3.1).

use std::ops::Range;

use multiversion::multiversion;

use super::places::Places;
use super::{Primitive, floats};
use crate::kernels::Heads;
use crate::kernels::host::attention::{add_bias, rotate, softmax, weight};
use crate::kernels::host::elementwise::fuses;
use crate::kernels::host::product::{Strided, add_product};
use crate::kernels::host::right::Right;
use crate::parallel::{cores, each_part, map};

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

/// What queries of a group compute.
struct Context {
    /// The queries' tokens among all.
    tokens: Range<usize>,
    /// Which head of keys.
    key: usize,
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

    /// The keys and the values of a group, laid out for its queries.
    fn sides(&self, group: &Group) -> (Right<'_>, Right<'_>) {
        let Heads { queries, keys, width } = self.heads;
        let values = self.part(group, 0, queries + keys + group.key);
        (self.keys(group), Right::new(values, [group.tokens.len(), width]))
    }

    /// Weighted sums of values for some of a group's queries.
    fn context(
        &self,
        group: &Group,
        (keys, values): &(Right<'_>, Right<'_>),
        rows: Range<usize>,
        seq: usize,
    ) -> Context {
        let (times, width, tokens) = (self.times(), self.heads.width, group.tokens.len());
        let mut context = Context {
            tokens: group.tokens.start + rows.start..group.tokens.start + rows.end,
            key: group.key,
            values: vec![0.0; rows.len() * times * width],
            sums: vec![0.0; rows.len() * times],
        };
        let mut scores = vec![0.0; TILE.min(rows.len()) * tokens];
        for first in rows.clone().step_by(TILE) {
            let tile = first..rows.end.min(first + TILE);
            let place = (first - rows.start) * times;
            for side in 0..times {
                let scores = &mut scores[..tile.len() * tokens];
                self.scores(group, group.key * times + side, tile.clone(), keys, seq, scores);
                for (i, scores) in scores.chunks_exact_mut(tokens).enumerate() {
                    context.sums[place + i * times + side] = softmax(scores);
                }
                let weights = Strided::rows(scores, tokens);
                let to = &mut context.values[(place + side) * width..];
                values.product(weights, tile.len(), 1.0, to, times * width);
            }
        }
        context
    }

    /// What all groups compute, each on a core; where there are fewer of them, each tile of queries on one. The tiles
    /// are the same either way, and so are all bits.
    fn contexts(&self, groups: &[Group], seq: usize, cores: usize) -> Vec<Context> {
        if groups.len() >= cores {
            return map(groups, |group| {
                self.context(group, &self.sides(group), 0..group.tokens.len(), seq)
            });
        }
        let sides = map(groups, |group| self.sides(group));
        let mut tiles = Vec::new();
        for (group, sides) in groups.iter().zip(&sides) {
            let tokens = group.tokens.len();
            for first in (0..tokens).step_by(TILE) {
                tiles.push((group, sides, first..tokens.min(first + TILE)));
            }
        }
        map(&tiles, |(group, sides, rows)| self.context(group, sides, rows.clone(), seq))
    }

    /// Weighted sums of values: `[tokens, queries width]`; fills `sums`.
    pub(super) fn forward(&mut self, places: &Places) -> Vec<f32> {
        let Heads { queries, width, .. } = self.heads;
        let times = self.times();
        let parts = self.contexts(&self.groups(places), places.seq, cores());
        let mut context = vec![0.0; places.tokens() * queries * width];
        self.sums = vec![0.0; places.tokens() * queries];
        for part in &parts {
            for (i, token) in part.tokens.clone().enumerate() {
                let to = token * queries + part.key * times;
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
    let fused = fuses!();
    let (chunks, rest) = scores.as_chunks_mut::<16>();
    let (others, other_rest) = changes.as_chunks_mut::<16>();
    let mut levels = [0.0f32; 16];
    for (scores, changes) in chunks.iter_mut().zip(&*others) {
        for ((score, change), level) in scores.iter_mut().zip(changes).zip(&mut levels) {
            *score = weight(*score - sum, fused);
            *level += *score * change;
        }
    }
    let mut level: f32 = levels.iter().sum();
    for (score, change) in rest.iter_mut().zip(&*other_rest) {
        *score = weight(*score - sum, fused);
        level += *score * change;
    }
    for (score, change) in scores.iter().zip(changes) {
        *change = score * (*change - level) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_on_cores_of_their_own_have_the_same_bits() {
        let heads = Heads { queries: 3, keys: 1, width: 8 };
        let seq = 200;
        let qkv = (0..2 * seq * heads.row()).map(|i| (i as f32 * 0.731).sin()).collect();
        let places = Places::new(&[0..seq, 30..seq], seq);
        let (sums, angles, mask, bias) = (Vec::new(), None, None, None);
        let attended = Attended { heads, qkv, sums, angles, mask, bias };
        let groups = attended.groups(&places);
        let of = |cores: usize, count: usize| -> Vec<u32> {
            let parts = attended.contexts(&groups, seq, cores);
            assert_eq!(parts.len(), count);
            let values = parts.iter().flat_map(|part| &part.values);
            values.chain(parts.iter().flat_map(|part| &part.sums)).map(|x| x.to_bits()).collect()
        };
        assert_eq!(of(2, 2), of(3, 4 + 3));
    }
}
