//! Gradients as a whole: sums, norm, scale, parts.

use std::collections::BTreeMap;

use burn::module::{AutodiffModule, Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{ElementConversion as _, FloatDType, Shape, Tensor, TensorPrimitive};

use super::late::Late;
use crate::kernels::TrainingBackend;

/// Something to do with each gradient.
trait Each<B: AutodiffBackend> {
    /// Takes a gradient out; `Some` puts one back.
    fn each<const D: usize>(
        &mut self,
        id: ParamId,
        grad: Tensor<B::InnerBackend, D>,
    ) -> Option<Tensor<B::InnerBackend, D>>;
}

fn each<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    work: &mut impl Each<B>,
) {
    struct Visit<'a, E>(&'a mut GradientsParams, &'a mut E);
    impl<B: TrainingBackend, E: Each<B>> ModuleVisitor<B> for Visit<'_, E> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(grad) = self.0.remove::<B::InnerBackend, D>(param.id)
                && let Some(back) = self.1.each(param.id, grad)
            {
                self.0.register::<B::InnerBackend, D>(param.id, back);
            }
        }
    }
    <M as Module<B>>::visit(module, &mut Visit(grads, work));
}

/// Parts gradients into those whose parameter is chosen, and the others.
pub fn partition<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    mut grads: GradientsParams,
    chosen: impl Fn(ParamId) -> bool,
) -> [GradientsParams; 2] {
    struct Partition<F>(F, [GradientsParams; 2]);
    impl<B: TrainingBackend, F: Fn(ParamId) -> bool> Each<B> for Partition<F> {
        fn each<const D: usize>(
            &mut self,
            id: ParamId,
            grad: Tensor<B::InnerBackend, D>,
        ) -> Option<Tensor<B::InnerBackend, D>> {
            let part = usize::from(!(self.0)(id));
            self.1[part].register::<B::InnerBackend, D>(id, grad);
            None
        }
    }
    let mut parts = Partition(chosen, [GradientsParams::new(), GradientsParams::new()]);
    each::<B, M>(module, &mut grads, &mut parts);
    parts.1
}

/// Parts gradients by their shapes.
pub(super) fn by_shape<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    mut grads: GradientsParams,
) -> Vec<GradientsParams> {
    struct Alike(BTreeMap<Vec<usize>, GradientsParams>);
    impl<B: TrainingBackend> Each<B> for Alike {
        fn each<const D: usize>(
            &mut self,
            id: ParamId,
            grad: Tensor<B::InnerBackend, D>,
        ) -> Option<Tensor<B::InnerBackend, D>> {
            let alike = self.0.entry(grad.dims().to_vec()).or_default();
            alike.register::<B::InnerBackend, D>(id, grad);
            None
        }
    }
    let mut parts = Alike(BTreeMap::new());
    each::<B, M>(module, &mut grads, &mut parts);
    parts.0.into_values().collect()
}

/// Adds `other` to `grads`; in f32, whatever format `other` was computed in, and divided by the
/// scale that its loss was multiplied with.
pub fn add<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    mut other: GradientsParams,
    scale: f64,
) {
    struct AddTo<'a>(&'a mut GradientsParams, f64);
    impl<B: TrainingBackend> Each<B> for AddTo<'_> {
        fn each<const D: usize>(
            &mut self,
            id: ParamId,
            grad: Tensor<B::InnerBackend, D>,
        ) -> Option<Tensor<B::InnerBackend, D>> {
            let mut grad = grad.cast(FloatDType::F32);
            if self.1 != 1.0 {
                grad = grad.div_scalar(self.1);
            }
            let sum = match self.0.remove::<B::InnerBackend, D>(id) {
                Some(sum) => sum + grad,
                None => grad,
            };
            self.0.register::<B::InnerBackend, D>(id, sum);
            None
        }
    }
    each::<B, M>(module, &mut other, &mut AddTo(grads, scale));
}

/// Applies a function to every gradient, in the parameters' order.
pub fn map<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    function: impl FnMut(Tensor<B::InnerBackend, 1>) -> Tensor<B::InnerBackend, 1>,
) {
    struct Map<F>(F);
    impl<B: TrainingBackend, F> Each<B> for Map<F>
    where
        F: FnMut(Tensor<B::InnerBackend, 1>) -> Tensor<B::InnerBackend, 1>,
    {
        fn each<const D: usize>(
            &mut self,
            _: ParamId,
            grad: Tensor<B::InnerBackend, D>,
        ) -> Option<Tensor<B::InnerBackend, D>> {
            let shape = grad.shape();
            let flat = grad.reshape(Shape::new([shape.num_elements()]));
            Some((self.0)(flat).reshape(shape))
        }
    }
    each::<B, M>(module, grads, &mut Map(function));
}

/// Values at most of a gradient, such as an adapter's, whose squares are summed with others' of its shape.
const SMALL: usize = 1 << 20;

/// Small gradients whose squares are summed value by value before these are summed: as many as fusion makes one kernel of,
/// which has 64 operations at most.
const TOGETHER: usize = 32;

/// Euclidean norm of all gradients together, left on the device where `late`.
pub fn norm<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    late: bool,
) -> Late<B::InnerBackend> {
    // On a device a kernel for each of hundreds of gradients is what takes time, not their values.
    let together = if B::HOST { 1 } else { TOGETHER };
    let mut squares =
        Squares::<B::InnerBackend> { together, by_shape: BTreeMap::new(), sums: Vec::new() };
    each::<B, M>(module, grads, &mut squares);
    match squares.total() {
        None => Late::Known(0.0),
        Some(total) if late => Late::OnDevice(total.sqrt()),
        Some(total) => Late::Known(total.into_scalar().elem::<f64>().sqrt()),
    }
}

/// Sums of the squares of gradients.
struct Squares<B: Backend> {
    /// Small gradients that are summed before their values.
    together: usize,
    /// The small ones of a shape. They are squared one shape after the other, which fusion makes few kernels of.
    by_shape: BTreeMap<Vec<usize>, Vec<FloatTensor<B>>>,
    /// Of all values of some `[1]`.
    sums: Vec<Tensor<B, 1>>,
}

impl<B: TrainingBackend> Each<B> for Squares<B::InnerBackend> {
    fn each<const D: usize>(
        &mut self,
        _: ParamId,
        grad: Tensor<B::InnerBackend, D>,
    ) -> Option<Tensor<B::InnerBackend, D>> {
        let shape = grad.dims();
        let values = shape.iter().product::<usize>();
        if self.together == 1 || values > SMALL {
            self.sums.push(grad.clone().reshape([values]).powf_scalar(2.0).sum());
            return Some(grad);
        }
        let alike = self.by_shape.entry(shape.to_vec()).or_default();
        alike.push(grad.clone().into_primitive().tensor());
        Some(grad)
    }
}

impl<B: Backend> Squares<B> {
    /// Of all squares `[1]`; `None` where there are none.
    fn total(self) -> Option<Tensor<B, 1>> {
        let mut sums = self.sums;
        for alike in self.by_shape.into_values() {
            for some in alike.chunks(self.together) {
                let squares = some.iter().map(|grad| B::float_mul(grad.clone(), grad.clone()));
                sums.extend(squares.reduce(B::float_add).map(sum_of::<B>));
            }
        }
        sums.into_iter().reduce(|sum, more| sum + more)
    }
}

/// The sum of all values of a tensor of any rank.
fn sum_of<B: Backend>(tensor: FloatTensor<B>) -> Tensor<B, 1> {
    Tensor::from_primitive(TensorPrimitive::Float(B::float_sum(tensor)))
}

/// Scales all gradients so that their joint norm is at most `largest` (0: no limit). Returns the
/// norm before scaling. Where `late`, norm and factor stay on the device, which has nothing to be waited for.
pub fn clip_norm<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    largest: f64,
    late: bool,
) -> Late<B::InnerBackend> {
    let norm = norm::<B, M>(module, grads, late);
    let factor = match &norm {
        _ if largest <= 0.0 => return norm,
        Late::Known(norm) if *norm > largest => Late::Known(largest / norm),
        Late::Known(_) => return norm,
        // A norm of 0 has an infinite reciprocal, and a factor of 1.
        Late::OnDevice(norm) => {
            Late::OnDevice(norm.clone().recip().mul_scalar(largest).clamp(0.0, 1.0))
        }
    };
    scale::<B, M>(module, grads, &factor);
    norm
}

/// Multiplies all gradients, one shape after the other, which a device's fusion makes few kernels of.
fn scale<B: TrainingBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &mut GradientsParams,
    factor: &Late<B::InnerBackend>,
) {
    struct ScaleTo<'a, B: Backend> {
        into: &'a mut GradientsParams,
        factor: &'a Late<B>,
        /// The factor on the device, with as many dimensions as the gradients. Made between two of them it would part
        /// them, and no kernel take both.
        broadcast: Option<FloatTensor<B>>,
    }
    impl<B: TrainingBackend> Each<B> for ScaleTo<'_, B::InnerBackend> {
        fn each<const D: usize>(
            &mut self,
            id: ParamId,
            grad: Tensor<B::InnerBackend, D>,
        ) -> Option<Tensor<B::InnerBackend, D>> {
            let scaled = match self.factor {
                Late::Known(factor) => grad.mul_scalar(*factor),
                Late::OnDevice(factor) => {
                    let factor = self.broadcast.get_or_insert_with(|| {
                        let factor: Tensor<B::InnerBackend, D> =
                            factor.clone().reshape(Shape::new([1; D]));
                        factor.into_primitive().tensor()
                    });
                    grad.mul(Tensor::from_primitive(TensorPrimitive::Float(factor.clone())))
                }
            };
            self.into.register::<B::InnerBackend, D>(id, scaled);
            None
        }
    }
    for mut alike in by_shape::<B, M>(module, std::mem::take(grads)) {
        let mut work = ScaleTo::<B::InnerBackend> { into: grads, factor, broadcast: None };
        each::<B, M>(module, &mut alike, &mut work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};

    type B = Autodiff<Flex>;

    #[derive(Module, Debug)]
    struct Two<B: Backend> {
        weight: Param<Tensor<B, 1>>,
        bias: Param<Tensor<B, 1>>,
    }

    #[derive(Module, Debug)]
    struct Ranks<B: Backend> {
        vector: Param<Tensor<B, 1>>,
        matrix: Param<Tensor<B, 2>>,
    }

    fn two() -> (Two<B>, GradientsParams) {
        let device = Default::default();
        let param =
            |values: [f32; 2]| Param::from_tensor(Tensor::<B, 1>::from_data(values, &device));
        let two = Two { weight: param([1.0, 2.0]), bias: param([3.0, 4.0]) };
        // d/dw of 3 w0 + 4 b1: gradients (3, 0) and (0, 4), joint norm 5.
        let loss = two.weight.val().narrow(0, 0, 1) * 3.0 + two.bias.val().narrow(0, 1, 1) * 4.0;
        let grads = GradientsParams::from_grads(loss.backward(), &two);
        (two, grads)
    }

    #[test]
    fn the_norm_is_joint_and_a_gradient_goes_to_one_part() {
        let (two, mut grads) = two();
        let mut clip = || clip_norm::<B, _>(&two, &mut grads, 1.0, false).read().unwrap();
        assert!((clip() - 5.0).abs() < 1e-6);
        assert!((clip() - 1.0).abs() < 1e-6);
        let biases = two.bias.id;
        let [decayed, undecayed] = partition::<B, _>(&two, grads, |id| id != biases);
        assert!(decayed.get::<Flex, 1>(two.weight.id).is_some() && decayed.len() == 1);
        assert!(undecayed.get::<Flex, 1>(two.bias.id).is_some() && undecayed.len() == 1);
    }

    /// Of several ranks, and of norms below and above the limit.
    #[test]
    fn a_device_clips_by_itself_as_the_host_does() {
        let device = Default::default();
        let ranks = Ranks::<B> {
            vector: Param::from_tensor(Tensor::from_data([1.0, 2.0], &device)),
            matrix: Param::from_tensor(Tensor::from_data([[3.0, 4.0], [5.0, 6.0]], &device)),
        };
        let clipped = |values: [f32; 6], largest, late| {
            let [a, b, c, d, e, f] = values;
            let mut grads = GradientsParams::new();
            grads.register::<Flex, 1>(ranks.vector.id, Tensor::from_data([a, b], &device));
            let matrix = Tensor::from_data([[c, d], [e, f]], &device);
            grads.register::<Flex, 2>(ranks.matrix.id, matrix);
            let norm = clip_norm::<B, _>(&ranks, &mut grads, largest, late);
            assert_eq!(matches!(norm, Late::OnDevice(_)), late);
            let vector = grads.get::<Flex, 1>(ranks.vector.id).unwrap().into_data();
            let matrix = grads.get::<Flex, 2>(ranks.matrix.id).unwrap().into_data();
            let values = [vector, matrix].map(|data| data.to_vec::<f32>().unwrap()).concat();
            (norm.read().unwrap(), values)
        };
        for values in [[1.0, 2.0, -3.0, 0.5, 1e-3, 7.0], [0.0; 6]] {
            for largest in [0.0, 0.1, 2.0, 100.0] {
                let (norm, expected) = clipped(values, largest, false);
                let (late, found) = clipped(values, largest, true);
                assert!((late - norm).abs() <= 1e-6 * norm, "{late} {norm}");
                for (found, expected) in found.into_iter().zip(expected) {
                    let near = (found - expected).abs() <= 1e-6 * expected.abs();
                    assert!(near, "{largest}: {found} {expected}");
                }
            }
        }
        let none = &mut GradientsParams::new();
        assert!(matches!(clip_norm::<B, _>(&ranks, none, 1.0, true), Late::Known(0.0)));
    }

    /// As on a device.
    #[test]
    fn the_norm_of_gradients_that_are_summed_by_shape_is_the_same() {
        for together in [1, 2, 3] {
            let mut squares =
                Squares::<Flex> { together, by_shape: BTreeMap::new(), sums: Vec::new() };
            let mut square = |values: [f32; 2]| {
                let grad = Tensor::<Flex, 1>::from_data(values, &Default::default());
                let back = Each::<B>::each(&mut squares, ParamId::new(), grad).unwrap();
                assert_eq!(back.into_data().to_vec::<f32>().unwrap(), values);
            };
            [[1.0, 2.0], [2.0, 4.0], [0.0, 4.0]].into_iter().for_each(&mut square);
            let other = Tensor::<Flex, 2>::from_data([[2.0], [2.0]], &Default::default());
            Each::<B>::each(&mut squares, ParamId::new(), other);
            let norm = squares.total().unwrap().sqrt().into_scalar();
            assert!((norm - 7.0).abs() < 1e-6, "{together}");
        }
    }

    #[test]
    fn gradients_of_one_shape_come_together() {
        let device = Default::default();
        let param = |values: &[f32]| Param::from_tensor(Tensor::<B, 1>::from_data(values, &device));
        let module = vec![
            Two { weight: param(&[1.0, 2.0]), bias: param(&[3.0]) },
            Two { weight: param(&[4.0, 5.0]), bias: param(&[6.0]) },
        ];
        let loss = module.iter().map(|two| (two.weight.val() * two.bias.val()).sum());
        let loss = loss.reduce(|sum, more| sum + more).unwrap();
        let grads = GradientsParams::from_grads(loss.backward(), &module);
        let parts = by_shape::<B, _>(&module, grads);
        let [one, two] = [&parts[0], &parts[1]];
        assert_eq!([parts.len(), one.len(), two.len()], [2; 3]);
        let of = |grads: &GradientsParams, id| {
            grads.get::<Flex, 1>(id).unwrap().into_data().to_vec::<f32>().unwrap()
        };
        assert_eq!([of(one, module[0].bias.id), of(one, module[1].bias.id)], [[3.0], [9.0]]);
        assert_eq!(of(two, module[1].weight.id), [6.0, 6.0]);
    }

    #[test]
    fn sums_undo_the_loss_scale() {
        let (two, mut grads) = two();
        let (_, other) = self::two();
        // Other parameters have other ids, so only the same module's gradients add up.
        add::<B, _>(&two, &mut grads, other, 1.0);
        let norm = norm::<B, _>(&two, &mut grads, false).read().unwrap();
        assert!((norm - 5.0).abs() < 1e-6);
        let mut again = GradientsParams::new();
        again
            .register::<Flex, 1>(two.weight.id, Tensor::from_data([6.0, 0.0], &Default::default()));
        add::<B, _>(&two, &mut grads, again, 2.0);
        let sum = grads.get::<Flex, 1>(two.weight.id).unwrap().into_data().to_vec::<f32>().unwrap();
        assert_eq!(sum, [6.0, 0.0]);
    }
}
