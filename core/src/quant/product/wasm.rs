//! The product by WebAssembly's 128-bit SIMD, with relaxed SIMD's dot product of bytes where the
//! module is built with it.

use std::arch::wasm32::*;

use super::super::activations::ActivationBlock;
use super::{Activations, LANES, Number, Outputs, STEP, Unset, starts, write};

/// Outputs per pass: half a group, whose sums fit the registers.
const SIDE: usize = 8;

/// Steps of four inputs whose products of int4 weights fit sums of 16 bits.
const NARROW: usize = 8;

/// Four activations of a row.
trait Step: Copy {
    /// All activations, step by step.
    fn all(x: &Activations) -> &[Self];
    /// The activations, broadcast for the multiplication.
    fn splat(&self) -> [v128; 2];
}

/// As bytes.
#[cfg(target_feature = "relaxed-simd")]
impl Step for [i8; STEP] {
    fn all(x: &Activations) -> &[Self] {
        x.values.as_chunks().0
    }

    #[inline(always)]
    fn splat(&self) -> [v128; 2] {
        // SAFETY: it reads exactly the four bytes of its argument.
        [unsafe { v128_load32_splat(self.as_ptr().cast()) }; 2]
    }
}

/// In 16 bits: the first and the third, then the second and the fourth.
impl Step for [[i16; 2]; 2] {
    fn all(x: &Activations) -> &[Self] {
        x.widened()
    }

    #[inline(always)]
    fn splat(&self) -> [v128; 2] {
        // SAFETY: each load reads exactly the two numbers of its argument.
        [0, 1].map(|half| unsafe { v128_load32_splat(self[half].as_ptr().cast()) })
    }
}

/// How 4 inputs of 4 outputs are multiplied with 4 activations.
trait Way {
    /// Whether weights are multiplied unsigned, as stored, so that sums need the correction.
    const UNSIGNED: bool;
    /// Form of the activations.
    type Step: Step;
    /// Sixteen stored weights in the form in which they are multiplied.
    fn weights(kept: v128) -> [v128; 2];
    /// Adds the products of four outputs.
    fn add(sum: v128, weights: [v128; 2], activations: [v128; 2]) -> v128;
    /// The four outputs' 32-bit sums, where products are first added in fewer bits.
    const TOTAL: Option<fn(v128) -> v128> = None;
}

/// Products of 16-bit numbers.
struct Widened;

impl Way for Widened {
    const UNSIGNED: bool = true;
    type Step = [[i16; 2]; 2];

    #[inline(always)]
    fn weights(kept: v128) -> [v128; 2] {
        [v128_and(kept, u16x8_splat(255)), u16x8_shr(kept, 8)]
    }

    #[inline(always)]
    fn add(sum: v128, weights: [v128; 2], activations: [v128; 2]) -> v128 {
        let sum = i32x4_add(sum, i32x4_dot_i16x8(weights[0], activations[0]));
        i32x4_add(sum, i32x4_dot_i16x8(weights[1], activations[1]))
    }
}

#[cfg(target_feature = "relaxed-simd")]
pub(super) use relaxed::Bytes;

#[cfg(target_feature = "relaxed-simd")]
mod relaxed {
    use super::*;

    /// What the CPU does with weights of 128 and more in the relaxed dot product of bytes, which is
    /// defined only below. It does not change while a page lives (WebAssembly 3.0, "relaxed
    /// operations": the choice is global).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(in super::super) enum Bytes {
        /// Exact products of unsigned weights (x86-64 with VNNI).
        Unsigned,
        /// Exact products of signed weights (ARM with dot products, x86-64 with VNNI-INT8).
        Signed,
        /// Anything else, such as sums of two products that saturate at 16 bits.
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

    /// Dot products of bytes that the CPU computes exactly, with signed or unsigned weights.
    pub(super) struct Whole<const SIGNED: bool>;

    impl<const SIGNED: bool> Way for Whole<SIGNED> {
        const UNSIGNED: bool = !SIGNED;
        type Step = [i8; STEP];

        #[inline(always)]
        fn weights(kept: v128) -> [v128; 2] {
            [if SIGNED { v128_xor(kept, u8x16_splat(128)) } else { kept }; 2]
        }

        #[inline(always)]
        fn add(sum: v128, weights: [v128; 2], activations: [v128; 2]) -> v128 {
            i32x4_relaxed_dot_i8x16_i7x16_add(activations[0], weights[0], sum)
        }
    }

    /// Dot products with int4 weights, which are defined everywhere. A sum of two is at most 2 *
    /// 127 * 15, so eight of these sums fit 16 bits.
    pub(super) struct Half;

    impl Way for Half {
        const UNSIGNED: bool = true;
        type Step = [i8; STEP];

        #[inline(always)]
        fn weights(kept: v128) -> [v128; 2] {
            [kept; 2]
        }

        #[inline(always)]
        fn add(sum: v128, weights: [v128; 2], activations: [v128; 2]) -> v128 {
            i16x8_add(sum, i16x8_relaxed_dot_i8x16_i7x16(activations[0], weights[0]))
        }

        const TOTAL: Option<fn(v128) -> v128> = Some(i32x4_extadd_pairwise_i16x8);
    }
}

/// As [`super::portable`].
pub(super) fn product(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    #[cfg(not(target_feature = "relaxed-simd"))]
    product_of_words(packed, x, bias, y);
    #[cfg(target_feature = "relaxed-simd")]
    product_of_bytes(packed, x, bias, y, Bytes::here());
}

/// As [`product`], for a CPU with the given behaviour.
#[cfg(target_feature = "relaxed-simd")]
pub(super) fn product_of_bytes(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
    bytes: Bytes,
) {
    match (packed.number, bytes) {
        // Int4 weights are below 128, where the product is defined.
        (Number::Int4, Bytes::Undefined) => groups::<relaxed::Half, true, 4>(packed, x, bias, y),
        (Number::Int4, _) => groups::<relaxed::Whole<false>, true, 3>(packed, x, bias, y),
        (_, Bytes::Unsigned) => groups::<relaxed::Whole<false>, false, 3>(packed, x, bias, y),
        (_, Bytes::Signed) => groups::<relaxed::Whole<true>, false, 3>(packed, x, bias, y),
        (_, Bytes::Undefined) => groups::<Widened, false, 4>(packed, x, bias, y),
    }
}

/// As [`product`] without relaxed SIMD.
#[cfg(any(test, not(target_feature = "relaxed-simd")))]
pub(super) fn product_of_words(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    match packed.number {
        Number::Int4 => groups::<Widened, true, 4>(packed, x, bias, y),
        _ => groups::<Widened, false, 4>(packed, x, bias, y),
    }
}

fn groups<W: Way, const FOUR: bool, const TILE: usize>(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    let rows = x.rows;
    let x = (W::Step::all(x), x.blocks.as_slice());
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

/// Adds the products of one step of rows by 8 outputs, the lower or upper half of a group, to their sums.
///
/// # Safety
/// `weights` points to the step's weights, 32 bytes in int4 and 64 in int8, and each of `values`
/// points to a row's step.
#[inline(always)]
unsafe fn add_step<W: Way, const ROWS: usize, const FOUR: bool, const UPPER: bool>(
    sums: &mut [[v128; 2]; ROWS],
    weights: *const u8,
    values: [*const W::Step; ROWS],
) {
    let weights: [[v128; 2]; 2] = std::array::from_fn(|number| {
        let from = if FOUR { 16 * number } else { 16 * (2 * usize::from(UPPER) + number) };
        // SAFETY: the 16 bytes lie among the step's; the load asks for no alignment.
        let kept = unsafe { v128_load(weights.add(from).cast()) };
        W::weights(match (FOUR, UPPER) {
            (true, false) => v128_and(kept, u8x16_splat(15)),
            (true, true) => u8x16_shr(kept, 4),
            (false, _) => kept,
        })
    });
    for (values, sums) in values.into_iter().zip(sums) {
        // SAFETY: the pointer is to a step.
        let activations = unsafe { &*values }.splat();
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = W::add(*sum, weights, activations);
        }
    }
}

/// `ROWS` rows by 8 outputs, the lower or upper half of a group, from the activations' steps and
/// blocks.
#[inline(always)]
fn tile<W: Way, const ROWS: usize, const FOUR: bool, const UPPER: bool>(
    packed: &Outputs<'_>,
    (values, of_blocks): (&[W::Step], &[ActivationBlock]),
    bias: Option<&[f32]>,
    y: &mut [Unset],
    side: usize,
    first: usize,
) {
    let (inputs, block) = (packed.inputs, packed.block);
    let (blocks, steps, apart) = (inputs / block, block / STEP, inputs / STEP);
    let (group, upper) = (side / 2, usize::from(UPPER));
    // Bytes of 4 inputs of 16 outputs.
    let stride = if FOUR { 32 } else { 64 };
    let whole_group = apart * stride;
    let weights: &[u8] = &packed.values[group * whole_group..(group + 1) * whole_group];
    let values = &values[first * apart..(first + ROWS) * apart];
    let of_blocks = &of_blocks[first * blocks..(first + ROWS) * blocks];
    let width = SIDE.min(packed.outputs - side * SIDE);
    let start = starts(bias, side * SIDE, width);
    let scales = &packed.scales[group * blocks * LANES..(group + 1) * blocks * LANES];
    assert!(
        steps * blocks == apart
            && weights.len() == apart * stride
            && values.len() == ROWS * apart
            && of_blocks.len() == ROWS * blocks
            && scales.len() == blocks * LANES
    );
    let mut sums = [[load4(&start[..4]), load4(&start[4..8])]; ROWS];
    for i in 0..blocks {
        // SAFETY: `at` is below `blocks` and `row` below `ROWS`, so it lies inside (asserted above).
        let of_blocks: [&ActivationBlock; ROWS] =
            std::array::from_fn(|row| unsafe { of_blocks.get_unchecked(row * blocks + i) });
        let mut whole =
            of_blocks.map(|block| [i32x4_splat(if W::UNSIGNED { block.correction } else { 0 }); 2]);
        let add = |sums: &mut [[v128; 2]; ROWS], mut step: usize, end: usize| {
            // The number of steps is not a constant on purpose: unrolled without branches,
            // compilers load everything first and run out of registers.
            while step < end {
                // SAFETY: `step` is below `(at + 1) * steps`, so that it lies inside the weights and each
                // row's activations (asserted above).
                unsafe {
                    let values = std::array::from_fn(|row| values.as_ptr().add(row * apart + step));
                    let weights = weights.as_ptr().add(step * stride);
                    add_step::<W, ROWS, FOUR, UPPER>(sums, weights, values);
                }
                step += 1;
            }
        };
        let end = (i + 1) * steps;
        match W::TOTAL {
            None => add(&mut whole, i * steps, end),
            Some(total) => {
                for first in (i * steps..end).step_by(NARROW) {
                    let mut sums = [[i32x4_splat(0); 2]; ROWS];
                    add(&mut sums, first, end.min(first + NARROW));
                    for (to, sum) in whole.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                        *to = i32x4_add(*to, total(*sum));
                    }
                }
            }
        }
        let scales: [v128; 2] = std::array::from_fn(|quarter| {
            let from = i * LANES + upper * SIDE + 4 * quarter;
            // SAFETY: four numbers from there on lie inside the block's 16 (asserted above).
            unsafe { v128_load(scales.as_ptr().add(from).cast()) }
        });
        for (row, (whole, sums)) in whole.into_iter().zip(&mut sums).enumerate() {
            let of_block = f32x4_splat(of_blocks[row].scale);
            for ((whole, sum), scale) in whole.into_iter().zip(sums).zip(scales) {
                let whole = f32x4_convert_i32x4(whole);
                *sum = f32x4_add(f32x4_mul(whole, f32x4_mul(scale, of_block)), *sum);
            }
        }
    }
    for (row, sums) in sums.into_iter().enumerate() {
        let y = &mut y[(first + row) * packed.outputs + side * SIDE..][..width];
        for (to, sum) in y.chunks_mut(4).zip(sums) {
            if let Ok(to) = <&mut [Unset; 4]>::try_from(&mut *to) {
                // SAFETY: a vector is as large as four numbers; the store asks for no alignment.
                unsafe { v128_store(to.as_mut_ptr().cast(), sum) };
                continue;
            }
            let lanes = [
                f32x4_extract_lane::<0>(sum),
                f32x4_extract_lane::<1>(sum),
                f32x4_extract_lane::<2>(sum),
                f32x4_extract_lane::<3>(sum),
            ];
            write(to, &lanes);
        }
    }
}

/// Loads four numbers.
#[inline(always)]
fn load4(from: &[f32]) -> v128 {
    let four: &[f32; 4] = from.first_chunk().unwrap_or(&[0.0; 4]);
    // SAFETY: a vector is as large as four numbers; the load asks for no alignment.
    unsafe { v128_load(four.as_ptr().cast()) }
}
