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

/// One invocation for each two values.
#[cube(launch)]
fn drop_out_pairs<F: Float>(
    x: &Array<F>,
    y: &mut Array<F>,
    high: u32,
    low: u32,
    threshold: u32,
    scale: f32,
    #[define(F)] _dtype: StorageType,
) {
    let first = ABSOLUTE_POS * 2;
    if first < y.len() {
        let count = u32::cast_from(ABSOLUTE_POS) + 1;
        let places = times(Wide { high: 0u32.runtime(), low: count }, INCREMENT[0], INCREMENT[1]);
        let sum = low + places.low;
        let carry = select(sum < low, 1u32, 0u32);
        let z = Wide { high: high + places.high + carry, low: sum };
        let z = times(mixed(z, 30u32), FIRST[0], FIRST[1]);
        let z = times(mixed(z, 27u32), SECOND[0], SECOND[1]);
        let z = mixed(z, 31u32);
        let zero = F::new(0.0);
        // In f32, or the factor itself would be rounded.
        let value = F::cast_from(f32::cast_from(x[first]) * scale);
        y[first] = select(z.low < threshold, value, zero);
        if first + 1 < y.len() {
            let value = F::cast_from(f32::cast_from(x[first + 1]) * scale);
            y[first + 1] = select(z.high < threshold, value, zero);
        }
    }
}

/// See [`Kernels::drop_out`](super::Kernels::drop_out).
pub(super) fn drop_out<R: CubeRuntime>(x: CubeTensor<R>, mask: DropoutMask) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let y = new_tensor(&x, x.meta.shape().clone());
    let (client, dtype, dim) = (x.client.clone(), x.dtype, CubeDim::new_1d(64));
    let pairs = x.meta.shape().num_elements().div_ceil(2);
    let count = calculate_cube_count_elemwise(&client, pairs, dim);
    let (x, to) = (x.into_array_arg(), y.clone().into_array_arg());
    let (high, low) = ((mask.seed >> 32) as u32, mask.seed as u32);
    let (threshold, scale) = (mask.threshold(), mask.scale());
    drop_out_pairs::launch::<R>(
        &client,
        count,
        dim,
        x,
        to,
        high,
        low,
        threshold,
        scale,
        dtype.into(),
    );
    y
}
