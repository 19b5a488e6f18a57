//! Bidirectional reconstruction (Su et al., arXiv:2509.03020, section 3.2 and algorithm 1): from a
//! text's EOS state alone the model must write the other text of the pair.

use anyhow::{Context as _, Result};
use burn::optim::GradientsParams;
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor};
use kiln_embed::config::AttentionMode;
use kiln_embed::kernels::{Kernels, TrainingBackend};
use kiln_embed::loss::{Reduction, token_cross_entropy};
use kiln_embed::model::{ForwardOptions, ModelInput, seed_dropout};
use kiln_embed::tokenizer::{Tokenizer, Tokens};
use kiln_embed::train::{BlockPass, Gathered, Late, TrainModel, columns, encode};

use super::{BatchLoss, StepContext};
use crate::data::{Batch, Text, mixed};
use crate::recipe::Reconstruction;

/// One direction of a chunk.
struct Direction<B: Backend> {
    /// The texts to read.
    read: ModelInput<B>,
    /// The tokens to write, padded on the right.
    written: ModelInput<B>,
    /// What the summed loss is multiplied with.
    weight: f64,
}

/// Loss and gradients of one batch of pairs.
pub(super) fn reconstruction<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    batch: &Batch,
    settings: &Reconstruction,
    context: &StepContext<'_, B>,
    seed: u64,
) -> Result<BatchLoss<B>> {
    let &StepContext { tokenizer, ref runner, device, group, scale, .. } = context;
    let eos = written_eos(tokenizer, settings)?;
    let positives = batch.candidates.positive.iter().map(|&i| &batch.documents[i]);
    let tokens = |texts: Vec<&Text>| {
        let texts: Vec<(&str, &str)> = texts
            .into_iter()
            .map(|text| match settings.instructions {
                true => text.prompted(),
                false => ("", text.text.as_str()),
            })
            .collect();
        encode(tokenizer, &texts)
    };
    let queries = tokens(batch.queries.iter().collect())?;
    let documents = tokens(positives.collect())?;
    let targets = |texts: &[Tokens]| -> Vec<Vec<u32>> {
        texts.iter().map(|text| target(text, eos)).collect()
    };
    let (query_targets, document_targets) = (targets(&queries), targets(&documents));
    let pairs = queries.len();
    let weight = |share: f64, targets: &[Vec<u32>]| match settings.reduction {
        Reduction::TokenMean => share / targets.iter().map(Vec::len).sum::<usize>().max(1) as f64,
        Reduction::TokenSum => share / pairs as f64,
    };
    let to_document = weight(settings.alpha, &document_targets);
    let to_query = weight(1.0 - settings.alpha, &query_targets);

    let mut order: Vec<usize> = (0..pairs).collect();
    order.sort_by_key(|&pair| {
        std::cmp::Reverse(queries[pair].ids.len() + documents[pair].ids.len())
    });
    // Two texts a pair.
    let longest = queries.iter().chain(&documents).map(|text| text.ids.len()).max().unwrap_or(0);
    let size = match group.is_single() {
        true => runner.chunk,
        false => group.chunk_size(runner.chunk, &[&queries[..], &documents].concat()),
    };
    let size = (size.texts(longest) / 2).clamp(1, pairs.max(1));
    let chunks: Vec<(usize, &[usize])> = order.chunks(size).enumerate().collect();
    let work = |(_, rows): &(usize, &[usize])| -> usize {
        rows.iter().map(|&pair| queries[pair].ids.len() + documents[pair].ids.len()).sum()
    };
    let shares = group.shares(&chunks.iter().map(work).collect::<Vec<_>>());
    let share: Vec<(usize, &[usize])> = group.own(&shares).iter().map(|&i| chunks[i]).collect();
    let most = tokenizer.config().max_length;
    let columns = |longest: Option<usize>| columns::<B>(longest.unwrap_or(0), most);
    let (loss, gradients) = runner.sum(train_model, &share, scale, |&(number, rows)| {
        let replica = runner.replica(train_model);
        let direction = |read: &[Tokens], write: &[Vec<u32>], weight: f64| {
            let read: Vec<&Tokens> = rows.iter().map(|&row| &read[row]).collect();
            let write: Vec<&[u32]> = rows.iter().map(|&row| write[row].as_slice()).collect();
            let of_read = columns(read.iter().map(|text| text.ids.len()).max());
            let to_write = columns(write.iter().map(|text| text.len()).max());
            let written = tokenizer.pad_right_to(to_write, &write);
            (written.seq() > 0 && weight > 0.0).then(|| Direction {
                read: ModelInput::new(&tokenizer.pad_to(of_read, &read), device),
                written: ModelInput::new(&written, device),
                weight,
            })
        };
        let directions = [
            direction(&queries, &document_targets, to_document),
            direction(&documents, &query_targets, to_query),
        ];
        let directions: Vec<Direction<B>> = directions.into_iter().flatten().collect();
        let seed = mixed(&[seed, number as u64]);
        if directions.is_empty() {
            // Texts without a token of their own leave nothing to write.
            return Ok((Late::Known(0.0), GradientsParams::new()));
        }
        if runner.blocks {
            return by_blocks(&replica, &directions, runner.late, scale, seed, device);
        }
        seed_dropout::<B>(device, seed);
        let mut loss = Tensor::<B, 1>::zeros([1], device);
        for direction in &directions {
            loss = loss + direction.loss(&replica);
        }
        let value = Late::of(loss.clone().inner(), runner.late);
        let grads = loss.mul_scalar(scale).backward();
        Ok((value, GradientsParams::from_grads(grads, &replica)))
    })?;
    let tokens = queries.iter().chain(&documents).map(|text| text.ids.len()).sum();
    let loss = group.sum_number(loss)?;
    Ok(BatchLoss { loss, gradients, texts: 2 * pairs, tokens })
}

/// The EOS that texts are written with, if they are.
///
/// # Errors
/// It is asked for, and nothing stands after a text, or a suffix alone.
pub(super) fn written_eos(tokenizer: &Tokenizer, settings: &Reconstruction) -> Result<Option<u32>> {
    if !settings.predict_eos {
        return Ok(None);
    }
    let eos = tokenizer.closing().context(
        "reconstruction.predict_eos has the model write EOS, and its tokenizer puts none after a text; set \
         model.add_eos = true",
    )?;
    Ok(Some(eos))
}

/// The tokens of a text that are to be written: its own, and perhaps the closing EOS.
fn target(text: &Tokens, eos: Option<u32>) -> Vec<u32> {
    text.ids[text.content.clone()].iter().copied().chain(eos).collect()
}

impl<B: Kernels> Direction<B> {
    /// Weighted sum of the token losses.
    fn loss(&self, train_model: &TrainModel<B>) -> Tensor<B, 1> {
        let backbone = train_model.backbone();
        let mode = train_model.model.attention();
        let states = backbone.forward(&self.read, mode, ForwardOptions::default()).last;
        let x = self.first_input(train_model, last_tokens(states, &self.read));
        let states = backbone
            .forward_embeddings(x, &self.written, AttentionMode::Causal, ForwardOptions::default())
            .last;
        self.token_loss(train_model, states)
    }

    /// `[e; d_1 .. d_{m-1}]`, which predicts `d_1 .. d_m`: e `[batch, 1, hidden]` stands where the
    /// first embedding would.
    fn first_input(&self, train_model: &TrainModel<B>, e: Tensor<B, 3>) -> Tensor<B, 3> {
        match self.written.ids.dims()[1] {
            1 => e,
            seq => {
                let embedded = train_model.backbone().embed_tokens(&self.written);
                Tensor::cat(vec![e, embedded.narrow(1, 0, seq - 1)], 1)
            }
        }
    }

    /// Weighted sum of the token losses, from the last states `[batch, seq, hidden]`.
    fn token_loss(&self, train_model: &TrainModel<B>, states: Tensor<B, 3>) -> Tensor<B, 1> {
        let [batch, seq, hidden] = states.dims();
        let logits = train_model.logits(states.reshape([batch * seq, hidden]));
        let [_, vocab] = logits.dims();
        let logits = logits.reshape([batch, seq, vocab]).cast(FloatDType::F32);
        let counts = self.written.attention_mask.clone();
        token_cross_entropy(logits, self.written.ids.clone(), counts).mul_scalar(self.weight)
    }
}

/// Loss, and gradients times `scale`, of a chunk's directions, with memory for one block's graph: the
/// gradient at `e` leads from the blocks that write back into those that read.
fn by_blocks<B: TrainingBackend>(
    replica: &TrainModel<B>,
    directions: &[Direction<B>],
    late: bool,
    scale: f64,
    seed: u64,
    device: &B::Device,
) -> kiln_embed::Result<(Late<B::InnerBackend>, GradientsParams)> {
    let mut gathered = Gathered::new(replica);
    let frozen = burn::module::Module::no_grad(replica.clone());
    let mut loss = Late::Known(0.0);
    for (number, direction) in directions.iter().enumerate() {
        let Direction { read, written, .. } = direction;
        let [reads, writes] = [0, 1].map(|pass| mixed(&[seed, number as u64, pass]));
        seed_dropout::<B>(device, reads);
        let x = frozen.backbone().embed_tokens(read).inner();
        let mode = replica.model.attention();
        let reading = BlockPass::new(replica, &frozen, read, mode, x, reads, device);
        let e = last_tokens(reading.last(&frozen, reading.before_last()), read);
        seed_dropout::<B>(device, writes);
        let x = direction.first_input(&frozen, e).inner();
        let causal = AttentionMode::Causal;
        let writing = BlockPass::new(replica, &frozen, written, causal, x, writes, device);
        let of_states = |states| direction.token_loss(replica, states).mul_scalar(scale);
        let (value, gradient) = writing.loss(of_states, &mut gathered)?;
        loss = loss.plus(Late::of(value, late).over(scale));
        let Some(gradient) = gradient.map(Tensor::<B, 3>::from_inner) else { continue };
        let [_, seq, _] = gradient.dims();
        if seq > 1 {
            let of_embeddings = gradient.clone().narrow(1, 1, seq - 1);
            gathered.take_embeddings(written, of_embeddings, writes, device);
        }
        let at_e = gradient.narrow(1, 0, 1);
        let of_states = |states| (last_tokens(states, read) * at_e).sum();
        let (_, gradient) = reading.loss(of_states, &mut gathered)?;
        if let Some(gradient) = gradient {
            gathered.take_embeddings(read, Tensor::from_inner(gradient), reads, device);
        }
    }
    Ok((loss, gathered.into_total()))
}

/// States `[batch, 1, hidden]` of each row's last token.
fn last_tokens<B: Kernels>(states: Tensor<B, 3>, input: &ModelInput<B>) -> Tensor<B, 3> {
    let [batch, _, hidden] = states.dims();
    // Positions count from 0 and padding is 0, so the greatest position is the last token's; with
    // left padding it stands in the last column, which argmax finds too.
    let last = input.positions.clone().argmax(1).reshape([batch, 1, 1]).expand([batch, 1, hidden]);
    states.gather(1, last)
}
