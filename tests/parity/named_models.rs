//! Small copies of named models against transformers: the published configuration with every key that it has, the
//! released names of tensors, whole vectors and scores, one by one there and in batches here.

use kiln_embed::checkpoint::{LoadOptions, load, load_adapted, save, task_adapter, task_names};
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::Kernels;
use kiln_embed::model::Backbone;
use kiln_embed::reranker::{Reranker, ScoreActivation};
use kiln_tests::named_models::{NamedKind, NamedModel, pairs, texts};

/// Largest error allowed, relative to the largest value.
const TOLERANCE: f32 = 2e-5;

/// The largest difference, relative to the largest value that is expected.
fn error<'a>(found: impl Iterator<Item = &'a f32>, expected: impl Iterator<Item = &'a f32>) -> f32 {
    let (mut far, mut largest) = (0.0f32, 0.0f32);
    for (found, expected) in found.zip(expected) {
        assert!(found.is_finite());
        far = far.max((found - expected).abs());
        largest = largest.max(expected.abs());
    }
    far / largest
}

fn named_models<B: Kernels>(device: B::Device) {
    let (texts, pairs) = (texts(), pairs());
    let tolerance = kiln_tests::allowed::<B>(&device, TOLERANCE);
    // And of families that none is of.
    let families = ["gemma", "xlm-roberta-xl"].map(NamedModel::of_family);
    let models: Vec<NamedModel> = NamedModel::all().into_iter().chain(families).collect();
    let mut wrong = Vec::new();
    for model in &models {
        let (folder, name) = (model.folder(), &model.model);
        let far = if model.kind == NamedKind::Reranker {
            let open = Reranker::<B>::load_with(&folder, &LoadOptions::default(), &device);
            let open = open.unwrap_or_else(|e| panic!("{name}: {e}"));
            let scores = open.with_activation(ScoreActivation::Identity).scores(&pairs).unwrap();
            assert_eq!(scores.len(), model.scores().len());
            error(scores.iter(), model.scores().iter())
        } else {
            let open = load::<B>(&folder, &LoadOptions::default(), &device);
            let embedder: Embedder<B> = open.unwrap_or_else(|e| panic!("{name}: {e}"));
            let expected = model.vectors();
            let vectors = embedder.embed(&texts).unwrap();
            assert_eq!(vectors.len(), expected.len());
            assert_eq!(vectors[0].len(), expected[0].len(), "{name}");
            // What is saved has the same vectors.
            let saved = load::<B>(&save(&embedder).unwrap(), &LoadOptions::default(), &device);
            assert_eq!(saved.unwrap().embed(&texts).unwrap(), vectors, "{name}, saved");
            let mut far = error(vectors.iter().flatten(), expected.iter().flatten());
            let tasks: Vec<String> = model.tasks.keys().cloned().collect();
            let mut named = task_names(&folder).unwrap();
            named.sort();
            assert_eq!(named, tasks, "{name}");
            for (task, expected) in &model.tasks {
                let adapter = task_adapter(&folder, task).unwrap();
                let open = load::<B>(&folder, &LoadOptions::default(), &device).unwrap();
                let adapted = open.map_model(|model| {
                    let adapted = load_adapted(model, &adapter, None, &device)?;
                    Ok(adapted.map_backbone(Backbone::merge_lora))
                });
                let by_task = adapted.unwrap().embed(&texts).unwrap();
                assert!(error(by_task.iter().flatten(), vectors.iter().flatten()) > 1e-2, "{task}");
                far = far.max(error(by_task.iter().flatten(), expected.iter().flatten()));
            }
            far
        };
        eprintln!("PARITY {name}: {far:.1e}");
        if far >= tolerance {
            wrong.push(format!("{name}: {far:e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(models.len() >= 40, "{} models", models.len());
    assert!(models.iter().any(|model| model.tasks.len() == 5));
}

kiln_tests::on_every_device!(named_models);
