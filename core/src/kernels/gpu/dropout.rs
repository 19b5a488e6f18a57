//! Dropout by a hash of each value's place, so that nothing of it is kept: the numbers of the CPU.

use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::new_tensor;
use crate::kernels::DropoutMask;

/// `SplitMix64`'s increment and factors ([`DropoutMask::draw`]), each as its halves.
const INCREMENT: [u32; 2] = [0x9e37_79b9, 0x7f4a_7c15];
const FIRST: [u32; 2] = [0xbf58_476d, 0x1ce4_e5b9];
const SECOND: [u32; 2] = [0x94d0_49bb, 0x1331_11eb];

/// A number of 64 bits, for devices that have but 32.
#[derive(CubeType, Clone, Copy)]
struct Wide {
    high: u32,
    low: u32,
}

/// The lower 64 bits of a product.
#[cube]
fn times(x: Wide, #[comptime] high: u32, #[comptime] low: u32) -> Wide {
    let factor = low.runtime();
    Wide {
        high: x.low.mul_hi(factor) + x.high * factor + x.low * high.runtime(),
        low: x.low * factor,
    }
}

/// `x ^ (x >> shift)`.
#[cube]
fn mixed(x: Wide, #[comptime] shift: u32) -> Wide {
    let over = comptime!(32 - shift);
    Wide { high: x.high ^ (x.high >> shift), low: x.low ^ ((x.low >> shift) | (x.high << over)) }
}

/// The draws of a pair of values, the first one's in the lower half, from a seed's halves.
#[cube]
fn draws(pair: usize, high: u32, low: u32) -> Wide {
    let count = u32::cast_from(pair) + 1;
    let places = times(Wide { high: 0u32.runtime(), low: count }, INCREMENT[0], INCREMENT[1]);
    let sum = low + places.low;
    let carry = select(sum < low, 1u32, 0u32);
    let z = Wide { high: high + places.high + carry, low: sum };
    let z = times(mixed(z, 30u32), FIRST[0], FIRST[1]);
    let z = times(mixed(z, 27u32), SECOND[0], SECOND[1]);
    mixed(z, 31u32)
}

/// Where a value of a matrix of rows of a width is in one that has several of them side by side.
#[cube]
fn beside(value: usize, width: usize, #[comptime] copies: usize, #[comptime] copy: usize) -> usize {
    (value / width * copies + copy) * width + value % width
}

/// One invocation for each two values of `x`, of which `y` has one beside the other as each mask leaves it: by the halves of
/// its seed, its threshold and its factor.
#[cube(launch)]
fn drop_out_pairs<F: Float>(
    x: &Array<F>,
    y: &mut Array<F>,
    width: usize,
    highs: Sequence<u32>,
    lows: Sequence<u32>,
    thresholds: Sequence<u32>,
    scales: Sequence<f32>,
    #[define(F)] _dtype: StorageType,
) {
    let first = ABSOLUTE_POS * 2;
    if first < x.len() {
        let copies = comptime![scales.len()];
        let zero = F::new(0.0);
        #[unroll]
        for copy in 0..copies {
            let (high, low) = (highs[copy], lows[copy]);
            let (threshold, scale) = (thresholds[copy], scales[copy]);
            let z = draws(ABSOLUTE_POS, high, low);
            // In f32, or the factor itself would be rounded.
            let value = F::cast_from(f32::cast_from(x[first]) * scale);
            let to = beside(first, width, copies, copy);
            y[to] = select(z.low < threshold, value, zero);
            if first + 1 < x.len() {
                let value = F::cast_from(f32::cast_from(x[first + 1]) * scale);
                let to = beside(first + 1, width, copies, copy);
                y[to] = select(z.high < threshold, value, zero);
            }
        }
    }
}

/// One invocation for each two values of `sum`; `x` has one beside the other of each mask.
#[cube(launch)]
fn add_dropped_pairs<F: Float>(
    sum: &Array<f32>,
    x: &Array<F>,
    y: &mut Array<f32>,
    width: usize,
    highs: Sequence<u32>,
    lows: Sequence<u32>,
    thresholds: Sequence<u32>,
    scales: Sequence<f32>,
    #[define(F)] _dtype: StorageType,
) {
    let first = ABSOLUTE_POS * 2;
    if first < y.len() {
        let copies = comptime![scales.len()];
        let zero = f32::new(0.0);
        let mut one = sum[first];
        let mut other = sum[first + 1];
        #[unroll]
        for copy in 0..copies {
            let (high, low) = (highs[copy], lows[copy]);
            let (threshold, scale) = (thresholds[copy], scales[copy]);
            let z = draws(ABSOLUTE_POS, high, low);
            let from = beside(first, width, copies, copy);
            one += select(z.low < threshold, f32::cast_from(x[from]) * scale, zero);
            let from = beside(first + 1, width, copies, copy);
            other += select(z.high < threshold, f32::cast_from(x[from]) * scale, zero);
        }
        y[first] = one;
        y[first + 1] = other;
    }
}

/// Masks as kernels take them: the halves of their seeds, their thresholds, and their factors.
fn scalars<R: CubeRuntime>(
    masks: &[DropoutMask],
) -> ([SequenceArg<R, u32>; 3], SequenceArg<R, f32>) {
    let each = |number: fn(DropoutMask) -> u32| -> SequenceArg<R, u32> {
        masks.iter().map(|mask| number(*mask)).collect()
    };
    let (highs, lows) = (each(|mask| (mask.seed >> 32) as u32), each(|mask| mask.seed as u32));
    let scales = masks.iter().map(|mask| mask.scale()).collect();
    ([highs, lows, each(DropoutMask::threshold)], scales)
}

/// See [`Kernels::drop_out`](super::Kernels::drop_out).
pub(super) fn drop_out<R: CubeRuntime>(x: CubeTensor<R>, masks: &[DropoutMask]) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let (rows, width) = (x.meta.shape()[0], x.meta.shape()[1]);
    let y = new_tensor(&x, [rows, masks.len() * width]);
    let (client, dtype, dim) = (x.client.clone(), x.dtype, CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, (rows * width).div_ceil(2), dim);
    let ([highs, lows, thresholds], scales) = scalars(masks);
    drop_out_pairs::launch::<R>(
        &client,
        count,
        dim,
        x.into_array_arg(),
        y.clone().into_array_arg(),
        width,
        highs,
        lows,
        thresholds,
        scales,
        dtype.into(),
    );
    y
}

/// See [`Kernels::add_dropped`](super::Kernels::add_dropped).
pub(super) fn add_dropped<R: CubeRuntime>(
    sum: CubeTensor<R>,
    x: CubeTensor<R>,
    masks: &[DropoutMask],
) -> CubeTensor<R> {
    let [sum, x] = [sum, x].map(into_contiguous);
    let (rows, width) = (sum.meta.shape()[0], sum.meta.shape()[1]);
    let y = new_tensor(&sum, [rows, width]);
    let (client, dtype, dim) = (sum.client.clone(), x.dtype, CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, (rows * width).div_ceil(2), dim);
    let ([highs, lows, thresholds], scales) = scalars(masks);
    add_dropped_pairs::launch::<R>(
        &client,
        count,
        dim,
        sum.into_array_arg(),
        x.into_array_arg(),
        y.clone().into_array_arg(),
        width,
        highs,
        lows,
        thresholds,
        scales,
        dtype.into(),
    );
    y
}
