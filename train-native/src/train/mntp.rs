//! Masked next-token prediction (LLM2Vec, BehnamGhader et al., arXiv:2404.05961, section 2.1): some tokens
//! are masked, and each is predicted from the state of the token before it, so that a decoder whose causal
//! mask is gone learns to use what comes after. Negative Matters (arXiv:2509.00842) starts from a model
//! that has learned this.

use anyhow::{Context as _, Result};
use burn::optim::GradientsParams;
use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use kiln_embed::kernels::{Kernels, TrainingBackend};
use kiln_embed::model::{ForwardOptions, ModelInput, seed_dropout};
use kiln_embed::tokenizer::{TokenBatch, Tokenizer, Tokens};
use kiln_embed::train::{BlockPass, Chunk, Gathered, Late, TrainModel, chunks, encode};
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{BatchLoss, StepContext};
use crate::data::{Batch, mixed};
use crate::recipe::Mntp;

/// The masked tokens of a text: their places, and what they were.
type Masked = Vec<(usize, u32)>;

/// Loss and gradients of one batch, of queries and documents alike and without their prompts. Where no text has a token
/// to mask that another stands before, there is nothing to learn, and both are 0.
pub(super) fn mntp<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    batch: &Batch,
    settings: &Mntp,
    context: &StepContext<'_, B>,
    seed: u64,
) -> Result<BatchLoss<B>> {
    let &StepContext { tokenizer, ref runner, device, group, scale, .. } = context;
    let mask_token = mask_token(tokenizer, settings)?;
    let texts: Vec<(&str, &str)> =
        batch.prompted().into_iter().map(|(_, text)| ("", text)).collect();
    let mut tokens = encode(tokenizer, &texts)?;
    let masked: Vec<Masked> = tokens
        .iter_mut()
        .enumerate()
        .map(|(row, text)| mask(text, settings.mask, mask_token, mixed(&[seed, row as u64])))
        .collect();
    let count: usize = masked.iter().map(Vec::len).sum();
    let chunks = chunks::<B>(tokenizer, &tokens, group.chunk_size(runner.chunk, &tokens), seed);
    let shares = group.shares(&chunks.iter().map(Chunk::work).collect::<Vec<_>>());
    let (loss, gradients) = runner.sum(train_model, group.own(&shares), scale, |&i| {
        let (chunk, replica) = (&chunks[i], runner.replica(train_model));
        if chunk.rows.iter().all(|&text| masked[text].is_empty()) {
            return Ok((Late::Known(0.0), GradientsParams::new()));
        }
        let written = Written::<B>::new(chunk, &masked, 1.0 / count as f64, device);
        let input = ModelInput::<B>::new(&chunk.tokens, device);
        if runner.blocks {
            let (loss, gradients) =
                by_blocks(&replica, &input, &written, scale, chunk.seed, device)?;
            return Ok((Late::of(loss, runner.late).over(scale), gradients));
        }
        seed_dropout::<B>(device, chunk.seed);
        let mode = replica.model.attention();
        let states = replica.backbone().forward(&input, mode, ForwardOptions::default()).last;
        let loss = written.loss(&replica, states);
        let value = Late::of(loss.clone().inner(), runner.late);
        let grads = loss.mul_scalar(scale).backward();
        Ok::<_, kiln_embed::Error>((value, GradientsParams::from_grads(grads, &replica)))
    })?;
    let all = tokens.iter().map(|text| text.ids.len()).sum();
    let loss = group.sum_number(loss)?;
    Ok(BatchLoss { loss, gradients, texts: texts.len(), tokens: all })
}

/// The id of the token that stands for masked ones.
///
/// # Errors
/// The vocabulary does not have it.
pub(super) fn mask_token(tokenizer: &Tokenizer, settings: &Mntp) -> Result<u32> {
    let token = &settings.mask_token;
    tokenizer.token_id(token).with_context(|| {
        format!("mntp.mask_token {token:?} is not in the vocabulary; name a rare token that is")
    })
}

/// Masks a share of a text's own tokens, one at least; the first token of all has none before it to be
/// predicted from.
fn mask(text: &mut Tokens, share: f64, mask_token: u32, seed: u64) -> Masked {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let open: Vec<usize> = text.content.clone().filter(|&place| place > 0).collect();
    let mut places: Vec<usize> =
        open.iter().copied().filter(|_| rng.random::<f64>() < share).collect();
    if places.is_empty() {
        places.extend(open.choose(&mut rng));
    }
    let masked = places.iter().map(|&place| (place, text.ids[place])).collect();
    places.iter().for_each(|&place| text.ids[place] = mask_token);
    masked
}

/// What a chunk's model has to write.
struct Written<B: Kernels> {
    /// Places of the states that predict, among all of the chunk `[masked]`.
    from: Tensor<B, 1, Int>,
    /// The tokens `[masked, 1]`.
    tokens: Tensor<B, 2, Int>,
    weight: f64,
}

impl<B: Kernels> Written<B> {
    fn new(chunk: &Chunk, masked: &[Masked], weight: f64, device: &B::Device) -> Self {
        let (mut from, mut tokens) = (Vec::new(), Vec::new());
        for (row, &text) in chunk.rows.iter().enumerate() {
            let first = row * chunk.tokens.seq() + first_token(&chunk.tokens, row);
            for &(place, token) in &masked[text] {
                from.push((first + place - 1) as i32);
                tokens.push(token as i32);
            }
        }
        let count = from.len();
        Self {
            from: Tensor::from_data(TensorData::new(from, [count]), device),
            tokens: Tensor::from_data(TensorData::new(tokens, [count, 1]), device),
            weight,
        }
    }

    /// Weighted sum of `-log p(token)`, from the last states `[batch, seq, hidden]`.
    fn loss(&self, train_model: &TrainModel<B>, states: Tensor<B, 3>) -> Tensor<B, 1> {
        let [batch, seq, hidden] = states.dims();
        let states = states.reshape([batch * seq, hidden]).select(0, self.from.clone());
        let logits = train_model.logits(states).cast(FloatDType::F32);
        let chosen = log_softmax(logits, 1).gather(1, self.tokens.clone());
        chosen.sum().mul_scalar(-self.weight)
    }
}

/// Column of a row's first token, after padding.
fn first_token(tokens: &TokenBatch, row: usize) -> usize {
    let seq = tokens.seq();
    tokens.attention()[row * seq..][..seq].iter().position(|&token| token).unwrap_or(0)
}

/// Loss `[1]` and gradients, both times `scale`, of a chunk, with memory for one block's graph.
fn by_blocks<B: TrainingBackend>(
    replica: &TrainModel<B>,
    input: &ModelInput<B>,
    written: &Written<B>,
    scale: f64,
    seed: u64,
    device: &B::Device,
) -> kiln_embed::Result<(Tensor<B::InnerBackend, 1>, GradientsParams)> {
    let mut gathered = Gathered::new(replica);
    let frozen = burn::module::Module::no_grad(replica.clone());
    seed_dropout::<B>(device, seed);
    let x = frozen.backbone().embed_tokens(input).inner();
    let mode = replica.model.attention();
    let pass = BlockPass::new(replica, &frozen, input, mode, x, seed, device);
    drop(frozen);
    let of_states = |states| written.loss(replica, states).mul_scalar(scale);
    let (loss, gradient) = pass.loss(of_states, &mut gathered)?;
    if let Some(gradient) = gradient {
        gathered.take_embeddings(input, Tensor::from_inner(gradient), seed, device);
    }
    Ok((loss, gathered.into_total()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: std::ops::Range<usize>) -> Tokens {
        let ids: Vec<u32> = (10..10 + content.end as u32 + 1).collect();
        let count = ids.len();
        Tokens {
            ids,
            pooling: vec![true; count],
            offsets: vec![(0, 0); count],
            content,
            truncated: false,
            types: Vec::new(),
        }
    }

    #[test]
    fn a_share_of_the_tokens_is_masked_and_one_at_least() {
        let mut all = text(1..101);
        let masked = mask(&mut all, 0.2, 9, 1);
        assert!((10..=30).contains(&masked.len()), "{}", masked.len());
        for (place, token) in masked {
            assert_eq!((all.ids[place], token), (9, 10 + place as u32));
        }
        assert_eq!(all.ids.iter().filter(|&&id| id == 10).count(), 1, "BOS stays");
        assert_eq!(mask(&mut text(1..3), 1e-9, 9, 1).len(), 1);
        // Without BOS the first token cannot be predicted.
        assert_eq!(mask(&mut text(0..3), 1.0, 9, 1), [(1, 11), (2, 12)]);
        assert_eq!(mask(&mut text(0..1), 1.0, 9, 1), []);
    }
}
