//! Which parameters train, which decay, and the norm of the whole gradient.

use std::collections::HashSet;

use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{ElementConversion as _, Tensor};

/// Marks the parameters that train. With adapters only these, the pooling head and the
/// projections do; frozen weights get no gradient and no optimizer state.
pub(super) fn set_trainable<B: AutodiffBackend, M: Module<B>>(module: M, adapters_only: bool) -> M {
    module.map(&mut Freeze { path: Vec::new(), adapters_only })
}

struct Freeze {
    path: Vec<String>,
    adapters_only: bool,
}

impl<B: Backend> ModuleMapper<B> for Freeze {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let extra =
            self.path.iter().any(|part| matches!(part.as_str(), "adapters" | "pooling" | "dense"));
        let trains = !self.adapters_only || extra;
        param.map(|tensor| tensor.detach().set_require_grad(trains))
    }
}

/// Parameters by whether weight decay applies, and how many values each group holds.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Norms, biases and latents: never decayed.
    undecayed: HashSet<ParamId>,
    /// Trained values.
    pub trained: usize,
    /// Frozen values.
    pub frozen: usize,
}

impl Groups {
    pub(super) fn of<B: Backend, M: Module<B>>(module: &M) -> Self {
        let mut visitor = GroupVisitor { path: Vec::new(), groups: Groups::default() };
        module.visit(&mut visitor);
        visitor.groups
    }

    /// Splits gradients into decayed and undecayed ones.
    pub(super) fn split<B: AutodiffBackend, M: AutodiffModule<B>>(
        &self,
        module: &M,
        grads: GradientsParams,
    ) -> (GradientsParams, GradientsParams) {
        let mut split = Split {
            groups: self,
            from: grads,
            decayed: GradientsParams::new(),
            undecayed: GradientsParams::new(),
        };
        <M as Module<B>>::visit(module, &mut split);
        (split.decayed, split.undecayed)
    }
}

struct GroupVisitor {
    path: Vec<String>,
    groups: Groups,
}

impl<B: Backend> ModuleVisitor<B> for GroupVisitor {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let count = param.shape().num_elements();
        if param.is_require_grad() {
            self.groups.trained += count;
        } else {
            self.groups.frozen += count;
        }
        let last = self.path.last().map_or("", String::as_str);
        if matches!(last, "gamma" | "beta" | "bias" | "latents" | "layer_embedding") {
            self.groups.undecayed.insert(param.id);
        }
    }
}

struct Split<'a> {
    groups: &'a Groups,
    from: GradientsParams,
    decayed: GradientsParams,
    undecayed: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Split<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.from.remove::<B::InnerBackend, D>(param.id) {
            let group = if self.groups.undecayed.contains(&param.id) {
                &mut self.undecayed
            } else {
                &mut self.decayed
            };
            group.register::<B::InnerBackend, D>(param.id, grad);
        }
    }
}

/// Scales all gradients so that their joint Euclidean norm is at most `largest` (0: no limit).
/// Returns the norm before scaling.
pub(super) fn clip_norm<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    largest: f64,
) -> f64 {
    let mut sum = SquaredSum::<B> { grads, total: None };
    <M as Module<B>>::visit(module, &mut sum);
    let norm = sum.total.map_or(0.0, |total| total.into_scalar().elem::<f64>()).sqrt();
    if largest > 0.0 && norm > largest {
        <M as Module<B>>::visit(module, &mut Scale { grads, factor: largest / norm });
    }
    norm
}

struct SquaredSum<'a, B: AutodiffBackend> {
    grads: &'a GradientsParams,
    total: Option<Tensor<B::InnerBackend, 1>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for SquaredSum<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.get::<B::InnerBackend, D>(param.id) {
            let squares = grad.powf_scalar(2.0).sum();
            self.total = Some(match self.total.take() {
                Some(total) => total + squares,
                None => squares,
            });
        }
    }
}

struct Scale<'a> {
    grads: &'a mut GradientsParams,
    factor: f64,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Scale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) {
            self.grads.register::<B::InnerBackend, D>(param.id, grad.mul_scalar(self.factor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};
    use burn::module::Param;

    type B = Autodiff<Flex>;

    #[derive(burn::module::Module, Debug)]
    struct Two<B: Backend> {
        weight: Param<Tensor<B, 1>>,
        bias: Param<Tensor<B, 1>>,
    }

    #[test]
    fn the_norm_is_joint_and_biases_do_not_decay() {
        let device = Default::default();
        let param =
            |values: [f32; 2]| Param::from_tensor(Tensor::<B, 1>::from_data(values, &device));
        let two = Two { weight: param([1.0, 2.0]), bias: param([3.0, 4.0]) };
        // d/dw of 3 w0 + 4 b1: gradients (3, 0) and (0, 4), joint norm 5.
        let loss = two.weight.val().narrow(0, 0, 1) * 3.0 + two.bias.val().narrow(0, 1, 1) * 4.0;
        let mut grads = GradientsParams::from_grads(loss.backward(), &two);
        assert!((clip_norm::<B, _>(&two, &mut grads, 1.0) - 5.0).abs() < 1e-6);
        assert!((clip_norm::<B, _>(&two, &mut grads, 1.0) - 1.0).abs() < 1e-6);
        let (decayed, undecayed) = Groups::of::<B, _>(&two).split::<B, _>(&two, grads);
        assert!(decayed.get::<Flex, 1>(two.weight.id).is_some() && decayed.len() == 1);
        assert!(undecayed.get::<Flex, 1>(two.bias.id).is_some() && undecayed.len() == 1);
    }
}
