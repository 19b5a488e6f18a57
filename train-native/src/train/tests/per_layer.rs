//! EmbeddingGemma 2, whose blocks get something of the embeddings beside the states: its gradients whole and in parts.

use kiln_embed::config::ModelConfig;
use kiln_embed::embedder::{EmbedderParts, EmbeddingModel};
use kiln_embed::pooling::PoolingConfig;

use super::*;

const ALL_LINEAR: &str =
    "lora = { rank = 4, alpha = 8.0, dropout = 0.0, targets = ['all-linear'] }";
const WITH_DROPOUT: &str =
    "lora = { rank = 4, alpha = 8.0, dropout = 0.3, targets = ['all-linear'] }";

fn gemma(recipe: &Recipe, stage: usize) -> (ModelParts<B>, TrainModel<B>) {
    let device = Default::default();
    let new = recipe.model.new.as_ref().unwrap();
    let embedder: Embedder<Flex> =
        new_model(new, &recipe.model, TEXTS.into_iter(), &device).unwrap();
    let EmbedderParts { tokenizer, .. } = embedder.into_parts();
    let config = ModelConfig::from_value(&serde_json::json!({
        "model_type": "embedding_gemma2_text", "vocab_size": 320, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16,
        "num_global_key_value_heads": 1, "sliding_window": 3, "sliding_window_pattern": 2,
        "hidden_size_per_layer_input": 12, "embedding_dim": 40, "max_position_embeddings": 64,
    }))
    .unwrap();
    Flex::seed(&device, 7);
    let model = EmbeddingModel::random(&config, &PoolingConfig::Mean, &device);
    let (parts, train_model) = start::<B>(Embedder::new(model, tokenizer, &device).unwrap(), None);
    let train_model = enter_stage(train_model, recipe, stage, None, &device).unwrap();
    (parts, if stage == 1 { train_model.map(&mut Shake) } else { train_model })
}

#[test]
fn parts_give_the_gradient_of_one_graph() {
    for (stage, lora) in [(0, ""), (1, ALL_LINEAR)] {
        let recipe = recipe(POOLINGS[0], lora);
        let (parts, train_model) = gemma(&recipe, stage);
        // What a layer is multiplied with never trains.
        let trains = parameters(&train_model).into_iter().filter(|parameter| parameter.trains);
        assert!(trains.clone().all(|parameter| !parameter.path.ends_with(".scale")));
        for path in ["per_layer_inputs", "per_layer.gate", "output_projection"] {
            assert!(trains.clone().any(|parameter| parameter.path.contains(path)), "{path}");
        }
        let (loss, expected) = plain(&train_model, &parts, &recipe);
        for (chunk, cached, blocks) in [(3, false, false), (3, true, false), (3, true, true)] {
            let actual =
                batch_loss(&train_model, &parts, &recipe, &compute(chunk, cached, blocks), 1.0);
            let error = difference(&expected, &flat(&train_model, &actual.gradients));
            assert!((actual.loss - loss).abs() < 1e-5, "{stage}: {} {loss}", actual.loss);
            assert!(error < 2e-5, "{stage}, cached {cached}, blocks {blocks}: {error}");
        }
    }
}

#[test]
fn the_second_pass_drops_what_the_first_dropped() {
    let recipe = recipe(POOLINGS[0], WITH_DROPOUT);
    let (parts, train_model) = gemma(&recipe, 1);
    let kept = batch_loss(&train_model, &parts, &recipe, &compute(3, false, false), 1.0);
    let cached = batch_loss(&train_model, &parts, &recipe, &compute(3, true, false), 1.0);
    assert_eq!(kept.loss, cached.loss);
    let expected = flat(&train_model, &kept.gradients);
    let error = difference(&expected, &flat(&train_model, &cached.gradients));
    assert!(error < 1e-5, "{error}");
    // By blocks other values drop out; the gradient is the loss's own, which a small step along it shows.
    let blocks = batch_loss(&train_model, &parts, &recipe, &compute(3, true, true), 1.0);
    let gradient = flat(&train_model, &blocks.gradients);
    let squared: f64 = gradient.iter().map(|x| f64::from(*x).powi(2)).sum();
    let step = 1e-3 / squared.sqrt();
    let moved = walk(&train_model, &blocks.gradients, step);
    let after = batch_loss(&moved, &parts, &recipe, &compute(3, true, true), 1.0).loss;
    let expected = squared * step;
    let share = (blocks.loss - after) / expected;
    assert!((share - 1.0).abs() < 0.1, "{} {after} {expected}", blocks.loss);
}
