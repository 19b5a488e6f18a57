//! Backends with gradients use the plain versions, which Burn can differentiate, but for whole blocks
//! where the backend below differentiates those itself: one operation of the graph then stands for some
//! fifty, their intermediate tensors are neither written nor kept, and what is kept is the backend's
//! choice.

use std::f64::consts::FRAC_1_SQRT_2;

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Int, Tensor, TensorPrimitive, activation};

use super::{BlockOf, DeviceMatrix, Kernels, Seen, Tape};
use crate::quant::PackedLayout;

/// Tensors of a block at most, its input included.
const TENSORS: usize = 48;

impl<B: Kernels, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    const HOST: bool = B::HOST;
    const BLOCKS: bool = B::BLOCK_GRADIENTS;

    fn exact_gelu<const D: usize>(x: Tensor<Self, D>) -> Tensor<Self, D> {
        if B::HOST {
            return activation::gelu(x);
        }
        // Burn's gradient of GELU on other devices is that of its approximation by tanh.
        x.clone() * ((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5
    }

    fn block(
        x: &Tensor<Self, 3>,
        block: BlockOf<Self>,
        seen: Seen<'_, Self>,
    ) -> Option<Tensor<Self, 3>> {
        let x = x.clone().into_primitive().tensor();
        let mask = seen.mask.map(|mask| mask.clone().inner());
        let angles = seen.angles.map(|(cos, sin)| (cos.clone().inner(), sin.clone().inner()));
        // The bias, which may learn, is a tensor of the block.
        let seen = Seen {
            rows: seen.rows,
            angles: angles.as_ref(),
            mask: mask.as_ref(),
            bias: None,
            unread: seen.unread,
        };

        let mut nodes = vec![x.node.clone()];
        let below = block.map(|tensor| {
            nodes.push(tensor.node);
            tensor.primitive
        });
        let trains = nodes.iter().any(|node| !node.requirement.is_none());
        if nodes.len() > TENSORS {
            return None;
        }
        let (y, tape) = B::block_forward(x.primitive.clone(), &below, seen, trains)?;
        // The graph asks for an array: what is missing is filled with a tensor that has no gradient.
        let none = Tensor::<B, 3>::from_primitive(TensorPrimitive::Float(y.clone()));
        let none = Tensor::<Self, 3>::from_inner(none).into_primitive().tensor();
        nodes.resize(TENSORS, none.node);
        let nodes = nodes.try_into().ok()?;
        let y = match (BlockBackward.prepare::<C>(nodes).compute_bound().stateful(), tape) {
            (OpsKind::Tracked(prep), Some(tape)) => prep.finish(State { tape, block: below }, y),
            (OpsKind::UnTracked(prep), _) => prep.finish(y),
            (OpsKind::Tracked(_), None) => return None,
        };
        Some(Tensor::from_primitive(TensorPrimitive::Float(y)))
    }

    fn owed(x: Tensor<Self, 3>, gradient: Tensor<Self, 3>) -> Tensor<Self, 1> {
        let zero = Tensor::<B, 1>::zeros([1], &x.device()).into_primitive().tensor();
        let [x, gradient] = [x, gradient].map(|tensor| tensor.into_primitive().tensor());
        let gradient = gradient.primitive;
        let prep = <OwedBackward as Backward<B, 1>>::prepare::<C>(OwedBackward, [x.node.clone()]);
        let y = match prep.compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(gradient, zero),
            OpsKind::UnTracked(prep) => prep.finish(zero),
        };
        Tensor::from_primitive(TensorPrimitive::Float(y))
    }

    /// What is kept for the way back are the packed weights, which have no gradient.
    fn packed_linear(
        x: Tensor<Self, 2>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        bias: Option<Tensor<Self, 1>>,
    ) -> Tensor<Self, 2> {
        let x = x.into_primitive().tensor();
        let (codes, scales) = (codes.inner(), scales.inner());
        let matrix = DeviceMatrix::new::<B>(codes.clone(), scales.clone(), layout);
        let below = Tensor::<B, 2>::from_primitive(TensorPrimitive::Float(x.primitive));
        let y = B::packed_linear(below, codes, scales, layout, None).into_primitive().tensor();
        let prep = <PackedBackward as Backward<B, 1>>::prepare::<C>(PackedBackward, [x.node]);
        let y = match prep.compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(matrix, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        };
        let y = Tensor::<Self, 2>::from_primitive(TensorPrimitive::Float(y));
        match bias {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    }

    fn unpacked(
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
        dtype: FloatDType,
    ) -> Tensor<Self, 2> {
        Tensor::from_inner(B::unpacked(codes.inner(), scales.inner(), layout, dtype))
    }

    fn device_matrix(
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> DeviceMatrix {
        B::device_matrix(codes.inner(), scales.inner(), layout)
    }

    fn packed_rows(
        ids: Tensor<Self, 2, Int>,
        codes: Tensor<Self, 2, Int>,
        scales: Tensor<Self, 2>,
        layout: PackedLayout,
    ) -> Tensor<Self, 3> {
        Tensor::from_inner(B::packed_rows(ids.inner(), codes.inner(), scales.inner(), layout))
    }
}

/// The gradient of a product with packed weights.
#[derive(Debug)]
struct PackedBackward;

impl<B: Kernels> Backward<B, 1> for PackedBackward {
    type State = DeviceMatrix;

    fn backward(
        self,
        ops: Ops<DeviceMatrix, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let [of_x] = ops.parents;
        if let Some(node) = of_x {
            let gradient = Tensor::<B, 2>::from_primitive(TensorPrimitive::Float(gradient));
            let weights = ops.state.unpacked::<B>(gradient.dtype().into());
            let of_x = gradient.matmul(weights.transpose());
            grads.register::<B>(node.id, of_x.into_primitive().tensor());
        }
    }
}

/// The gradient of [`Kernels::owed`].
#[derive(Debug)]
struct OwedBackward;

impl<B: Kernels> Backward<B, 1> for OwedBackward {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<FloatTensor<B>, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        // One, as that of every loss.
        grads.consume::<B>(&ops.node);
        let [of_x] = ops.parents;
        if let Some(node) = of_x {
            grads.register::<B>(node.id, ops.state);
        }
    }
}

/// The gradient of a block.
#[derive(Debug)]
struct BlockBackward;

#[derive(Debug, Clone)]
struct State<B: Kernels> {
    tape: Tape,
    block: BlockOf<B>,
}

impl<B: Kernels> Backward<B, TENSORS> for BlockBackward {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<State<B>, TENSORS>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let State { tape, block } = ops.state;
        let mut ids = ops.parents.iter().map(|node| node.as_ref().map(|node| node.id));
        let id_of_x = ids.next().flatten();
        let mut of_tensors: Vec<Option<NodeId>> = Vec::new();
        let wanted = block.clone().map(|_| {
            let id = ids.next().flatten();
            of_tensors.push(id);
            id.is_some()
        });
        let (of_x, of_block) = B::block_backward(&tape, &block, gradient, wanted);
        if let Some(id) = id_of_x {
            grads.register::<B>(id, of_x);
        }
        // Both are visited in the same order.
        let mut of_tensors = of_tensors.into_iter();
        of_block.map(|gradient| {
            if let (Some(id), Some(gradient)) = (of_tensors.next().flatten(), gradient) {
                grads.register::<B>(id, gradient);
            }
        });
    }
}
