//! The product by AMX with BF16: sums of tiles of 16 rows by 16 columns by 16 pairs.
//!
//! A row's sums are the same beside any other rows: blocks of 16 pairs follow each other from the first on, wherever in
//! its tile the row lies. They differ from AVX-512's in the last bits, so the CPU alone decides which of the two is taken,
//! and never the number of rows.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use aligned_vec::{AVec, avec};

use super::super::product::{starts, write};
use super::super::tiles::{self, Halves, Machine, Operand, Processor, Sums, TILE, Tiles, WIDE};
use super::{Bf16Matrix, Bf16Rows, LANES, Left, PANEL, View, Words, avx512, portable};

/// Pairs of a tile.
const DEEP: usize = WIDE / size_of::<u32>();
/// Words of a tile of the left operand.
const WORDS: usize = TILE * DEEP;
/// Rows that are summed at a time: two tiles.
const STRIP: usize = 2 * TILE;

const _: () = assert!(TILE == LANES);

/// Whether the CPU has the instructions, the system lets this process use them, and a small product by them is right.
pub(super) fn is_available() -> bool {
    /// Of `edx` of leaf 7: products of bf16 in tiles.
    const HALVES: u32 = 1 << 22;
    static HERE: OnceLock<bool> = OnceLock::new();
    *HERE.get_or_init(|| {
        avx512::is_available()
            && tiles::are_usable(HALVES)
            // SAFETY: the processor's tiles are usable, as was just asked.
            && unsafe { agrees(Processor::default()) }
    })
}

/// Whether a small product with ragged edges is the portable one.
///
/// # Safety
/// The machine is there.
unsafe fn agrees<M: Machine>(machine: M) -> bool {
    // Operands this small are made by this thread alone: others may be waiting for the answer.
    let (rows, inner, columns) = (41, 69, 37);
    let mut state = 1u32;
    let mut numbers = |count: usize| -> Vec<f32> {
        let number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(number).collect()
    };
    let by_rows = Bf16Rows::round(&numbers(rows * inner), inner);
    let by_columns = Bf16Matrix::pack(&numbers(inner * rows), rows);
    let right = Bf16Matrix::pack(&numbers(inner * columns), columns);
    let terms = [(Left::Rows(&by_rows), &right), (Left::Transposed(&by_columns), &right)];
    let bias = numbers(columns);
    let mut actual = vec![MaybeUninit::new(0.0f32); rows * columns];
    let mut expected = actual.clone();
    // SAFETY: the caller says that the machine is there.
    unsafe { part_on(machine, &terms, Some(&bias), 0, &mut actual, false) };
    portable::part(&terms, Some(&bias), 0, &mut expected, false);
    actual.iter().zip(&expected).all(|(actual, expected)| {
        // SAFETY: all were initialised above.
        let difference = unsafe { actual.assume_init() - expected.assume_init() };
        difference.abs() < 1e-4
    })
}

/// As [`super::portable::part`].
///
/// # Safety
/// [`is_available`] must have returned true.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn part(
    terms: &[(Left<'_>, &Bf16Matrix)],
    bias: Option<&[f32]>,
    first: usize,
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    // SAFETY: the caller has checked that there are tiles.
    unsafe { part_on(Processor::default(), terms, bias, first, to, add) }
}

/// # Safety
/// The machine is there.
#[inline(always)]
unsafe fn part_on<M: Machine>(
    machine: M,
    terms: &[(Left<'_>, &Bf16Matrix)],
    bias: Option<&[f32]>,
    first: usize,
    to: &mut [MaybeUninit<f32>],
    add: bool,
) {
    let columns = terms[0].1.columns;
    let rows = to.len() / columns;
    let lefts: Vec<Words> = terms.iter().map(|(left, _)| in_tiles(*left, first, rows)).collect();
    // SAFETY: the caller says that the machine is there; this thread multiplies nothing else before they are dropped.
    let mut tiles = unsafe { Tiles::new(machine, WIDE) };
    let mut sums = Sums([[[[0.0; LANES]; TILE]; 2]; 2]);
    for panel in 0..columns.div_ceil(PANEL) {
        let width = Bf16Matrix::width(columns, panel);
        let rights: Vec<Panel<'_>> =
            terms.iter().map(|(_, right)| Panel::of(right, panel, width)).collect();
        for row in (0..rows).step_by(STRIP) {
            let height = STRIP.min(rows - row);
            let to = &mut to[row * columns..][..height * columns];
            for within in (0..width).step_by(2 * LANES) {
                let place = [panel * PANEL + within, columns];
                each_line(&mut sums, to, place, |column, sums, to| {
                    *sums = starts(bias, column, to.len());
                    if add {
                        for (sum, to) in sums.iter_mut().zip(to) {
                            // SAFETY: with `add`, the result has been written before.
                            *sum += unsafe { to.assume_init() };
                        }
                    }
                });
                for (left, right) in lefts.iter().zip(&rights) {
                    let left = &left[row * right.blocks() * DEEP..];
                    right.add(&mut tiles, left, within, height.saturating_sub(TILE), &mut sums);
                }
                each_line(&mut sums, to, place, |_, sums, to| write(to, sums));
            }
        }
    }
}

/// Calls `with` for the sums of each row of a strip by 16 columns: the first of these, the sums, and where they belong in
/// the rows of the result.
#[inline(always)]
fn each_line(
    sums: &mut Sums<f32>,
    to: &mut [MaybeUninit<f32>],
    [column, columns]: [usize; 2],
    mut with: impl FnMut(usize, &mut [f32; LANES], &mut [MaybeUninit<f32>]),
) {
    for (row, to) in to.chunks_exact_mut(columns).enumerate() {
        let end = columns.min(column + 2 * LANES);
        for (side, to) in to[column..end].chunks_mut(LANES).enumerate() {
            with(column + side * LANES, &mut sums.0[row / TILE][side][row % TILE], to);
        }
    }
}

/// Rows of a left operand as tiles read them, `[rows / 16][pairs / 16][16][16]`, with zeros beyond the edges.
fn in_tiles(left: Left<'_>, first: usize, rows: usize) -> Words {
    let pairs = left.pairs();
    let count = rows.div_ceil(TILE) * pairs.div_ceil(DEEP) * WORDS;
    let mut words: Words = AVec::with_capacity(64, count);
    for upper in (0..rows).step_by(TILE) {
        for start in (0..pairs).step_by(DEEP) {
            let mut tile = [[0; DEEP]; TILE];
            for (row, to) in (upper..rows).zip(&mut tile) {
                let View { words, steps: [_, apart] } = left.view(first + row);
                let from = &words[start * apart..];
                match from.first_chunk() {
                    // A copy of unknown length would be a call.
                    Some(from) if apart == 1 && pairs - start >= DEEP => *to = *from,
                    _ => {
                        let from = from.iter().step_by(apart).take(pairs - start);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                    }
                }
            }
            words.extend_from_slice(tile.as_flattened());
        }
    }
    words
}

/// A panel of a right operand: tiles read it where it lies, but for a last block of fewer than 16 pairs.
struct Panel<'a> {
    /// `[pairs][width]`.
    words: &'a [u32],
    width: usize,
    /// The last block with zeros up to 16 pairs; empty where all blocks are whole.
    rest: Words,
}

impl<'a> Panel<'a> {
    fn of(right: &'a Bf16Matrix, panel: usize, width: usize) -> Self {
        let words = &right.words[panel * PANEL * right.pairs..][..right.pairs * width];
        let last = &words[right.pairs / DEEP * DEEP * width..];
        let mut rest: Words = avec![[64]| 0; if last.is_empty() { 0 } else { DEEP * width }];
        rest[..last.len()].copy_from_slice(last);
        Self { words, width, rest }
    }

    fn blocks(&self) -> usize {
        self.words.len().div_ceil(DEEP * self.width)
    }

    /// Adds the products of a strip of [`in_tiles`] with up to 32 columns from one of the panel's on; there are `more`
    /// rows than a tile's.
    #[inline(always)]
    fn add<M: Machine>(
        &self,
        tiles: &mut Tiles<M>,
        left: &[u32],
        column: usize,
        more: usize,
        to: &mut Sums<f32>,
    ) {
        let whole = self.words.len() / (DEEP * self.width);
        let rest = usize::from(!self.rest.is_empty());
        for (first, steps, words) in [(0, whole, self.words), (whole, rest, &self.rest[..])] {
            if steps == 0 {
                continue;
            }
            let left = Operand {
                values: &left[first * WORDS..],
                other: self.blocks() * WORDS,
                row: DEEP,
                step: WORDS,
            };
            let right = Operand {
                values: &words[column..],
                // An odd last vector is its own neighbour.
                other: if self.width - column > LANES { LANES } else { 0 },
                row: self.width,
                step: DEEP * self.width,
            };
            tiles.multiply::<Halves>(&left, &right, [steps, more], to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tiles::software::Software;
    use super::super::super::tiles::{Dot, Places, Shapes};
    use super::*;
    use proptest::prelude::*;
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;
    use std::time::Duration;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(number).collect()
    }

    /// A result that begins with halves.
    fn made(count: usize, product: impl FnOnce(&mut [MaybeUninit<f32>])) -> Vec<f32> {
        let mut to = vec![MaybeUninit::new(0.5); count];
        product(&mut to);
        // SAFETY: all were initialised here, before the product overwrote them.
        to.into_iter().map(|to| unsafe { to.assume_init() }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn tiles_sum_what_the_portable_product_sums(
            rows in 1usize..70, inner in 1usize..100, more in 0usize..40, columns in 1usize..150,
            first in 0usize..70, by_columns in prop::bool::ANY, biased in prop::bool::ANY,
            add in prop::bool::ANY, seed in 0u32..1000,
        ) {
            let height = first + rows;
            let terms: Vec<_> = [inner, more].into_iter().filter(|inner| *inner > 0).map(|inner| {
                let x = numbers(height * inner, seed);
                let right = Bf16Matrix::pack(&numbers(inner * columns, seed + 1), columns);
                (Bf16Rows::round(&x, inner), Bf16Matrix::pack(&x, height), right)
            }).collect();
            let operands: Vec<_> = terms.iter().map(|(rows, panels, right)| {
                (if by_columns { Left::Transposed(panels) } else { Left::Rows(rows) }, right)
            }).collect();
            let bias = numbers(columns, seed + 2);
            let bias = biased.then_some(bias.as_slice());
            let by_tiles = |first: usize, rows: usize| made(rows * columns, |to| {
                // SAFETY: software's tiles are everywhere.
                unsafe { part_on(Software::default(), &operands, bias, first, to, add) }
            });
            let actual = by_tiles(first, rows);
            let expected =
                made(rows * columns, |to| portable::part(&operands, bias, first, to, add));
            for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                let place = [i / columns, i % columns];
                prop_assert!((actual - expected).abs() < 2e-5, "{place:?} {actual} {expected}");
            }
            // A row has the same bits beside others as alone.
            let row = seed as usize % rows;
            let alone = by_tiles(first + row, 1);
            for (alone, beside) in alone.iter().zip(&actual[row * columns..]) {
                prop_assert_eq!(alone.to_bits(), beside.to_bits());
            }
        }
    }

    #[test]
    fn no_numbers_beyond_the_edges_are_summed() {
        // Infinity times a filling zero would be NaN.
        let (rows, inner, columns) = (17, 35, 70);
        let all = |count: usize, number: f32| vec![number; count];
        let x = Bf16Rows::round(&all(rows * inner, 1.0), inner);
        let right = Bf16Matrix::pack(&all(inner * columns, f32::INFINITY), columns);
        let to = made(rows * columns, |to| {
            // SAFETY: software's tiles are everywhere.
            unsafe {
                part_on(Software::default(), &[(Left::Rows(&x), &right)], None, 0, to, false);
            }
        });
        assert!(to.iter().all(|to| *to == f32::INFINITY));
    }

    /// Tiles that multiply nothing.
    struct Broken;

    impl Machine for Broken {
        unsafe fn configure(&mut self, _: &Shapes) {}
        unsafe fn run<D: Dot>(&mut self, _: &Places) {}
        unsafe fn release(&mut self) {}
    }

    #[test]
    fn tiles_that_multiply_wrongly_are_not_used() {
        // SAFETY: neither touches the processor's tiles.
        unsafe {
            assert!(agrees(Software::default()));
            assert!(!agrees(Broken));
        }
    }

    #[test]
    fn the_small_product_waits_for_no_other_thread() {
        // All of them may be waiting for its answer.
        let busy = Arc::new(Mutex::new(()));
        let held = busy.lock().unwrap();
        let waiting = busy.clone();
        rayon::spawn_broadcast(move |_| drop(waiting.lock()));
        let (send, receive) = mpsc::channel();
        // SAFETY: software's tiles are everywhere.
        thread::spawn(move || send.send(unsafe { agrees(Software::default()) }));
        let answer = receive.recv_timeout(Duration::from_secs(60));
        drop(held);
        assert_eq!(answer, Ok(true));
    }
}
