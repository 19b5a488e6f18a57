use burn::backend::Flex;
use burn::tensor::backend::Backend as _;
use burn::tensor::{Distribution, Tensor, TensorData};

use super::*;
use crate::config::ModelConfig;
use crate::tokenizer::TokenBatch;

type B = Flex;

fn model() -> ModelConfig {
    ModelConfig::from_value(&serde_json::json!({
        "model_type": "llama", "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32,
    }))
    .unwrap()
}

/// Two rows of 5 positions: row 0 has 5 tokens, row 1 three and padding on the given side.
fn batch(left: bool) -> TokenBatch {
    let row1 =
        if left { [false, false, true, true, true] } else { [true, true, true, false, false] };
    let attention: Vec<bool> = [[true; 5], row1].concat();
    TokenBatch {
        ids: vec![1; 10],
        pooling: attention.clone(),
        attention,
        types: Vec::new(),
        batch: 2,
        seq: 5,
    }
}

fn states(device: &burn::tensor::Device<B>) -> States<B> {
    B::seed(device, 6);
    let random = || Tensor::random([2, 5, 16], Distribution::Normal(0.0, 1.0), device);
    let last: Tensor<B, 3> = random();
    States { layers: vec![random(), random(), random(), last.clone()], last, attention: None }
}

pub(super) fn values<T: burn::tensor::backend::Backend, const D: usize>(
    x: Tensor<T, D>,
) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

pub(super) fn assert_close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

fn every_head() -> Vec<PoolingConfig> {
    let block = BlockConfig { latents: 6, latent_size: None, heads: 2, ..Default::default() };
    vec![
        PoolingConfig::Cls,
        PoolingConfig::LastToken,
        PoolingConfig::Mean,
        PoolingConfig::WeightedMean,
        PoolingConfig::Anchor { score: AnchorScore::Log1p },
        PoolingConfig::SelfAttention(block.clone()),
        PoolingConfig::LatentAttention(block.clone()),
        PoolingConfig::LastLayerTrainable(block.clone()),
        PoolingConfig::MultiLayerTrainable(BlockConfig { latent_size: Some(12), ..block }),
    ]
}

/// Uniform attention over the valid tokens of each row.
fn uniform(tokens: &TokenBatch, device: &burn::tensor::Device<B>) -> Tensor<B, 4> {
    let mut values = Vec::new();
    for row in tokens.attention.chunks(5) {
        let valid = row.iter().filter(|&&token| token).count() as f32;
        for _ in 0..3 * 5 {
            values.extend(row.iter().map(|&token| if token { 1.0 / valid } else { 0.0 }));
        }
    }
    Tensor::from_data(TensorData::new(values, [2, 3, 5, 5]), device)
}

#[test]
fn uniform_attention_makes_anchor_pooling_the_mean() {
    let device = Default::default();
    for left in [false, true] {
        let tokens = batch(left);
        let input = ModelInput::new(&tokens, &device);
        let mut states = states(&device);
        states.attention = Some(uniform(&tokens, &device));
        let pool = |config: PoolingConfig| {
            let head = Pooling::<B>::new(&config, &model(), &device);
            values(head.forward(&states, &input, AttentionMode::Causal).unwrap().0)
        };
        let mean = pool(PoolingConfig::Mean);
        for score in AnchorScore::ALL {
            assert_close(&pool(PoolingConfig::Anchor { score }), &mean);
        }
    }
}

#[test]
fn anchors_draw_weight() {
    let device = Default::default();
    let tokens = batch(false);
    let input = ModelInput::<B>::new(&tokens, &device);
    // Every query of row 0 looks at token 2 only.
    let mut attention = vec![0.0; 2 * 3 * 5 * 5];
    for line in attention.chunks_mut(5) {
        line[2] = 1.0;
    }
    let attention = Tensor::from_data(TensorData::new(attention, [2, 3, 5, 5]), &device);
    for score in AnchorScore::ALL {
        let weights = values(anchor_weights(&attention, &input, score));
        assert_close(&weights[..5], &[0.0, 0.0, 1.0, 0.0, 0.0]);
    }
}

/// One head over two tokens, causal: row 0 sees itself, row 1 both.
#[test]
fn anchor_scores_by_hand() {
    let device = Default::default();
    let tokens = TokenBatch::new(vec![1, 2], vec![true; 2], vec![true; 2], 2).unwrap();
    let input = ModelInput::<B>::new(&tokens, &device);
    let attention = Tensor::from_data([[[[1.0, 0.0], [0.36, 0.64]]]], &device);
    let share = |a: f32, b: f32| [a / (a + b), b / (a + b)];
    for (score, expected) in [
        (AnchorScore::Log1p, share(3f32.ln() + 1.72f32.ln(), 2.28f32.ln())),
        (AnchorScore::Linear, share(1.36, 0.64)),
        (AnchorScore::Square, share(1.36 * 1.36, 0.64 * 0.64)),
        (AnchorScore::ColumnProduct, share(0.6, 0.64)),
    ] {
        assert_close(&values(anchor_weights(&attention, &input, score)), &expected);
    }
}

#[test]
fn first_and_last_token_follow_the_masks() {
    let device = Default::default();
    let states = states(&device);
    let row = |x: &Tensor<B, 3>, row: usize, i: usize| {
        values(x.clone().narrow(0, row, 1).narrow(1, i, 1))
    };
    for (left, first, last) in [(false, 0, 2), (true, 2, 4)] {
        let mut tokens = batch(left);
        let input = ModelInput::new(&tokens, &device);
        let pool = |config: PoolingConfig, input: &ModelInput<B>| {
            let head = Pooling::<B>::new(&config, &model(), &device);
            values(head.forward(&states, input, AttentionMode::Causal).unwrap().0)
        };
        assert_close(&pool(PoolingConfig::Cls, &input)[16..], &row(&states.last, 1, first));
        assert_close(&pool(PoolingConfig::LastToken, &input)[16..], &row(&states.last, 1, last));
        // An instruction of one token in row 0 is left out of pooling.
        tokens.pooling[0] = false;
        let input = ModelInput::new(&tokens, &device);
        assert_close(&pool(PoolingConfig::Cls, &input)[..16], &row(&states.last, 0, 1));
    }
}

#[test]
fn explanations_sum_to_one_and_padding_gets_nothing() {
    let device = Default::default();
    for left in [false, true] {
        let tokens = batch(left);
        let input = ModelInput::new(&tokens, &device);
        let mut states = states(&device);
        states.attention = Some(uniform(&tokens, &device));
        for config in every_head() {
            let head = Pooling::<B>::new(&config, &model(), &device);
            let (pooled, why) =
                head.forward(&states, &input, AttentionMode::Bidirectional).unwrap();
            assert_eq!(pooled.dims(), [2, config.output_size(16)], "{}", config.name());
            for (weights, valid) in [(why.tokens, true), (why.layers, false)] {
                let Some(weights) = weights else { continue };
                let width = weights.dims()[1];
                let weights = values(weights);
                for row in weights.chunks(width) {
                    assert!(
                        (row.iter().sum::<f32>() - 1.0).abs() < 1e-5,
                        "{} {row:?}",
                        config.name()
                    );
                }
                if valid {
                    for (weight, token) in weights.iter().zip(&tokens.attention) {
                        assert!(*token || weight.abs() < 1e-6, "{} {weights:?}", config.name());
                    }
                }
            }
        }
    }
}

#[test]
fn padding_changes_no_head() {
    let device = Default::default();
    let whole = states(&device);
    let short = |x: &Tensor<B, 3>| x.clone().narrow(0, 1, 1).narrow(1, 0, 3);
    let alone = States {
        last: short(&whole.last),
        layers: whole.layers.iter().map(short).collect(),
        attention: Some(Tensor::ones([1, 3, 3, 3], &device) / 3.0),
    };
    let tokens = batch(false);
    let unpadded = TokenBatch {
        ids: vec![1; 3],
        attention: vec![true; 3],
        pooling: vec![true; 3],
        types: Vec::new(),
        batch: 1,
        seq: 3,
    };
    let mut whole = whole;
    whole.attention = Some(uniform(&tokens, &device));
    for config in every_head() {
        let head = Pooling::<B>::new(&config, &model(), &device);
        let pool = |states: &States<B>, tokens: &TokenBatch| {
            let input = ModelInput::new(tokens, &device);
            values(head.forward(states, &input, AttentionMode::Causal).unwrap().0)
        };
        let size = config.output_size(16);
        assert_close(&pool(&whole, &tokens)[size..], &pool(&alone, &unpadded));
    }
}

#[test]
fn truncation_and_normalisation() {
    let device = Default::default();
    let x = Tensor::<B, 2>::from_data([[3.0, 4.0, 12.0]], &device);
    assert_close(&values(l2_normalize(truncate(x.clone(), 2).unwrap())), &[0.6, 0.8]);
    assert!(truncate(x.clone(), 0).is_err());
    assert!(truncate(x, 4).is_err());
    assert_close(&values(l2_normalize(Tensor::<B, 2>::zeros([1, 3], &device))), &[0.0; 3]);
}
