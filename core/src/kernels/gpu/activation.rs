//! Activations in one dispatch.

use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::{LANES, new_tensor};

#[cube(launch)]
fn gelu_vectors<V: Size>(x: &Array<Vector<f32, V>>, y: &mut Array<Vector<f32, V>>) {
    if ABSOLUTE_POS < y.len() {
        let value = x[ABSOLUTE_POS];
        let erf = Vector::erf(value * Vector::new(std::f32::consts::FRAC_1_SQRT_2));
        y[ABSOLUTE_POS] = value * Vector::new(0.5f32) * (erf + Vector::new(1.0f32));
    }
}

/// See [`Kernels::exact_gelu`](super::Kernels::exact_gelu); the number of values must be a multiple
/// of a vector's.
pub(super) fn gelu<R: CubeRuntime>(x: CubeTensor<R>) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let y = new_tensor(&x, x.meta.shape().clone());
    let (client, dim) = (x.client.clone(), CubeDim::new_1d(64));
    let vectors = x.meta.shape().num_elements() / LANES;
    let count = calculate_cube_count_elemwise(&client, vectors, dim);
    let (x, to) = (x.into_array_arg(), y.clone().into_array_arg());
    gelu_vectors::launch::<R>(&client, count, dim, LANES, x, to);
    y
}

#[cube(launch)]
fn silu_product_vectors<V: Size>(
    gate: &Array<Vector<f32, V>>,
    up: &Array<Vector<f32, V>>,
    y: &mut Array<Vector<f32, V>>,
) {
    if ABSOLUTE_POS < y.len() {
        let value = gate[ABSOLUTE_POS];
        let one = Vector::<f32, V>::new(1.0f32);
        // Clamped, because some shader compilers assume that there are no infinities; below the
        // bound the result is zero anyway.
        let bounded = value.max(Vector::new(comptime!(-80.0f32)));
        let share = one / (one + Vector::exp(-bounded));
        y[ABSOLUTE_POS] = value * share * up[ABSOLUTE_POS];
    }
}

/// See [`Kernels::silu_product`](super::Kernels::silu_product); the number of values must be a
/// multiple of a vector's.
pub(super) fn silu_product<R: CubeRuntime>(
    gate: CubeTensor<R>,
    up: CubeTensor<R>,
) -> CubeTensor<R> {
    let (gate, up) = (into_contiguous(gate), into_contiguous(up));
    let y = new_tensor(&gate, gate.meta.shape().clone());
    let (client, dim) = (gate.client.clone(), CubeDim::new_1d(64));
    let vectors = gate.meta.shape().num_elements() / LANES;
    let count = calculate_cube_count_elemwise(&client, vectors, dim);
    let [gate, up, to] = [gate, up, y.clone()].map(CubeTensor::into_array_arg);
    silu_product_vectors::launch::<R>(&client, count, dim, LANES, gate, up, to);
    y
}
