//! Backbones: the one configurable [`Encoder`] and the one configurable [`Decoder`]; [`Backbone`] is either.
//!
//! * `backbone`: the forward pass, block by block; `input`: what goes in and what comes out;
//! * `encoder`, `decoder`: the blocks, built from `attention`, `feed_forward`, `experts`, `linear`,
//!   `embedding`, `rotary`, `mask`, `score_bias`, `per_layer` and `dropout`; `views`: what each layer sees;
//! * `packed`: layers whose int8 or int4 weights stay packed in a device's memory;
//! * `lora`, `gram`: what hangs on a projection; `surgery`: LoRA in and out, pruning, fewer blocks;
//! * `families`: config keys and tensor names of each family.

mod attention;
mod backbone;
mod block;
mod decoder;
mod dropout;
mod embedding;
mod encoder;
mod experts;
pub(crate) mod families;
mod feed_forward;
mod gram;
mod init;
mod input;
mod linear;
mod lora;
mod mask;
mod packed;
mod per_layer;
mod rotary;
mod score_bias;
mod surgery;
mod views;

pub use attention::Attention;
pub use backbone::Backbone;
pub use decoder::{Decoder, DecoderBlock};
pub use dropout::{Dropout, seed_dropout};
pub use embedding::Embedding;
pub use encoder::{Encoder, EncoderBlock};
pub(crate) use experts::is_router;
pub use experts::{BlockFeedForward, Experts};
pub use feed_forward::FeedForward;
pub use gram::{Gram, SharedGram};
pub(crate) use init::initialized;
pub use input::{BlockInputs, ForwardOptions, ModelInput, States};
pub use linear::Linear;
pub use lora::{Adapter, LoraConfig};
pub use mask::attention_mask;
pub use packed::{PackedTable, PackedWeight};
pub use per_layer::{PerLayerBranch, PerLayerInputs};
pub use rotary::{Rotary, inverse_frequencies};
