//! The product by AMX: sums of tiles of 16 rows by 16 outputs by up to 64 inputs. AVX-512 applies
//! the scales between blocks.

use std::arch::x86_64::*;
use std::sync::OnceLock;

use aligned_vec::avec;

use super::super::activations::{ActivationBlock, ROWS_TOGETHER};
use super::super::packed::CacheAligned;
use super::super::tiles::{self, Bytes, Machine, Operand, Processor, TILE, Tiles, WIDE};
use super::{Activations, LANES, Number, Outputs, STEP, Unset, starts, write};

/// Rows per pass: two tiles.
pub(super) const STRIP: usize = 2 * TILE;
/// Blocks per pass.
const TOGETHER: usize = 4;
/// Fewest rows for which tiles are full enough to pay off.
const FEWEST: usize = 4;

const _: () = assert!(TILE == ROWS_TOGETHER && TILE == LANES);

/// Whether the CPU has the instructions and the system lets this process use them.
pub(super) fn is_available() -> bool {
    /// Of `edx` of leaf 7: products of bytes in tiles.
    const BYTES: u32 = 1 << 25;
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| super::avx512::is_available() && tiles::are_usable(BYTES))
}

/// Inputs of a tile for a block length, which they divide; `None` where tiles would be less than
/// half full.
fn depth(block: usize) -> Option<usize> {
    let mut depths = (WIDE / 2..=WIDE).rev().step_by(STEP);
    depths.find(|depth| block.is_multiple_of(*depth))
}

/// Whether tiles pay off for the product of a matrix with this many rows.
pub(super) fn is_worth(packed: &Outputs<'_>, rows: usize) -> bool {
    rows >= FEWEST && depth(packed.block).is_some()
}

/// Integer sums of a block.
type Whole = tiles::Sums<i32>;

/// Sums of a strip by two groups.
#[repr(C, align(64))]
struct Sums([[[f32; LANES]; 2]; STRIP]);

/// As [`super::portable`].
///
/// # Safety
/// [`is_available`] must have returned true.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn product(
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    // SAFETY: the caller has checked that there are tiles.
    unsafe { product_on(Processor::default(), packed, x, bias, y) }
}

/// # Safety
/// The machine is there, and the CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub(super) unsafe fn product_on<M: Machine>(
    machine: M,
    packed: &Outputs<'_>,
    x: &Activations,
    bias: Option<&[f32]>,
    y: &mut [Unset],
) {
    let (inputs, outputs, block) = (packed.inputs, packed.outputs, packed.block);
    let Some(depth) = depth(block) else {
        return super::avx512::product(packed, x, bias, y);
    };
    let (rows, blocks) = (x.rows, inputs / block);
    let bytes_of_group = inputs * LANES;
    // SAFETY: the caller says that the machine is there; this thread multiplies nothing else before they are dropped.
    let mut tiles = unsafe { Tiles::new(machine, depth) };
    let four = packed.number == Number::Int4;
    let mut bytes: CacheAligned<u8> = avec!([64] | 0; if four { 2 * bytes_of_group } else { 0 });
    let mut whole = [const { tiles::Sums([[[[0; LANES]; TILE]; 2]; 2]) }; TOGETHER];
    let mut sums = Sums([[[0.0; LANES]; 2]; STRIP]);
    for group in (0..outputs.div_ceil(LANES)).step_by(2) {
        let width = (outputs - group * LANES).min(2 * LANES);
        // An odd last group is its own neighbour.
        let both = [0, usize::from(width > LANES)];
        let of_groups = group * bytes_of_group..(group + both[1] + 1) * bytes_of_group;
        let weights: &[u8] = if four {
            unpack(&packed.values[of_groups.start / 2..of_groups.end / 2], &mut bytes);
            &bytes[..of_groups.len()]
        } else {
            &packed.values[of_groups]
        };
        let scales = packed.scales.as_chunks::<LANES>().0;
        let scales = both.map(|side| &scales[(group + side) * blocks..][..blocks]);
        let start =
            both.map(|side| starts(bias, (group + side) * LANES, LANES.min(width - side * LANES)));
        for first in (0..rows).step_by(STRIP) {
            let sums = &mut sums.0[..(rows - first).min(STRIP)];
            sums.fill(start);
            for i in (0..blocks).step_by(TOGETHER) {
                let whole = &mut whole[..(blocks - i).min(TOGETHER)];
                for (i, whole) in (i..).zip(&mut *whole) {
                    let x = Operand {
                        values: &x.values[first * inputs + i * block..],
                        other: TILE * inputs,
                        row: inputs,
                        step: depth,
                    };
                    let weights = Operand {
                        values: &weights[i * block * LANES..],
                        other: both[1] * bytes_of_group,
                        row: WIDE,
                        step: depth * LANES,
                    };
                    let more = sums.len().saturating_sub(TILE);
                    tiles.multiply::<Bytes>(&x, &weights, [block / depth, more], whole);
                }
                let scales = [&scales[0][i..], &scales[1][i..]];
                add(whole, (&x.blocks[first * blocks + i..], blocks), scales, sums);
            }
            for (row, sums) in sums.iter().enumerate() {
                let y = &mut y[(first + row) * outputs + group * LANES..][..width];
                for (y, sums) in y.chunks_mut(LANES).zip(sums) {
                    write(y, sums);
                }
            }
        }
    }
}

/// Int4 values, one per byte.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn unpack(pairs: &[u8], bytes: &mut [u8]) {
    let mask = _mm256_set1_epi8(15);
    for (pairs, bytes) in pairs.as_chunks::<32>().0.iter().zip(bytes.as_chunks_mut::<64>().0) {
        // SAFETY: 32 bytes are read and 64 written, within both slices; neither access needs
        // alignment.
        unsafe {
            let pairs = _mm256_loadu_si256(pairs.as_ptr().cast());
            let low = _mm256_and_si256(pairs, mask);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask);
            let values = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            _mm512_storeu_si512(bytes.as_mut_ptr().cast(), values);
        }
    }
}

/// Scales the integer sums of some blocks and adds them to the running sums. `of_rows` starts at
/// the first row's entry for the first of these blocks; the next row's follows `apart` later.
#[inline]
#[target_feature(enable = "avx512f")]
fn add(
    whole: &[Whole],
    (of_rows, apart): (&[ActivationBlock], usize),
    scales: [&[[f32; LANES]]; 2],
    sums: &mut [[[f32; LANES]; 2]],
) {
    let scales = [&scales[0][..whole.len()], &scales[1][..whole.len()]];
    for (row, sums) in sums.iter_mut().enumerate() {
        let of_row = &of_rows[row * apart..][..whole.len()];
        let mut both = [load(&sums[0]), load(&sums[1])];
        for (i, whole) in whole.iter().enumerate() {
            let correction = _mm512_set1_epi32(of_row[i].correction);
            let of_block = _mm512_set1_ps(of_row[i].scale);
            for side in 0..2 {
                let whole: &[i32; LANES] = &whole.0[row / TILE][side][row % TILE];
                // SAFETY: 16 numbers of 4 bytes; the load asks for no alignment.
                let whole = unsafe { _mm512_loadu_si512(whole.as_ptr().cast()) };
                let whole = _mm512_add_epi32(whole, correction);
                let worth = _mm512_mul_ps(load(&scales[side][i]), of_block);
                both[side] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), worth, both[side]);
            }
        }
        for side in 0..2 {
            // SAFETY: 16 numbers of 4 bytes; the store asks for no alignment.
            unsafe { _mm512_storeu_ps(sums[side].as_mut_ptr(), both[side]) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 numbers of 4 bytes; the load asks for no alignment.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}
