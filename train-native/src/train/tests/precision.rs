//! Passes in bf16 and in f16 beside those in f32.

use super::*;

const MEAN: &str = POOLINGS[0];
const LATENTS: &str = "{ mode = 'latent_attention', latents = 6, heads = 2 }";

/// Texts of a chunk, whether graphs are dropped, and whether blocks are computed again.
const WAYS: [(usize, bool, bool); 3] = [(8, false, false), (3, true, false), (3, true, true)];

#[test]
fn bf16_and_f16_follow_f32() {
    // Whose states are compared is not computed by blocks.
    let cases = [(MEAN, false, &WAYS[..]), (LATENTS, false, &WAYS[..]), (MEAN, true, &WAYS[..2])];
    for (pooling, taught, ways) in cases {
        let recipe = recipe(pooling, "");
        let (parts, train_model) = train_model(&recipe, 0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("teacher");
        let teacher = taught.then(|| {
            teacher_in(&path, &recipe);
            let quiet = Terminal { json: false, quiet: true };
            let settings = of_states(&path, 0.7);
            Teacher::<B>::load(&settings, &parts.tokenizer, 3, &parts.device, quiet).unwrap()
        });
        let run = |compute: Compute, scale| {
            batch_loss_with(&train_model, &parts, &recipe, &compute, scale, teacher.as_ref())
        };
        let full = run(Compute::default(), 1.0);
        let expected = flat(&train_model, &full.gradients);
        for &(chunk, cached, blocks) in ways {
            for (precision, scale, most) in
                [(ComputeDtype::Bf16, 1.0, 0.1), (ComputeDtype::F16, 32.0, 0.02)]
            {
                // A head and another model's states add roundings of their own.
                let most = if taught || pooling != MEAN { 2.0 * most } else { most };
                let actual = run(Compute { precision, ..compute(chunk, cached, blocks) }, scale);
                let error = difference(&expected, &flat(&train_model, &actual.gradients));
                let what = format!(
                    "{precision:?}, {pooling}, taught {taught}, chunks of {chunk}, {cached}, {blocks}"
                );
                let far = (actual.loss - full.loss).abs();
                assert!(far < 0.05 * full.loss.max(1.0), "{what}: {far} of {}", full.loss);
                assert!(error < most && error > 0.0, "{what}: {error}");
            }
        }
    }
}
