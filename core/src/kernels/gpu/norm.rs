//! Norms in one dispatch, the residual sum before them included.

use burn::tensor::DType;
use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::*;

use super::{LANES, new_tensor, new_tensor_of};
use crate::kernels::Norm;

/// Invocations that share a row.
pub(super) const UNITS: usize = 32;
/// Most workgroups along one dimension, below WebGPU's 65,535.
pub(super) const COUNT: usize = 32_768;

/// One workgroup per row.
pub(super) fn workgroups(rows: usize) -> CubeCount {
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

/// One workgroup per row: a norm of rows in any numbers, or from its gradient that of the rows, plus `more`.
#[cube(launch)]
fn norm_of_rows<F: Float, G: Float>(
    x: &Array<F>,
    gradient: &ComptimeOption<Array<f32>>,
    more: &ComptimeOption<Array<f32>>,
    gamma: &Array<f32>,
    beta: &ComptimeOption<Array<f32>>,
    y: &mut Array<G>,
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] centred: bool,
    #[define(F)] _in: StorageType,
    #[define(G)] _out: StorageType,
) {
    let row = CUBE_POS_Y as usize * COUNT + CUBE_POS_X as usize;
    let unit = UNIT_POS as usize;
    let mut means = SharedMemory::<f32>::new(UNITS);
    let mut squares = SharedMemory::<f32>::new(UNITS);
    let mut alongs = SharedMemory::<f32>::new(UNITS);
    let mut totals = SharedMemory::<f32>::new(UNITS);
    // The same for all invocations of a workgroup.
    if row < rows {
        let values = f32::cast_from(width);
        let mut mean = 0.0f32;
        if comptime!(centred) {
            let mut sum = 0.0f32;
            for i in range_stepped(unit, width, UNITS) {
                sum += f32::cast_from(x[row * width + i]);
            }
            means[unit] = sum;
            sync_cube();
            for i in 0..UNITS {
                mean += means[i];
            }
            mean /= values;
        }
        let mut sum = 0.0f32;
        for i in range_stepped(unit, width, UNITS) {
            let value = f32::cast_from(x[row * width + i]) - mean;
            sum += value * value;
        }
        squares[unit] = sum;
        sync_cube();
        let mut variance = 0.0f32;
        for i in 0..UNITS {
            variance += squares[i];
        }
        let scale = 1.0f32 / (variance / values + epsilon).sqrt();
        #[comptime]
        if let ComptimeOption::Some(gradient) = gradient {
            let mut along = 0.0f32;
            let mut total = 0.0f32;
            for i in range_stepped(unit, width, UNITS) {
                let of_unit = gradient[row * width + i] * gamma[i];
                along += of_unit * (f32::cast_from(x[row * width + i]) - mean) * scale;
                total += of_unit;
            }
            alongs[unit] = along;
            totals[unit] = total;
            sync_cube();
            along = 0.0f32;
            total = 0.0f32;
            for i in 0..UNITS {
                along += alongs[i];
                total += totals[i];
            }
            if comptime!(!centred) {
                total = 0.0f32;
            }
            for i in range_stepped(unit, width, UNITS) {
                let own = (f32::cast_from(x[row * width + i]) - mean) * scale;
                let of_unit = gradient[row * width + i] * gamma[i];
                let mut value = (of_unit - own * along / values - total / values) * scale;
                #[comptime]
                if let ComptimeOption::Some(more) = more {
                    value += more[row * width + i];
                }
                y[row * width + i] = G::cast_from(value);
            }
        } else {
            for i in range_stepped(unit, width, UNITS) {
                let own = (f32::cast_from(x[row * width + i]) - mean) * scale;
                let mut value = own * gamma[i];
                #[comptime]
                if let ComptimeOption::Some(beta) = beta {
                    value += beta[i];
                }
                y[row * width + i] = G::cast_from(value);
            }
        }
    }
}

/// See [`Kernels::norm_rows`](super::Kernels::norm_rows), and with a gradient
/// [`Kernels::norm_rows_gradient`](super::Kernels::norm_rows_gradient), which alone adds `more`.
pub(super) fn rows<R: CubeRuntime>(
    x: CubeTensor<R>,
    gradient: Option<CubeTensor<R>>,
    more: Option<CubeTensor<R>>,
    norm: &Norm<CubeTensor<R>>,
    dtype: DType,
) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let shape = x.meta.shape().clone();
    let (rows, width) = (shape[0], shape[1]);
    let y = new_tensor_of(&x, shape, dtype);
    let (client, of_x) = (x.client.clone(), x.dtype);
    let beta = norm.beta.clone().filter(|_| gradient.is_none()).map(into_contiguous);
    norm_of_rows::launch::<R>(
        &client,
        workgroups(rows),
        CubeDim::new_1d(UNITS as u32),
        x.into_array_arg(),
        gradient.map(into_contiguous).map(CubeTensor::into_array_arg).into(),
        more.map(into_contiguous).map(CubeTensor::into_array_arg).into(),
        into_contiguous(norm.gamma.clone()).into_array_arg(),
        beta.map(CubeTensor::into_array_arg).into(),
        y.clone().into_array_arg(),
        rows,
        width,
        norm.epsilon,
        norm.centred,
        of_x.into(),
        dtype.into(),
    );
    y
}
