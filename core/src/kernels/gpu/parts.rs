//! A few small matrices put into a larger one, and taken out of it, in one dispatch.

use burn::tensor::DType;
use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::new_tensor_of;
use crate::kernels::Place;

/// Matrices at most: those of queries, keys and values.
pub(super) const MOST: usize = 3;

/// Of a matrix that is not there.
const NOWHERE: Place = Place { first: [0, 0], extent: [0, 0], factor: 0.0 };

/// Whether a place holds a value of the larger matrix.
#[cube]
fn holds(row: usize, column: usize, top: usize, left: usize, height: usize, width: usize) -> bool {
    row >= top && row < top + height && column >= left && column < left + width
}

/// A part's share of a value of the larger matrix.
#[cube]
fn share(
    part: &Array<f32>,
    row: usize,
    column: usize,
    top: usize,
    left: usize,
    height: usize,
    width: usize,
    factor: f32,
) -> f32 {
    let inside = holds(row, column, top, left, height, width);
    let at = (row - select(inside, top, row)) * width + column - select(inside, left, column);
    select(inside, part[at] * factor, f32::new(0.0))
}

/// Writes a value of the larger matrix to a part that it lies in.
#[cube]
fn give(
    part: &mut Array<f32>,
    value: f32,
    row: usize,
    column: usize,
    top: usize,
    left: usize,
    height: usize,
    width: usize,
    factor: f32,
) {
    if holds(row, column, top, left, height, width) {
        part[(row - top) * width + column - left] = value * factor;
    }
}

/// One invocation for each value of the larger matrix.
#[cube(launch)]
fn placed_parts<G: Float>(
    first: &Array<f32>,
    second: &Array<f32>,
    third: &Array<f32>,
    y: &mut Array<G>,
    columns: usize,
    top_1: usize,
    left_1: usize,
    height_1: usize,
    width_1: usize,
    factor_1: f32,
    top_2: usize,
    left_2: usize,
    height_2: usize,
    width_2: usize,
    factor_2: f32,
    top_3: usize,
    left_3: usize,
    height_3: usize,
    width_3: usize,
    factor_3: f32,
    #[define(G)] _out: StorageType,
) {
    if ABSOLUTE_POS < y.len() {
        let row = ABSOLUTE_POS / columns;
        let column = ABSOLUTE_POS % columns;
        let value = share(first, row, column, top_1, left_1, height_1, width_1, factor_1)
            + share(second, row, column, top_2, left_2, height_2, width_2, factor_2)
            + share(third, row, column, top_3, left_3, height_3, width_3, factor_3);
        y[ABSOLUTE_POS] = G::cast_from(value);
    }
}

/// One invocation for each value of the larger matrix.
#[cube(launch)]
fn taken_parts<F: Float>(
    x: &Array<F>,
    first: &mut Array<f32>,
    second: &mut Array<f32>,
    third: &mut Array<f32>,
    columns: usize,
    top_1: usize,
    left_1: usize,
    height_1: usize,
    width_1: usize,
    factor_1: f32,
    top_2: usize,
    left_2: usize,
    height_2: usize,
    width_2: usize,
    factor_2: f32,
    top_3: usize,
    left_3: usize,
    height_3: usize,
    width_3: usize,
    factor_3: f32,
    #[define(F)] _in: StorageType,
) {
    if ABSOLUTE_POS < x.len() {
        let row = ABSOLUTE_POS / columns;
        let column = ABSOLUTE_POS % columns;
        let value = f32::cast_from(x[ABSOLUTE_POS]);
        give(first, value, row, column, top_1, left_1, height_1, width_1, factor_1);
        give(second, value, row, column, top_2, left_2, height_2, width_2, factor_2);
        give(third, value, row, column, top_3, left_3, height_3, width_3, factor_3);
    }
}

/// See [`Kernels::placed`](super::Kernels::placed); up to [`MOST`] matrices.
pub(super) fn placed<R: CubeRuntime>(
    parts: Vec<CubeTensor<R>>,
    places: &[Place],
    shape @ [_, columns]: [usize; 2],
    dtype: DType,
) -> CubeTensor<R> {
    let y = new_tensor_of(&parts[0], shape, dtype);
    let (client, dim) = (y.client.clone(), CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, y.meta.shape().num_elements(), dim);
    let mut parts = parts.into_iter().map(into_contiguous);
    // A buffer of its own, as a device may refuse the same one twice.
    let mut next = || parts.next().unwrap_or_else(|| new_tensor_of(&y, [1], DType::F32));
    let (first, second, third) = (next(), next(), next());
    let [p, q, r] = all(places);
    placed_parts::launch::<R>(
        &client,
        count,
        dim,
        first.into_array_arg(),
        second.into_array_arg(),
        third.into_array_arg(),
        y.clone().into_array_arg(),
        columns,
        p.first[0],
        p.first[1],
        p.extent[0],
        p.extent[1],
        p.factor,
        q.first[0],
        q.first[1],
        q.extent[0],
        q.extent[1],
        q.factor,
        r.first[0],
        r.first[1],
        r.extent[0],
        r.extent[1],
        r.factor,
        dtype.into(),
    );
    y
}

/// See [`Kernels::taken`](super::Kernels::taken); up to [`MOST`] matrices.
pub(super) fn taken<R: CubeRuntime>(x: CubeTensor<R>, places: &[Place]) -> Vec<CubeTensor<R>> {
    let x = into_contiguous(x);
    let columns = x.meta.shape()[1];
    let (client, of_x, dim) = (x.client.clone(), x.dtype, CubeDim::new_1d(64));
    let count = calculate_cube_count_elemwise(&client, x.meta.shape().num_elements(), dim);
    let parts: [CubeTensor<R>; MOST] = std::array::from_fn(|i| match places.get(i) {
        Some(place) => new_tensor_of(&x, place.extent, DType::F32),
        None => new_tensor_of(&x, [1], DType::F32),
    });
    let [first, second, third] = parts.clone().map(CubeTensor::into_array_arg);
    let [p, q, r] = all(places);
    taken_parts::launch::<R>(
        &client,
        count,
        dim,
        x.into_array_arg(),
        first,
        second,
        third,
        columns,
        p.first[0],
        p.first[1],
        p.extent[0],
        p.extent[1],
        p.factor,
        q.first[0],
        q.first[1],
        q.extent[0],
        q.extent[1],
        q.factor,
        r.first[0],
        r.first[1],
        r.extent[0],
        r.extent[1],
        r.factor,
        of_x.into(),
    );
    parts.into_iter().take(places.len()).collect()
}

fn all(places: &[Place]) -> [Place; MOST] {
    std::array::from_fn(|i| places.get(i).copied().unwrap_or(NOWHERE))
}
