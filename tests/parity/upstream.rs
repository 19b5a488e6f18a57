//! Shapes that were wrong in some Burn release, on every device.

use burn::tensor::{Tensor, TensorData};
use kiln_embed::kernels::Kernels;
use kiln_tests::{allowed, relative_error};

/// `[N, K] x [K, 1]` with fused element-wise work around it (burn 5122): the shape of a score.
fn a_column_product<B: Kernels>(device: B::Device) {
    let (n, k) = (37, 24);
    let value = |i: usize| ((i * 7919) % 101) as f32 / 50.0 - 1.0;
    let a: Vec<f32> = (0..n * k).map(value).collect();
    let b: Vec<f32> = (0..k).map(|i| value(i + 5)).collect();
    let expected: Vec<f32> = a
        .chunks(k)
        .map(|row| row.iter().zip(&b).map(|(x, y)| (2.0 * x + 0.5) * y).sum::<f32>().tanh())
        .collect();
    let a = Tensor::<B, 2>::from_data(TensorData::new(a, [n, k]), &device);
    let b = Tensor::<B, 2>::from_data(TensorData::new(b, [k, 1]), &device);
    let found: Vec<f32> = (a * 2.0 + 0.5).matmul(b).tanh().into_data().to_vec().unwrap();
    let error = relative_error(&found, &expected, 1, &vec![true; n]);
    assert!(error < allowed::<B>(&device, 1e-5), "{error:e}");
}

kiln_tests::on_every_device!(a_column_product);
