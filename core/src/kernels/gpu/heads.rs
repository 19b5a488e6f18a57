//! Tokens' rows to heads and back, in one dispatch: rotated, and in the numbers that products take.

use burn::tensor::{DType, Shape};
use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::new_tensor_of;
use crate::kernels::Heads;

/// Value `at` of the head that begins at `from`, rotated by its token's row of the tables `[seq, width]`, or, where it is not
/// `split`, rotated back; f32.
#[cube]
fn turned<F: Float>(
    x: &Array<F>,
    from: usize,
    at: usize,
    token: usize,
    width: usize,
    cos: &ComptimeOption<Array<f32>>,
    sin: &ComptimeOption<Array<f32>>,
    #[comptime] split: bool,
) -> f32 {
    let mut value = f32::cast_from(x[from + at]);
    #[comptime]
    if let ComptimeOption::Some(cos) = cos {
        #[comptime]
        if let ComptimeOption::Some(sin) = sin {
            let half = width / 2;
            let first = at < half;
            let other = f32::cast_from(x[from + select(first, at + half, at - half)]);
            // The first half turns against the second; back, it is the other way around.
            let across = select(first == comptime!(split), -other, other);
            value = value * cos[token * width + at] + across * sin[token * width + at];
        }
    }
    value
}

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
        y[ABSOLUTE_POS] = G::cast_from(turned(x, from, at, token, width, cos, sin, split));
    }
}

/// One invocation for each value of `x` `[batch, seq, heads of queries, of keys and of values, width]`.
#[cube(launch)]
fn split_rows<F: Float, G: Float>(
    x: &Array<F>,
    cos: &ComptimeOption<Array<f32>>,
    sin: &ComptimeOption<Array<f32>>,
    query: &mut Array<G>,
    key: &mut Array<G>,
    value: &mut Array<G>,
    seq: usize,
    queries: usize,
    keys: usize,
    width: usize,
    #[define(F)] _in: StorageType,
    #[define(G)] _out: StorageType,
) {
    if ABSOLUTE_POS < x.len() {
        let at = ABSOLUTE_POS % width;
        let place = ABSOLUTE_POS / width;
        let heads = queries + keys * 2;
        let head = place % heads;
        let token = place / heads % seq;
        let text = place / heads / seq;
        let from = place * width;
        if head < queries {
            let to = ((text * queries + head) * seq + token) * width + at;
            query[to] = G::cast_from(turned(x, from, at, token, width, cos, sin, true));
        } else if head < queries + keys {
            let to = ((text * keys + head - queries) * seq + token) * width + at;
            key[to] = G::cast_from(turned(x, from, at, token, width, cos, sin, true));
        } else {
            let to = ((text * keys + head - queries - keys) * seq + token) * width + at;
            value[to] = G::cast_from(f32::cast_from(x[from + at]));
        }
    }
}

/// The way back: one invocation for each value of `y`.
#[cube(launch)]
fn joined_rows<F: Float, H: Float, G: Float>(
    query: &Array<F>,
    key: &Array<H>,
    value: &Array<H>,
    cos: &ComptimeOption<Array<f32>>,
    sin: &ComptimeOption<Array<f32>>,
    y: &mut Array<G>,
    seq: usize,
    queries: usize,
    keys: usize,
    width: usize,
    #[define(F)] _of_queries: StorageType,
    #[define(H)] _of_keys: StorageType,
    #[define(G)] _out: StorageType,
) {
    if ABSOLUTE_POS < y.len() {
        let at = ABSOLUTE_POS % width;
        let place = ABSOLUTE_POS / width;
        let heads = queries + keys * 2;
        let head = place % heads;
        let token = place / heads % seq;
        let text = place / heads / seq;
        if head < queries {
            let from = ((text * queries + head) * seq + token) * width;
            y[ABSOLUTE_POS] = G::cast_from(turned(query, from, at, token, width, cos, sin, false));
        } else if head < queries + keys {
            let from = ((text * keys + head - queries) * seq + token) * width;
            y[ABSOLUTE_POS] = G::cast_from(turned(key, from, at, token, width, cos, sin, false));
        } else {
            let from = ((text * keys + head - queries - keys) * seq + token) * width;
            y[ABSOLUTE_POS] = G::cast_from(f32::cast_from(value[from + at]));
        }
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
    let [cos, sin] = contiguous(tables);
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

/// Tables as kernels take them.
fn contiguous<R: CubeRuntime>(tables: Option<[CubeTensor<R>; 2]>) -> [Option<CubeTensor<R>>; 2] {
    match tables {
        Some(tables) => tables.map(|table| Some(into_contiguous(table))),
        None => [None, None],
    }
}

/// See [`Kernels::split_sides`](super::Kernels::split_sides).
pub(super) fn split_sides<R: CubeRuntime>(
    x: CubeTensor<R>,
    [batch, seq]: [usize; 2],
    Heads { queries, keys, width }: Heads,
    tables: Option<[CubeTensor<R>; 2]>,
    dtype: DType,
) -> [CubeTensor<R>; 3] {
    let x = into_contiguous(x);
    let sides =
        [queries, keys, keys].map(|heads| new_tensor_of(&x, [batch, heads, seq, width], dtype));
    let (client, of_x, dim) = (x.client.clone(), x.dtype, CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, x.meta.shape().num_elements(), dim);
    let [cos, sin] = contiguous(tables);
    let [query, key, value] = sides.clone().map(CubeTensor::into_array_arg);
    split_rows::launch::<R>(
        &client,
        count,
        dim,
        x.into_array_arg(),
        cos.map(CubeTensor::into_array_arg).into(),
        sin.map(CubeTensor::into_array_arg).into(),
        query,
        key,
        value,
        seq,
        queries,
        keys,
        width,
        of_x.into(),
        dtype.into(),
    );
    sides
}

/// See [`Kernels::join_sides`](super::Kernels::join_sides).
pub(super) fn join_sides<R: CubeRuntime>(
    sides: [CubeTensor<R>; 3],
    tables: Option<[CubeTensor<R>; 2]>,
    dtype: DType,
) -> CubeTensor<R> {
    let [query, key, value] = sides.map(into_contiguous);
    let shape = query.meta.shape();
    let (batch, queries, seq, width) = (shape[0], shape[1], shape[2], shape[3]);
    let keys = key.meta.shape()[1];
    let y = new_tensor_of(&query, [batch * seq, (queries + 2 * keys) * width], dtype);
    let (client, dim) = (query.client.clone(), CubeDim::new_1d(64));
    let (of_query, of_key) = (query.dtype, key.dtype);
    let count = calculate_cube_count_elemwise(&client, y.meta.shape().num_elements(), dim);
    let [cos, sin] = contiguous(tables);
    joined_rows::launch::<R>(
        &client,
        count,
        dim,
        query.into_array_arg(),
        key.into_array_arg(),
        value.into_array_arg(),
        cos.map(CubeTensor::into_array_arg).into(),
        sin.map(CubeTensor::into_array_arg).into(),
        y.clone().into_array_arg(),
        seq,
        queries,
        keys,
        width,
        of_query.into(),
        of_key.into(),
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
