//! Bidirectional reconstruction (Su et al., arXiv:2509.03020, section 3.2 and algorithm 1): from a
//! text's EOS state alone the model must write the other text of the pair.

use anyhow::{Result, bail};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, ElementConversion as _, FloatDType, Int, Tensor, TensorData};
use kiln_embed::config::AttentionMode;
use kiln_embed::kernels::{Kernels, TrainingBackend};
use kiln_embed::loss::{Reduction, token_cross_entropy};
use kiln_embed::model::{Backbone, ForwardOptions, ModelInput, seed_dropout};
use kiln_embed::tokenizer::{Tokenizer, Tokens};

use super::chunks::encode;
use super::gradients::add;
use super::train_model::TrainModel;
use super::{BatchLoss, StepContext};
use crate::data::{Batch, Text, mixed};
use crate::recipe::Reconstruction;

/// One direction of a chunk: the texts to read, and the tokens to write.
struct Direction<'a> {
    read: Vec<&'a Tokens>,
    write: Vec<&'a [u32]>,
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
) -> Result<BatchLoss> {
    let &StepContext { tokenizer, ref runner, device, group, scale, .. } = context;
    if !matches!(train_model.backbone(), Backbone::Decoder(_)) {
        bail!("reconstruction writes text and needs a decoder; this model is an encoder");
    }
    let positives: Vec<&Text> =
        batch.candidates.positive.iter().map(|&i| &batch.documents[i]).collect();
    let queries = encode(tokenizer, &batch.queries.iter().collect::<Vec<_>>())?;
    let documents = encode(tokenizer, &positives)?;
    let targets = |texts: &[Tokens]| -> Vec<Vec<u32>> {
        texts.iter().map(|text| target(text, tokenizer, settings.predict_eos)).collect()
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
    let size = (runner.chunk.texts(longest) / 2).clamp(1, pairs.max(1));
    let chunks: Vec<(usize, &[usize])> = order.chunks(size).enumerate().collect();
    let share: Vec<(usize, &[usize])> =
        group.share(chunks.len()).into_iter().map(|i| chunks[i]).collect();
    let parts = runner.each(&share, |&(number, rows)| {
        let replica = runner.replica(train_model);
        seed_dropout::<B>(device, mixed(&[seed, number as u64]));
        let direction = |read: &[Tokens], write: &[Vec<u32>], weight: f64| -> Tensor<B, 1> {
            let direction = Direction {
                read: rows.iter().map(|&row| &read[row]).collect(),
                write: rows.iter().map(|&row| write[row].as_slice()).collect(),
                weight,
            };
            rewrite(&replica, tokenizer, &direction, device)
        };
        let mut loss = Tensor::<B, 1>::zeros([1], device);
        if settings.alpha > 0.0 {
            loss = loss + direction(&queries, &document_targets, to_document);
        }
        if settings.alpha < 1.0 {
            loss = loss + direction(&documents, &query_targets, to_query);
        }
        let value = loss.clone().into_scalar().elem::<f64>();
        let grads = loss.mul_scalar(scale).backward();
        Ok((value, GradientsParams::from_grads(grads, &replica)))
    })?;
    let mut loss = 0.0;
    let mut gradients = GradientsParams::new();
    for (value, part) in parts {
        loss += value;
        add::<B, _>(train_model, &mut gradients, part, scale);
    }
    let tokens = queries.iter().chain(&documents).map(|text| text.ids.len()).sum();
    let loss = group.sum_number(loss, device)?;
    Ok(BatchLoss { loss, gradients, texts: 2 * pairs, tokens })
}

/// The tokens of a text that are to be written: its own, and perhaps the closing EOS.
fn target(text: &Tokens, tokenizer: &Tokenizer, eos: bool) -> Vec<u32> {
    let mut tokens = text.ids[text.content.clone()].to_vec();
    if eos {
        tokens.extend(tokenizer.suffix());
    }
    tokens
}

/// Weighted sum of the token losses of one direction.
fn rewrite<B: Kernels>(
    train_model: &TrainModel<B>,
    tokenizer: &Tokenizer,
    direction: &Direction<'_>,
    device: &B::Device,
) -> Tensor<B, 1> {
    let backbone = train_model.backbone();
    let read = ModelInput::<B>::new(&tokenizer.pad(&direction.read), device);
    let mode = train_model.model.attention();
    let states = backbone.forward(&read, mode, ForwardOptions::default()).last;
    let state = last_tokens(states, &read);

    // [e; d_1 .. d_{m-1}] predicts d_1 .. d_m: e stands where the first embedding would.
    let targets = tokenizer.pad_right(&direction.write);
    let [batch, seq] = [targets.rows(), targets.seq()];
    if seq == 0 {
        return Tensor::zeros([1], device);
    }
    let input = ModelInput::<B>::new(&targets, device);
    let embedded = backbone.embed_tokens(&input);
    let x = match seq {
        1 => state,
        _ => Tensor::cat(vec![state, embedded.narrow(1, 0, seq - 1)], 1),
    };
    let states = backbone
        .forward_embeddings(x, &input, AttentionMode::Causal, ForwardOptions::default())
        .last;
    let [_, _, hidden] = states.dims();
    let logits = train_model.logits(states.reshape([batch * seq, hidden]));
    let [_, vocab] = logits.dims();
    let logits = logits.reshape([batch, seq, vocab]).cast(FloatDType::F32);
    let ids: Vec<i32> = targets.ids().iter().map(|&id| id as i32).collect();
    let ids = Tensor::<B, 2, Int>::from_data(TensorData::new(ids, [batch, seq]), device);
    let counts: Tensor<B, 2, Bool> = input.attention_mask;
    token_cross_entropy(logits, ids, counts).mul_scalar(direction.weight)
}

/// States `[batch, 1, hidden]` of each row's last token.
fn last_tokens<B: Kernels>(states: Tensor<B, 3>, input: &ModelInput<B>) -> Tensor<B, 3> {
    let [batch, _, hidden] = states.dims();
    // Positions count from 0 and padding is 0, so the greatest position is the last token's; with
    // left padding it stands in the last column, which argmax finds too.
    let last = input.positions.clone().argmax(1).reshape([batch, 1, 1]).expand([batch, 1, hidden]);
    states.gather(1, last)
}
