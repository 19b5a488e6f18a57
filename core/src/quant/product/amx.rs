//! The product by AMX: sums of tiles of 16 rows by 16 outputs by up to 64 inputs. AVX-512 applies
//! the scales between blocks.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use aligned_vec::avec;

use super::super::activations::{ActivationBlock, ROWS_TOGETHER};
use super::super::packed::CacheAligned;
use super::{Activations, LANES, Number, Outputs, STEP, Unset, starts, write};

/// Rows of a tile.
const TILE: usize = ROWS_TOGETHER;
/// Rows per pass: two tiles.
pub(super) const STRIP: usize = 2 * TILE;
/// Blocks per pass.
const TOGETHER: usize = 4;
/// Most inputs of a tile.
const DEEPEST: usize = 64;
/// Bytes of a full tile row.
const WIDE: usize = 64;
/// Fewest rows for which tiles are full enough to pay off.
const FEWEST: usize = 4;

/// Whether the CPU has the instructions and the system lets this process use them.
pub(super) fn is_available() -> bool {
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| super::avx512::is_available() && has_tiles() && are_allowed())
}

/// Whether the CPU has tiles of bytes and the system saves them at context switches.
fn has_tiles() -> bool {
    /// Bits of `edx` of leaf 7: tiles, and products of bytes in them.
    const TILES: u32 = 1 << 24 | 1 << 25;
    /// Bits of the saved states: tile shapes and tiles.
    const KEPT: u64 = 1 << 17 | 1 << 18;
    // SAFETY: a CPU with AVX-512, which was checked before, has `xgetbv`, register 0 and leaf 7.
    #[allow(unused_unsafe, reason = "`cpuid` is safe in newer Rust")]
    unsafe {
        __cpuid_count(7, 0).edx & TILES == TILES && kept() & KEPT == KEPT
    }
}

/// # Safety
/// The system enables the instruction (it does wherever AVX is enabled).
#[target_feature(enable = "xsave")]
unsafe fn kept() -> u64 {
    // SAFETY: register 0 is there wherever the instruction is.
    unsafe { _xgetbv(0) }
}

/// Asks Linux for tiles: they add 8 KiB to a thread's state, so a process must request them. The
/// grant holds for all threads.
#[cfg(target_os = "linux")]
fn are_allowed() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn are_allowed() -> bool {
    false
}

/// Inputs of a tile for a block length, which they divide; `None` where tiles would be less than
/// half full.
fn depth(block: usize) -> Option<usize> {
    let mut depths = (DEEPEST / 2..=DEEPEST).rev().step_by(STEP);
    depths.find(|depth| block.is_multiple_of(*depth))
}

/// Whether tiles pay off for the product of a matrix with this many rows.
pub(super) fn is_worth(packed: &Outputs<'_>, rows: usize) -> bool {
    rows >= FEWEST && depth(packed.block).is_some()
}

/// Integer sums of a block: a tile each for the upper and lower half of a strip's rows by two
/// groups.
#[repr(C, align(64))]
struct Whole([[[[i32; LANES]; TILE]; 2]; 2]);

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
    let (inputs, outputs, block) = (packed.inputs, packed.outputs, packed.block);
    let Some(depth) = depth(block) else {
        return super::avx512::product(packed, x, bias, y);
    };
    let (rows, blocks) = (x.rows, inputs / block);
    let bytes_of_group = inputs * LANES;
    // SAFETY: the caller has checked that there are tiles, and `depth` is a valid one.
    unsafe { shape(depth) };
    let four = packed.number == Number::Int4;
    let mut bytes: CacheAligned<u8> = avec!([64] | 0; if four { 2 * bytes_of_group } else { 0 });
    let mut whole = [const { Whole([[[[0; LANES]; TILE]; 2]; 2]) }; TOGETHER];
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
                    let x =
                        Matrix { values: &x.values[first * inputs + i * block..], apart: inputs };
                    let weights = &weights[i * block * LANES..];
                    let weights = Matrix { values: weights, apart: both[1] * bytes_of_group };
                    // SAFETY: the tiles were configured above.
                    unsafe { multiply(x, weights, [sums.len(), block, depth], whole) };
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
    // SAFETY: there are tiles, and they hold nothing of value; releasing them makes context
    // switches cheaper.
    unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
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

/// Configures the tiles and zeroes them: 0 to 3 are integer sums (upper half of the rows by both
/// groups, lower half by both), 4 and 5 the activations of the halves, 6 and 7 the weights of the
/// groups.
///
/// # Safety
/// The CPU has tiles and the process may use them; the depth is a multiple of four up to 64.
unsafe fn shape(depth: usize) {
    #[repr(C, align(64))]
    struct Shapes {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        /// Bytes of a row.
        widths: [u16; 16],
        rows: [u8; 16],
    }
    let mut shapes =
        Shapes { palette: 1, start: 0, reserved: [0; 14], widths: [0; 16], rows: [0; 16] };
    shapes.widths[..8].fill(WIDE as u16);
    shapes.rows[..8].fill(TILE as u8);
    shapes.widths[4..6].fill(depth as u16);
    shapes.rows[6..8].fill((depth / STEP) as u8);
    // SAFETY: the instruction is there, reads the 64 bytes that the structure has, and finds shapes of
    // palette 1: at most 16 rows of at most 64 bytes. The compiler keeps nothing in tiles.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &shapes, options(nostack, readonly, preserves_flags));
    }
}

/// Values with a stride between rows, or groups.
struct Matrix<'a, T> {
    values: &'a [T],
    apart: usize,
}

/// Integer sums of a block: some rows by two groups.
///
/// # Safety
/// The tiles have the shapes that [`shape`] gave them for this depth, which divides the block.
#[inline]
unsafe fn multiply(
    x: Matrix<'_, i8>,
    weights: Matrix<'_, u8>,
    [rows, block, depth]: [usize; 3],
    to: &mut Whole,
) {
    assert!(
        (rows.next_multiple_of(TILE) - 1) * x.apart + block <= x.values.len()
            && weights.apart + block * LANES <= weights.values.len(),
        "a block lies outside its matrix"
    );
    let (upper, left) = (x.values.as_ptr(), weights.values.as_ptr());
    let (lower, right) = (upper.wrapping_add(TILE * x.apart), left.wrapping_add(weights.apart));
    // SAFETY: each of the `block / depth` steps reads `depth` bytes of 16 rows of activations, which are
    // `x.apart` apart, then those of the next 16 where there are more rows, and `depth / 4` rows of 64 bytes
    // of both groups; it then goes on by `depth` and `16 depth` bytes. In all these are the `block` and
    // `16 block` bytes that the assertion found inside the slices. Four tiles of 16 rows of 64 bytes are
    // written to `to`, which has this size.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{upper} + {apart}]",
            "tileloadd tmm6, [{left} + {wide}]",
            "tileloadd tmm7, [{right} + {wide}]",
            "tdpbsud tmm0, tmm4, tmm6",
            "tdpbsud tmm1, tmm4, tmm7",
            "test {more}, {more}",
            "jz 3f",
            "tileloadd tmm5, [{lower} + {apart}]",
            "tdpbsud tmm2, tmm5, tmm6",
            "tdpbsud tmm3, tmm5, tmm7",
            "3:",
            "add {upper}, {depth}",
            "add {lower}, {depth}",
            "add {left}, {stride}",
            "add {right}, {stride}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + {wide}], tmm0",
            "tilestored [{to} + {wide} + 1024], tmm1",
            "tilestored [{to} + {wide} + 2048], tmm2",
            "tilestored [{to} + {wide} + 3072], tmm3",
            upper = inout(reg) upper => _,
            lower = inout(reg) lower => _,
            left = inout(reg) left => _,
            right = inout(reg) right => _,
            steps = inout(reg) block / depth => _,
            more = in(reg) rows.saturating_sub(TILE),
            apart = in(reg) x.apart,
            depth = in(reg) depth,
            stride = in(reg) depth * LANES,
            wide = in(reg) WIDE,
            to = in(reg) to,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            out("tmm7") _,
            options(nostack),
        );
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
