//! Dropout by place: a value's fate is that of the plain version's draw for its place in the padded
//! batch, computed where it is needed, forward and backward.

use multiversion::multiversion;

use super::places::Places;
use crate::kernels::DropoutMask;
use crate::parallel::each_part;

/// Rows of a core.
const PART: usize = 64;

/// Multiplies rows `[tokens, width]` with a mask.
pub(super) fn drop_out(values: &mut [f32], width: usize, mask: DropoutMask, places: &Places) {
    each_part(values, PART * width, |number, values| {
        for (values, row) in values.chunks_exact_mut(width).zip(&places.rows[number * PART..]) {
            drop_row(values, mask, row * width);
        }
    });
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn drop_row(values: &mut [f32], mask: DropoutMask, place: usize) {
    let threshold = mask.threshold();
    let scale = mask.scale();
    let factor = |bits: u32| if bits < threshold { scale } else { 0.0 };
    if place % 2 == 1 || values.len() % 2 == 1 {
        for (i, value) in values.iter_mut().enumerate() {
            let bits = mask.draw((place + i) / 2);
            *value *= factor((bits >> (32 * ((place + i) % 2))) as u32);
        }
        return;
    }
    for (i, pair) in values.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let bits = mask.draw(place / 2 + i);
        pair[0] *= factor(bits as u32);
        pair[1] *= factor((bits >> 32) as u32);
    }
}
