//! Every pooling head against sentence-transformers or an independent PyTorch version.

use burn::backend::Autodiff;
use burn::module::AutodiffModule as _;
use burn::tensor::{Tensor, TensorData};
use kiln_embed::checkpoint::{Directory, Weights, load_pooling};
use kiln_embed::config::{AttentionMode, ModelConfig};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::{ModelInput, States};
use kiln_embed::pooling::{AnchorScore, BlockConfig, FeedForwardKind, Pooling, PoolingConfig};
use kiln_embed::tokenizer::TokenBatch;
use kiln_tests::{Tensors, allowed, fixture, relative_error};

const TOLERANCE: f32 = 2e-5;

fn model() -> ModelConfig {
    ModelConfig::from_value(&serde_json::json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 3,
        "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16,
    }))
    .unwrap()
}

/// A head, with its weights where the fixture has some.
fn head<B: Kernels>(
    config: &PoolingConfig,
    folder: Option<&str>,
    device: &B::Device,
) -> Pooling<B> {
    match folder {
        Some(folder) => {
            let directory = Directory::new(fixture(&format!("pooling/{folder}"))).unwrap();
            let mut weights = Weights::open(&directory, "model").unwrap();
            load_pooling(config, &model(), &mut weights, device).unwrap()
        }
        None => Pooling::new(config, &model(), device),
    }
}

fn compare<B: Kernels>(
    config: &PoolingConfig,
    name: &str,
    folder: Option<&str>,
    mode: AttentionMode,
    device: &B::Device,
) {
    let mut inputs = Tensors::open("pooling", "inputs");
    let mut expected = Tensors::open("pooling", "expected");
    let head = head::<B>(config, folder, device);
    let tensor3 = |(shape, values): (Vec<usize>, Vec<f32>)| {
        Tensor::<B, 3>::from_data(TensorData::new(values, shape), device)
    };
    let layers: Vec<_> =
        (0..4).map(|layer| tensor3(inputs.get(&format!("hidden.{layer}")))).collect();
    for side in ["right", "left"] {
        let (shape, mask) = inputs.ints(&format!("{side}.mask"));
        let pooled = if *config == PoolingConfig::WeightedMean { "mask" } else { "pooled" };
        let (_, pooled) = inputs.ints(&format!("{side}.{pooled}"));
        let attention = mask.iter().map(|&m| m == 1).collect();
        let pooled = pooled.iter().map(|&m| m == 1).collect();
        let tokens = TokenBatch::new(vec![0; mask.len()], attention, pooled, shape[1]).unwrap();
        let input = ModelInput::<B>::new(&tokens, device);
        let (shape, values) = inputs.get(&format!("{side}.attention"));
        let states = States {
            last: layers[3].clone(),
            layers: layers.clone(),
            attention: Some(Tensor::from_data(TensorData::new(values, shape), device)),
        };
        let (vectors, _) = head.forward(&states, &input, mode).unwrap();
        let (shape, reference) = expected.get(&format!("{side}.{name}"));
        assert_eq!(vectors.dims().to_vec(), shape);
        let found: Vec<f32> = vectors.into_data().to_vec().unwrap();
        let error = relative_error(&found, &reference, shape[1], &vec![true; shape[0]]);
        assert!(error < allowed::<B>(device, TOLERANCE), "{name} {side}: {error:e}");
        eprintln!("PARITY {name} {side}: {error:.1e}");
    }
}

fn without_parameters<B: Kernels>(device: B::Device) {
    let mode = AttentionMode::Causal;
    let heads = [
        PoolingConfig::Cls,
        PoolingConfig::Mean,
        PoolingConfig::LastToken,
        PoolingConfig::WeightedMean,
    ];
    for config in heads {
        compare::<B>(&config, config.name(), None, mode, &device);
    }
    for (score, name) in
        [(AnchorScore::Log1p, "anchor.log1p"), (AnchorScore::Linear, "anchor.linear")]
    {
        compare::<B>(&PoolingConfig::Anchor { score }, name, None, mode, &device);
    }
}

fn attending<B: Kernels>(device: B::Device) {
    use AttentionMode::{Bidirectional, Causal};
    for (feed_forward, kind) in [(FeedForwardKind::Geglu, "geglu"), (FeedForwardKind::Gelu, "gelu")]
    {
        let block = |latent_size| BlockConfig {
            latents: 6,
            latent_size,
            heads: 2,
            head_dim: Some(5),
            feed_forward,
            ..BlockConfig::default()
        };
        let test = |config: PoolingConfig, ending: &str, mode| {
            let folder = format!("{}.{kind}", config.name());
            compare::<B>(&config, &format!("{folder}{ending}"), Some(&folder), mode, &device);
        };
        test(PoolingConfig::SelfAttention(block(None)), "", Causal);
        if !B::HOST && feed_forward == FeedForwardKind::Gelu {
            // The other heads share its feed-forward; every new shape takes a GPU some seconds.
            continue;
        }
        test(PoolingConfig::LatentAttention(block(None)), "", Causal);
        test(PoolingConfig::LastLayerTrainable(block(Some(12))), "", Causal);
        test(PoolingConfig::MultiLayerTrainable(block(Some(12))), ".causal", Causal);
        test(PoolingConfig::MultiLayerTrainable(block(Some(12))), ".bidirectional", Bidirectional);
    }
}

/// In training wide heads fold into the projections around them.
fn folded<B: Kernels>(device: B::Device) {
    let block =
        |latents| BlockConfig { latents, heads: 2, head_dim: Some(64), ..BlockConfig::default() };
    let mut inputs = Tensors::open("pooling", "inputs");
    let (shape, values) = inputs.get("hidden.3");
    let states = TensorData::new(values, shape);
    let (shape, mask) = inputs.ints("right.mask");
    let mask: Vec<bool> = mask.iter().map(|&m| m == 1).collect();
    let (rows, length) = (mask.len(), shape[1]);
    let tokens = TokenBatch::new(vec![0; rows], mask.clone(), mask, length).unwrap();
    let (few, many) = (3, length);
    assert!(block(few).folds(rows, few, 16, 16) && block(many).folds(many, length, 16, 16));
    for config in
        [PoolingConfig::LatentAttention(block(few)), PoolingConfig::LastLayerTrainable(block(many))]
    {
        let head = Pooling::<B>::new(&config, &model(), &device);
        let direct = vectors(&head, &states, &tokens, &device);
        let trains = Pooling::<Autodiff<B>>::from_inner(head);
        let training = vectors(&trains, &states, &tokens, &device);
        let error = relative_error(&training, &direct, 16, &vec![true; direct.len() / 16]);
        assert!(error < allowed::<B>(&device, TOLERANCE), "{}: {error:e}", config.name());
    }
}

/// What a head makes of last states.
fn vectors<B: Kernels>(
    head: &Pooling<B>,
    states: &TensorData,
    tokens: &TokenBatch,
    device: &B::Device,
) -> Vec<f32> {
    let last = Tensor::<B, 3>::from_data(states.clone(), device);
    let states = States { last, layers: Vec::new(), attention: None };
    let input = ModelInput::<B>::new(tokens, device);
    let (vectors, _) = head.forward(&states, &input, AttentionMode::Bidirectional).unwrap();
    vectors.into_data().to_vec().unwrap()
}

kiln_tests::on_every_device!(without_parameters, attending, folded);
