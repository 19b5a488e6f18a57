//! Tokens' rows to heads and back, in one dispatch: rotated, and in the numbers that products take.

use burn::tensor::{DType, Shape};
use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::new_tensor_of;

/// One invocation for each value. `split`: from `[batch, seq, heads, width]` to `[batch, heads, seq, width]`, rotated by the
/// tables `[seq, width]`; otherwise the other way, rotated back.
#[cube(launch)]
fn moved_heads<F: Float, G: Float>(
    x: &Array<F>,
    cos: &ComptimeOption<Array<f32>>,
    sin: &ComptimeOption<Array<f32>>,
    y: &mut Array<G>,
    seq: usize,
    heads: usize,
    width: usize,
    #[comptime] split: bool,
    #[define(F)] _in: StorageType,
    #[define(G)] _out: StorageType,
) {
    if ABSOLUTE_POS < y.len() {
        let at = ABSOLUTE_POS % width;
        let place = ABSOLUTE_POS / width;
        let row = seq * heads;
        let text = place / row;
        let mut token = place % seq;
        let mut head = place / seq % heads;
        if comptime!(!split) {
            head = place % heads;
            token = place / heads % seq;
        }
        let mut from = ((text * heads + head) * seq + token) * width;
        if comptime!(split) {
            from = ((text * seq + token) * heads + head) * width;
        }
        let mut value = f32::cast_from(x[from + at]);
        #[comptime]
        if let ComptimeOption::Some(cos) = cos {
            #[comptime]
            if let ComptimeOption::Some(sin) = sin {
                let half = width / 2;
                let first = at < half;
                let other = f32::cast_from(x[from + select(first, at + half, at - half)]);
                // The first half turns against the second; back, it is the other way around.
                let turned = select(first == comptime!(split), -other, other);
                value = value * cos[token * width + at] + turned * sin[token * width + at];
            }
        }
        y[ABSOLUTE_POS] = G::cast_from(value);
    }
}

fn launch<R: CubeRuntime>(
    x: CubeTensor<R>,
    [seq, heads, width]: [usize; 3],
    tables: Option<[CubeTensor<R>; 2]>,
    split: bool,
    (shape, dtype): (Shape, DType),
) -> CubeTensor<R> {
    let x = into_contiguous(x);
    let y = new_tensor_of(&x, shape, dtype);
    let (client, of_x, dim) = (x.client.clone(), x.dtype, CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, y.meta.shape().num_elements(), dim);
    let [cos, sin] = match tables {
        Some(tables) => tables.map(|table| Some(into_contiguous(table))),
        None => [None, None],
    };
    moved_heads::launch::<R>(
        &client,
        count,
        dim,
        x.into_array_arg(),
        cos.map(CubeTensor::into_array_arg).into(),
        sin.map(CubeTensor::into_array_arg).into(),
        y.clone().into_array_arg(),
        seq,
        heads,
        width,
        split,
        of_x.into(),
        dtype.into(),
    );
    y
}

/// See [`Kernels::split_heads`](super::Kernels::split_heads).
pub(super) fn split<R: CubeRuntime>(
    x: CubeTensor<R>,
    [batch, seq]: [usize; 2],
    width: usize,
    tables: Option<[CubeTensor<R>; 2]>,
    dtype: DType,
) -> CubeTensor<R> {
    let heads = x.meta.shape()[1] / width;
    let shape = Shape::from([batch, heads, seq, width]);
    launch(x, [seq, heads, width], tables, true, (shape, dtype))
}

/// See [`Kernels::join_heads`](super::Kernels::join_heads).
pub(super) fn join<R: CubeRuntime>(
    x: CubeTensor<R>,
    tables: Option<[CubeTensor<R>; 2]>,
    dtype: DType,
) -> CubeTensor<R> {
    let shape = x.meta.shape();
    let (batch, heads, seq, width) = (shape[0], shape[1], shape[2], shape[3]);
    let shape = Shape::from([batch * seq, heads * width]);
    launch(x, [seq, heads, width], tables, false, (shape, dtype))
}
