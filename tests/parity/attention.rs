//! Texts longer than what is held at once take the backend's fused attention: same result.

use burn::module::{Module as _, ModuleMapper, Param};
use burn::tensor::{Bool, Distribution, Tensor, TensorData};
use kiln_embed::config::ModelConfig;
use kiln_embed::kernels::Kernels;
use kiln_embed::kernels::{scaled_dot_product, weighted_scaled_dot_product};
use kiln_embed::model::{Backbone, ModelInput};
use kiln_embed::tokenizer::TokenBatch;
use kiln_tests::{allowed, fixture, relative_error};
use train_native::device::Cpu;

use super::kernels::drawn;

fn fused_equals_plain<B: Kernels>(device: B::Device) {
    let (batch, heads, seq, dim) = (2, 2, 530, 8);
    B::seed(&device, 2);
    let random = || {
        Tensor::<B, 4>::random([batch, heads, seq, dim], Distribution::Normal(0.0, 1.0), &device)
    };
    let (query, key, value) = (random(), random(), random());
    // The last 30 keys are padding.
    let padding =
        Tensor::<B, 1, burn::tensor::Int>::arange(0..seq as i64, &device).greater_equal_elem(500);
    let padding: Tensor<B, 4, Bool> = padding.reshape([1, 1, 1, seq]).expand([batch, 1, seq, seq]);
    for mask in [None, Some(&padding)] {
        let (query, key, value) = (query.clone(), key.clone(), value.clone());
        let fused = scaled_dot_product(query.clone(), key.clone(), value.clone(), mask, None);
        let (plain, weights) = weighted_scaled_dot_product(query, key, value, mask, None);
        assert_eq!(weights.dims(), [batch, heads, seq, seq]);
        let [fused, plain] = [fused, plain].map(|x| x.into_data().to_vec::<f32>().unwrap());
        let error = relative_error(&fused, &plain, dim, &vec![true; batch * heads * seq]);
        assert!(error < allowed::<B>(&device, 2e-5), "masked {}: {error:e}", mask.is_some());
    }
}

/// Gives every parameter numbers that look drawn, the same on all devices.
struct Drawn(u32);
impl<B: Kernels> ModuleMapper<B> for Drawn {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        self.0 += 1;
        param.map(|tensor| {
            let shape = tensor.shape();
            let values: Vec<f32> =
                drawn(shape.num_elements(), self.0).into_iter().map(|value| value * 0.5).collect();
            Tensor::from_data(TensorData::new(values, shape), &tensor.device())
        })
    }
}

/// Last states of a model of drawn parameters; those of the version that holds the weights of attention are `plain`.
fn states_of_drawn<B: Kernels>(
    config: &ModelConfig,
    tokens: &TokenBatch,
    plain: bool,
    device: &B::Device,
) -> Vec<f32> {
    let backbone = Backbone::<B>::zeros(config, device).map(&mut Drawn(0));
    let input = ModelInput::<B>::new(tokens, device);
    let mut x = backbone.embed_tokens(&input);
    let shared = backbone.prepare(&input, config.attention, &x);
    for block in 0..backbone.layers() {
        x = backbone.layer(block, x, &shared, plain).0;
    }
    backbone.finish(x).into_data().to_vec().unwrap()
}

/// Of more than 512 tokens a GPU holds no scores, though something is added to them.
fn long_texts_of_biased_encoders<B: Kernels>(device: B::Device) {
    let seq = 530;
    for name in ["mpnet", "jina-bert"] {
        let folder = fixture("families").join(name);
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config["max_position_embeddings"] = 600.into();
        let config = ModelConfig::from_json(config.to_string().as_bytes()).unwrap();
        for lengths in [vec![seq], vec![521, seq]] {
            let attention: Vec<bool> =
                lengths.iter().flat_map(|&length| (0..seq).map(move |i| i < length)).collect();
            let ids = (0..attention.len()).map(|i| (i * 37 % 43) as u32 + 4).collect();
            let tokens = TokenBatch::new(ids, attention.clone(), attention.clone(), seq).unwrap();
            let expected = states_of_drawn::<Cpu>(&config, &tokens, true, &Default::default());
            let found = states_of_drawn::<B>(&config, &tokens, false, &device);
            let error = relative_error(&found, &expected, config.output_size(), &attention);
            let tolerance = allowed::<B>(&device, 2e-5);
            assert!(error < tolerance, "{name} {lengths:?}: {error:e}");
        }
    }
}

kiln_tests::on_every_device!(fused_equals_plain, long_texts_of_biased_encoders);
