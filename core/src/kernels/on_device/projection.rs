//! Products with weights, adapters included.
//!
//! Several adapters of a projection that share its input are joined: their `A` side by side, their `B` on a diagonal, with
//! their scales. They take a kernel where each would take one, and what is multiplied with zeros is little. Where some of the
//! input drops out, which is another part for each, the inputs that are left lie side by side, and the `A` on a diagonal too.

use std::ops::Range;

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::{Adapter, Low, columns, joined, primitive, tensor, whole};
use crate::kernels::{
    DeviceMatrix, DropoutMask, Kernels, LowRank, MatmulPrecision, Place, Projection,
};

/// What a projection gives, of which any columns can be had.
pub(super) struct Projected<B: Kernels> {
    /// The weight's part `[rows, outputs]`.
    base: Tensor<B, 2>,
    lows: Vec<Low<B>>,
}

/// Gradients of a projection's own.
pub(super) type OfProjection<B> = Projection<Option<FloatTensor<B>>>;

/// The adapters of some projections in a product's numbers, in the projections' order, one where they are joined. Tensors of
/// one shape are made one after the other: fusion makes one kernel of them.
pub(super) fn adapters<B: Kernels, const N: usize>(
    projections: [Option<&Projection<FloatTensor<B>>>; N],
    precision: MatmulPrecision,
) -> [Vec<Adapter<B>>; N] {
    let apart = projections.iter().flatten().filter(|projection| !joins::<B>(projection));
    let lows: Vec<&LowRank<FloatTensor<B>>> =
        apart.flat_map(|projection| &projection.adapters).collect();
    let all_a = lows.iter().map(|low| tensor::<B, 2>(&low.a)).collect();
    let all_a = by_shape(all_a, |_, a| precision.factor(a));
    let all_b = lows.iter().map(|low| tensor::<B, 2>(&low.b)).collect();
    let all_b = by_shape(all_b, |place, b| precision.factor(b.mul_scalar(lows[place].scale)));
    let made = lows.iter().zip(all_a).zip(all_b);
    let mut made = made.map(|((low, a), b)| Adapter { first: low.first, a, b, parts: Vec::new() });
    projections.map(|projection| match projection {
        Some(projection) if joins::<B>(projection) => vec![together::<B>(projection, precision)],
        Some(projection) => made.by_ref().take(projection.adapters.len()).collect(),
        None => Vec::new(),
    })
}

/// Whether a projection's adapters are joined: none of their input drops out, or some of it for each.
fn joins<B: Kernels>(projection: &Projection<FloatTensor<B>>) -> bool {
    let adapters = &projection.adapters;
    let dropping = adapters.iter().filter(|low| low.dropout.is_some()).count();
    adapters.len() > 1 && (dropping == 0 || dropping == adapters.len())
}

/// How many of a projection's adapters are one.
fn in_each<B: Kernels>(projection: &Projection<FloatTensor<B>>) -> usize {
    if joins::<B>(projection) { projection.adapters.len() } else { 1 }
}

/// The adapters of a projection as one, in a product's numbers.
fn together<B: Kernels>(
    projection: &Projection<FloatTensor<B>>,
    precision: MatmulPrecision,
) -> Adapter<B> {
    let [inputs, outputs] = shape::<B>(projection);
    let (mut parts, mut ranks, mut all_inputs) = (Vec::new(), 0, inputs);
    let (mut all_a, mut all_b) = (Vec::new(), Vec::new());
    for (place, low) in projection.adapters.iter().enumerate() {
        let (a, b) = (tensor::<B, 2>(&low.a), tensor::<B, 2>(&low.b));
        let [rank, width] = b.dims();
        let first = if low.dropout.is_some() { place * inputs } else { 0 };
        parts.push([
            Place { first: [first, ranks], extent: [inputs, rank], factor: 1.0 },
            Place { first: [ranks, low.first], extent: [rank, width], factor: low.scale },
        ]);
        all_inputs = first + inputs;
        ranks += rank;
        all_a.push(whole(a));
        all_b.push(whole(b));
    }
    // Of another width CUDA's rows have gaps, which would have to be copied away.
    let ranks = ranks.next_power_of_two();
    let [of_a, of_b] = [0, 1].map(|side| places(&parts, side));
    Adapter {
        first: 0,
        a: B::placed(all_a, &of_a, [all_inputs, ranks], precision.dtype()),
        b: B::placed(all_b, &of_b, [ranks, outputs], precision.dtype()),
        parts,
    }
}

/// Of each adapter's `A` (0) or `B` (1).
fn places(parts: &[[Place; 2]], side: usize) -> Vec<Place> {
    parts.iter().map(|part| part[side]).collect()
}

/// What is made of each tensor, whose place it gets too; of those of one shape one after the other.
fn by_shape<B: Kernels>(
    tensors: Vec<Tensor<B, 2>>,
    make: impl Fn(usize, Tensor<B, 2>) -> Tensor<B, 2>,
) -> Vec<Tensor<B, 2>> {
    let mut tensors: Vec<_> = tensors.into_iter().enumerate().collect();
    tensors.sort_by_key(|(_, tensor)| tensor.dims());
    let mut made: Vec<_> =
        tensors.into_iter().map(|(place, tensor)| (place, make(place, tensor))).collect();
    made.sort_by_key(|(place, _)| *place);
    made.into_iter().map(|(_, tensor)| tensor).collect()
}

/// What a projection keeps of `x`, as [`Rows::forward`] has it, for its adapters.
pub(super) fn lows<B: Kernels>(
    projection: &Projection<FloatTensor<B>>,
    x: &Tensor<B, 2>,
    adapters: &[Adapter<B>],
    row: usize,
) -> Vec<Low<B>> {
    let own = projection.adapters.chunks(in_each::<B>(projection));
    let lows = adapters.iter().zip(own).map(|(adapter, own)| Low {
        low: dropped(x, own, row).matmul(adapter.a.clone()),
        adapter: adapter.clone(),
    });
    lows.collect()
}

/// Inputs and outputs.
fn shape<B: Kernels>(projection: &Projection<FloatTensor<B>>) -> [usize; 2] {
    match &projection.packed {
        Some(packed) => packed.shape(),
        None => tensor::<B, 2>(&projection.weight).dims(),
    }
}

/// A projection for the rows of an input from one on.
pub(super) struct Rows<'a, B: Kernels> {
    projection: &'a Projection<FloatTensor<B>>,
    weight: Weight<'a, B>,
    precision: MatmulPrecision,
}

enum Weight<'a, B: Kernels> {
    /// A factor already.
    Whole(Tensor<B, 2>),
    /// Made one for each product, so that there is one of them at a time.
    Packed(&'a DeviceMatrix),
}

impl<'a, B: Kernels> Rows<'a, B> {
    pub(super) fn new(
        projection: &'a Projection<FloatTensor<B>>,
        precision: MatmulPrecision,
    ) -> Self {
        let weight = match &projection.packed {
            Some(packed) => Weight::Packed(packed),
            None => Weight::Whole(precision.factor(tensor(&projection.weight))),
        };
        Self { projection, weight, precision }
    }

    /// Columns of what it gives.
    pub(super) fn outputs(&self) -> usize {
        shape::<B>(self.projection)[1]
    }

    /// The weight as a factor.
    fn weight(&self) -> Tensor<B, 2> {
        match &self.weight {
            Weight::Whole(weight) => weight.clone(),
            Weight::Packed(packed) => packed.unpacked(self.precision.dtype()),
        }
    }

    /// `x` `[rows, inputs]`, whose first row is number `row` of the whole input, is a factor already.
    pub(super) fn forward(
        &self,
        x: &Tensor<B, 2>,
        adapters: &[Adapter<B>],
        row: usize,
    ) -> Projected<B> {
        let mut base = x.clone().matmul(self.weight());
        if let Some(bias) = &self.projection.bias {
            base = base + self.precision.factor(tensor::<B, 1>(bias)).unsqueeze();
        }
        Projected { base, lows: lows(self.projection, x, adapters, row) }
    }

    /// Gradients of a projection of `x`, a factor already, for that of its outputs `[rows, outputs]`; that of `x`, f32, and
    /// those of the projection's own. `row` as in [`Rows::forward`].
    pub(super) fn backward(
        &self,
        x: &Tensor<B, 2>,
        lows: &[Low<B>],
        gradient: Tensor<B, 2>,
        wanted: &Projection<bool>,
        row: usize,
    ) -> (Tensor<B, 2>, OfProjection<B>) {
        let Self { projection, precision, .. } = self;
        let bias = projection.bias.as_ref().map(|_| {
            (wanted.bias == Some(true))
                .then(|| primitive(gradient.clone().sum_dim(0).squeeze_dim::<1>(0)))
        });
        let gradient = precision.factor(gradient);
        let mut of_x = whole(gradient.clone().matmul(self.weight().transpose()));
        // One in few bits has none.
        let of_weight = (wanted.weight && projection.packed.is_none())
            .then(|| primitive(whole(x.clone().transpose().matmul(gradient.clone()))));
        let in_each = in_each::<B>(projection);
        let own = projection.adapters.chunks(in_each).zip(wanted.adapters.chunks(in_each));
        let mut adapters = Vec::new();
        for (low, (own, wanted)) in lows.iter().zip(own) {
            of_x = low.backward((x, row), &gradient, (own, wanted), of_x, &mut adapters);
        }
        let of_projection = Projection {
            weight: of_weight,
            matrix: None,
            packed: None,
            bias,
            adapters,
            prepared: Default::default(),
        };
        (of_x, of_projection)
    }
}

impl<B: Kernels> Low<B> {
    /// From the gradient of what a projection of `x` gives to those of an adapter, or of several that are joined; that of `x` is
    /// added to `of_x`.
    fn backward(
        &self,
        (x, row): (&Tensor<B, 2>, usize),
        gradient: &Tensor<B, 2>,
        (own, wanted): (&[LowRank<FloatTensor<B>>], &[LowRank<bool>]),
        of_x: Tensor<B, 2>,
        gradients: &mut Vec<LowRank<Option<FloatTensor<B>>>>,
    ) -> Tensor<B, 2> {
        let Self { adapter, low } = self;
        let of_own = columns(gradient, adapter.columns());
        let mut all_b = Vec::new();
        if wanted.iter().any(|wanted| wanted.b) {
            let of_b = low.clone().transpose().matmul(of_own.clone());
            all_b = match own {
                [own] => vec![whole(of_b).mul_scalar(own.scale)],
                _ => B::taken(of_b, &places(&adapter.parts, 1)),
            };
        }
        let into_low = of_own.matmul(adapter.b.clone().transpose());
        let mut all_a = Vec::new();
        if wanted.iter().any(|wanted| wanted.a) {
            let of_a = dropped(x, own, row).transpose().matmul(into_low.clone());
            all_a = match own {
                [_] => vec![whole(of_a)],
                _ => B::taken(of_a, &places(&adapter.parts, 0)),
            };
        }
        let (mut all_a, mut all_b) = (all_a.into_iter(), all_b.into_iter());
        gradients.extend(own.iter().zip(wanted).map(|(own, wanted)| {
            let &LowRank { first, scale, dropout, .. } = own;
            let a = all_a.next().filter(|_| wanted.a).map(primitive);
            let b = all_b.next().filter(|_| wanted.b).map(primitive);
            LowRank { a, b, first, scale, dropout }
        }));
        let more = into_low.matmul(adapter.a.clone().transpose());
        let masks = masks(own, row * x.dims()[1]);
        match masks.is_empty() {
            true => of_x + whole(more),
            false => B::add_dropped(of_x, more, &masks),
        }
    }
}

impl<B: Kernels> Projected<B> {
    /// What is kept.
    pub(super) fn into_lows(self) -> Vec<Low<B>> {
        self.lows
    }

    /// Whether no adapter adds to some columns alone, so that nothing is put side by side.
    pub(super) fn is_whole(&self) -> bool {
        self.borders(self.base.dims()[1]).len() == 2
    }

    /// All columns `[rows, outputs]`.
    pub(super) fn all(&self) -> Tensor<B, 2> {
        let borders = self.borders(self.base.dims()[1]);
        let parts = borders.windows(2).map(|pair| self.columns(pair[0]..pair[1]));
        joined(parts.collect(), 1)
    }

    /// Where adapters begin and end, with both ends of a row.
    fn borders(&self, width: usize) -> Vec<usize> {
        let of_adapters = self.lows.iter().map(|low| low.adapter.columns());
        let of_adapters = of_adapters.flat_map(|own| [own.start, own.end]);
        let mut borders: Vec<usize> = of_adapters.chain([0, width]).collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// Some columns; an adapter adds to all of them, or to none.
    pub(super) fn columns(&self, range: Range<usize>) -> Tensor<B, 2> {
        let mut y = columns(&self.base, range.clone());
        for Low { adapter, low } in &self.lows {
            let own = adapter.columns();
            if own.start <= range.start && range.end <= own.end {
                let b = columns(&adapter.b, range.start - own.start..range.end - own.start);
                y = y + low.clone().matmul(b);
            }
        }
        y
    }
}

/// Gradients of a projection's own from some rows and from others.
pub(super) fn sum<B: Kernels>(one: OfProjection<B>, other: OfProjection<B>) -> OfProjection<B> {
    let add = |one: Option<FloatTensor<B>>, other: Option<FloatTensor<B>>| {
        one.zip(other).map(|(one, other)| B::float_add(one, other))
    };
    let adapters = one.adapters.into_iter().zip(other.adapters);
    Projection {
        weight: add(one.weight, other.weight),
        matrix: None,
        packed: None,
        bias: one.bias.zip(other.bias).map(|(one, other)| add(one, other)),
        adapters: adapters
            .map(|(one, other)| LowRank {
                a: add(one.a, other.a),
                b: add(one.b, other.b),
                first: one.first,
                scale: one.scale,
                dropout: one.dropout,
            })
            .collect(),
        prepared: Default::default(),
    }
}

/// What adapters compute with of `x`, whose first row is number `row` of the whole input: one beside the other where some of
/// it drops out.
fn dropped<B: Kernels>(
    x: &Tensor<B, 2>,
    own: &[LowRank<FloatTensor<B>>],
    row: usize,
) -> Tensor<B, 2> {
    let masks = masks(own, row * x.dims()[1]);
    match masks.is_empty() {
        true => x.clone(),
        false => B::drop_out(x.clone(), &masks),
    }
}

/// What drops out of adapters' inputs after so many of their values.
fn masks<T>(own: &[LowRank<T>], values: usize) -> Vec<DropoutMask> {
    let masks = own.iter().filter_map(|low| low.dropout);
    masks.map(|mask| DropoutMask { seed: mask.after(values), ..mask }).collect()
}
