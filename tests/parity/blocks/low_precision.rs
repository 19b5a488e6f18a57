//! Blocks in bf16 and beside weights in few bits: the same but for rounding.

use burn::backend::Flex;
use burn::module::{AutodiffModule as _, Module as _};
use burn::tensor::backend::Backend as _;
use kiln_embed::config::AttentionMode;
use kiln_embed::kernels::MatmulPrecision;
use kiln_embed::model::Backbone;

use super::{
    B, CASES, FAMILIES, Shake, Trains, assert_close, each_case, input, load, read, run,
    with_what_trains,
};

/// By a tenth of their size, and a hundredth of all gradients' ([`assert_close`]).
#[test]
fn in_bf16_they_are_those_of_f32_but_for_rounding() {
    let device = Default::default();
    each_case(|mut backbone, mode, batch, what| {
        let plain = run(&backbone, mode, &batch, true, &device);
        backbone.set_matmul_precision(MatmulPrecision::Bf16);
        let rounded = run(&backbone, mode, &batch, false, &device);
        // bf16 keeps 8 bits of each number, and these models are as thin as their weights are large. Where a token comes
        // to another expert by it, its state is another.
        let allowed = if what.starts_with("nomic-bert-moe") { 0.5 } else { 0.1 };
        assert_close(&plain, &rounded, allowed, what);
        let again = run(&backbone, mode, &batch, false, &device);
        assert_eq!(rounded, again, "{what}: another result the second time");
    });
}

/// Adapters beside weights in few bits: the whole block multiplies by those, and rounds what they take to int8 as inference
/// does, where the plain one makes f32 of them.
#[test]
fn beside_packed_weights_they_are_those_of_f32_but_for_rounding() {
    let (device, mode) = (Default::default(), AttentionMode::Bidirectional);
    for precision in ["int8:channel", "int4:8"] {
        for family in FAMILIES {
            for trains in CASES.into_iter().filter(|case| matches!(case, Trains::Lora { .. })) {
                B::seed(&device, 5);
                let (config, packed) = read::<Flex>(precision, family, &device);
                let backbone = Backbone::<B>::from_inner(packed);
                let mut backbone = with_what_trains(backbone, &config, trains, &device);
                let batch = input(&config, true, &[3, 9, 1], &device);
                let plain = run(&backbone, mode, &batch, true, &device);
                // These models are as thin as their weights are large, so that rounding is much; another weight, or its
                // transpose, is off by all. A token may come to another expert by it.
                let allowed = if family == "nomic-bert-moe" { 0.6 } else { 0.3 };
                for numbers in [MatmulPrecision::F32, MatmulPrecision::Bf16] {
                    backbone.set_matmul_precision(numbers);
                    let whole = run(&backbone, mode, &batch, false, &device);
                    let what = format!("{family} {trains:?} in {precision}, {numbers:?}");
                    let pairs = plain[0].1.iter().zip(&whole[0].1);
                    let furthest = pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
                    assert!(furthest > 1e-4, "{what}: nothing was rounded");
                    assert_close(&plain, &whole, allowed, &what);
                }
            }
        }
    }
}

/// What was made of a weight is made anew when the weight is another.
#[test]
fn packed_weights_follow_their_weights() {
    let (device, mode) = (Default::default(), AttentionMode::Causal);
    let (config, mut backbone) = load::<B>("llama", Trains::All, &device);
    let batch = input(&config, false, &[9, 4, 7], &device);
    backbone.set_matmul_precision(MatmulPrecision::Bf16);
    run(&backbone, mode, &batch, false, &device);
    let changed = backbone.map(&mut Shake);
    let plain = run(&changed, mode, &batch, true, &device);
    assert_close(&plain, &run(&changed, mode, &batch, false, &device), 3e-2, "changed");
}
