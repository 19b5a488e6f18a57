//! Norms in one dispatch, the residual sum before them included.

use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{LANES, new_tensor};

/// Invocations that share a row.
const UNITS: usize = 32;
/// Most workgroups along one dimension, below WebGPU's 65,535.
const COUNT: usize = 32_768;

/// One workgroup per row.
fn workgroups(rows: usize) -> CubeCount {
    CubeCount::Static(rows.min(COUNT) as u32, rows.div_ceil(COUNT) as u32, 1)
}

/// One workgroup per row: mean, then variance around it, as PyTorch's CPU kernel.
#[cube(launch)]
fn add_and_norm<V: Size>(
    x: &Array<Vector<f32, V>>,
    residual: &Array<Vector<f32, V>>,
    gamma: &Array<Vector<f32, V>>,
    beta: &Array<Vector<f32, V>>,
    y: &mut Array<Vector<f32, V>>,
    rows: usize,
    width: usize,
    epsilon: f32,
) {
    let row = CUBE_POS_Y as usize * COUNT + CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let mut parts = SharedMemory::<f32>::new(UNITS);
    let mut squares = SharedMemory::<f32>::new(UNITS);
    // The same for all invocations of a workgroup.
    if row < rows {
        let values = f32::cast_from(width * LANES);
        let mut sums = Vector::<f32, V>::new(0.0f32);
        for i in range_stepped(unit, width, UNITS) {
            sums += x[row * width + i] + residual[row * width + i];
        }
        parts[unit] = sums[0] + sums[1] + sums[2] + sums[3];
        sync_cube();
        let mut mean = 0.0f32;
        for i in 0..UNITS {
            mean += parts[i];
        }
        mean /= values;
        let mut sums = Vector::<f32, V>::new(0.0f32);
        for i in range_stepped(unit, width, UNITS) {
            let value = x[row * width + i] + residual[row * width + i] - Vector::new(mean);
            sums += value * value;
        }
        squares[unit] = sums[0] + sums[1] + sums[2] + sums[3];
        sync_cube();
        let mut variance = 0.0f32;
        for i in 0..UNITS {
            variance += squares[i];
        }
        let scale = 1.0f32 / (variance / values + epsilon).sqrt();
        for i in range_stepped(unit, width, UNITS) {
            let value = x[row * width + i] + residual[row * width + i] - Vector::new(mean);
            y[row * width + i] = value * Vector::new(scale) * gamma[i] + beta[i];
        }
    }
}

/// See [`Kernels::add_and_norm`](super::Kernels::add_and_norm); the width must be whole vectors.
pub(super) fn norm<R: CubeRuntime>(
    x: CubeTensor<R>,
    residual: CubeTensor<R>,
    gamma: CubeTensor<R>,
    beta: CubeTensor<R>,
    epsilon: f64,
) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let shape = x.meta.shape();
    let (batch, seq, width) = (shape[0], shape[1], shape[2]);
    let y = new_tensor(&x, [batch, seq, width]);
    let (client, rows) = (x.client.clone(), batch * seq);
    add_and_norm::launch::<R>(
        &client,
        workgroups(rows),
        CubeDim::new_1d(UNITS as u32),
        LANES,
        x.into_array_arg(),
        into_contiguous(residual).into_array_arg(),
        into_contiguous(gamma).into_array_arg(),
        into_contiguous(beta).into_array_arg(),
        y.clone().into_array_arg(),
        rows,
        width / LANES,
        epsilon as f32,
    );
    y
}

/// One workgroup per row.
#[cube(launch)]
fn rms_norm<V: Size>(
    x: &Array<Vector<f32, V>>,
    gamma: &Array<Vector<f32, V>>,
    y: &mut Array<Vector<f32, V>>,
    rows: usize,
    width: usize,
    epsilon: f32,
) {
    let row = CUBE_POS_Y as usize * COUNT + CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let mut parts = SharedMemory::<f32>::new(UNITS);
    // The same for all invocations of a workgroup.
    if row < rows {
        let mut sums = Vector::<f32, V>::new(0.0f32);
        for i in range_stepped(unit, width, UNITS) {
            let value = x[row * width + i];
            sums += value * value;
        }
        parts[unit] = sums[0] + sums[1] + sums[2] + sums[3];
        sync_cube();
        let mut squares = 0.0f32;
        for i in 0..UNITS {
            squares += parts[i];
        }
        let scale = 1.0f32 / (squares / f32::cast_from(width * LANES) + epsilon).sqrt();
        for i in range_stepped(unit, width, UNITS) {
            y[row * width + i] = x[row * width + i] * Vector::new(scale) * gamma[i];
        }
    }
}

/// See [`Kernels::rms_norm`](super::Kernels::rms_norm); the width must be whole vectors.
pub(super) fn rms<R: CubeRuntime>(
    x: CubeTensor<R>,
    gamma: CubeTensor<R>,
    epsilon: f64,
) -> CubeTensor<R> {
    let (x, gamma) = (into_contiguous(x), into_contiguous(gamma));
    let width = gamma.meta.shape()[0];
    let rows = x.meta.shape().num_elements() / width;
    let y = new_tensor(&x, x.meta.shape().clone());
    let client = x.client.clone();
    rms_norm::launch::<R>(
        &client,
        workgroups(rows),
        CubeDim::new_1d(UNITS as u32),
        LANES,
        x.into_array_arg(),
        gamma.into_array_arg(),
        y.clone().into_array_arg(),
        rows,
        width / LANES,
        epsilon as f32,
    );
    y
}
