//! Linear layers with their adapters, and their gradients, in f32 or bf16; weights in few bits are multiplied as in
//! inference, and made f32 for gradients.
//!
//! The adapters of a layer are joined: their `A` side by side, their `B` on a diagonal, with their
//! scales. So `x W + s x A B` is one sum over the inputs and the ranks, which is how a tile computes it.

use std::cell::OnceCell;
use std::sync::{Arc, OnceLock};

use super::dropout::drop_out;
use super::places::Places;
use super::{Primitive, floats};
use crate::kernels::host::product::{Strided, add_product, new_product};
use crate::kernels::{LowRank, MatmulPrecision, Projection};
use crate::parallel::{cores, each_part};
use crate::quant::HostMatrix;
use crate::quant::bf16::{self, Bf16Matrix, Bf16Rows, Left};

/// Values of a core.
const PART: usize = 1 << 14;

/// Rows `[tokens, width]` that take part in products.
pub(super) struct Input<'a> {
    pub values: &'a [f32],
    pub width: usize,
    rows: OnceCell<Bf16Rows>,
    panels: OnceCell<Bf16Matrix>,
}

impl<'a> Input<'a> {
    pub(super) fn new(values: &'a [f32], width: usize) -> Self {
        Self { values, width, rows: OnceCell::new(), panels: OnceCell::new() }
    }

    fn tokens(&self) -> usize {
        self.values.len() / self.width.max(1)
    }

    fn rows(&self) -> &Bf16Rows {
        self.rows.get_or_init(|| Bf16Rows::round(self.values, self.width))
    }

    fn panels(&self) -> &Bf16Matrix {
        self.panels.get_or_init(|| Bf16Matrix::pack(self.values, self.width))
    }
}

/// A right operand `[inner, columns]`.
enum Matrix<'a> {
    F32(Strided<'a>),
    Bf16(&'a Bf16Matrix),
}

/// A weight in bf16, for as long as it is the same.
struct Packed {
    source: Primitive,
    weight: OnceLock<Bf16Matrix>,
    transposed: OnceLock<Bf16Matrix>,
}

/// A weight `[inputs, outputs]` as products take it.
enum Weight<'a> {
    F32 { values: &'a [f32], row: usize, column: usize },
    Bf16 { packed: Arc<Packed>, shape: [usize; 2] },
}

impl<'a> Weight<'a> {
    /// The weight; `unpacked` has room for one of few bits, which is taken in f32.
    fn of(
        projection: &'a Projection<Primitive>,
        precision: MatmulPrecision,
        unpacked: &'a OnceCell<Vec<f32>>,
    ) -> Self {
        if let Some(matrix) = &projection.matrix {
            let values = unpacked.get_or_init(|| matrix.weights());
            return Self::F32 { values, row: matrix.shape()[1], column: 1 };
        }
        let tensor = &projection.weight;
        let layout = tensor.layout();
        let (shape, strides) = (layout.shape(), layout.strides());
        match precision {
            MatmulPrecision::F32 => Self::F32 {
                values: &tensor.storage::<f32>()[layout.start_offset()..],
                row: strides[0].unsigned_abs(),
                column: strides[1].unsigned_abs(),
            },
            MatmulPrecision::Bf16 => Self::Bf16 {
                // The kept tensor holds on to its memory, so no other can be at the same place.
                packed: projection.prepared.get(
                    |packed: &Packed| {
                        Arc::ptr_eq(&packed.source.data_arc(), &tensor.data_arc())
                            && packed.source.layout().strides() == strides
                            && packed.source.layout().start_offset() == layout.start_offset()
                            && packed.source.layout().shape() == shape
                    },
                    || Packed {
                        source: tensor.clone(),
                        weight: OnceLock::new(),
                        transposed: OnceLock::new(),
                    },
                ),
                shape: [shape[0], shape[1]],
            },
        }
    }

    fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::F32 { values, row, column } => {
                Matrix::F32(Strided { values, row: *row, column: *column })
            }
            Self::Bf16 { packed, shape: [_, outputs] } => {
                Matrix::Bf16(packed.weight.get_or_init(|| packed.panels(*outputs, false)))
            }
        }
    }

    fn transposed(&self) -> Matrix<'_> {
        match self {
            Self::F32 { values, row, column } => {
                Matrix::F32(Strided { values, row: *column, column: *row })
            }
            Self::Bf16 { packed, shape: [inputs, _] } => {
                Matrix::Bf16(packed.transposed.get_or_init(|| packed.panels(*inputs, true)))
            }
        }
    }
}

impl Packed {
    /// The weight or its transpose, of some columns.
    fn panels(&self, columns: usize, transposed: bool) -> Bf16Matrix {
        let by_columns = self.source.transpose(0, 1);
        // Weights come from files as transposed views.
        let (values, lies_transposed) = match by_columns.as_slice::<f32>() {
            Some(values) if self.source.as_slice::<f32>().is_none() => (values, true),
            _ => (&[] as &[f32], false),
        };
        if lies_transposed {
            return pack(values, columns, !transposed);
        }
        let source = self.source.to_contiguous();
        pack(floats(&source), columns, transposed)
    }
}

fn pack(values: &[f32], columns: usize, transposed: bool) -> Bf16Matrix {
    if transposed {
        Bf16Matrix::pack_transposed(values, columns)
    } else {
        Bf16Matrix::pack(values, columns)
    }
}

/// Sum of products: `[tokens, outputs]`.
fn times(terms: &[(&Input<'_>, Matrix<'_>)], outputs: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let operands = in_bf16(terms);
    if operands.len() == terms.len() {
        return bf16::product(&operands, bias);
    }
    let mut to = Vec::new();
    for (number, (x, y)) in terms.iter().enumerate() {
        let Matrix::F32(y) = y else { continue };
        let (left, shape) = (Strided::rows(x.values, x.width), [x.tokens(), x.width, outputs]);
        match number {
            0 => to = new_product(cores(), left, *y, shape),
            _ => add_product(cores(), left, *y, shape, &mut to),
        }
    }
    if let Some(bias) = bias {
        each_part(&mut to, PART.next_multiple_of(outputs), |_, rows| {
            for row in rows.chunks_exact_mut(outputs) {
                row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        });
    }
    to
}

/// Adds products to `to` `[tokens, outputs]`.
fn add_times(terms: &[(&Input<'_>, Matrix<'_>)], outputs: usize, to: &mut [f32]) {
    bf16::add_product(&in_bf16(terms), to);
    for (x, y) in terms {
        if let Matrix::F32(y) = y {
            let (left, shape) = (Strided::rows(x.values, x.width), [x.tokens(), x.width, outputs]);
            add_product(cores(), left, *y, shape, to);
        }
    }
}

/// The terms in bf16: all or none.
fn in_bf16<'a>(terms: &'a [(&Input<'_>, Matrix<'_>)]) -> Vec<(Left<'a>, &'a Bf16Matrix)> {
    let packed = terms.iter().filter_map(|(x, y)| match y {
        Matrix::Bf16(matrix) => Some((Left::Rows(x.rows()), *matrix)),
        Matrix::F32(_) => None,
    });
    packed.collect()
}

/// `left^T right` `[left width, right width]`, a sum over tokens.
fn outer(left: &Input<'_>, right: &Input<'_>, precision: MatmulPrecision) -> Vec<f32> {
    match precision {
        MatmulPrecision::F32 => {
            let x = Strided { values: left.values, row: 1, column: left.width };
            let y = Strided::rows(right.values, right.width);
            new_product(cores(), x, y, [left.width, left.tokens(), right.width])
        }
        MatmulPrecision::Bf16 => {
            bf16::product(&[(Left::Transposed(left.panels()), right.panels())], None)
        }
    }
}

/// Columns `from..from + count` of rows as wide as `width`.
fn columns(values: &[f32], width: usize, from: usize, count: usize) -> Vec<f32> {
    values.chunks_exact(width).flat_map(|row| &row[from..from + count]).copied().collect()
}

fn transposed(values: &[f32], width: usize) -> Vec<f32> {
    let rows = values.len() / width.max(1);
    let mut to = vec![0.0; values.len()];
    for (row, values) in values.chunks_exact(width.max(1)).enumerate() {
        for (column, value) in values.iter().enumerate() {
            to[column * rows + row] = *value;
        }
    }
    to
}

/// The adapters of a projection side by side.
struct Joined {
    /// `[inputs, ranks]`.
    a: Vec<f32>,
    /// `[ranks, outputs]`, scaled, each adapter's part in its own columns.
    b: Vec<f32>,
    /// All ranks together.
    ranks: usize,
    /// First rank, rank and width of each adapter.
    parts: Vec<(usize, usize, usize)>,
    /// Whether inputs drop out, each adapter's its own.
    drops: bool,
}

impl Joined {
    fn of(adapters: &[LowRank<Primitive>], inputs: usize, outputs: usize) -> Self {
        let (mut parts, mut ranks) = (Vec::new(), 0);
        for low in adapters {
            let shape = low.b.layout().shape();
            parts.push((ranks, shape[0], shape[1]));
            ranks += shape[0];
        }
        let (mut a, mut b) = (vec![0.0; inputs * ranks], vec![0.0; ranks * outputs]);
        for (low, (first, rank, width)) in adapters.iter().zip(&parts) {
            for (to, row) in a.chunks_exact_mut(ranks).zip(floats(&low.a).chunks_exact(*rank)) {
                to[*first..first + rank].copy_from_slice(row);
            }
            let rows = b.chunks_exact_mut(outputs).skip(*first);
            for (to, row) in rows.zip(floats(&low.b).chunks_exact(*width)) {
                for (to, value) in to[low.first..low.first + width].iter_mut().zip(row) {
                    *to = value * low.scale;
                }
            }
        }
        let drops = adapters.iter().any(|low| low.dropout.is_some());
        Self { a, b, ranks, parts, drops }
    }
}

/// A small matrix `[rows, columns]` as a right operand, or its transpose.
fn with_matrix<R>(
    values: &[f32],
    columns: usize,
    transposed: bool,
    precision: MatmulPrecision,
    run: impl FnOnce(Matrix<'_>) -> R,
) -> R {
    match (precision, transposed) {
        (MatmulPrecision::F32, false) => run(Matrix::F32(Strided::rows(values, columns))),
        (MatmulPrecision::F32, true) => {
            run(Matrix::F32(Strided { values, row: 1, column: columns }))
        }
        (MatmulPrecision::Bf16, false) => run(Matrix::Bf16(&Bf16Matrix::pack(values, columns))),
        (MatmulPrecision::Bf16, true) => {
            run(Matrix::Bf16(&Bf16Matrix::pack_transposed(values, values.len() / columns.max(1))))
        }
    }
}

/// The input of an adapter with what drops out of it.
fn dropped(input: &Input<'_>, low: &LowRank<Primitive>, places: &Places) -> Vec<f32> {
    let mut values = input.values.to_vec();
    if let Some(mask) = low.dropout {
        drop_out(&mut values, input.width, mask, places);
    }
    values
}

/// `[tokens, outputs]`, and what the adapters have made of the input by their `A`.
pub(super) fn forward(
    input: &Input<'_>,
    projection: &Projection<Primitive>,
    precision: MatmulPrecision,
    places: &Places,
) -> (Vec<f32>, Vec<f32>) {
    let outputs = projection.shape()[1];
    let bias = projection.bias.as_ref().map(floats);
    let matrix = projection.matrix.as_deref();
    let unpacked = OnceCell::new();
    let weight = || Weight::of(projection, precision, &unpacked);
    if projection.adapters.is_empty() {
        let y = match matrix {
            Some(matrix) => packed(input, matrix, bias),
            None => times(&[(input, weight().matrix())], outputs, bias),
        };
        return (y, Vec::new());
    }
    let joined = Joined::of(&projection.adapters, input.width, outputs);
    let low = if joined.drops {
        let mut low = vec![0.0; input.tokens() * joined.ranks];
        for (adapter, &(first, rank, _)) in projection.adapters.iter().zip(&joined.parts) {
            let values = dropped(input, adapter, places);
            let part = with_matrix(floats(&adapter.a), rank, false, precision, |a| {
                times(&[(&Input::new(&values, input.width), a)], rank, None)
            });
            let rows = low.chunks_exact_mut(joined.ranks);
            for (to, part) in rows.zip(part.chunks_exact(rank)) {
                to[first..first + rank].copy_from_slice(part);
            }
        }
        low
    } else {
        with_matrix(&joined.a, joined.ranks, false, precision, |a| {
            times(&[(input, a)], joined.ranks, None)
        })
    };
    let of_low = Input::new(&low, joined.ranks);
    let y = with_matrix(&joined.b, outputs, false, precision, |b| match matrix {
        Some(matrix) => {
            let mut y = packed(input, matrix, bias);
            add_times(&[(&of_low, b)], outputs, &mut y);
            y
        }
        None => times(&[(input, weight().matrix()), (&of_low, b)], outputs, bias),
    });
    (y, low)
}

/// A product with a weight in few bits.
fn packed(input: &Input<'_>, matrix: &HostMatrix, bias: Option<&[f32]>) -> Vec<f32> {
    match matrix.product(input.values, bias) {
        Ok(y) => y,
        Err(error) => unreachable!("the widths were compared when the block was taken: {error}"),
    }
}

impl Projection<Primitive> {
    /// `[inputs, outputs]`.
    pub(super) fn shape(&self) -> [usize; 2] {
        match &self.matrix {
            Some(matrix) => matrix.shape(),
            None => self.weight.layout().shape().dims(),
        }
    }
}

/// The gradients of a projection for the gradient of its output; that of its input is added to `to`,
/// or becomes it where it is empty.
pub(super) fn backward(
    (input, low): (&Input<'_>, &[f32]),
    gradient: &Input<'_>,
    projection: &Projection<Primitive>,
    wanted: &Projection<bool>,
    (precision, places): (MatmulPrecision, &Places),
    to: &mut Vec<f32>,
) -> Projection<Option<Vec<f32>>> {
    // The first that writes makes it.
    let mut back = |terms: &[(&Input<'_>, Matrix<'_>)]| match to.is_empty() {
        true => *to = times(terms, input.width, None),
        false => add_times(terms, input.width, to),
    };
    let (inputs, outputs) = (input.width, gradient.width);
    // Products of an unpacked weight are f32, and so are those beside it in one sum.
    let precision = if projection.matrix.is_some() { MatmulPrecision::F32 } else { precision };
    let unpacked = OnceCell::new();
    let weight = Weight::of(projection, precision, &unpacked);
    let mut of_adapters = Vec::new();
    if projection.adapters.is_empty() {
        back(&[(gradient, weight.transposed())]);
    } else {
        let joined = Joined::of(&projection.adapters, inputs, outputs);
        let ranks = joined.ranks;
        let of_low = with_matrix(&joined.b, outputs, true, precision, |b| {
            times(&[(gradient, b)], ranks, None)
        });
        let rows_of_low = Input::new(&of_low, ranks);
        let of_b = transposed(&outer(gradient, &Input::new(low, ranks), precision), ranks);
        if joined.drops {
            back(&[(gradient, weight.transposed())]);
        } else {
            with_matrix(&joined.a, ranks, true, precision, |a| {
                back(&[(gradient, weight.transposed()), (&rows_of_low, a)]);
            });
        }
        let of_a = match joined.drops {
            true => Vec::new(),
            false => outer(input, &rows_of_low, precision),
        };
        let parts = projection.adapters.iter().zip(&wanted.adapters).zip(&joined.parts);
        for ((adapter, wanted), &(first, rank, width)) in parts {
            let of_b = columns(
                &of_b[first * outputs..(first + rank) * outputs],
                outputs,
                adapter.first,
                width,
            );
            let of_b: Vec<f32> = of_b.into_iter().map(|value| value * adapter.scale).collect();
            let of_a = if joined.drops {
                let of_low = columns(&of_low, ranks, first, rank);
                let of_low = Input::new(&of_low, rank);
                let mut part = with_matrix(floats(&adapter.a), rank, true, precision, |a| {
                    times(&[(&of_low, a)], inputs, None)
                });
                if let Some(mask) = adapter.dropout {
                    drop_out(&mut part, inputs, mask, places);
                }
                add_to(to, &part);
                let values = dropped(input, adapter, places);
                outer(&Input::new(&values, inputs), &of_low, precision)
            } else {
                columns(&of_a, ranks, first, rank)
            };
            of_adapters.push(LowRank {
                a: wanted.a.then_some(of_a),
                b: wanted.b.then_some(of_b),
                first: adapter.first,
                scale: adapter.scale,
                dropout: None,
            });
        }
    }
    Projection {
        // A weight in few bits has none.
        weight: (wanted.weight && projection.matrix.is_none())
            .then(|| outer(input, gradient, precision)),
        matrix: None,
        packed: None,
        bias: wanted.bias.map(|wanted| wanted.then(|| column_sums(gradient))),
        adapters: of_adapters,
        prepared: Default::default(),
    }
}

/// Adds numbers to others.
pub(super) fn add_to(to: &mut [f32], values: &[f32]) {
    each_part(to, PART, |number, to| {
        let values = &values[number * PART..][..to.len()];
        to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
    });
}

/// Sums over the tokens.
fn column_sums(rows: &Input<'_>) -> Vec<f32> {
    let mut sums = vec![0.0; rows.width];
    for row in rows.values.chunks_exact(rows.width.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    sums
}
