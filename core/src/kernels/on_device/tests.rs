//! The block on the CPU in two ways: in Burn's operations as here, and in the CPU backend's own. That one's gradients are
//! those of many operations for every family (`tests/parity/blocks.rs`).

#![cfg(feature = "flex")]

use burn::backend::Flex;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Bool, Tensor, TensorData};

use super::attention::{self, AT_ONCE};
use super::{feed_forward, projection};
use crate::config::Activation;
use crate::kernels::plain::LONGEST_HELD;
use crate::kernels::{
    Block, BlockOf, Branch, DropoutMask, Heads, Kernels as _, LowRank, MatmulPrecision, Norm,
    Projection, Seen,
};
use crate::model::PackedWeight;
use crate::quant::{Number, Quantized, Scheme};

type Primitive = FloatTensor<Flex>;

const BATCH: usize = 3;
const SEQ: usize = 7;
/// Tokens of more than one tile, and of more than one core's part, of all that the CPU's own block cuts.
const LONG: usize = 150;
const HIDDEN: usize = 12;
const INNER: usize = 10;

/// Numbers that look random, each call's others.
struct Numbers(f32);

impl Numbers {
    fn values(&mut self, count: usize) -> Vec<f32> {
        self.0 += 1.0;
        (0..count).map(|i| 0.3 * (i as f32 * 0.731 + self.0 * 1.37).sin()).collect()
    }

    fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Primitive {
        let values = self.values(shape.iter().product());
        Primitive::from_data(TensorData::new(values, shape))
    }

    fn norm(&mut self, width: usize, centred: bool) -> Norm<Primitive> {
        let gamma = self.values(width).into_iter().map(|x| x + 1.0).collect::<Vec<_>>();
        Norm {
            gamma: Primitive::from_data(TensorData::new(gamma, [width])),
            beta: centred.then(|| self.tensor([width])),
            centred,
            epsilon: 1e-5,
        }
    }

    /// With adapters on the columns given.
    fn projection(
        &mut self,
        shape @ [inputs, outputs]: [usize; 2],
        bias: bool,
        adapters: &[(usize, usize)],
        dropout: bool,
    ) -> Projection<Primitive> {
        let adapters = adapters.iter().enumerate().map(|(i, &(first, width))| LowRank {
            a: self.tensor([inputs, 2]),
            b: self.tensor([2, width]),
            first,
            scale: 0.7,
            dropout: dropout.then_some(DropoutMask { seed: 11 + i as u64, kept: 0.7 }),
        });
        Projection {
            adapters: adapters.collect(),
            weight: self.tensor(shape),
            matrix: None,
            packed: None,
            bias: bias.then(|| self.tensor([outputs])),
            prepared: Default::default(),
        }
    }
}

/// What a block may have.
#[derive(Debug, Clone, Copy)]
struct Case {
    heads: Heads,
    activation: Activation,
    centred: bool,
    /// Norms before, inside and after a branch.
    norms: [bool; 3],
    head_norms: usize,
    rotates: bool,
    score_bias: bool,
    bias: bool,
    gate: bool,
    joined: bool,
    adapters: usize,
    dropout: bool,
}

const PLAIN: Case = Case {
    heads: Heads { queries: 3, keys: 3, width: 4 },
    activation: Activation::Gelu,
    centred: true,
    norms: [false, false, true],
    head_norms: 0,
    rotates: false,
    score_bias: false,
    bias: true,
    gate: false,
    joined: false,
    adapters: 0,
    dropout: false,
};

const GROUPED: Case = Case {
    heads: Heads { queries: 4, keys: 2, width: 6 },
    activation: Activation::Silu,
    centred: false,
    norms: [true, false, false],
    rotates: true,
    bias: false,
    gate: true,
    ..PLAIN
};

const CASES: [Case; 11] = [
    PLAIN,
    GROUPED,
    Case { score_bias: true, activation: Activation::Relu, norms: [true, false, false], ..PLAIN },
    Case { joined: true, norms: [true, false, false], adapters: 1, ..PLAIN },
    Case { head_norms: 2, adapters: 3, ..GROUPED },
    Case { head_norms: 3, norms: [true, true, false], activation: Activation::GeluTanh, ..GROUPED },
    Case { adapters: 3, dropout: true, ..GROUPED },
    Case { adapters: 3, ..GROUPED },
    Case { adapters: 2, score_bias: true, ..PLAIN },
    Case { norms: [true, true, true], ..PLAIN },
    Case { norms: [false, false, false], adapters: 1, dropout: true, bias: true, ..GROUPED },
];

/// A norm of a branch's small output would make rounding large in some of so many tokens.
const LONG_CASES: [Case; 3] = [
    Case { score_bias: true, adapters: 3, ..GROUPED },
    Case { head_norms: 2, norms: [true, true, false], adapters: 3, dropout: true, ..GROUPED },
    Case { adapters: 1, ..PLAIN },
];

impl Case {
    fn block(self, seq: usize, numbers: &mut Numbers, precision: MatmulPrecision) -> BlockOf<Flex> {
        let Heads { queries, keys, width } = self.heads;
        let (queries, keys, row) = (queries * width, keys * width, self.heads.row());
        let mut branch = || {
            let [before, inside, after] =
                self.norms.map(|norm| norm.then(|| numbers.norm(HIDDEN, self.centred)));
            Branch { before, inside, after }
        };
        let (attention, feed_forward) = (branch(), branch());
        // All columns by one, or some parts each by its own.
        let of_qkv = match self.adapters {
            0 => vec![],
            1 => vec![(0, row)],
            2 => vec![(0, queries), (queries + keys, keys)],
            _ => vec![(0, queries), (queries, keys), (queries + keys, keys)],
        };
        let of = |width: usize| if self.adapters == 0 { vec![] } else { vec![(0, width)] };
        let into = if self.joined { 2 * INNER } else { INNER };
        let (bias, dropout) = (self.bias, self.dropout);
        Block {
            heads: self.heads,
            activation: self.activation,
            precision,
            attention,
            head_norms: (0..self.head_norms).map(|_| numbers.norm(width, false)).collect(),
            score_bias: self.score_bias.then(|| numbers.tensor([self.heads.queries, 2 * seq - 1])),
            qkv: numbers.projection([HIDDEN, row], bias, &of_qkv, dropout),
            output: numbers.projection([queries, HIDDEN], bias, &of(HIDDEN), dropout),
            feed_forward,
            gate: self.gate.then(|| numbers.projection([HIDDEN, INNER], bias, &of(INNER), dropout)),
            joined: self.joined,
            up: numbers.projection([HIDDEN, into], bias, &of(into), dropout),
            down: numbers.projection([INNER, HIDDEN], bias, &of(HIDDEN), dropout),
        }
    }
}

/// How a block is computed.
#[derive(Default)]
struct Way {
    /// As on GPUs, rather than by the CPU's own block.
    on_device: bool,
    /// Without what nobody reads.
    unread: bool,
    /// From an input of which each third number's last bit is the other.
    is_nudged: bool,
}

/// The gradient of the input, then all others, then the output, at tokens; whether each tensor of the block has one.
fn results(
    case: Case,
    seq: usize,
    precision: MatmulPrecision,
    causal: bool,
    way: Way,
) -> Vec<(String, Vec<f32>)> {
    let device = Default::default();
    let mut numbers = Numbers(case.adapters as f32);
    let block = case.block(seq, &mut numbers, precision);
    // Without padding the CPU's masks of dropout are of the same places.
    let rows = match case.dropout {
        true => vec![0..seq; BATCH],
        false => vec![0..seq, 2..seq, 0..seq - 3],
    };
    let hidden: Vec<bool> = rows
        .iter()
        .flat_map(|extent| {
            (0..seq * seq).map(move |pair| {
                let (query, key) = (pair / seq, pair % seq);
                query != key && (!extent.contains(&key) || causal && key > query)
            })
        })
        .collect();
    let mask =
        Tensor::<Flex, 4, Bool>::from_data(TensorData::new(hidden, [BATCH, 1, seq, seq]), &device);
    let half = case.heads.width / 2;
    let table = |of: fn(f32) -> f32| {
        let angle = |i: usize| (i / (2 * half)) as f32 * 0.3 / (1 + i % half) as f32;
        let values: Vec<f32> = (0..seq * 2 * half).map(|i| of(angle(i))).collect();
        Tensor::<Flex, 4>::from_data(TensorData::new(values, [1, 1, seq, 2 * half]), &device)
    };
    let angles = case.rotates.then(|| (table(f32::cos), table(f32::sin)));
    let seen = Seen {
        rows: &rows,
        angles: angles.as_ref(),
        mask: Some(&mask),
        bias: None,
        unread: way.unread,
    };
    let tokens = |values: Vec<f32>| -> Vec<f32> {
        let inside = |i: usize| rows[i / HIDDEN / seq].contains(&(i / HIDDEN % seq));
        values.into_iter().enumerate().map(|(i, x)| if inside(i) { x } else { 0.0 }).collect()
    };
    let shape = [BATCH, seq, HIDDEN];
    let states = |values: Vec<f32>| Primitive::from_data(TensorData::new(tokens(values), shape));
    let mut x = numbers.values(BATCH * seq * HIDDEN);
    if way.is_nudged {
        x.iter_mut().step_by(3).for_each(|x| *x = f32::from_bits(x.to_bits() ^ 1));
    }
    let x = states(x);
    let gradient = states(numbers.values(BATCH * seq * HIDDEN));
    let mut count = 0;
    let wanted = block.clone().map(|_| {
        count += 1;
        true
    });
    let (y, of_x, of_block) = if way.on_device {
        let (y, tape) = super::forward::<Flex>(x, &block, seen, true).unwrap();
        let (of_x, of_block) = super::backward::<Flex>(&tape.unwrap(), &block, gradient, wanted);
        (y, of_x, of_block)
    } else {
        let (y, tape) = Flex::block_forward(x, &block, seen, true).unwrap();
        let (of_x, of_block) = Flex::block_backward(&tape.unwrap(), &block, gradient, wanted);
        (y, of_x, of_block)
    };
    let read =
        |tensor: Primitive| tensor.to_contiguous().as_slice::<f32>().map(<[f32]>::to_vec).unwrap();
    let mut all =
        vec![("output".to_string(), tokens(read(y))), ("input".to_string(), tokens(read(of_x)))];
    let mut number = 0;
    of_block.map(|gradient| {
        all.push((format!("tensor {number} of {count}"), read(gradient.unwrap())));
        number += 1;
    });
    assert_eq!(number, count);
    all
}

fn assert_close(cases: &[Case], seq: usize, allowed: f64, precision: MatmulPrecision) {
    let size = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    // The slope of ReLU jumps, at numbers that rounding moves across.
    let smooth =
        |case: &Case| precision == MatmulPrecision::F32 || case.activation != Activation::Relu;
    for (number, case) in cases.iter().enumerate().filter(|(_, case)| smooth(case)) {
        for causal in [false, true] {
            let of = |way| results(*case, seq, precision, causal, way);
            let expected = of(Way::default());
            let actual = of(Way { on_device: true, ..Way::default() });
            let nudged = of(Way { is_nudged: true, ..Way::default() });
            let whole = expected
                .iter()
                .map(|(_, values)| size(&mut values.iter().map(|x| f64::from(*x))))
                .fold(0.0, f64::max);
            assert_eq!(expected.len(), actual.len());
            for ((name, expected), ((_, actual), (_, nudged))) in
                expected.iter().zip(actual.iter().zip(&nudged))
            {
                assert_eq!(expected.len(), actual.len(), "{name}");
                let far = |from: &[f32]| {
                    let pairs = expected.iter().zip(from);
                    size(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)))
                };
                let own = size(&mut expected.iter().map(|x| f64::from(*x)));
                // Sharp weights of attention turn a last bit of the input into much more.
                let bound = (allowed * (own + 0.1 * whole)).max(2.0 * far(nudged));
                assert!(
                    far(actual) <= bound,
                    "case {number} {case:?} of {seq} tokens, causal {causal}: {name} is {:e} off, of {own:e}; {bound:e} is allowed",
                    far(actual)
                );
            }
        }
    }
}

#[test]
fn the_gradients_are_those_of_the_cpus_own_block() {
    assert_close(&CASES, SEQ, 2e-5, MatmulPrecision::F32);
}

#[test]
fn texts_of_several_tiles_have_them_too() {
    assert_close(&LONG_CASES, LONG, 2e-5, MatmulPrecision::F32);
}

#[test]
fn in_bf16_they_are_so_but_for_rounding() {
    assert_close(&CASES, SEQ, 0.1, MatmulPrecision::Bf16);
}

fn projections<T>(block: &mut Block<T>) -> Vec<&mut Projection<T>> {
    let Block { qkv, output, gate, up, down, .. } = block;
    [qkv, output, up, down].into_iter().chain(gate).collect()
}

/// Weights in few bits are unpacked for each product, there and back: to the bit what the same weights in floating point give.
#[test]
fn packed_weights_give_what_whole_ones_do() {
    let device = Default::default();
    let extents = vec![0..SEQ; BATCH];
    let seen = Seen { rows: &extents, angles: None, mask: None, bias: None, unread: false };
    let ways = [Number::Int8, Number::Int4]
        .into_iter()
        .flat_map(|bits| [(bits, MatmulPrecision::F32), (bits, MatmulPrecision::Bf16)]);
    for (case, (bits, precision)) in
        CASES.iter().flat_map(|case| ways.clone().map(move |way| (case, way)))
    {
        let mut numbers = Numbers(0.0);
        let mut whole = case.block(SEQ, &mut numbers, precision);
        let mut packed = whole.clone();
        let scheme = Scheme { number: bits, block: Some(4) };
        let mut count = 0;
        for (whole, packed) in projections(&mut whole).into_iter().zip(projections(&mut packed)) {
            let weight = super::tensor::<Flex, 2>(&whole.weight);
            let [inputs, outputs] = weight.dims();
            // Not of `down`.
            if scheme.check(inputs).is_err() {
                continue;
            }
            let values = weight.transpose().into_data().to_vec::<f32>().unwrap();
            let rounded = Quantized::round(&values, [outputs, inputs], scheme).unwrap();
            let matrix = PackedWeight::<Flex>::new(&[rounded], &device).unwrap();
            whole.weight = super::primitive::<Flex, 2>(matrix.weights());
            packed.weight = super::primitive::<Flex, 2>(Tensor::zeros([0, 0], &device));
            packed.packed = Some(matrix.matrix());
            count += 1;
        }
        assert!(count >= 3, "{case:?}");
        let (x, gradient) =
            (numbers.tensor([BATCH, SEQ, HIDDEN]), numbers.tensor([BATCH, SEQ, HIDDEN]));
        let read = |tensor: Primitive| {
            tensor.to_contiguous().as_slice::<f32>().map(<[f32]>::to_vec).unwrap()
        };
        let run = |block: &BlockOf<Flex>| {
            let wanted = block.clone().map(|_| true);
            let (y, tape) = super::forward::<Flex>(x.clone(), block, seen, true).unwrap();
            let (of_x, mut of_block) =
                super::backward::<Flex>(&tape.unwrap(), block, gradient.clone(), wanted);
            let weights = projections(&mut of_block).into_iter().map(|of| of.weight.take());
            let own =
                projections(&mut block.clone()).iter().filter(|own| own.packed.is_none()).count();
            assert_eq!(weights.flatten().count(), own);
            let mut all = vec![read(y), read(of_x)];
            of_block.map(|gradient| all.extend(gradient.map(read)));
            all
        };
        assert_eq!(run(&whole), run(&packed), "{bits:?} {precision:?} {case:?}");
    }
}

/// Where nobody reads what a block gives, its last product is left out, unless the gradients of a norm after it need that.
#[test]
fn a_block_that_nobody_reads_has_the_same_gradients() {
    for (number, case) in CASES.iter().enumerate() {
        let [read, unread] = [false, true].map(|unread| {
            let way = Way { on_device: true, unread, ..Way::default() };
            results(*case, SEQ, MatmulPrecision::F32, true, way)
        });
        let [_, inside, after] = case.norms;
        assert_eq!(read[0] == unread[0], inside || after, "case {number} {case:?}");
        assert_eq!(read[1..], unread[1..], "case {number} {case:?}");
    }
}

/// Without gradients a long text's bias is not made one for each pair of tokens.
#[test]
fn long_texts_with_a_bias_have_the_same_states_without_gradients() {
    let (seq, device) = (LONGEST_HELD + 5, Default::default());
    let case = Case { score_bias: true, adapters: 3, ..GROUPED };
    let later: Vec<bool> = (0..seq * seq).map(|pair| pair % seq > pair / seq).collect();
    let mask =
        Tensor::<Flex, 4, Bool>::from_data(TensorData::new(later, [1, 1, seq, seq]), &device);
    let extent = 0..seq;
    let rows = std::slice::from_ref(&extent);
    let table = |of: fn(f32) -> f32| {
        let width = case.heads.width;
        let angle = |i: usize| (i / width) as f32 * 0.3 / (1 + i % (width / 2)) as f32;
        let values: Vec<f32> = (0..seq * width).map(|i| of(angle(i))).collect();
        Tensor::<Flex, 4>::from_data(TensorData::new(values, [1, 1, seq, width]), &device)
    };
    let angles = (table(f32::cos), table(f32::sin));
    let seen = Seen { rows, angles: Some(&angles), mask: Some(&mask), bias: None, unread: false };
    for (precision, allowed) in [(MatmulPrecision::F32, 2e-5), (MatmulPrecision::Bf16, 0.05)] {
        let mut numbers = Numbers(0.0);
        let block = case.block(seq, &mut numbers, precision);
        let x = numbers.tensor([1, seq, HIDDEN]);
        let states = |trains: bool| -> Vec<f32> {
            let (y, tape) = super::forward::<Flex>(x.clone(), &block, seen, trains).unwrap();
            assert_eq!(tape.is_some(), trains);
            y.to_contiguous().as_slice::<f32>().map(<[f32]>::to_vec).unwrap()
        };
        let size = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>().sqrt();
        let (expected, actual) = (states(true), states(false));
        let far: Vec<f32> = expected.iter().zip(&actual).map(|(a, b)| a - b).collect();
        let (far, own) = (size(&far), size(&expected));
        assert!(far <= allowed * own, "{precision:?}: {far:e} off, of {own:e}");
    }
}

/// Adapters of one input are one, a product where each would be one; what drops out of it is another part for each.
#[test]
fn adapters_of_one_input_are_joined() {
    let precision = MatmulPrecision::F32;
    for (dropout, inputs) in [(false, HIDDEN), (true, 3 * HIDDEN)] {
        let case = Case { adapters: 3, dropout, ..GROUPED };
        let block = case.block(SEQ, &mut Numbers(0.0), precision);
        let projections = [Some(&block.qkv), Some(&block.output), None];
        let [qkv, output, none] = projection::adapters::<Flex, 3>(projections, precision);
        assert_eq!([qkv.len(), output.len(), none.len()], [1, 1, 0]);
        // Three of rank 2, and zeros to a power of two.
        assert_eq!(qkv[0].a.dims(), [inputs, 8]);
    }
}

/// Attention is computed some texts, and some queries of a text, at a time.
#[test]
fn tiles_cover_all_and_fit() {
    for (count, pairs) in [(1, 1), (7, AT_ONCE / 3), (5, AT_ONCE * 2), (9, 0)] {
        let tiles: Vec<_> = attention::tiles(count, pairs).collect();
        assert_eq!(
            tiles.iter().cloned().flatten().collect::<Vec<_>>(),
            (0..count).collect::<Vec<_>>()
        );
        assert!(tiles.iter().all(|tile| tile.len() == 1 || tile.len() * pairs <= AT_ONCE));
    }
}

/// The feed-forward is computed some tokens at a time, of which the masks of dropout begin with a whole pair of values.
#[test]
fn tokens_of_a_tile_fit() {
    for (rows, width) in [(1, 10), (21, 10), (450, 20), (7, 1000), (4, 25)] {
        let tiles: Vec<_> = feed_forward::tiles(rows, width).collect();
        let covered: Vec<_> = tiles.iter().cloned().flatten().collect();
        assert_eq!(covered, (0..rows).collect::<Vec<_>>());
        let fits = |tile: &std::ops::Range<usize>| {
            tile.len() <= 2 || tile.len() * width <= feed_forward::AT_ONCE
        };
        assert!(tiles.iter().all(|tile| tile.start % 2 == 0 && fits(tile)), "{tiles:?}");
        // No more of them than there have to be.
        assert!(tiles.len() <= rows.div_ceil((feed_forward::AT_ONCE / width / 2 * 2).max(2)));
    }
    assert!(feed_forward::tiles(BATCH * SEQ, INNER).count() > 1, "the cases have several");
}
