//! AMX in plain Rust: it reads the instructions that the processor is given, and does what Intel's manual says of each
//! (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TILESTORED, TDPBSUD,
//! TDPBF16PS).

use std::collections::BTreeMap;

use super::{Dot, Machine, Places, Shapes, Sums, TILE, WIDE};

type Tile = [[u8; WIDE]; TILE];

/// The tiles, and the numbers of rows and of bytes in a row that they are configured for.
#[derive(Default)]
pub(in crate::quant) struct Software {
    tiles: [Shaped; 8],
}

#[derive(Clone, Copy)]
struct Shaped {
    rows: usize,
    width: usize,
    bytes: Tile,
}

impl Default for Shaped {
    fn default() -> Self {
        Self { rows: 0, width: 0, bytes: [[0; WIDE]; TILE] }
    }
}

impl Machine for Software {
    unsafe fn configure(&mut self, shapes: &Shapes) {
        assert_eq!((shapes.palette, shapes.start, shapes.reserved), (1, 0, [0; 14]));
        for (i, (rows, width)) in shapes.rows.into_iter().zip(shapes.widths).enumerate() {
            let (rows, width) = (usize::from(rows), usize::from(width));
            assert!(rows <= TILE && width <= WIDE && (i < 8 || rows + width == 0));
            if let Some(tile) = self.tiles.get_mut(i) {
                *tile = Shaped { rows, width, ..Shaped::default() };
            }
        }
    }

    unsafe fn run<D: Dot>(&mut self, places: &Places) {
        let word = |c: char| c.is_ascii_alphanumeric();
        let lines: Vec<Vec<&str>> = D::TEXT
            .iter()
            .map(|line| line.split(|c| !word(c)).filter(|word| !word.is_empty()).collect())
            .collect();
        let label = |name: &str| lines.iter().position(|line| line[..] == [name]).unwrap();
        let mut registers = BTreeMap::from([
            ("upper", places.upper as usize),
            ("lower", places.lower as usize),
            ("left", places.left as usize),
            ("right", places.right as usize),
            ("to", places.to as usize),
            ("steps", places.steps),
            ("more", places.more),
            ("apart", places.apart),
            ("depth", places.depth),
            ("wide", places.wide),
            ("stride", places.stride),
            ("line", places.line),
        ]);
        let (mut at, mut zero) = (0, false);
        while let Some(line) = lines.get(at) {
            at += 1;
            let memory = |from: &str, apart: &str, beyond: &[&str]| {
                let beyond: usize = beyond.first().map_or(0, |beyond| beyond.parse().unwrap());
                (registers[from] + beyond, registers[apart])
            };
            match line[..] {
                [_] => {}
                ["tilezero", tile] => self.tiles[number(tile)].bytes = [[0; WIDE]; TILE],
                ["tileloadd", tile, from, apart, ref beyond @ ..] => {
                    let (from, apart) = memory(from, apart, beyond);
                    let tile = &mut self.tiles[number(tile)];
                    tile.bytes = [[0; WIDE]; TILE];
                    for (i, to) in tile.bytes[..tile.rows].iter_mut().enumerate() {
                        places.read(from + i * apart, &mut to[..tile.width]);
                    }
                }
                ["tilestored", to, apart, ref rest @ .., tile] => {
                    let (to, apart) = memory(to, apart, rest);
                    let tile = &self.tiles[number(tile)];
                    for (i, from) in tile.bytes[..tile.rows].iter().enumerate() {
                        places.write(to + i * apart, &from[..tile.width]);
                    }
                }
                ["test", a, b] => zero = registers[a] & registers[b] == 0,
                ["add", to, by] => {
                    let sum = registers[to].wrapping_add(registers[by]);
                    registers.insert(to, sum);
                    zero = sum == 0;
                }
                ["dec", of] => {
                    let less = registers[of].wrapping_sub(1);
                    registers.insert(of, less);
                    zero = less == 0;
                }
                [jump @ ("jz" | "jnz"), to] => {
                    if zero == (jump == "jz") {
                        let target = label(&to[..1]);
                        assert_eq!(if target >= at { "f" } else { "b" }, &to[1..]);
                        at = target;
                    }
                }
                [product, to, x, y] => self.add(product, [to, x, y].map(number)),
                _ => panic!("an instruction that software does not know: {line:?}"),
            }
        }
    }

    unsafe fn release(&mut self) {
        *self = Self::default();
    }
}

impl Software {
    /// `to += x y`, by the instruction named.
    fn add(&mut self, product: &str, [to, x, y]: [usize; 3]) {
        let (x, y, to) = (self.tiles[x], self.tiles[y], &mut self.tiles[to]);
        assert!(
            x.rows == to.rows && y.width == to.width && x.width == 4 * y.rows,
            "shapes that the processor refuses"
        );
        for (to, x) in to.bytes[..to.rows].iter_mut().zip(&x.bytes) {
            let x = &x.as_chunks::<4>().0[..y.rows];
            for (column, to) in to.as_chunks_mut::<4>().0[..y.width / 4].iter_mut().enumerate() {
                let pairs = x.iter().zip(y.bytes.iter().map(|row| row.as_chunks::<4>().0[column]));
                *to = match product {
                    "tdpbsud" => {
                        let products = pairs.flat_map(|(x, y)| {
                            (0..4).map(move |i| i32::from(x[i].cast_signed()) * i32::from(y[i]))
                        });
                        products.fold(i32::from_le_bytes(*to), i32::wrapping_add).to_le_bytes()
                    }
                    "tdpbf16ps" => {
                        // The product of two numbers in bf16 is exact in f32: multiplied and added, it is rounded as
                        // often as by a fused instruction.
                        let mut sums = [0f32; 2];
                        for (x, y) in pairs {
                            for (i, sum) in sums.iter_mut().enumerate() {
                                let [x, y] = [x, &y].map(|word| {
                                    flushed(f32::from_le_bytes([
                                        0,
                                        0,
                                        word[2 * i],
                                        word[2 * i + 1],
                                    ]))
                                });
                                *sum = flushed(x * y + *sum);
                            }
                        }
                        let sum = flushed(sums[0] + sums[1]);
                        flushed(flushed(f32::from_le_bytes(*to)) + sum).to_le_bytes()
                    }
                    _ => panic!("a product that software does not know: {product}"),
                };
            }
        }
    }
}

/// The number, or zero for one below the least normal one.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// Of `tmm0` to `tmm7`.
fn number(tile: &str) -> usize {
    tile.strip_prefix("tmm").unwrap().parse().unwrap()
}

impl Places {
    /// Copies bytes from an address inside the operands or the sums.
    fn read(&self, from: usize, to: &mut [u8]) {
        let to_sums =
            self.to.cast_const()..self.to.wrapping_add(size_of::<Sums<f32>>()).cast_const();
        let mut all = self.readable.iter().chain([&to_sums]);
        let inside =
            all.find(|bytes| bytes.start as usize <= from && from + to.len() <= bytes.end as usize);
        let from = inside.expect("a load outside the operands").start.with_addr(from);
        // SAFETY: the bytes lie inside one of these places, all of which have been written and outlive the run.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes to an address inside the sums.
    fn write(&self, to: usize, from: &[u8]) {
        let start = self.to as usize;
        assert!(
            start <= to && to + from.len() <= start + size_of::<Sums<f32>>(),
            "a store outside the sums"
        );
        // SAFETY: the bytes lie inside the sums, which the run may write.
        unsafe { self.to.with_addr(to).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
}
