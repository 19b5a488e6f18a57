//! Hidden states of every layer and the last attention of tiny random models against
//! transformers: causal and bidirectional, padding on the right and on the left.

use kiln_embed::checkpoint::{Directory, Weights, load_backbone};
use kiln_embed::config::{AttentionMode, ModelConfig};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::{ForwardOptions, ModelInput};
use kiln_embed::tokenizer::TokenBatch;
use kiln_tests::{Tensors, allowed, fixture, relative_error};
use train_native::device::Cpu;

/// Largest error allowed, relative to the tensor's largest value.
const TOLERANCE: f32 = 2e-5;

fn family<B: Kernels>(name: &str, device: &B::Device) {
    let folder = format!("families/{name}");
    let directory = Directory::new(fixture(&folder)).unwrap();
    let config = std::fs::read(fixture(&folder).join("config.json")).unwrap();
    let config = ModelConfig::from_json(&config).unwrap();
    let mut weights = Weights::open(&directory, "model").unwrap();
    let backbone = load_backbone::<B>(&config, &mut weights, device).unwrap();
    // The same weights under other names have the same states.
    let of_states = folder.trim_end_matches("-released");
    let mut expected = Tensors::open(of_states, "expected");
    let (shape, ids) = expected.ints("ids");
    let seq = shape[1];
    let tolerance = allowed::<B>(device, TOLERANCE);
    let mut worst = 0.0f32;
    let mut compared = 0;
    for (mode, mode_name) in
        [(AttentionMode::Causal, "causal"), (AttentionMode::Bidirectional, "bidirectional")]
    {
        for side in ["right", "left"] {
            let key = format!("{mode_name}.{side}");
            if !expected.has(&format!("{key}.mask")) {
                continue;
            }
            let attention: Vec<bool> =
                expected.ints(&format!("{key}.mask")).1.iter().map(|&m| m == 1).collect();
            let ids = ids.iter().map(|&id| id as u32).collect();
            let tokens = TokenBatch::new(ids, attention.clone(), attention.clone(), seq).unwrap();
            let input = ModelInput::<B>::new(&tokens, device);
            let states =
                backbone.forward(&input, mode, ForwardOptions { layers: true, attention: true });
            assert_eq!(states.layers.len(), config.num_layers + 1);
            for (layer, hidden) in states.layers.into_iter().enumerate() {
                let (_, reference) = expected.get(&format!("{key}.hidden.{layer}"));
                let found: Vec<f32> = hidden.into_data().to_vec().unwrap();
                let width = config.state_size(layer);
                let error = relative_error(&found, &reference, width, &attention);
                assert!(error < tolerance, "{name} {key} layer {layer}: {error:e}");
                worst = worst.max(error);
                compared += 1;
            }
            // Attention rows of padding queries mean nothing; repeat the mask for every head.
            let (_, reference) = expected.get(&format!("{key}.attention"));
            let found: Vec<f32> = states.attention.unwrap().into_data().to_vec().unwrap();
            let rows: Vec<bool> =
                attention.chunks(seq).flat_map(|row| row.repeat(config.num_heads)).collect();
            let error = relative_error(&found, &reference, seq, &rows);
            assert!(error < tolerance, "{name} {key} attention: {error:e}");
            // Without the weights the fused product is used; the result is the same.
            let fused = backbone.forward(&input, mode, ForwardOptions::default()).last;
            let (_, reference) = expected.get(&format!("{key}.hidden.{}", config.num_layers));
            let error = relative_error(
                &fused.into_data().to_vec::<f32>().unwrap(),
                &reference,
                config.output_size(),
                &attention,
            );
            assert!(error < tolerance, "{name} {key} fused: {error:e}");
            worst = worst.max(error);
        }
    }
    assert!(compared >= 2 * (config.num_layers + 1));
    eprintln!("PARITY {name}: {worst:.1e} over {compared} tensors");
}

macro_rules! families {
    ($($test:ident: $names:expr),* $(,)?) => {
        $(fn $test<B: Kernels>(device: B::Device) {
            $names.iter().for_each(|name| family::<B>(name, &device));
        })*
        kiln_tests::on_every_device!($($test),*);
    };
}

// Alike in one test, which is one process: on software adapters most of the time goes into compiling
// shaders, which they share.
families! {
    encoders: ["bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "distilbert"],
    biased_encoders: ["mpnet", "jina-bert"],
    rotary_encoders: ["modernbert", "nomic-bert", "nomic-bert-released", "nomic-bert-moe", "gte", "gte-released", "eurobert", "jina-v3", "jina-v3-released"],
    llama: ["llama", "llama-llama3", "llama-linear", "llama-yarn", "llama-geglu"],
    gemma: ["gemma", "gemma3", "gemma3-both", "embedding-gemma2", "embedding-gemma2-released"],
    mistral_and_qwen: ["mistral", "qwen2", "qwen2-window", "qwen3"],
}

#[test]
fn kept_blocks_keep_what_they_get_of_the_embeddings() {
    let device = Default::default();
    let folder = fixture("families/embedding-gemma2");
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let config = ModelConfig::from_json(&config).unwrap();
    let mut weights = Weights::open(&Directory::new(folder).unwrap(), "model").unwrap();
    let backbone = load_backbone::<Cpu>(&config, &mut weights, &device).unwrap();
    let tokens = TokenBatch::new(vec![3, 9, 4, 20], vec![true; 4], vec![true; 4], 4).unwrap();
    let input = ModelInput::<Cpu>::new(&tokens, &device);
    let embedded = backbone.embed_tokens(&input);
    let shared = backbone.prepare(&input, config.attention, &embedded);
    let (x, _) = backbone.layer(2, embedded, &shared, false);
    let (x, _) = backbone.layer(1, x, &shared, false);
    let expected = backbone.finish(x).into_data().to_vec::<f32>().unwrap();
    let kept = backbone.keep_blocks(&[2, 1]).unwrap();
    let found = kept.forward(&input, config.attention, ForwardOptions::default()).last;
    assert_eq!(found.into_data().to_vec::<f32>().unwrap(), expected);
}
