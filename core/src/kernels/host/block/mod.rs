//! A transformer block and its gradients, in one operation each.
//!
//! What goes in is gathered into rows without padding; all of the batch's tokens are computed together,
//! in parallel over rows, and attention over texts and heads. Kept for the backward pass are the inputs
//! of norms, products and attention; what costs little is computed again: norms, activations, and the
//! weights of attention, from their logarithmic sums (FlashAttention-2, arXiv:2307.08691, section 3.1).
//!
//! * `places`: where each row is in the padded batch;
//! * `norm`, `activation`, `attention`: the parts and their gradients;
//! * `projection`: products with adapters inside, in f32, bf16 or fewer bits;
//! * `feed_forward`: its projections, in one go where they are packed;
//! * `forward`, `backward`: the whole.

mod activation;
mod attention;
mod backward;
mod dropout;
mod feed_forward;
mod forward;
mod norm;
mod places;
mod projection;

pub(super) use backward::backward;
pub(super) use forward::forward;

use burn::backend::Flex;
use burn::tensor::TensorData;
use burn::tensor::ops::FloatTensor;

use attention::Attended;
use places::Places;

/// A tensor of the CPU backend.
type Primitive = FloatTensor<Flex>;

/// What the forward pass keeps.
struct Tape {
    places: Places,
    attended: Attended,
    attention: BranchTape,
    /// Queries, keys and values before the norms of heads.
    unnormed: Option<Vec<f32>>,
    context: Vec<f32>,
    feed_forward: BranchTape,
    gate: Option<Vec<f32>>,
    up: Vec<f32>,
    /// What the adapters of each projection have made of their inputs, by their `A`.
    lows: Lows,
}

/// `x A` `[tokens, ranks]` of the projections' adapters.
#[derive(Default)]
struct Lows {
    qkv: Vec<f32>,
    output: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    down: Vec<f32>,
}

/// The inputs of a branch's norms.
struct BranchTape {
    /// Of the branch.
    input: Vec<f32>,
    /// Of the norm inside.
    inside: Option<Vec<f32>>,
    /// Of the norm after the residual sum.
    after: Option<Vec<f32>>,
}

/// The numbers of a tensor that is known to be contiguous and f32.
fn floats(tensor: &Primitive) -> &[f32] {
    // Both were asked when the block was taken.
    tensor.as_slice::<f32>().unwrap_or_default()
}

fn tensor(values: Vec<f32>, shape: impl Into<burn::tensor::Shape>) -> Primitive {
    Primitive::from_data(TensorData::new(values, shape.into()))
}
