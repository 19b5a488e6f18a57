//! Which key each query may see.

use burn::tensor::{Bool, Int, Tensor, backend::Backend};

use super::input::ModelInput;
use crate::config::AttentionMode;

/// `[batch, 1, query, key]`, true where a query must NOT look; `None` where it may look everywhere.
///
/// * padding keys are hidden, on either side;
/// * causal: keys after the query are hidden; with a window, so are keys `window` or more before it;
/// * bidirectional with a window: keys further than `window` away are hidden (as transformers
///   does for `is_causal: false`).
///
/// Every position sees itself, so that rows of padding stay finite.
pub fn attention_mask<B: Backend>(
    input: &ModelInput<B>,
    mode: AttentionMode,
    window: Option<usize>,
) -> Option<Tensor<B, 4, Bool>> {
    let [batch, seq] = input.ids.dims();
    let device = input.ids.device();
    let window = window.filter(|&window| window < seq);
    let structured = mode == AttentionMode::Causal || window.is_some();
    if !structured && !input.padded {
        return None;
    }
    let index = Tensor::<B, 1, Int>::arange(0..seq as i64, &device);
    let query = index.clone().reshape([seq, 1]).expand([seq, seq]);
    let key = index.reshape([1, seq]).expand([seq, seq]);
    let distance = query - key;

    let mut hidden: Option<Tensor<B, 2, Bool>> = None;
    let mut hide = |mask: Tensor<B, 2, Bool>| {
        hidden = Some(match hidden.take() {
            Some(hidden) => hidden.bool_or(mask),
            None => mask,
        });
    };
    if mode == AttentionMode::Causal {
        hide(distance.clone().lower_elem(0));
        if let Some(window) = window {
            hide(distance.clone().greater_equal_elem(window as i64));
        }
    } else if let Some(window) = window {
        hide(distance.clone().abs().greater_elem(window as i64));
    }
    let hidden = hidden.map(|mask| mask.reshape([1, 1, seq, seq]).expand([batch, 1, seq, seq]));

    let padding = input.padded.then(|| {
        let hidden = input.attention_mask.clone().bool_not();
        let hidden = hidden.reshape([batch, 1, 1, seq]).expand([batch, 1, seq, seq]);
        let other =
            distance.not_equal_elem(0).reshape([1, 1, seq, seq]).expand([batch, 1, seq, seq]);
        hidden.bool_and(other)
    });
    match (hidden, padding) {
        (Some(a), Some(b)) => Some(a.bool_or(b)),
        (a, b) => a.or(b),
    }
}
