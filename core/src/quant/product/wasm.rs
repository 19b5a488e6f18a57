//! The product by WebAssembly's 128-bit SIMD, with relaxed SIMD's product of bytes where the module
//! is built for it.

use std::arch::wasm32::*;

use super::{Activations, LANES, Number, PackedMatrix, STEP, starts};

/// Outputs that are worked on together: half a group, whose sums fit the registers.
const SIDE: usize = 8;

/// Steps of four inputs whose products are added before the sums are totalled: as many as 16 bits hold
/// where half bytes are multiplied.
const STEPS: usize = 8;

/// How 4 inputs of 4 outputs are multiplied with 4 activations.
trait Way {
    /// Whether weights are multiplied unsigned, as they are kept, so that sums need the correction.
    const UNSIGNED: bool;
    /// Sixteen kept weights as they are multiplied.
    fn weights(kept: v128) -> [v128; 2];
    /// Four activations, repeated, as they are multiplied.
    #[inline(always)]
    fn activations(four: v128) -> v128 {
        four
    }
    /// Adds the products of four outputs.
    fn add(sums: [v128; 2], weights: [v128; 2], activations: v128) -> [v128; 2];
    /// The four outputs' sums.
    fn total(sums: [v128; 2]) -> v128;
}

/// By products of 16-bit numbers.
#[cfg(any(test, not(target_feature = "relaxed-simd")))]
struct Widened;

#[cfg(any(test, not(target_feature = "relaxed-simd")))]
impl Way for Widened {
    const UNSIGNED: bool = true;

    #[inline(always)]
    fn weights(kept: v128) -> [v128; 2] {
        [u16x8_extend_low_u8x16(kept), u16x8_extend_high_u8x16(kept)]
    }

    #[inline(always)]
    fn activations(four: v128) -> v128 {
        i16x8_extend_low_i8x16(four)
    }

    #[inline(always)]
    fn add(sums: [v128; 2], weights: [v128; 2], activations: v128) -> [v128; 2] {
        // Each sum holds two halves of two outputs.
        let add = |at: usize| i32x4_add(sums[at], i32x4_dot_i16x8(weights[at], activations));
        [add(0), add(1)]
    }

    #[inline(always)]
    fn total([low, high]: [v128; 2]) -> v128 {
        i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(low, high), i32x4_shuffle::<1, 3, 5, 7>(low, high))
    }
}

#[cfg(target_feature = "relaxed-simd")]
pub(super) use relaxed::Bytes;

#[cfg(target_feature = "relaxed-simd")]
mod relaxed {
    use super::*;

    /// What the processor makes of weights of 128 and more in the relaxed product of bytes, which
    /// is only defined for smaller ones. It does not change while a page lives (WebAssembly 3.0,
    /// "relaxed operations": the choice is global).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in super::super) enum Bytes {
        /// Exact products of unsigned weights (x86-64 with VNNI).
        Unsigned,
        /// Exact products of signed weights (ARM with dot products, x86-64 with VNNI-INT8).
        Signed,
        /// Anything else, as sums of two products that are cut off at 16 bits.
        Undefined,
    }

    impl Bytes {
        pub(in super::super) fn here() -> Self {
            let all = |value: i8| std::hint::black_box(i8x16_splat(value));
            let product = |activation: i8, weight: i8| {
                let sums =
                    i32x4_relaxed_dot_i8x16_i7x16_add(all(activation), all(weight), i32x4_splat(0));
                i32x4_extract_lane::<0>(sums)
            };
            match (product(127, -1), product(-127, -1), product(-127, -128)) {
                (129_540, -129_540, -65_024) => Self::Unsigned,
                (-508, 508, 65_024) => Self::Signed,
                _ => Self::Undefined,
            }
        }
    }

    /// By products of bytes that the processor computes exactly, of weights with their sign or
    /// without.
    pub(super) struct Whole<const SIGNED: bool>;

    impl<const SIGNED: bool> Way for Whole<SIGNED> {
        const UNSIGNED: bool = !SIGNED;

        #[inline(always)]
        fn weights(kept: v128) -> [v128; 2] {
            [if SIGNED { v128_xor(kept, u8x16_splat(128)) } else { kept }; 2]
        }

        #[inline(always)]
        fn add([sum, rest]: [v128; 2], weights: [v128; 2], activations: v128) -> [v128; 2] {
            [i32x4_relaxed_dot_i8x16_i7x16_add(activations, weights[0], sum), rest]
        }

        #[inline(always)]
        fn total(sums: [v128; 2]) -> v128 {
            sums[0]
        }
    }

    /// By products of half bytes, which are defined everywhere. Sums of two of them are at most
    /// 2 * 127 * 15, so that eight of these sums fit 16 bits.
    pub(super) struct Halves;

    impl Way for Halves {
        const UNSIGNED: bool = true;

        #[inline(always)]
        fn weights(kept: v128) -> [v128; 2] {
            [v128_and(kept, u8x16_splat(15)), u8x16_shr(kept, 4)]
        }

        #[inline(always)]
        fn add(sums: [v128; 2], weights: [v128; 2], activations: v128) -> [v128; 2] {
            let add = |at: usize| {
                let products = i16x8_relaxed_dot_i8x16_i7x16(activations, weights[at]);
                i16x8_add(sums[at], products)
            };
            [add(0), add(1)]
        }

        #[inline(always)]
        fn total([low, high]: [v128; 2]) -> v128 {
            let [low, high] = [low, high].map(|sums| i32x4_extadd_pairwise_i16x8(sums));
            i32x4_add(low, i32x4_shl(high, 4))
        }
    }

    /// By products of half bytes where weights are no more than these.
    pub(super) struct Half;

    impl Way for Half {
        const UNSIGNED: bool = true;

        #[inline(always)]
        fn weights(kept: v128) -> [v128; 2] {
            [kept; 2]
        }

        #[inline(always)]
        fn add([sum, rest]: [v128; 2], weights: [v128; 2], activations: v128) -> [v128; 2] {
            [i16x8_add(sum, i16x8_relaxed_dot_i8x16_i7x16(activations, weights[0])), rest]
        }

        #[inline(always)]
        fn total([sum, _]: [v128; 2]) -> v128 {
            i32x4_extadd_pairwise_i16x8(sum)
        }
    }
}

/// As [`super::portable`].
pub(super) fn product(packed: &PackedMatrix, x: &Activations, bias: Option<&[f32]>, y: &mut [f32]) {
    #[cfg(not(target_feature = "relaxed-simd"))]
    match packed.number {
        Number::Int4 => groups::<Widened, true, 2>(packed, x, bias, y),
        _ => groups::<Widened, false, 2>(packed, x, bias, y),
    }
    #[cfg(target_feature = "relaxed-simd")]
    product_of_bytes(packed, x, bias, y, Bytes::here());
}

/// As [`product`], on a processor that computes products of bytes in a given way.
#[cfg(target_feature = "relaxed-simd")]
pub(super) fn product_of_bytes(
    packed: &PackedMatrix,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [f32],
    bytes: Bytes,
) {
    match (packed.number, bytes) {
        // Four-bit weights are below 128, for which the product is defined.
        (Number::Int4, Bytes::Undefined) => groups::<relaxed::Half, true, 4>(packed, x, bias, y),
        (Number::Int4, _) => groups::<relaxed::Whole<false>, true, 3>(packed, x, bias, y),
        (_, Bytes::Unsigned) => groups::<relaxed::Whole<false>, false, 3>(packed, x, bias, y),
        (_, Bytes::Signed) => groups::<relaxed::Whole<true>, false, 3>(packed, x, bias, y),
        (_, Bytes::Undefined) => groups::<relaxed::Halves, false, 2>(packed, x, bias, y),
    }
}

/// As [`product`] without relaxed SIMD.
#[cfg(test)]
pub(super) fn widened(packed: &PackedMatrix, x: &Activations, bias: Option<&[f32]>, y: &mut [f32]) {
    match packed.number {
        Number::Int4 => groups::<Widened, true, 2>(packed, x, bias, y),
        _ => groups::<Widened, false, 2>(packed, x, bias, y),
    }
}

fn groups<W: Way, const FOUR: bool, const TILE: usize>(
    packed: &PackedMatrix,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [f32],
) {
    let rows = x.values.len() / packed.inputs;
    for side in 0..packed.outputs.div_ceil(SIDE) {
        let mut row = 0;
        while row < rows {
            let tall = row + TILE <= rows;
            match (tall, side % 2 == 1) {
                (true, false) => tile::<W, TILE, FOUR, false>(packed, x, bias, y, side, row),
                (true, true) => tile::<W, TILE, FOUR, true>(packed, x, bias, y, side, row),
                (false, false) => tile::<W, 1, FOUR, false>(packed, x, bias, y, side, row),
                (false, true) => tile::<W, 1, FOUR, true>(packed, x, bias, y, side, row),
            }
            row += if tall { TILE } else { 1 };
        }
    }
}

/// Products of some steps of rows by 8 outputs, the lower or upper half of a group; weights and the first
/// row's activations begin at the first step, and rows are `inputs` apart.
#[inline(always)]
fn products<W: Way, const ROWS: usize, const FOUR: bool, const UPPER: bool>(
    weights: &[u8],
    values: &[i8],
    inputs: usize,
    steps: usize,
) -> [[v128; 2]; ROWS] {
    let stride = if FOUR { 32 } else { 64 };
    assert!(weights.len() >= steps * stride && values.len() >= (ROWS - 1) * inputs + steps * STEP);
    let mut sums = [[[i32x4_splat(0); 2]; 2]; ROWS];
    for step in 0..steps {
        let mut quarters = [[i32x4_splat(0); 2]; 2];
        for (number, quarter) in quarters.iter_mut().enumerate() {
            let from = if FOUR { 16 * number } else { 16 * (2 * usize::from(UPPER) + number) };
            // SAFETY: `step` is below `steps` and `from + 16` at most `stride`, so the 16 bytes lie
            // inside `weights` (asserted above); the load asks for no alignment.
            let kept = unsafe { v128_load(weights.as_ptr().add(step * stride + from).cast()) };
            *quarter = W::weights(match (FOUR, UPPER) {
                (true, false) => v128_and(kept, u8x16_splat(15)),
                (true, true) => u8x16_shr(kept, 4),
                (false, _) => kept,
            });
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `row` is below `ROWS` and `step` below `steps`, so the four bytes lie inside
            // `values` (asserted above); the load asks for no alignment.
            let four = unsafe {
                v128_load32_splat(values.as_ptr().add(row * inputs + step * STEP).cast())
            };
            let four = W::activations(four);
            for (sums, weights) in sums.iter_mut().zip(quarters) {
                *sums = W::add(*sums, weights, four);
            }
        }
    }
    sums.map(|sums| sums.map(W::total))
}

/// Some rows by 8 outputs, the lower or upper half of a group.
#[inline(always)]
fn tile<W: Way, const ROWS: usize, const FOUR: bool, const UPPER: bool>(
    packed: &PackedMatrix,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [f32],
    side: usize,
    first: usize,
) {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps) = (inputs / block, block / STEP);
    let (group, upper) = (side / 2, usize::from(UPPER));
    // Bytes of 4 inputs of 16 outputs.
    let stride = if FOUR { 32 } else { 64 };
    let whole_group = inputs / STEP * stride;
    let weights: &[u8] = &packed.values[group * whole_group..(group + 1) * whole_group];
    let values: &[i8] = &x.values[first * inputs..(first + ROWS) * inputs];
    let of_blocks = &x.blocks[first * blocks..(first + ROWS) * blocks];
    let width = SIDE.min(packed.outputs - side * SIDE);
    let start = starts(bias, side * SIDE, width);
    let mut sums = [[load4(&start[..4]), load4(&start[4..8])]; ROWS];
    for at in 0..blocks {
        let mut whole = [[i32x4_splat(0); 2]; ROWS];
        for first in (0..steps).step_by(STEPS) {
            let weights = &weights[(at * steps + first) * stride..];
            let values = &values[at * block + first * STEP..];
            let steps = STEPS.min(steps - first);
            let products = products::<W, ROWS, FOUR, UPPER>(weights, values, inputs, steps);
            for (whole, products) in whole.iter_mut().flatten().zip(products.as_flattened()) {
                *whole = i32x4_add(*whole, *products);
            }
        }
        let scales = &packed.scales[(group * blocks + at) * LANES + upper * SIDE..][..SIDE];
        let scales = [load4(&scales[..4]), load4(&scales[4..])];
        for (row, (whole, sums)) in whole.into_iter().zip(&mut sums).enumerate() {
            let of_block = of_blocks[row * blocks + at];
            let correction = i32x4_splat(if W::UNSIGNED { of_block.correction } else { 0 });
            let of_block = f32x4_splat(of_block.scale);
            for ((whole, sum), scale) in whole.into_iter().zip(sums).zip(scales) {
                let whole = i32x4_add(whole, correction);
                let whole = f32x4_convert_i32x4(whole);
                *sum = f32x4_add(f32x4_mul(whole, f32x4_mul(scale, of_block)), *sum);
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let y = &mut y[(first + row) * packed.outputs + side * SIDE..][..width];
        for (to, sum) in y.chunks_mut(4).zip(sums) {
            let lanes = [
                f32x4_extract_lane::<0>(sum),
                f32x4_extract_lane::<1>(sum),
                f32x4_extract_lane::<2>(sum),
                f32x4_extract_lane::<3>(sum),
            ];
            to.copy_from_slice(&lanes[..to.len()]);
        }
    }
}

/// Four numbers.
#[inline(always)]
fn load4(from: &[f32]) -> v128 {
    let four: &[f32; 4] = from.first_chunk().unwrap_or(&[0.0; 4]);
    // SAFETY: a vector is as large as four numbers; the load asks for no alignment.
    unsafe { v128_load(four.as_ptr().cast()) }
}
