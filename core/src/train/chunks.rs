//! The forward and backward pass of a batch, chunk by chunk.
//!
//! The graph is cut at the texts' vectors. Each chunk of texts is a graph of its own, from the
//! parameters to its vectors; the loss is a graph from all vectors to one number. The gradient at
//! the vectors joins them: `d loss / d parameters = sum over chunks of d vectors / d parameters`
//! applied to `d loss / d vectors`. This gives three things at once:
//!
//! * chunks run side by side on several devices;
//! * GradCache (arXiv:2101.06983): a chunk's graph may be dropped and made again for its backward
//!   pass, so that a contrastive batch of any size needs the memory of one chunk;
//! * gradient checkpointing: within a chunk the same cut is made at every block's input.

use super::gradients::add;
use crate::kernels::{Kernels, MatmulPrecision, TrainingBackend};
use crate::model::{ForwardOptions, ModelInput, States, seed_dropout};
use crate::parallel::try_map;
use crate::seed::mixed;
use crate::tokenizer::{TokenBatch, Tokenizer, Tokens};
use crate::{Error, Result};
use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{FloatDType, Tensor};

use super::block_pass::{BlockPass, Gathered, block_seed};
use super::late::Late;
use super::train_model::TrainModel;

/// Tokens, with padding, of a chunk that GradCache drops and makes again on the CPU, where the recipe
/// does not say: enough that a chunk's gradient of the embedding table is not most of its work.
pub const CPU_CHUNK_TOKENS: usize = 2048;

/// Columns of a batch of texts of which the longest has so many tokens and none may have more than `most`. A GPU chooses,
/// and compiles, kernels anew for each length: there lengths are multiples of 64, or powers of two below, so that short texts
/// stay cheap.
pub fn columns<B: Kernels>(longest: usize, most: usize) -> usize {
    if B::HOST { longest } else { on_gpu(longest, most) }
}

fn on_gpu(longest: usize, most: usize) -> usize {
    let rounded = match longest {
        0 => 0,
        1..64 => longest.next_power_of_two().max(8),
        _ => longest.next_multiple_of(64),
    };
    rounded.min(most).max(longest)
}

/// How much is computed at once.
#[derive(Debug, Clone, Copy)]
pub enum ChunkSize {
    /// So many texts.
    Texts(usize),
    /// Tokens, each text as long as the longest ([`Chunk::work`]); one text at least. A GPU's columns may be more ([`columns`]).
    Tokens(usize),
}

impl ChunkSize {
    /// Texts of a chunk whose longest text has so many tokens.
    pub fn texts(self, longest: usize) -> usize {
        match self {
            Self::Texts(texts) => texts.max(1),
            Self::Tokens(tokens) => (tokens / longest.max(1)).max(1),
        }
    }
}

/// How chunks are computed.
#[derive(Debug, Clone, Copy)]
pub struct ChunkRunner {
    /// How much is computed at once.
    pub chunk: ChunkSize,
    /// Whether graphs are dropped after the first pass and made again for the second.
    pub cached: bool,
    /// Whether blocks are computed again one by one.
    pub blocks: bool,
    /// Number format of the passes.
    pub dtype: FloatDType,
    /// Whether losses stay on the device ([`Late`]); else each pass waits for its own.
    pub late: bool,
}

impl ChunkRunner {
    /// Chunks of so many texts, or as the device likes them. `cached` drops each chunk's graph after the first
    /// pass; `blocks` computes it again block by block in the second, and is cached too.
    pub fn new<B: TrainingBackend>(
        texts: Option<usize>,
        cached: bool,
        blocks: bool,
        dtype: FloatDType,
    ) -> Self {
        let cached = cached || blocks;
        let chunk = match texts {
            Some(texts) => ChunkSize::Texts(texts),
            None if B::HOST && cached => ChunkSize::Tokens(CPU_CHUNK_TOKENS),
            None => ChunkSize::Texts(usize::MAX),
        };
        Self { chunk, cached, blocks, dtype, late: false }
    }

    /// The parameters in the passes' number format, cut off from every other graph.
    pub fn replica<B: TrainingBackend>(&self, train_model: &TrainModel<B>) -> TrainModel<B> {
        let mut replica = TrainModel::<B>::from_inner(train_model.valid());
        match self.dtype {
            FloatDType::F32 => replica,
            // Whole blocks round what their products take, and keep everything else in f32.
            FloatDType::BF16 if B::BLOCKS => {
                replica.model.backbone_mut().set_matmul_precision(MatmulPrecision::Bf16);
                replica
            }
            dtype => replica.cast(dtype),
        }
    }

    /// Runs a function over items, one after the other. Each is computed on all cores: side by side they
    /// would share the cores worse, and each backward pass holds locks of Burn's graphs that the others
    /// wait for.
    ///
    /// # Errors
    /// The first of the function's.
    pub fn each<T, R, E>(
        &self,
        items: &[T],
        run: impl Fn(&T) -> Result<R, E>,
    ) -> Result<Vec<R>, E> {
        items.iter().map(run).collect()
    }

    /// Runs a function over items as [`Self::each`] does, and adds up their losses and gradients as they come, since a batch
    /// may have hundreds of chunks; gradients are divided by `scale`.
    ///
    /// # Errors
    /// The first of the function's.
    pub fn sum<B: TrainingBackend, T, E>(
        &self,
        train_model: &TrainModel<B>,
        items: &[T],
        scale: f64,
        run: impl Fn(&T) -> Result<(Late<B::InnerBackend>, GradientsParams), E>,
    ) -> Result<(Late<B::InnerBackend>, GradientsParams), E> {
        let (mut loss, mut gradients) = (Late::Known(0.0), GradientsParams::new());
        for item in items {
            let (value, part) = run(item)?;
            loss = loss.plus(value);
            add::<B, _>(train_model, &mut gradients, part, scale);
        }
        Ok((loss, gradients))
    }
}

/// A loss on hidden states, beside that on vectors.
pub trait StatesLoss<B: TrainingBackend> {
    /// The loss `[1]` of the states `[batch, seq, hidden]` of all layers, the embeddings first, over the tokens
    /// of a chunk.
    ///
    /// # Errors
    /// What there is to compare with cannot be computed.
    fn loss(
        &self,
        train_model: &TrainModel<B>,
        layers: &[Tensor<B, 3>],
        input: &ModelInput<B>,
        chunk: &Chunk,
        device: &B::Device,
    ) -> Result<Tensor<B, 1>>;
}

/// The loss on hidden states, where there is one.
pub type StatesOf<'a, B> = Option<&'a dyn StatesLoss<B>>;

/// Texts that are computed at once.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Which texts of the batch.
    pub rows: Vec<usize>,
    /// Their tokens.
    pub tokens: TokenBatch,
    /// Tokens of the longest, which are fewer than the columns of `tokens` where the device has the batch wider.
    pub longest: usize,
    /// State of dropout at the start of each of its passes.
    pub seed: u64,
}

/// Tokens of texts, each with its prompt before it: `(prompt, text)`.
///
/// # Errors
/// A prompt that leaves no room for its text; a text that the tokenizer cannot take.
pub fn encode(tokenizer: &Tokenizer, texts: &[(&str, &str)]) -> Result<Vec<Tokens>> {
    let encode = |&(prompt, text): &(&str, &str)| {
        let tokens = tokenizer.encode(prompt, text)?;
        // A row's own instruction may be too long.
        if tokens.content.is_empty() && !prompt.is_empty() && !text.trim().is_empty() {
            return Err(Error::invalid(format!(
                "the prompt {prompt:?} leaves no room for its text in max_length = {}; shorten it, or raise model.max_length",
                tokenizer.config().max_length
            )));
        }
        Ok(tokens)
    };
    try_map(texts, encode)
}

/// Cuts texts into chunks, longest first, so that texts of a chunk are of like length. Which texts are in a chunk does not
/// depend on the device `B`, and how far they are padded does ([`columns`]).
pub fn chunks<B: Kernels>(
    tokenizer: &Tokenizer,
    tokens: &[Tokens],
    size: ChunkSize,
    seed: u64,
) -> Vec<Chunk> {
    let mut order: Vec<usize> = (0..tokens.len()).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(tokens[row].ids.len()));
    let mut chunks = Vec::new();
    let mut rest = order.as_slice();
    while let [first, ..] = rest {
        let longest = tokens[*first].ids.len();
        let texts = size.texts(longest).min(rest.len());
        let (rows, after) = rest.split_at(texts);
        rest = after;
        let columns = columns::<B>(longest, tokenizer.config().max_length);
        let of_chunk: Vec<&Tokens> = rows.iter().map(|&row| &tokens[row]).collect();
        chunks.push(Chunk {
            rows: rows.to_vec(),
            tokens: tokenizer.pad_to(columns, &of_chunk),
            longest,
            seed: mixed(&[seed, chunks.len() as u64]),
        });
    }
    chunks
}

/// A chunk between its two passes.
pub struct ChunkForward<B: AutodiffBackend> {
    /// The vectors `[rows, dim]`, f32, cut off from the graph.
    pub vectors: Tensor<B::InnerBackend, 2>,
    kept: Option<Kept<B>>,
}

/// What is kept of a chunk's first pass for its second.
pub enum Kept<B: AutodiffBackend> {
    /// All of it.
    Graph(Box<Graph<B>>),
    /// What goes into each block `[rows, seq, hidden]`.
    Inputs(Vec<Tensor<B::InnerBackend, 3>>),
}

/// A chunk's graph.
pub struct Graph<B: AutodiffBackend> {
    vectors: Tensor<B, 2>,
    /// The chunk's share of a loss on its hidden states.
    states: Option<Tensor<B, 1>>,
    replica: TrainModel<B>,
}

/// What a chunk's second pass gives.
pub struct Backward<B: AutodiffBackend> {
    /// Of the parameters.
    pub gradients: GradientsParams,
    /// The chunk's share of the loss on hidden states.
    pub loss: Late<B::InnerBackend>,
}

impl<B: TrainingBackend> ChunkForward<B> {
    /// What is kept, if anything.
    pub fn kept(self) -> Option<Kept<B>> {
        self.kept
    }
}

impl ChunkRunner {
    /// The first pass of a chunk: its vectors. Where blocks are computed again, the inputs of a chunk that is the `only` one
    /// are kept, as its second pass would begin by making them.
    ///
    /// # Errors
    /// A pooling head without its parameters; those of the loss on hidden states.
    pub fn forward<B: TrainingBackend>(
        &self,
        train_model: &TrainModel<B>,
        chunk: &Chunk,
        only: bool,
        states: StatesOf<'_, B>,
        device: &B::Device,
    ) -> Result<ChunkForward<B>> {
        let replica = self.replica(train_model);
        if self.cached {
            let replica = burn::module::Module::no_grad(replica);
            if !self.blocks {
                let vectors = self.vectors(&replica, chunk, device)?;
                return Ok(ChunkForward { vectors: vectors.inner(), kept: None });
            }
            let input = ModelInput::new(&chunk.tokens, device);
            let inputs = self.block_inputs(&replica, &input, chunk, device);
            let states = self.leaves(&replica, &inputs);
            let vectors = head(&replica, &input, &states, chunk, device)?.inner();
            return Ok(ChunkForward { vectors, kept: only.then_some(Kept::Inputs(inputs)) });
        }
        let graph = self.graph(replica, chunk, states, device)?;
        let vectors = graph.vectors.clone().inner();
        Ok(ChunkForward { vectors, kept: Some(Kept::Graph(Box::new(graph))) })
    }

    /// The second pass of a chunk: the gradient of its parameters for the gradient `[rows, dim]` of
    /// its vectors, and for the loss on its hidden states, of which it has a `share` and which is
    /// multiplied with `scale`.
    ///
    /// # Errors
    /// As [`ChunkRunner::forward`].
    pub fn backward<B: TrainingBackend>(
        &self,
        train_model: &TrainModel<B>,
        chunk: &Chunk,
        kept: Option<Kept<B>>,
        gradient: Tensor<B::InnerBackend, 2>,
        (states, share, scale): (StatesOf<'_, B>, f64, f64),
        device: &B::Device,
    ) -> Result<Backward<B>> {
        if self.blocks {
            let replica = self.replica(train_model);
            let inputs = match kept {
                Some(Kept::Inputs(inputs)) => Some(inputs),
                _ => None,
            };
            let gradients = self.backward_by_blocks(&replica, chunk, inputs, gradient, device)?;
            return Ok(Backward { gradients, loss: Late::Known(0.0) });
        }
        let Graph { vectors, states, replica } = match kept {
            Some(Kept::Graph(graph)) => *graph,
            _ => self.graph(self.replica(train_model), chunk, states, device)?,
        };
        let mut whole = joined(vectors, gradient);
        let mut loss = Late::Known(0.0);
        if let Some(states) = states {
            let states = states.mul_scalar(share);
            loss = Late::of(states.clone().inner(), self.late);
            whole = whole + states.mul_scalar(scale);
        }
        let gradients = GradientsParams::from_grads(whole.backward(), &replica);
        Ok(Backward { gradients, loss })
    }

    /// The graph of a chunk, from the parameters to its vectors and to the loss on its states.
    fn graph<B: TrainingBackend>(
        &self,
        replica: TrainModel<B>,
        chunk: &Chunk,
        states: StatesOf<'_, B>,
        device: &B::Device,
    ) -> Result<Graph<B>> {
        let Some(compared) = states else {
            let vectors = self.vectors(&replica, chunk, device)?;
            return Ok(Graph { vectors, states: None, replica });
        };
        let input = ModelInput::new(&chunk.tokens, device);
        seed_dropout::<B>(device, chunk.seed);
        let options = ForwardOptions { layers: true, attention: false };
        let (vectors, _, states) = replica.model.forward_with(&input, options)?;
        let states = compared.loss(&replica, &states.layers, &input, chunk, device)?;
        Ok(Graph { vectors: replica.finished(vectors), states: Some(states), replica })
    }

    /// What the loss is of `[rows, width]` of a chunk ([`TrainModel::finished`]).
    fn vectors<B: Kernels>(
        &self,
        replica: &TrainModel<B>,
        chunk: &Chunk,
        device: &B::Device,
    ) -> Result<Tensor<B, 2>> {
        let input = ModelInput::new(&chunk.tokens, device);
        seed_dropout::<B>(device, chunk.seed);
        Ok(replica.finished(replica.model.forward(&input)?.0))
    }
}

impl ChunkRunner {
    /// What goes into each block `[rows, seq, hidden]` of a chunk. Dropout starts anew in each block, so that a block can be
    /// computed again alone. A device keeps all but the first in the numbers of products.
    fn block_inputs<B: TrainingBackend>(
        &self,
        replica: &TrainModel<B>,
        input: &ModelInput<B>,
        chunk: &Chunk,
        device: &B::Device,
    ) -> Vec<Tensor<B::InnerBackend, 3>> {
        seed_dropout::<B>(device, chunk.seed);
        let (model, backbone) = (&replica.model, replica.backbone());
        let mut x = backbone.embed_tokens(input);
        let shared = backbone.prepare(input, model.attention(), &x);
        let mut inputs = vec![x.clone().inner()];
        for block in 0..backbone.layers().saturating_sub(1) {
            seed_dropout::<B>(device, chunk.seed_of(block));
            x = backbone.layer(block, x, &shared, false).0;
            let kept = x.clone().inner();
            inputs.push(if B::HOST { kept } else { kept.cast(self.dtype) });
        }
        inputs
    }

    /// The inputs of blocks in the numbers of the first one's: those of the first and the last, and all others where vectors are
    /// made of all of them, and which otherwise are not used and take no memory.
    fn leaves<B: TrainingBackend>(
        &self,
        replica: &TrainModel<B>,
        inputs: &[Tensor<B::InnerBackend, 3>],
    ) -> Vec<Tensor<B, 3>> {
        let all = replica.model.pooling().config().forward_options().layers;
        let leaf = |(place, x): (usize, &Tensor<B::InnerBackend, 3>)| {
            let used = all || place == 0 || place + 1 == inputs.len();
            let x = if used { x.clone().cast(inputs[0].dtype()) } else { x.clone() };
            Tensor::from_inner(x)
        };
        inputs.iter().enumerate().map(leaf).collect()
    }

    /// As [`ChunkRunner::backward`], with memory for one block's graph. `inputs` are those of all blocks, where the first pass
    /// has kept them.
    fn backward_by_blocks<B: TrainingBackend>(
        &self,
        replica: &TrainModel<B>,
        chunk: &Chunk,
        inputs: Option<Vec<Tensor<B::InnerBackend, 3>>>,
        gradient: Tensor<B::InnerBackend, 2>,
        device: &B::Device,
    ) -> Result<GradientsParams> {
        let model = &replica.model;
        let input = ModelInput::<B>::new(&chunk.tokens, device);
        let frozen = burn::module::Module::no_grad(replica.clone());
        let inputs = inputs.unwrap_or_else(|| self.block_inputs(&frozen, &input, chunk, device));
        let (mode, seed) = (model.attention(), chunk.seed);
        let pass = BlockPass::from_inputs(replica, &frozen, &input, mode, inputs, seed, device);
        drop(frozen);

        let mut gathered = Gathered::new(replica);
        // The last block, the final norm and the pooling head, on leaves.
        let leaves = self.leaves(replica, &pass.inputs).into_iter();
        let leaves: Vec<_> = leaves.map(Tensor::require_grad).collect();
        let vectors = head(replica, &input, &leaves, chunk, device)?;
        let grads = joined(vectors, gradient).backward();
        gathered.take(&grads);
        // What each block's input owes to the head directly (multi-layer pooling) and to the block.
        let owed = leaves.iter().map(|leaf| leaf.grad(&grads)).collect();
        drop((grads, leaves));
        if let Some(gradient) = pass.backward(owed, &mut gathered)? {
            gathered.take_embeddings(&input, Tensor::from_inner(gradient), chunk.seed, device);
        }
        Ok(gathered.into_total())
    }
}

impl Chunk {
    /// What it takes to compute, the same number on every device: tokens, each text as long as the longest.
    pub fn work(&self) -> usize {
        self.rows.len() * self.longest
    }

    /// State of dropout at the start of a block.
    fn seed_of(&self, block: usize) -> u64 {
        block_seed(self.seed, block)
    }
}

/// From the inputs of the blocks to what the loss is of: last block, final norm, pooling, projections.
fn head<B: Kernels>(
    replica: &TrainModel<B>,
    input: &ModelInput<B>,
    inputs: &[Tensor<B, 3>],
    chunk: &Chunk,
    device: &B::Device,
) -> Result<Tensor<B, 2>> {
    let model = &replica.model;
    let backbone = model.backbone();
    let options = model.pooling().config().forward_options();
    let block = backbone.layers().saturating_sub(1);
    let x = inputs[inputs.len() - 1].clone();
    // What a block gets of the embeddings drops out as it did on the way there.
    seed_dropout::<B>(device, chunk.seed);
    let shared = backbone.prepare(input, model.attention(), &inputs[0]);
    seed_dropout::<B>(device, chunk.seed_of(block));
    let (x, attention) = backbone.layer(block, x, &shared, options.attention);
    let last = backbone.finish(x);
    let mut layers = Vec::new();
    if options.layers {
        layers = inputs.to_vec();
        layers.push(last.clone());
    }
    let (vectors, _) = model.pool(&States { last, layers, attention }, input)?;
    Ok(replica.finished(vectors))
}

/// A number whose gradient with respect to `y` is `gradient`.
fn joined<B: TrainingBackend>(
    y: Tensor<B, 2>,
    gradient: Tensor<B::InnerBackend, 2>,
) -> Tensor<B, 1> {
    (y * Tensor::from_inner(gradient)).sum()
}

#[cfg(test)]
mod tests {
    use super::{columns, on_gpu};

    #[test]
    fn a_gpu_meets_few_lengths_and_none_beyond_what_texts_may_have() {
        let lengths = [0, 1, 8, 9, 16, 33, 63, 64, 65, 128, 129, 500].map(|n| on_gpu(n, 512));
        assert_eq!(lengths, [0, 8, 8, 16, 16, 64, 64, 64, 128, 128, 192, 512]);
        assert_eq!([3, 70, 100].map(|longest| on_gpu(longest, 100)), [8, 100, 100]);
        // A limit is no reason to cut.
        assert_eq!([on_gpu(5, 6), on_gpu(9, 6)], [6, 9]);
        assert_eq!(columns::<burn::backend::Flex>(33, 512), 33);
    }
}
