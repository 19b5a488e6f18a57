//! A transformer block as one value, so that a backend can compute it in one operation, gradients
//! included: what its tensors are, which norms it has and where, and what it shares with no other.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Int, Tensor};

use super::{Heads, Kernels};
use crate::config::Activation;
use crate::quant::{HostMatrix, PackedLayout};

/// Numbers in which the products of a block are computed; sums, norms, residuals and attention are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatmulPrecision {
    /// f32.
    #[default]
    F32,
    /// Both operands are rounded to bf16; on GPUs what they give is too.
    Bf16,
}

/// Attention and feed-forward, each a branch beside the residual stream. `T` is a tensor, or what is
/// said of each tensor: whether its gradient is wanted, what that gradient is.
#[derive(Debug, Clone)]
pub struct Block<T> {
    /// Widths of the attention.
    pub heads: Heads,
    /// What lies between the feed-forward's products.
    pub activation: Activation,
    /// Numbers of the products.
    pub precision: MatmulPrecision,
    /// Norms around the attention.
    pub attention: Branch<T>,
    /// RMS norms of the heads of queries, of keys (Qwen3) and of values (EmbeddingGemma 2), in this order, as far as
    /// there are any.
    pub head_norms: Vec<Norm<T>>,
    /// What is added to the scores of attention `[heads, 2 seq - 1]`, as [`Seen::bias`](super::Seen::bias).
    pub score_bias: Option<T>,
    /// Queries, keys and values side by side.
    pub qkv: Projection<T>,
    /// From the heads to the residual stream.
    pub output: Projection<T>,
    /// Norms around the feed-forward.
    pub feed_forward: Branch<T>,
    /// The gate of a gated feed-forward, where it has a projection of its own.
    pub gate: Option<Projection<T>>,
    /// Whether the gate is the first half of the outputs of `up`.
    pub joined: bool,
    /// Into the feed-forward's width.
    pub up: Projection<T>,
    /// Back to the residual stream.
    pub down: Projection<T>,
}

/// The norms of a branch `f`: `after(x + inside(f(before(x))))`.
#[derive(Debug, Clone)]
pub struct Branch<T> {
    /// Pre-norm (Llama).
    pub before: Option<Norm<T>>,
    /// Norm of the branch alone (sandwich norms, Gemma).
    pub inside: Option<Norm<T>>,
    /// Post-norm (BERT).
    pub after: Option<Norm<T>>,
}

/// A norm over the last dimension.
#[derive(Debug, Clone)]
pub struct Norm<T> {
    /// Factors `[width]`.
    pub gamma: T,
    /// What is added `[width]`.
    pub beta: Option<T>,
    /// Whether the mean is subtracted (layer norm) or not (RMS norm, arXiv:1910.07467).
    pub centred: bool,
    /// Added to the variance.
    pub epsilon: f32,
}

/// A linear layer with its adapters.
#[derive(Debug, Clone)]
pub struct Projection<T> {
    /// `[inputs, outputs]`; empty where it is in fewer bits.
    pub weight: T,
    /// The weight in fewer bits, on the host.
    pub matrix: Option<Arc<HostMatrix>>,
    /// The weight in fewer bits, on the device.
    pub packed: Option<DeviceMatrix>,
    /// `[outputs]`.
    pub bias: Option<T>,
    /// LoRA adapters, in the order of their columns.
    pub adapters: Vec<LowRank<T>>,
    /// What a backend has made of the weight.
    pub prepared: Prepared,
}

/// A weight that a device keeps in few bits, in the tensors of the backend that computes with it. Beside its adapters it is
/// unpacked for a product and dropped again, forward and back, and gets no gradient (QLoRA, arXiv:2305.14314).
#[derive(Debug, Clone)]
pub struct DeviceMatrix {
    shape: [usize; 2],
    /// [`Words`] of that backend.
    words: Arc<dyn Any + Send + Sync>,
}

/// As [`PackedLayout::weights`] takes them.
struct Words<B: Backend> {
    codes: Tensor<B, 2, Int>,
    scales: Tensor<B, 2>,
    layout: PackedLayout,
}

impl DeviceMatrix {
    /// Of codes and scales, as [`PackedLayout::weights`] takes them.
    pub fn new<B: Kernels>(
        codes: Tensor<B, 2, Int>,
        scales: Tensor<B, 2>,
        layout: PackedLayout,
    ) -> Self {
        let shape = [layout.inputs, layout.outputs];
        Self { shape, words: Arc::new(Words::<B> { codes, scales, layout }) }
    }

    /// Inputs and outputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The weights `[inputs, outputs]`, made anew at each call.
    ///
    /// # Panics
    /// On another backend than the one whose tensors it has.
    pub fn unpacked<B: Kernels>(&self, dtype: FloatDType) -> Tensor<B, 2> {
        let Some(Words { codes, scales, layout }) = self.words.downcast_ref::<Words<B>>() else {
            unreachable!("the words are those of the backend that computes");
        };
        B::unpacked(codes.clone(), scales.clone(), *layout, dtype)
    }
}

/// `scale * dropout(x) A B`, added to some columns of a projection (LoRA, arXiv:2106.09685).
#[derive(Debug, Clone)]
pub struct LowRank<T> {
    /// `A` `[inputs, rank]`.
    pub a: T,
    /// `B` `[rank, outputs]`.
    pub b: T,
    /// First of the projection's columns that it adds to.
    pub first: usize,
    /// Factor of the update.
    pub scale: f32,
    /// What drops out of its input.
    pub dropout: Option<DropoutMask>,
}

/// Values of a tensor that drop out, each known by its place alone.
#[derive(Debug, Clone, Copy)]
pub struct DropoutMask {
    /// State of the generator before the tensor's first value.
    pub seed: u64,
    /// Probability that a value is kept.
    pub kept: f64,
}

/// Where a matrix lies in a larger one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Its first row and column.
    pub first: [usize; 2],
    /// Its rows and columns.
    pub extent: [usize; 2],
    /// What its values are multiplied with on the way.
    pub factor: f32,
}

impl Place {
    /// Its rows and columns in the larger one.
    pub(crate) fn ranges(self) -> [Range<usize>; 2] {
        std::array::from_fn(|side| self.first[side]..self.first[side] + self.extent[side])
    }
}

/// The increment of SplitMix64 (Steele, Lea, Flood 2014), whose n-th draw is a hash of its seed plus n
/// increments: so a draw needs no other before it.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

impl DropoutMask {
    /// 64 bits for two values: those at places `2 pair`, the lower half, and `2 pair + 1`.
    #[inline(always)]
    pub(crate) fn draw(self, pair: usize) -> u64 {
        let mut z = self.seed.wrapping_add(INCREMENT.wrapping_mul(pair as u64 + 1));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// What each of so many values is multiplied with.
    pub(crate) fn factors(self, values: usize) -> Vec<f32> {
        let (threshold, scale) = (self.threshold(), self.scale());
        (0..values.div_ceil(2))
            .flat_map(|pair| {
                let bits = self.draw(pair);
                [bits as u32, (bits >> 32) as u32]
            })
            .map(|bits| if bits < threshold { scale } else { 0.0 })
            .take(values)
            .collect()
    }

    /// State of the generator after a tensor of so many values.
    pub(crate) fn after(self, values: usize) -> u64 {
        self.seed.wrapping_add(INCREMENT.wrapping_mul(values.div_ceil(2) as u64))
    }

    /// A value is kept where its 32 bits are below this.
    #[inline(always)]
    pub(crate) fn threshold(self) -> u32 {
        (self.kept * f64::from(u32::MAX)) as u32
    }

    /// What kept values are multiplied with.
    #[inline(always)]
    pub(crate) fn scale(self) -> f32 {
        (1.0 / self.kept) as f32
    }
}

impl<T> Block<T> {
    /// The same with other tensors, which are visited in a fixed order.
    pub fn map<U>(self, mut to: impl FnMut(T) -> U) -> Block<U> {
        let to = &mut to;
        Block {
            heads: self.heads,
            activation: self.activation,
            precision: self.precision,
            attention: self.attention.map(to),
            head_norms: self.head_norms.into_iter().map(|norm| norm.map(to)).collect(),
            score_bias: self.score_bias.map(&mut *to),
            qkv: self.qkv.map(to),
            output: self.output.map(to),
            feed_forward: self.feed_forward.map(to),
            gate: self.gate.map(|gate| gate.map(to)),
            joined: self.joined,
            up: self.up.map(to),
            down: self.down.map(to),
        }
    }
}

impl<T> Branch<T> {
    fn map<U>(self, to: &mut impl FnMut(T) -> U) -> Branch<U> {
        let mut norm = |norm: Option<Norm<T>>| norm.map(|norm| norm.map(to));
        Branch { before: norm(self.before), inside: norm(self.inside), after: norm(self.after) }
    }
}

impl<T> Norm<T> {
    fn map<U>(self, to: &mut impl FnMut(T) -> U) -> Norm<U> {
        Norm {
            gamma: to(self.gamma),
            beta: self.beta.map(&mut *to),
            centred: self.centred,
            epsilon: self.epsilon,
        }
    }
}

impl<T> Projection<T> {
    fn map<U>(self, to: &mut impl FnMut(T) -> U) -> Projection<U> {
        Projection {
            weight: to(self.weight),
            matrix: self.matrix,
            packed: self.packed,
            bias: self.bias.map(&mut *to),
            adapters: self
                .adapters
                .into_iter()
                .map(|low| LowRank {
                    a: to(low.a),
                    b: to(low.b),
                    first: low.first,
                    scale: low.scale,
                    dropout: low.dropout,
                })
                .collect(),
            prepared: self.prepared,
        }
    }
}

/// What a backend has made of a weight, kept for as long as the weight is the same; clones share it.
#[derive(Clone, Default)]
pub struct Prepared(Arc<Mutex<Option<Arc<dyn Any + Send + Sync>>>>);

#[cfg_attr(
    not(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff"))),
    expect(
        dead_code,
        reason = "only the CPU backend computes whole blocks, in a page where it trains"
    )
)]
impl Prepared {
    /// What was made before, where it still `fits`; otherwise what is made now.
    pub(crate) fn get<P: Any + Send + Sync>(
        &self,
        fits: impl FnOnce(&P) -> bool,
        make: impl FnOnce() -> P,
    ) -> Arc<P> {
        let mut kept = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(kept) = kept.clone().and_then(|kept| kept.downcast::<P>().ok())
            && fits(&kept)
        {
            return kept;
        }
        let made = Arc::new(make());
        *kept = Some(made.clone());
        made
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepared")
    }
}

/// What a backend keeps of a block's forward pass for the backward pass.
#[derive(Clone)]
#[cfg_attr(
    not(any(
        all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")),
        all(feature = "gpu", feature = "autodiff")
    )),
    expect(dead_code, reason = "no backend computes whole blocks but where it trains")
)]
pub struct Tape(pub(crate) Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tape")
    }
}

/// Gradients of a block: of its input `[batch, seq, hidden]`, and of those of its tensors for which
/// they were asked.
pub type BlockGradients<B> = (FloatTensor<B>, Block<Option<FloatTensor<B>>>);

/// The tensors of a block on a backend.
pub type BlockOf<B> = Block<FloatTensor<B>>;

/// Where a backend computes no block at once.
pub(super) fn unsupported<B: Backend>() -> BlockGradients<B> {
    unreachable!("no tape was given, so none comes back")
}
