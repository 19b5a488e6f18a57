//! Texts longer than what is held at once take the backend's fused attention: same result.

use burn::tensor::{Bool, Distribution, Tensor};
use kiln_embed::kernels::Kernels;
use kiln_embed::kernels::{scaled_dot_product, weighted_scaled_dot_product};
use kiln_tests::{allowed, relative_error};

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

kiln_tests::on_every_device!(fused_equals_plain);
