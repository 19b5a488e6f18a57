//! Norms in every place of a block, and a bias of scores that learns.

use burn::tensor::{Tensor, TensorData, activation};
use kiln_embed::config::Activation;
use kiln_embed::kernels::{Block, Branch, Heads, Kernels, MatmulPrecision, Norm, Projection, Seen};

use super::{B, assert_close};

/// Norms in every place, in both kinds, of which no family has all, and a bias of scores that learns: against the same in
/// Burn's operations.
#[test]
fn norms_inside_and_around_a_branch_have_their_gradients() {
    norms_have_their_gradients(5);
}

/// Of more tokens than a tile of queries and a core's part of rows.
#[test]
fn norms_around_texts_of_several_tiles_have_their_gradients() {
    norms_have_their_gradients(150);
}

fn norms_have_their_gradients(seq: usize) {
    let device = Default::default();
    let (batch, hidden, inner) = (2, 8, 12);
    let heads = Heads { queries: 2, keys: 1, width: 4 };
    let drawn = |count: usize, seed: f32| -> Vec<f32> {
        (0..count).map(|i| 0.4 * (i as f32 * 0.731 + seed).sin()).collect()
    };
    let matrix = |rows: usize, columns: usize, seed: f32| {
        let data = TensorData::new(drawn(rows * columns, seed), [rows, columns]);
        Tensor::<B, 2>::from_data(data, &device).require_grad()
    };
    let vector = |seed: f32| {
        let data = TensorData::new(drawn(hidden, seed), [hidden]);
        (Tensor::<B, 1>::from_data(data, &device) + 1.0).detach().require_grad()
    };
    let weights = [
        matrix(hidden, heads.row(), 1.0),
        matrix(heads.queries * heads.width, hidden, 2.0),
        matrix(hidden, inner, 3.0),
        matrix(inner, hidden, 4.0),
    ];
    let gammas: Vec<_> = (0..6).map(|i| vector(5.0 + i as f32)).collect();
    let betas: Vec<_> = (0..6).map(|i| vector(15.0 + i as f32)).collect();
    let data = TensorData::new(drawn(batch * seq * hidden, 30.0), [batch, seq, hidden]);
    let x = Tensor::<B, 3>::from_data(data, &device).require_grad();
    // Layer norms in the even places, RMS norms in the odd ones.
    let normed = |x: Tensor<B, 3>, place: usize| {
        let centred = match place % 2 {
            0 => x.clone() - x.clone().mean_dim(2),
            _ => x,
        };
        let scale = (centred.clone().powf_scalar(2.0).mean_dim(2) + 1e-5).sqrt();
        let y = centred / scale * gammas[place].clone().reshape([1, 1, hidden]);
        if place.is_multiple_of(2) { y + betas[place].clone().reshape([1, 1, hidden]) } else { y }
    };
    let linear = |x: Tensor<B, 3>, weight: &Tensor<B, 2>| {
        let [inputs, outputs] = weight.dims();
        x.reshape([batch * seq, inputs]).matmul(weight.clone()).reshape([batch, seq, outputs])
    };
    let rows = vec![0..seq; batch];
    let bias = matrix(heads.queries, 2 * seq - 1, 50.0);
    let seen = Seen { rows: &rows, angles: None, mask: None, bias: Some(&bias), unread: false };
    let attended = |x| {
        let context = B::self_attention(linear(x, &weights[0]), heads, seen);
        linear(context, &weights[1])
    };
    let plain = normed(x.clone() + normed(attended(normed(x.clone(), 0)), 1), 2);
    let fed = |x| linear(activation::silu(linear(x, &weights[2])), &weights[3]);
    let plain = normed(plain.clone() + normed(fed(normed(plain, 3)), 4), 5);

    let norm = |place: usize| {
        Some(Norm {
            gamma: gammas[place].clone().into_primitive().tensor(),
            beta: place.is_multiple_of(2).then(|| betas[place].clone().into_primitive().tensor()),
            centred: place.is_multiple_of(2),
            epsilon: 1e-5,
        })
    };
    let projection = |weight: &Tensor<B, 2>| Projection {
        weight: weight.clone().into_primitive().tensor(),
        matrix: None,
        packed: None,
        bias: None,
        adapters: Vec::new(),
        prepared: Default::default(),
    };
    let block = Block {
        heads,
        activation: Activation::Silu,
        precision: MatmulPrecision::F32,
        attention: Branch { before: norm(0), inside: norm(1), after: norm(2) },
        head_norms: Vec::new(),
        score_bias: Some(bias.clone().into_primitive().tensor()),
        qkv: projection(&weights[0]),
        output: projection(&weights[1]),
        feed_forward: Branch { before: norm(3), inside: norm(4), after: norm(5) },
        gate: None,
        joined: false,
        up: projection(&weights[2]),
        down: projection(&weights[3]),
    };
    let whole = B::block(&x, block, seen).unwrap();
    let results = [plain, whole].map(|y| {
        let factors = drawn(batch * seq * hidden, 40.0);
        let factors = Tensor::<B, 3>::from_data(TensorData::new(factors, y.dims()), &device);
        let grads = (y.clone() * factors).sum().backward();
        let read = |name: &str, values: TensorData| (name.to_string(), values.to_vec().unwrap());
        let mut result = vec![read("states", y.into_data())];
        result.push(read("input", x.grad(&grads).unwrap().into_data()));
        result.push(read("score bias", bias.grad(&grads).unwrap().into_data()));
        for (i, weight) in weights.iter().enumerate() {
            result.push(read(&format!("weight {i}"), weight.grad(&grads).unwrap().into_data()));
        }
        for (place, gamma) in gammas.iter().enumerate() {
            result.push(read(&format!("gamma {place}"), gamma.grad(&grads).unwrap().into_data()));
        }
        for place in [0, 2, 4] {
            let grad = betas[place].grad(&grads).unwrap();
            result.push(read(&format!("beta {place}"), grad.into_data()));
        }
        result
    });
    assert_close(&results[0], &results[1], 1e-5, &format!("norms in every place, {seq} tokens"));
}
