//! Products with weights, a tile at a time in shared memory. Packed weights are unpacked there, in
//! the dispatch that multiplies them; or as a whole, for the backend's own product.

use burn::tensor::DType;
use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::{LANES, new_tensor, new_tensor_of};
use crate::quant::PackedLayout;

/// Invocations of a workgroup along rows and along outputs.
const SIDE: usize = 8;
/// Outputs of a tile, in vectors.
const OUTPUTS: usize = SIDE;
/// Inputs of a tile.
const INPUTS: usize = 32;
/// Inputs of a tile, in vectors.
const STEP: usize = INPUTS / LANES;

/// From so many rows on packed weights are unpacked as a whole, where a device [has matrix units](has_matrix_units): to write
/// and read each weight in f32 costs the same for any number of rows, while what tiles cost grows with it. An estimate: at
/// 3 TB/s it is what some 30 rows take at 20 TFLOP/s.
pub(super) const UNPACKED_FROM: usize = 64;

/// Whether the backend multiplies f32 on matrix units (as TF32 on CUDA's).
pub(super) fn has_matrix_units<R: CubeRuntime>(client: &ComputeClient<R>) -> bool {
    let factor = tf32::as_type_native_unchecked().storage_type();
    client.properties().features.matmul.cmma.iter().any(|config| config.a_type == factor)
}

/// The tiles that both products share: an invocation computes `each_row` rows by four outputs, a
/// workgroup `8 each_row` rows by 32 outputs. Its tiles of inputs and weights take at most 12 KiB.
#[derive(CubeType)]
struct Tiles<V: Size> {
    /// `[8 each_row][STEP]`.
    inputs: SharedMemory<Vector<f32, V>>,
    /// `[INPUTS][OUTPUTS]`.
    weights: SharedMemory<Vector<f32, V>>,
    /// `[each_row]`.
    sums: Array<Vector<f32, V>>,
    first_row: usize,
    first_output: usize,
}

#[cube]
impl<V: Size> Tiles<V> {
    fn new(#[comptime] each_row: usize) -> Self {
        let mut sums = Array::<Vector<f32, V>>::new(each_row);
        #[unroll]
        for i in 0..each_row {
            sums[i] = Vector::new(0.0f32);
        }
        Tiles::<V> {
            inputs: SharedMemory::new(comptime!(SIDE * each_row * STEP)),
            weights: SharedMemory::new(comptime!(INPUTS * OUTPUTS)),
            sums,
            first_row: CUBE_POS_Y as usize * comptime!(SIDE * each_row),
            first_output: CUBE_POS_X as usize * OUTPUTS,
        }
    }

    /// Reads a step of the inputs; zeros beyond the last row and the last input.
    fn read_inputs(
        &mut self,
        x: &Array<Vector<f32, V>>,
        step: usize,
        rows: usize,
        row_of_x: usize,
        #[comptime] each_row: usize,
    ) {
        #[unroll]
        for i in 0..each_row {
            let index = UNIT_POS as usize + comptime!(i * SIDE * SIDE);
            let row = self.first_row + index / STEP;
            let input = step * STEP + index % STEP;
            let inside = row < rows && input < row_of_x;
            self.inputs[index] = select(inside, x[row * row_of_x + input], Vector::new(0.0f32));
        }
    }

    /// Adds a step's products to the sums.
    fn multiply(&mut self, #[comptime] each_row: usize) {
        let (across, down) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
        #[unroll]
        for i in 0..STEP {
            let index = comptime!(i * LANES * OUTPUTS) + across;
            let w0 = self.weights[index];
            let w1 = self.weights[index + OUTPUTS];
            let w2 = self.weights[index + comptime!(2 * OUTPUTS)];
            let w3 = self.weights[index + comptime!(3 * OUTPUTS)];
            #[unroll]
            for row in 0..each_row {
                let value = self.inputs[(down * each_row + row) * STEP + i];
                self.sums[row] += Vector::new(value[0]) * w0
                    + Vector::new(value[1]) * w1
                    + Vector::new(value[2]) * w2
                    + Vector::new(value[3]) * w3;
            }
        }
    }

    /// Writes the sums, with the bias added.
    fn write(
        &self,
        bias: &ComptimeOption<Array<Vector<f32, V>>>,
        y: &mut Array<Vector<f32, V>>,
        rows: usize,
        row_of_y: usize,
        #[comptime] each_row: usize,
    ) {
        let column = self.first_output + UNIT_POS_X as usize;
        if column < row_of_y {
            #[unroll]
            for i in 0..each_row {
                let row = self.first_row + UNIT_POS_Y as usize * each_row + i;
                if row < rows {
                    let mut sum = self.sums[i];
                    #[comptime]
                    if let ComptimeOption::Some(bias) = bias {
                        sum += bias[column];
                    }
                    y[row * row_of_y + column] = sum;
                }
            }
        }
    }
}

/// `x [rows, inputs]` by packed weights, plus a bias.
#[cube(launch)]
fn packed_product<V: Size>(
    x: &Array<Vector<f32, V>>,
    codes: &Array<Vector<u32, V>>,
    scales: &Array<Vector<f32, V>>,
    bias: &ComptimeOption<Array<Vector<f32, V>>>,
    y: &mut Array<Vector<f32, V>>,
    rows: usize,
    row_of_x: usize,
    row_of_y: usize,
    #[comptime] each_row: usize,
    #[comptime] bits: usize,
    #[comptime] block: usize,
) {
    let each = comptime!(32 / bits);
    let words = comptime!(INPUTS / each);
    let mask = comptime!((1u32 << bits) - 1);
    let offset = comptime!((1i64 << (bits - 1)) as f32);
    let mut tiles = Tiles::<V>::new(each_row);
    for step in 0..row_of_x.div_ceil(STEP) {
        tiles.read_inputs(x, step, rows, row_of_x, each_row);
        // Weights beyond the last input meet zeros of `x`; outputs beyond the last are not written.
        #[unroll]
        for i in 0..comptime!((words * OUTPUTS).div_ceil(SIDE * SIDE)) {
            let index = UNIT_POS as usize + comptime!(i * SIDE * SIDE);
            if index < comptime!(words * OUTPUTS) {
                let output = index % OUTPUTS;
                let column = tiles.first_output + output;
                let first = index / OUTPUTS * each;
                let word = codes[(step * words + index / OUTPUTS) * row_of_y + column];
                let input = step * INPUTS + first;
                let mut scale = scales[input / block * row_of_y + column];
                #[unroll]
                for number in 0..each {
                    if comptime!(number > 0 && !block.is_multiple_of(each)) {
                        scale = scales[(input + number) / block * row_of_y + column];
                    }
                    let shift = Vector::new(comptime!((number * bits) as u32));
                    let code = (word >> shift) & Vector::new(mask);
                    let value = Vector::<f32, V>::cast_from(code) - Vector::new(offset);
                    tiles.weights[(first + number) * OUTPUTS + output] = value * scale;
                }
            }
        }
        sync_cube();
        tiles.multiply(each_row);
        sync_cube();
    }
    tiles.write(bias, y, rows, row_of_y, each_row);
}

/// One invocation for each word of four outputs: `y` `[inputs, outputs]`, of so many `words` with `row_of_y` vectors each.
#[cube(launch)]
fn unpacked_words<F: Float, V: Size>(
    codes: &Array<Vector<u32, V>>,
    scales: &Array<Vector<f32, V>>,
    y: &mut Array<Vector<F, V>>,
    words: usize,
    inputs: usize,
    row_of_y: usize,
    #[comptime] bits: usize,
    #[comptime] block: usize,
    #[define(F)] _out: StorageType,
) {
    let each = comptime!(32 / bits);
    let mask = comptime!((1u32 << bits) - 1);
    let offset = comptime!((1i64 << (bits - 1)) as f32);
    if ABSOLUTE_POS < words * row_of_y {
        let first = ABSOLUTE_POS / row_of_y * each;
        let column = ABSOLUTE_POS % row_of_y;
        let word = codes[ABSOLUTE_POS];
        #[unroll]
        for number in 0..each {
            let input = first + number;
            // The last word may have more than there are.
            if input < inputs {
                let shift = Vector::new(comptime!((number * bits) as u32));
                let code = (word >> shift) & Vector::new(mask);
                let value = Vector::<f32, V>::cast_from(code) - Vector::new(offset);
                let value = value * scales[input / block * row_of_y + column];
                y[input * row_of_y + column] = Vector::<F, V>::cast_from(value);
            }
        }
    }
}

/// `x [rows, inputs]` by full weights `[inputs, outputs]`, plus a bias.
#[cube(launch)]
fn full_product<V: Size>(
    x: &Array<Vector<f32, V>>,
    weights: &Array<Vector<f32, V>>,
    bias: &ComptimeOption<Array<Vector<f32, V>>>,
    y: &mut Array<Vector<f32, V>>,
    rows: usize,
    row_of_x: usize,
    row_of_y: usize,
    #[comptime] each_row: usize,
) {
    let mut tiles = Tiles::<V>::new(each_row);
    for step in 0..row_of_x.div_ceil(STEP) {
        tiles.read_inputs(x, step, rows, row_of_x, each_row);
        #[unroll]
        for i in 0..comptime!(INPUTS * OUTPUTS / (SIDE * SIDE)) {
            let index = UNIT_POS as usize + comptime!(i * SIDE * SIDE);
            let column = tiles.first_output + index % OUTPUTS;
            let input = step * INPUTS + index / OUTPUTS;
            tiles.weights[index] = weights[input * row_of_y + column];
        }
        sync_cube();
        tiles.multiply(each_row);
        sync_cube();
    }
    tiles.write(bias, y, rows, row_of_y, each_row);
}

/// Rows per invocation; few for short texts, so that tiles are full.
fn rows_each(rows: usize) -> usize {
    match rows {
        0..=8 => 1,
        9..=16 => 2,
        17..=256 => 4,
        _ => 8,
    }
}

/// Workgroups for a number of rows and of output vectors.
fn workgroups(rows: usize, row_of_y: usize) -> CubeCount {
    let along_rows = rows.div_ceil(SIDE * rows_each(rows));
    CubeCount::Static(row_of_y.div_ceil(OUTPUTS) as u32, along_rows as u32, 1)
}

/// See [`Kernels::dense_linear`](super::Kernels::dense_linear); inputs and outputs must be whole
/// vectors.
pub(super) fn full<R: CubeRuntime>(
    x: CubeTensor<R>,
    weights: CubeTensor<R>,
    bias: Option<CubeTensor<R>>,
) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let (rows, inputs, outputs) = (x.meta.shape()[0], x.meta.shape()[1], weights.meta.shape()[1]);
    let y = new_tensor(&x, [rows, outputs]);
    let client = x.client.clone();
    full_product::launch::<R>(
        &client,
        workgroups(rows, outputs / LANES),
        CubeDim::new_2d(SIDE as u32, SIDE as u32),
        LANES,
        x.into_array_arg(),
        into_contiguous(weights).into_array_arg(),
        bias.map(|bias| into_contiguous(bias).into_array_arg()).into(),
        y.clone().into_array_arg(),
        rows,
        inputs / LANES,
        outputs / LANES,
        rows_each(rows),
    );
    y
}

/// See [`Kernels::packed_linear`](super::Kernels::packed_linear); outputs are padded to whole
/// vectors.
pub(super) fn packed<R: CubeRuntime>(
    x: CubeTensor<R>,
    codes: CubeTensor<R>,
    scales: CubeTensor<R>,
    layout: PackedLayout,
    bias: Option<CubeTensor<R>>,
) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let (rows, width) = (x.meta.shape()[0], codes.meta.shape()[1]);
    let y = new_tensor(&x, [rows, width]);
    let (row_of_x, row_of_y) = (layout.inputs / LANES, width / LANES);
    let client = x.client.clone();
    packed_product::launch::<R>(
        &client,
        workgroups(rows, row_of_y),
        CubeDim::new_2d(SIDE as u32, SIDE as u32),
        LANES,
        x.into_array_arg(),
        into_contiguous(codes).into_array_arg(),
        into_contiguous(scales).into_array_arg(),
        bias.map(|bias| into_contiguous(bias).into_array_arg()).into(),
        y.clone().into_array_arg(),
        rows,
        row_of_x,
        row_of_y,
        rows_each(rows),
        layout.bits,
        layout.block,
    );
    y
}

/// See [`Kernels::unpacked`](super::Kernels::unpacked); outputs are padded to whole vectors.
pub(super) fn unpacked<R: CubeRuntime>(
    codes: CubeTensor<R>,
    scales: CubeTensor<R>,
    layout: PackedLayout,
    dtype: DType,
) -> CubeTensor<R> {
    let (words, width) = (codes.meta.shape()[0], codes.meta.shape()[1]);
    let y = new_tensor_of(&scales, [layout.inputs, width], dtype);
    let row_of_y = width / LANES;
    let (client, dim) = (y.client.clone(), CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, words * row_of_y, dim);
    unpacked_words::launch::<R>(
        &client,
        count,
        dim,
        LANES,
        into_contiguous(codes).into_array_arg(),
        into_contiguous(scales).into_array_arg(),
        y.clone().into_array_arg(),
        words,
        layout.inputs,
        row_of_y,
        layout.bits,
        layout.block,
        dtype.into(),
    );
    y
}
