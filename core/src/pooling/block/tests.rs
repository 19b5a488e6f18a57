use burn::backend::{Autodiff, Flex};
use burn::module::AutodiffModule as _;
use burn::tensor::backend::Backend as _;
use burn::tensor::{Distribution, Tensor, TensorData};

use super::super::tests::{assert_close, values};
use super::*;

type B = Flex;
type A = Autodiff<Flex>;

const WIDTH: usize = 16;

/// A block with wide heads, whose products are worth folding, and latents for it.
fn wide_heads(latents: usize) -> (CrossAttention<A>, Tensor<A, 3>) {
    let device = Default::default();
    A::seed(&device, 8);
    let config = BlockConfig { latents, heads: 2, head_dim: Some(64), ..Default::default() };
    let attention = CrossAttention::new(&config, WIDTH, WIDTH, WIDTH, &device);
    let latents = Tensor::random([1, latents, WIDTH], Distribution::Normal(0.0, 1.0), &device);
    (attention, latents.require_grad())
}

type Attended = (Tensor<A, 3>, Tensor<A, 4>);

/// Both ways to attend have the same outputs, weights and gradients.
fn assert_same(
    attention: &CrossAttention<A>,
    inputs: [&Tensor<A, 3>; 2],
    ways: [&dyn Fn() -> Attended; 2],
) {
    let [one, other] = ways.map(|way| {
        let (out, weights) = way();
        let loss = out.clone().powi_scalar(3).sum() + weights.clone().powi_scalar(2).sum();
        let gradients = loss.backward();
        let mut found = vec![values(out), values(weights)];
        found.extend(inputs.map(|input| values(input.grad(&gradients).unwrap())));
        let mut of_parameters = Gradients(&gradients, Vec::new());
        burn::module::Module::visit(attention, &mut of_parameters);
        found.extend(of_parameters.1);
        found
    });
    for (one, other) in one.iter().zip(&other) {
        assert_eq!(one.len(), other.len());
        let largest = other.iter().fold(0f32, |most, value| most.max(value.abs()));
        assert!(largest > 0.0);
        for (one, other) in one.iter().zip(other) {
            assert!((one - other).abs() < 1e-5 * largest, "{one} {other} of {largest}");
        }
    }
}

struct Gradients<'a>(&'a <A as burn::tensor::backend::AutodiffBackend>::Gradients, Vec<Vec<f32>>);

impl burn::module::ModuleVisitor<A> for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<A, D>>) {
        self.1.push(values(param.val().grad(self.0).unwrap()));
    }
}

#[test]
fn latents_as_keys_fold_into_the_projections() {
    let (attention, latents) = wide_heads(3);
    let x = Tensor::random([4, 9, WIDTH], Distribution::Normal(0.0, 1.0), &Default::default());
    let x: Tensor<A, 3> = x.require_grad();
    assert_same(
        &attention,
        [&x, &latents],
        [&|| attention.over_latents(x.clone(), latents.clone()), &|| {
            attention.forward(x.clone(), latents.clone(), None)
        }],
    );
}

#[test]
fn latents_as_queries_are_computed_once() {
    // Few keys fold into the output, many do not.
    for (queries, keys) in [(12, 3), (3, 12)] {
        let (attention, latents) = wide_heads(queries);
        let device = Default::default();
        let context = Tensor::random([4, keys, WIDTH], Distribution::Normal(0.0, 1.0), &device);
        let context: Tensor<A, 3> = context.require_grad();
        let hidden: Vec<bool> = (0..4 * keys).map(|i| i % keys > i / keys).collect();
        let hidden = Tensor::from_data(TensorData::new(hidden, [4, keys]), &device);
        let expanded = || latents.clone().expand([4, queries, WIDTH]);
        assert_same(
            &attention,
            [&context, &latents],
            [
                &|| {
                    let hidden = Some(hidden.clone());
                    let queries = attention.queries(latents.clone());
                    attention.of_latents(latents.clone(), queries, context.clone(), hidden, false)
                },
                &|| attention.forward(expanded(), context.clone(), Some(hidden.clone())),
            ],
        );
    }
}

/// In inference a text's numbers are the same bits in every batch.
#[test]
fn latents_over_layers_do_not_depend_on_the_batch() {
    let (attention, latents) = wide_heads(12);
    let (attention, latents) = (attention.valid(), latents.inner());
    let context =
        Tensor::random([4, 3, WIDTH], Distribution::Normal(0.0, 1.0), &Default::default());
    let queries = attention.queries(latents.clone());
    let of =
        |context| attention.of_latents(latents.clone(), queries.clone(), context, None, true).0;
    let together = values(of(context.clone()));
    let alone = (0..4).flat_map(|row| values(of(context.clone().narrow(0, row, 1))));
    assert_eq!(together, alone.collect::<Vec<_>>());
    // The bits of another order of sums, so the numbers that are folded.
    let direct = latents.clone().expand([4, 12, WIDTH]);
    let (direct, _) = attention.forward(direct, context, None);
    assert_ne!(together, values(direct.clone()));
    assert_close(&together, &values(direct));
}

/// Nor on how many texts are attended to at once.
#[test]
fn texts_attend_a_few_at_a_time() {
    let (attention, latents) = wide_heads(3);
    let (attention, latents) = (attention.valid(), latents.inner());
    let device = Default::default();
    let x: Tensor<B, 3> = Tensor::random([5, 4, WIDTH], Distribution::Normal(0.0, 1.0), &device);
    let hidden: Vec<bool> = (0..20).map(|i| i % 4 > i / 4).collect();
    let hidden = Tensor::<B, 2, Bool>::from_data(TensorData::new(hidden, [5, 4]), &device);
    let over = |at_once| {
        let (shared, weights) = attention.forward_by(at_once, x.clone(), latents.clone(), None);
        let (own, own_weights) =
            attention.forward_by(at_once, x.clone(), x.clone(), Some(hidden.clone()));
        [values(shared), values(weights), values(own), values(own_weights)]
    };
    let all = over(5);
    for at_once in [1, 2, 9] {
        assert_eq!(over(at_once), all);
    }
}

/// Nor on how many latents pool at once.
#[test]
fn latents_pool_a_few_texts_at_a_time() {
    let device = Default::default();
    B::seed(&device, 9);
    for (layers, head_dim) in [(None, 8), (Some(4), 64)] {
        let config =
            BlockConfig { latents: 6, heads: 2, head_dim: Some(head_dim), ..Default::default() };
        let block = PoolingBlock::<B>::trainable(&config, WIDTH, layers, &device);
        let context = Tensor::random([5, 4, WIDTH], Distribution::Normal(0.0, 1.0), &device);
        let hidden: Vec<bool> = (0..20).map(|i| i % 4 > i / 4).collect();
        let hidden = Tensor::from_data(TensorData::new(hidden, [5, 4]), &device);
        let by = |at_once| {
            let (latents, hidden) = (block.latent_batch().unwrap(), Some(hidden.clone()));
            let fixed = layers.is_some();
            let (pooled, weights) =
                block.pool_latents_by(at_once, latents, context.clone(), hidden, fixed);
            [values(pooled), values(weights)]
        };
        let all = by(5);
        for at_once in [1, 2, 9] {
            assert_eq!(by(at_once), all);
        }
    }
}
