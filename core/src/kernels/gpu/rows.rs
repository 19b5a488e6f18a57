//! Rows of a packed table.

use burn_cubecl::{CubeRuntime, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use super::{LANES, new_tensor};
use crate::quant::PackedLayout;

/// One invocation per word of a row.
#[cube(launch)]
fn packed_rows<I: Int, V: Size>(
    ids: &Array<I>,
    codes: &Array<u32>,
    scales: &Array<f32>,
    result: &mut Array<Vector<f32, V>>,
    count: usize,
    words: usize,
    #[comptime] bits: usize,
    #[comptime] block: usize,
    #[comptime] blocks: usize,
    #[define(I)] _dtype: StorageType,
) {
    let each = comptime!(32 / bits);
    let mask = comptime!((1u32 << bits) - 1);
    let offset = comptime!((1i64 << (bits - 1)) as f32);
    if ABSOLUTE_POS < count * words {
        let (token, word) = (ABSOLUTE_POS / words, ABSOLUTE_POS % words);
        let row = usize::cast_from(ids[token]);
        let code = codes[row * words + word];
        #[unroll]
        for vector in 0..comptime!(each / LANES) {
            let mut values = Vector::<f32, V>::empty();
            #[unroll]
            for lane in 0..LANES {
                let shift = comptime!(((vector * LANES + lane) * bits) as u32);
                values[lane] = f32::cast_from((code >> shift) & mask) - offset;
            }
            // A block is a multiple of a vector.
            let scale = scales[row * blocks + (word * each + comptime!(vector * LANES)) / block];
            let index = (token * words + word) * comptime!(each / LANES) + vector;
            result[index] = values * Vector::new(scale);
        }
    }
}

/// See [`Kernels::packed_rows`](super::Kernels::packed_rows).
pub(super) fn rows<R: CubeRuntime>(
    ids: CubeTensor<R>,
    codes: CubeTensor<R>,
    scales: CubeTensor<R>,
    layout: PackedLayout,
) -> CubeTensor<R> {
    let (ids, scales) = (into_contiguous(ids), into_contiguous(scales));
    let (batch, seq) = (ids.meta.shape()[0], ids.meta.shape()[1]);
    let result = new_tensor(&scales, [batch, seq, layout.inputs]);
    let words = layout.inputs / layout.each();
    let (client, dtype) = (scales.client.clone(), ids.dtype);
    let units = batch * seq * words;
    let dim = CubeDim::new_1d(64);
    let count = calculate_cube_count_elemwise(&client, units, dim);
    packed_rows::launch::<R>(
        &client,
        count,
        dim,
        LANES,
        ids.into_array_arg(),
        into_contiguous(codes).into_array_arg(),
        scales.into_array_arg(),
        result.clone().into_array_arg(),
        batch * seq,
        words,
        layout.bits,
        layout.block,
        layout.inputs / layout.block,
        dtype.into(),
    );
    result
}
