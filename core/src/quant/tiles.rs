//! AMX: tiles of 16 rows of 64 bytes, and the one loop of instructions by which products of int8 and of bf16 use them.
//!
//! Few machines have AMX, so what runs the loop is a [`Machine`]: the [`Processor`], which is given it as
//! assembler, or in tests `software`, which reads the same text. All that decides which numbers a tile takes is proven by
//! the latter wherever the tests run.

#![expect(
    unsafe_code,
    reason = "assembler that reads and writes memory, and a call of the system; each with its proof"
)]

#[cfg(test)]
pub(super) mod software;

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Rows of a tile, and sums in a row of one.
pub(super) const TILE: usize = 16;
/// Bytes of a full row of a tile.
pub(super) const WIDE: usize = 64;
/// Bytes of a row of activations that meet one row of weights.
const STEP: usize = 4;

/// Whether the CPU has tiles and the products in them that this bit stands for (of `edx` of CPUID's leaf 7), and the
/// system lets this process use them.
pub(super) fn are_usable(products: u32) -> bool {
    is_x86_feature_detected!("avx512f") && has(products) && are_allowed()
}

/// Whether the CPU has tiles with such products and the system saves them at context switches.
fn has(products: u32) -> bool {
    const TILES: u32 = 1 << 24;
    /// Bits of the saved states: tile shapes and tiles.
    const KEPT: u64 = 1 << 17 | 1 << 18;
    let needed = TILES | products;
    // SAFETY: a CPU with AVX-512, which was checked before, has `xgetbv`, register 0 and leaf 7.
    #[allow(unused_unsafe, reason = "`cpuid` is safe in newer Rust")]
    unsafe {
        __cpuid_count(7, 0).edx & needed == needed && kept() & KEPT == KEPT
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

/// What runs the instructions.
pub(super) trait Machine {
    /// `ldtilecfg`, which also zeroes the tiles.
    ///
    /// # Safety
    /// The machine is there, and the shapes are valid: palette 1, at most 16 rows of at most 64 bytes.
    unsafe fn configure(&mut self, shapes: &Shapes);

    /// The instructions of a [`Dot`].
    ///
    /// # Safety
    /// The tiles have the shapes that [`Tiles::new`] gives them, and what the instructions read and write by them lies
    /// inside the operands and the sums.
    unsafe fn run<D: Dot>(&mut self, places: &Places);

    /// `tilerelease`.
    ///
    /// # Safety
    /// The machine is there.
    unsafe fn release(&mut self);
}

/// The CPU, on one thread.
#[derive(Default)]
pub(super) struct Processor {
    not_send: PhantomData<*const ()>,
}

impl Machine for Processor {
    #[inline(always)]
    unsafe fn configure(&mut self, shapes: &Shapes) {
        // SAFETY: the caller says that the instruction is there and the shapes are valid; it reads the 64 bytes that
        // the structure has. The compiler keeps nothing in tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, readonly, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn run<D: Dot>(&mut self, places: &Places) {
        // SAFETY: the caller keeps the promises that this function asks for.
        unsafe { D::run(places) }
    }

    #[inline(always)]
    unsafe fn release(&mut self) {
        // SAFETY: there are tiles, and they hold nothing of value.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
pub(super) struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    widths: [u16; 16],
    rows: [u8; 16],
}

/// A strip's sums by two groups of outputs: a tile each for the upper and lower half of its rows by both groups.
#[repr(C, align(64))]
pub(super) struct Sums<T>(pub(super) [[[[T; TILE]; TILE]; 2]; 2]);

/// Where the tiles of an operand lie among its numbers; all steps are counted in numbers.
pub(super) struct Operand<'a, T> {
    /// From the first tile on.
    pub(super) values: &'a [T],
    /// From the first tile to that of the other half.
    pub(super) other: usize,
    /// From a row of a tile to the next.
    pub(super) row: usize,
    /// From the tiles of a step to those of the next.
    pub(super) step: usize,
}

impl<T> Operand<'_, T> {
    /// Bytes up to the end of the last row of the last tile, whose rows have `width` bytes.
    fn reach(&self, steps: usize, other: usize, [rows, width]: [usize; 2]) -> usize {
        // What no address space has is beyond any operand.
        (steps - 1)
            .saturating_mul(self.step)
            .saturating_add(other)
            .saturating_add((rows - 1).saturating_mul(self.row))
            .saturating_mul(size_of::<T>())
            .saturating_add(width)
    }
}

/// Tiles of a thread while they have shapes; dropped, they are released, which makes context switches cheaper.
pub(super) struct Tiles<M: Machine> {
    machine: M,
    depth: usize,
}

impl<M: Machine> Tiles<M> {
    /// Tiles 0 to 3 are sums (upper half of the rows by both groups, lower half by both), 4 and 5 the activations
    /// of the halves, 6 and 7 the weights of the groups. A row of activations has `depth` bytes.
    ///
    /// # Safety
    /// The machine is there, and no other tiles are used on this thread until these are dropped.
    ///
    /// # Panics
    /// Where the depth is no multiple of four from 4 to 64.
    #[inline(always)]
    pub(super) unsafe fn new(mut machine: M, depth: usize) -> Self {
        assert!((STEP..=WIDE).contains(&depth) && depth.is_multiple_of(STEP), "no depth of a tile");
        let mut shapes =
            Shapes { palette: 1, start: 0, reserved: [0; 14], widths: [0; 16], rows: [0; 16] };
        shapes.widths[..8].fill(WIDE as u16);
        shapes.rows[..8].fill(TILE as u8);
        shapes.widths[4..6].fill(depth as u16);
        shapes.rows[6..8].fill((depth / STEP) as u8);
        // SAFETY: the machine is there, and the shapes are of palette 1: up to 16 rows of up to 64 bytes.
        unsafe { machine.configure(&shapes) };
        Self { machine, depth }
    }

    /// The sums of products of a strip's rows with two groups of outputs over so many steps. Rows of the lower half are
    /// neither read nor summed unless there are `more` rows than the upper half has.
    ///
    /// # Panics
    /// Without a step, and where a tile lies outside its operand.
    #[inline(always)]
    pub(super) fn multiply<D: Dot>(
        &mut self,
        x: &Operand<'_, D::Left>,
        weights: &Operand<'_, D::Right>,
        [steps, more]: [usize; 2],
        to: &mut Sums<D::Sum>,
    ) {
        let lower = if more > 0 { x.other } else { 0 };
        assert!(
            steps > 0
                && x.reach(steps, lower, [TILE, self.depth]) <= size_of_val(x.values)
                && weights.reach(steps, weights.other, [self.depth / STEP, WIDE])
                    <= size_of_val(weights.values),
            "a tile lies outside its operand"
        );
        let (upper, left) = (x.values.as_ptr(), weights.values.as_ptr());
        let places = Places {
            upper: upper.cast(),
            lower: upper.wrapping_add(lower).cast(),
            left: left.cast(),
            right: left.wrapping_add(weights.other).cast(),
            to: std::ptr::from_mut(to).cast(),
            steps,
            more,
            apart: x.row * size_of::<D::Left>(),
            depth: x.step * size_of::<D::Left>(),
            wide: weights.row * size_of::<D::Right>(),
            stride: weights.step * size_of::<D::Right>(),
            line: TILE * size_of::<D::Sum>(),
            #[cfg(test)]
            readable: [
                x.values.as_ptr_range().start.cast()..x.values.as_ptr_range().end.cast(),
                left.cast()..weights.values.as_ptr_range().end.cast(),
            ],
        };
        // SAFETY: each step reads `depth` bytes of 16 rows of activations, then those of the lower half where there are
        // more, and `depth / 4` rows of 64 bytes of both groups; it then goes on to the next tiles. The last of
        // these bytes lie inside the slices, as was just asserted. Four tiles of 16 rows of 64 bytes are written to
        // `to`, or read from it and written, which has this size; the sums of all dots are numbers of 4 bytes, which
        // any bits are.
        unsafe { self.machine.run::<D>(&places) }
    }
}

impl<M: Machine> Drop for Tiles<M> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: who made the tiles said that the machine is there.
        unsafe { self.machine.release() };
    }
}

/// What the instructions name: addresses, and bytes.
pub(super) struct Places {
    /// Activations of the upper half, and of the lower one.
    upper: *const u8,
    lower: *const u8,
    /// Weights of the groups.
    left: *const u8,
    right: *const u8,
    to: *mut u8,
    steps: usize,
    /// Whether there are rows in the lower half: zero where not.
    more: usize,
    /// From a row of activations to the next, and from the tiles of a step to the next step's.
    apart: usize,
    depth: usize,
    /// The same of weights.
    wide: usize,
    stride: usize,
    /// From a row of sums to the next.
    line: usize,
    /// The bytes of activations and weights.
    #[cfg(test)]
    readable: [std::ops::Range<*const u8>; 2],
}

/// A kind of product in tiles.
pub(super) trait Dot {
    type Left;
    type Right;
    /// Has 4 bytes.
    type Sum;

    /// The instructions: names in braces are those of [`Places`].
    #[cfg(test)]
    const TEXT: &'static [&'static str];

    /// # Safety
    /// As [`Machine::run`], on a CPU that has the instructions.
    unsafe fn run(places: &Places);
}

/// The instructions of a [`Dot`], as assembler and, in tests, as text.
macro_rules! instructions {
    ($($line:expr),* $(,)?) => {
        #[cfg(test)]
        const TEXT: &'static [&'static str] = &[$($line),*];

        #[inline(always)]
        unsafe fn run(places: &Places) {
            // SAFETY: the caller says that the tiles have their shapes and that all they read and write is there.
            unsafe {
                asm!(
                    $($line,)*
                    upper = inout(reg) places.upper => _,
                    lower = inout(reg) places.lower => _,
                    left = inout(reg) places.left => _,
                    right = inout(reg) places.right => _,
                    steps = inout(reg) places.steps => _,
                    more = in(reg) places.more,
                    apart = in(reg) places.apart,
                    depth = in(reg) places.depth,
                    wide = in(reg) places.wide,
                    stride = in(reg) places.stride,
                    line = in(reg) places.line,
                    to = in(reg) places.to,
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
    };
}

/// A [`Dot`] by an instruction, and how its sums begin.
macro_rules! dot {
    ($(#[$doc:meta])* $dot:ident, [$left:ty, $right:ty, $sum:ty], $product:literal, [$($start:literal),* $(,)?]) => {
        $(#[$doc])*
        pub(super) enum $dot {}

        impl Dot for $dot {
            type Left = $left;
            type Right = $right;
            type Sum = $sum;

            instructions! {
                $($start,)*
                "2:",
                "tileloadd tmm4, [{upper} + {apart}]",
                "tileloadd tmm6, [{left} + {wide}]",
                "tileloadd tmm7, [{right} + {wide}]",
                concat!($product, " tmm0, tmm4, tmm6"),
                concat!($product, " tmm1, tmm4, tmm7"),
                "test {more}, {more}",
                "jz 3f",
                "tileloadd tmm5, [{lower} + {apart}]",
                concat!($product, " tmm2, tmm5, tmm6"),
                concat!($product, " tmm3, tmm5, tmm7"),
                "3:",
                "add {upper}, {depth}",
                "add {lower}, {depth}",
                "add {left}, {stride}",
                "add {right}, {stride}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{to} + {line}], tmm0",
                "tilestored [{to} + {line} + 1024], tmm1",
                "tilestored [{to} + {line} + 2048], tmm2",
                "tilestored [{to} + {line} + 3072], tmm3",
            }
        }
    };
}

dot!(
    /// Signed by unsigned bytes, four inputs of an output side by side; the sums begin at zero.
    Bytes,
    [i8, u8, i32],
    "tdpbsud",
    ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"]
);

#[cfg(feature = "flex")]
dot!(
    /// Numbers in bf16, two inputs of an output side by side in a word; what is summed is added to the sums.
    Halves,
    [u32, u32, f32],
    "tdpbf16ps",
    [
        "tileloadd tmm0, [{to} + {line}]",
        "tileloadd tmm1, [{to} + {line} + 1024]",
        "tileloadd tmm2, [{to} + {line} + 2048]",
        "tileloadd tmm3, [{to} + {line} + 3072]",
    ]
);
