//! A feed-forward of which each token takes a few parts: [`Experts`] (sparsely gated mixture of experts,
//! arXiv:1701.06538), as nomic-embed-text-v2-moe has them (arXiv:2502.07972).

use std::ops::Range;

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, IndexingUpdateOp, Int, Tensor, TensorData, backend::Backend};

use super::feed_forward::FeedForward;
use super::linear::Linear;
use crate::config::{Activation, Gate, MixtureOfExperts};
use crate::kernels::Kernels;

/// The feed-forward of a block.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "most blocks have the larger one")]
pub enum BlockFeedForward<B: Backend> {
    /// One for all tokens.
    One(FeedForward<B>),
    /// A few of several for each token.
    Experts(Experts<B>),
}

/// `b + sum over the k experts e with the greatest p_e(x) of p_e(x) E_e(x)`, with `p(x) = softmax(x R)` over all
/// experts, which is not normed again over the k, and `E_e(x) = act(x U_e) D_e`: `NomicRouter` and
/// `NomicExperts` of nomic-ai's own classes, of vLLM and of text-embeddings-inference.
///
/// On the host a token is computed by its own experts alone, in training too. Elsewhere reading back which those are
/// would stop the device (and cannot be waited for in a page), so that all experts compute all tokens: `count / top_k`
/// times the work of these layers' feed-forwards.
#[derive(Module, Debug)]
pub struct Experts<B: Backend> {
    /// `R` `[hidden, experts]`. It stays in floating point, whatever the other weights become: a token whose experts
    /// are other ones is another token.
    pub router: Linear<B>,
    /// The experts, without biases.
    pub experts: Vec<FeedForward<B>>,
    /// `b` `[hidden]`.
    pub bias: Param<Tensor<B, 1>>,
    top_k: usize,
}

impl<B: Kernels> Experts<B> {
    /// `router` is what the family calls its projection.
    pub(super) fn new(
        [hidden, intermediate]: [usize; 2],
        experts: MixtureOfExperts,
        router: &str,
        activation: Activation,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let shape = [hidden, intermediate];
        let expert =
            |_| FeedForward::new(shape, Gate::None, [""; 3], [false; 2], activation, init, device);
        Self {
            router: Linear::new(hidden, &[(router, experts.count)], false, init, device),
            experts: (0..experts.count).map(expert).collect(),
            bias: Initializer::Zeros.init([hidden], device),
            top_k: experts.top_k,
        }
    }

    /// `[batch, seq, hidden]` to the same; `rows` are the extents of the texts' tokens. What comes out at padding is
    /// finite and meaningless.
    pub fn forward(&self, x: Tensor<B, 3>, rows: &[Range<usize>]) -> Tensor<B, 3> {
        let shape @ [batch, seq, hidden] = x.dims();
        let x = x.reshape([batch * seq, hidden]);
        let shares = self.shares(x.clone());
        let y = if B::HOST {
            let tokens = rows
                .iter()
                .enumerate()
                .flat_map(|(row, extent)| extent.clone().map(move |column| row * seq + column));
            self.by_expert(x, shares, tokens)
        } else {
            self.all(x, shares)
        };
        (y + self.bias.val().unsqueeze::<2>()).reshape(shape)
    }

    /// `p` `[tokens, experts]`, in f32 whatever the format of the states, as in the release.
    fn shares(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        softmax(self.router.forward_rows(x).cast(FloatDType::F32), 1)
    }

    /// Each expert on its own tokens, which are among `tokens`; zero at the others. A token's sum goes through its
    /// experts in their order, so that it does not depend on the other tokens.
    fn by_expert(
        &self,
        x: Tensor<B, 2>,
        shares: Tensor<B, 2>,
        tokens: impl Iterator<Item = usize>,
    ) -> Tensor<B, 2> {
        let device = x.device();
        let mut of_experts = self.tokens_of_experts(shares.clone(), tokens);
        // A parameter without a gradient would be passed over by optimizers and missing where processes share theirs:
        // in training, an expert that no token takes computes one, times zero.
        let trains = B::ad_enabled(&device) && x.dims()[0] > 0;
        let mut y = x.zeros_like();
        for (number, expert) in self.experts.iter().enumerate() {
            let mut own = std::mem::take(&mut of_experts[number]);
            let used = !own.is_empty();
            if !used {
                if !trains {
                    continue;
                }
                own.push(0);
            }
            let count = own.len();
            let own = Tensor::<B, 1, Int>::from_data(TensorData::new(own, [count]), &device);
            let mut share = shares.clone().select(0, own.clone()).narrow(1, number, 1);
            if !used {
                share = share.mul_scalar(0.0);
            }
            let inputs = x.clone().select(0, own.clone());
            let outputs = expert.forward_rows(inputs) * share.cast(x.dtype());
            y = y.select_assign(0, own, outputs, IndexingUpdateOp::Add);
        }
        y
    }

    /// The tokens that take each expert.
    fn tokens_of_experts(
        &self,
        shares: Tensor<B, 2>,
        tokens: impl Iterator<Item = usize>,
    ) -> Vec<Vec<i32>> {
        let count = self.experts.len();
        let mut of_experts = vec![Vec::new(); count];
        let shares: Vec<f32> = shares.into_data().iter::<f32>().collect();
        for token in tokens {
            let of_token = &shares[token * count..][..count];
            let mut taken = vec![false; count];
            for _ in 0..self.top_k {
                // Of equal shares the first.
                let left = (0..count).filter(|expert| !taken[*expert]);
                let next = left.reduce(|a, b| if of_token[b] > of_token[a] { b } else { a });
                if let Some(expert) = next {
                    taken[expert] = true;
                    of_experts[expert].push(token as i32);
                }
            }
        }
        of_experts
    }

    /// All experts on all tokens.
    fn all(&self, x: Tensor<B, 2>, shares: Tensor<B, 2>) -> Tensor<B, 2> {
        let taken = self.taken(shares.clone());
        let shares = shares.cast(x.dtype());
        let mut y = x.zeros_like();
        for (number, expert) in self.experts.iter().enumerate() {
            let taken = taken.clone().narrow(1, number, 1).cast(x.dtype());
            // Zeros go in for tokens that do not take it: whoever observes its inputs sees its tokens alone.
            let outputs = expert.forward_rows(x.clone() * taken);
            y = y + outputs * shares.clone().narrow(1, number, 1);
        }
        y
    }

    /// 1 where a token takes an expert, else 0 `[tokens, experts]`.
    fn taken(&self, shares: Tensor<B, 2>) -> Tensor<B, 2> {
        let shape @ [_, count] = shares.dims();
        let device = shares.device();
        let numbers = Tensor::<B, 1, Int>::arange(0..count as i64, &device).float();
        let numbers = numbers.cast(FloatDType::F32).reshape([1, count]).expand(shape);
        let mut left = shares.detach();
        let mut taken = left.zeros_like();
        for _ in 0..self.top_k {
            let first = left.clone().argmax(1).float().cast(FloatDType::F32).expand(shape);
            let one = numbers.clone().equal(first).float().cast(FloatDType::F32);
            // No share is above 1.
            left = left - one.clone().mul_scalar(2.0);
            taken = taken + one;
        }
        taken
    }

    /// The projections with their paths inside the block.
    fn projections_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        let router = [("feed_forward.router".to_string(), &mut self.router)];
        let experts = self.experts.iter_mut().enumerate().flat_map(|(number, expert)| {
            let path = format!("feed_forward.experts.{number}");
            expert.projections_mut(&path)
        });
        router.into_iter().chain(experts).collect()
    }
}

impl<B: Kernels> BlockFeedForward<B> {
    /// `[batch, seq, hidden]` to the same; `rows` are the extents of the texts' tokens.
    pub(super) fn forward(&self, x: Tensor<B, 3>, rows: &[Range<usize>]) -> Tensor<B, 3> {
        match self {
            Self::One(feed_forward) => feed_forward.forward(x),
            Self::Experts(experts) => experts.forward(x, rows),
        }
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        match self {
            Self::One(feed_forward) => feed_forward.projections_mut("feed_forward"),
            Self::Experts(experts) => experts.projections_mut(),
        }
    }
}

/// Whether a projection sends tokens to their experts.
pub(crate) fn is_router(path: &str) -> bool {
    path.ends_with(".feed_forward.router")
}

#[cfg(test)]
#[cfg(all(feature = "flex", feature = "autodiff"))]
mod tests {
    use burn::backend::{Autodiff, Flex};
    use burn::module::ModuleVisitor;
    use burn::tensor::Distribution;
    use burn::tensor::backend::{AutodiffBackend, Backend as _};

    use super::*;
    use crate::model::initialized;

    type B = Autodiff<Flex>;

    fn experts(count: usize, top_k: usize) -> Experts<B> {
        let device = Default::default();
        B::seed(&device, 3);
        let init = Initializer::Normal { mean: 0.0, std: 0.4 };
        let experts = MixtureOfExperts { count, top_k, every: 2 };
        initialized(Experts::new([8, 12], experts, "router", Activation::Gelu, &init, &device))
    }

    fn values<T: AutodiffBackend, const D: usize>(x: Tensor<T, D>) -> Vec<f32> {
        x.into_data().to_vec().unwrap()
    }

    /// Gradients of all parameters, by path.
    fn gradients(
        experts: &Experts<B>,
        grads: &<B as AutodiffBackend>::Gradients,
    ) -> Vec<(String, Vec<f32>)> {
        struct Collect<'a>(
            &'a <B as AutodiffBackend>::Gradients,
            Vec<String>,
            Vec<(String, Vec<f32>)>,
        );
        impl ModuleVisitor<B> for Collect<'_> {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.1.push(name.into());
            }
            fn exit_module(&mut self, _: &str, _: &str) {
                self.1.pop();
            }
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                let grad = param.val().grad(self.0).expect("every parameter has a gradient");
                self.2.push((self.1.join("."), grad.into_data().to_vec().unwrap()));
            }
        }
        let mut collect = Collect(grads, Vec::new(), Vec::new());
        experts.visit(&mut collect);
        collect.2
    }

    #[test]
    fn both_ways_give_the_same_numbers_and_gradients() {
        let device = Default::default();
        // Of 8 experts and 3 tokens that take 2 each, some are taken by none.
        for (count, top_k, tokens) in [(4, 2, 30), (8, 2, 3), (4, 1, 9), (3, 3, 7), (1, 1, 2)] {
            let experts = experts(count, top_k);
            let normal = Distribution::Normal(0.0, 1.0);
            let x = Tensor::<B, 2>::random([tokens, 8], normal, &device).require_grad();
            let factors = Tensor::<B, 2>::random([tokens, 8], normal, &device);
            let run = |y: Tensor<B, 2>| {
                let grads = (y.clone() * factors.clone()).sum().backward();
                let of_x = x.grad(&grads).unwrap().into_data().to_vec::<f32>().unwrap();
                let mut all = vec![("y".to_string(), values(y)), ("x".to_string(), of_x)];
                all.extend(gradients(&experts, &grads));
                all
            };
            let with_bias = |y: Tensor<B, 2>| y + experts.bias.val().unsqueeze::<2>();
            let shares = || experts.shares(x.clone());
            let all = run(with_bias(experts.all(x.clone(), shares())));
            let own = run(with_bias(experts.by_expert(x.clone(), shares(), 0..tokens)));
            assert_eq!(all.len(), own.len());
            for ((name, all), (_, own)) in all.iter().zip(&own) {
                for (a, b) in all.iter().zip(own) {
                    assert!((a - b).abs() < 1e-5 * a.abs().max(1.0), "{count} {name}: {a} {b}");
                }
            }
        }
    }

    /// The formula, token by token.
    #[test]
    fn a_token_is_the_weighted_sum_of_its_experts() {
        let device = Default::default();
        let experts = experts(5, 2);
        let x = Tensor::<B, 2>::random([6, 8], Distribution::Normal(0.0, 1.0), &device);
        let shares = values(experts.shares(x.clone()));
        let rows = [0..2, 1..3];
        let y = values(experts.forward(x.clone().reshape([2, 3, 8]), &rows));
        for token in [0, 1, 4, 5] {
            let of_token = &shares[5 * token..][..5];
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by(|a, b| of_token[*b].total_cmp(&of_token[*a]));
            let mut expected = values(experts.bias.val());
            for &expert in &order[..2] {
                let own = x.clone().narrow(0, token, 1);
                let own = values(experts.experts[expert].forward_rows(own));
                expected.iter_mut().zip(own).for_each(|(sum, y)| *sum += of_token[expert] * y);
            }
            for (a, b) in expected.iter().zip(&y[8 * token..]) {
                assert!((a - b).abs() < 1e-5, "token {token}: {a} {b}");
            }
        }
    }

    #[test]
    fn of_equal_shares_the_first_experts_are_taken() {
        let device = Default::default();
        let experts = experts(4, 2);
        let shares = Tensor::<B, 2>::from_data([[0.25; 4], [0.1, 0.3, 0.3, 0.3]], &device);
        let taken = values(experts.taken(shares.clone()));
        assert_eq!(taken, [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
        let of_experts = experts.tokens_of_experts(shares, 0..2);
        assert_eq!(of_experts, [vec![0], vec![0, 1], vec![1], vec![]]);
    }
}
