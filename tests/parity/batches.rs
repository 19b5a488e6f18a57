//! A text's vector is the same bits whatever stands beside it: other texts,
//! padding on either side, batches of any size, threads of any number; in f32, bf16, int8 and int4. Rounded
//! activations turn a difference in the last bit of one of them into one that users see.

use std::ops::ControlFlow;

use burn::tensor::backend::Backend as _;
use burn::tensor::read_sync;
use kiln_embed::checkpoint::{Directory, LoadOptions, load, save};
use kiln_embed::config::ModelConfig;
use kiln_embed::embedder::{EmbedOptions, Embedder, EmbeddingModel, Progress};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::ModelInput;
use kiln_embed::pooling::{BlockConfig, PoolingConfig};
use kiln_embed::tokenizer::{
    InstructionSpan, PaddingSide, TokenBatch, Tokenizer, TokenizerConfig, Tokens,
};
use kiln_embed::train::{ChunkSize, chunks};
use kiln_tests::{allowed, fixture, minilm_or_skip, relative_error};
use serde_json::{Value, json};
use train_native::device::Cpu;

const WORDS: usize = 40;

pub(crate) fn tokenizer(padding_side: PaddingSide, max_length: usize) -> Tokenizer {
    let words = ["<pad>", "<s>", "</s>", "?"].map(String::from).into_iter();
    let words = words.chain((0..WORDS).map(|word| format!("w{word}")));
    let vocab: serde_json::Map<_, _> =
        words.enumerate().map(|(id, word)| (word, id.into())).collect();
    let file = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    });
    let names = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
    let config = TokenizerConfig {
        max_length,
        padding_side,
        add_bos: Some(true),
        add_eos: Some(true),
        text_suffix: String::new(),
        lower_case: false,
        drop_unknown: false,
        instruction: InstructionSpan::Pooled,
    };
    Tokenizer::new(file.to_string().as_bytes(), &names, config).unwrap()
}

/// Texts of 0 to 120 words.
fn texts() -> Vec<String> {
    let lengths = [3, 1, 9, 120, 17, 0, 33, 64, 2, 5, 31, 70, 9, 15, 16, 47];
    let words = |(text, length): (usize, usize)| {
        let word = |i: usize| format!("w{}", (i * i + 7 * i + 13 * text) % WORDS);
        (0..length).map(word).collect::<Vec<_>>().join(" ")
    };
    lengths.into_iter().enumerate().map(words).collect()
}

fn model(config: Value, pooling: &PoolingConfig, side: PaddingSide, scheme: &str) -> Embedder<Cpu> {
    let device = Default::default();
    Cpu::seed(&device, 5);
    let mut config = config;
    for (key, value) in [
        ("vocab_size", WORDS + 4),
        ("hidden_size", 64),
        ("num_hidden_layers", 3),
        ("num_attention_heads", 4),
        ("intermediate_size", 96),
        ("max_position_embeddings", 160),
    ] {
        config[key] = value.into();
    }
    let config = ModelConfig::from_value(&config).unwrap();
    let model = EmbeddingModel::<Cpu>::random(&config, pooling, &device);
    let embedder = Embedder::new(model, tokenizer(side, 128), &device).unwrap();
    let options = LoadOptions { precision: scheme.parse().unwrap(), ..Default::default() };
    load(&save(&embedder).unwrap(), &options, &device).unwrap()
}

/// Vectors as their bits.
fn bits(vectors: Vec<Vec<f32>>) -> Vec<Vec<u32>> {
    vectors.into_iter().map(|vector| vector.into_iter().map(f32::to_bits).collect()).collect()
}

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Batch after batch, each on all cores.
fn embed(embedder: &Embedder<Cpu>, texts: &[String], tokens: usize) -> Vec<Vec<u32>> {
    let options = EmbedOptions { batch_tokens: Some(tokens), ..Default::default() };
    bits(read_sync(embedder.embed_async_with(texts, &options, go_on)).unwrap())
}

fn same_bits_always(embedder: &Embedder<Cpu>, texts: &[String], label: &str) {
    let alone: Vec<Vec<u32>> =
        texts.iter().map(|text| embed(embedder, std::slice::from_ref(text), 1).remove(0)).collect();
    for tokens in [1, 100, 256, 700, 1 << 20] {
        assert_eq!(embed(embedder, texts, tokens), alone, "{label}, {tokens} tokens a batch");
    }
    let some: Vec<String> = texts.iter().rev().step_by(3).cloned().collect();
    let of_some: Vec<Vec<u32>> = alone.iter().rev().step_by(3).cloned().collect();
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = EmbedOptions { batch_tokens: Some(300), ..Default::default() };
        let actual = pool.install(|| embedder.embed_with(&some, &options, go_on).unwrap());
        assert_eq!(bits(actual), of_some, "{label}, {threads} threads");
    }
}

#[test]
fn every_head_and_family_gives_a_text_the_same_bits() {
    let block = BlockConfig { latents: 6, heads: 2, ..Default::default() };
    let every_head = [
        PoolingConfig::Cls,
        PoolingConfig::LastToken,
        PoolingConfig::Mean,
        PoolingConfig::WeightedMean,
        PoolingConfig::Anchor { score: Default::default() },
        PoolingConfig::SelfAttention(block.clone()),
        PoolingConfig::LatentAttention(block.clone()),
        PoolingConfig::LastLayerTrainable(block.clone()),
        PoolingConfig::MultiLayerTrainable(BlockConfig { latent_size: Some(24), ..block }),
    ];
    let texts = texts();
    let bert = json!({"model_type": "bert", "hidden_act": "gelu"});
    for pooling in &every_head {
        for side in [PaddingSide::Right, PaddingSide::Left] {
            for scheme in ["int8:32", "bf16", "f32"] {
                let embedder = model(bert.clone(), pooling, side, scheme);
                let label = format!("bert, {}, {scheme}, {side:?}", pooling.name());
                same_bits_always(&embedder, &texts, &label);
            }
        }
    }
    let families = [
        json!({"model_type": "llama", "num_key_value_heads": 2}),
        json!({"model_type": "llama", "hidden_act": "gelu_pytorch_tanh", "is_causal": false}),
        json!({"model_type": "mistral", "sliding_window": 20, "is_causal": false}),
        json!({"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 24}),
        json!({"model_type": "roberta", "hidden_act": "relu", "pad_token_id": 1}),
        // Of whose experts some take a single token, or none. The release has keys of its own.
        json!({
            "model_type": "nomic_bert", "activation_function": "gelu", "pad_token_id": 0, "num_experts": 8,
            "moe_top_k": 2, "moe_every_n_layers": 2, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_inner": 96,
            "n_positions": 160
        }),
    ];
    for family in families {
        for (side, scheme, pooling) in [
            (PaddingSide::Left, "int8:channel", PoolingConfig::LastToken),
            (PaddingSide::Right, "int4:32", PoolingConfig::Mean),
            (PaddingSide::Left, "bf16", PoolingConfig::Mean),
            (PaddingSide::Right, "f32", PoolingConfig::LastToken),
        ] {
            let embedder = model(family.clone(), &pooling, side, scheme);
            same_bits_always(&embedder, &texts, &format!("{family}, {scheme}, {side:?}"));
        }
    }
}

#[test]
fn a_real_model_gives_a_text_the_same_bits() {
    let Some(path) = minilm_or_skip() else { return };
    let texts = std::fs::read(fixture("minilm/texts.json")).unwrap();
    let texts: Vec<String> = serde_json::from_slice(&texts).unwrap();
    for scheme in ["int8:128", "int4:32", "bf16", "f32"] {
        let options = LoadOptions { precision: scheme.parse().unwrap(), ..Default::default() };
        let folder = Directory::new(&path).unwrap();
        let embedder: Embedder<Cpu> = load(&folder, &options, &Default::default()).unwrap();
        same_bits_always(&embedder, &texts[..40], scheme);
    }
}

/// A GPU meets few lengths in training: chunks are padded beyond their longest text there, and give the same vectors.
fn chunks_of_few_lengths<B: Kernels>(device: B::Device) {
    const WIDTH: usize = 32;
    let config = json!({
        "model_type": "bert", "hidden_act": "gelu", "vocab_size": WORDS + 4, "hidden_size": WIDTH,
        "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
        "max_position_embeddings": 100,
    });
    let config = ModelConfig::from_value(&config).unwrap();
    B::seed(&device, 5);
    let model = EmbeddingModel::<B>::random(&config, &PoolingConfig::Mean, &device);
    let texts = [3, 70, 33, 5].map(|words: usize| {
        (0..words).map(|i| format!("w{}", i * 7 % WORDS)).collect::<Vec<_>>().join(" ")
    });
    for side in [PaddingSide::Right, PaddingSide::Left] {
        let tokenizer = tokenizer(side, 100);
        let tokens = tokenizer.encode_all("", &texts).unwrap();
        let chunks = chunks::<B>(&tokenizer, &tokens, ChunkSize::Texts(2), 1);
        let longest: Vec<usize> = chunks.iter().map(|chunk| chunk.longest).collect();
        let columns: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.seq()).collect();
        assert_eq!(longest, [72, 7]);
        assert_eq!(columns, if B::HOST { [72, 7] } else { [100, 8] });
        for chunk in &chunks {
            let vectors = |batch: &TokenBatch| -> Vec<f32> {
                let (vectors, _) = model.forward(&ModelInput::new(batch, &device)).unwrap();
                vectors.into_data().to_vec().unwrap()
            };
            let rows: Vec<&Tokens> = chunk.rows.iter().map(|&row| &tokens[row]).collect();
            let plain = vectors(&tokenizer.pad(&rows));
            let wider = vectors(&tokenizer.pad_to(chunk.longest + 9, &rows));
            for padded in [vectors(&chunk.tokens), wider] {
                let error = relative_error(&padded, &plain, WIDTH, &vec![true; rows.len()]);
                assert!(error < allowed::<B>(&device, 2e-5), "{side:?} {columns:?}: {error:e}");
            }
        }
    }
}

kiln_tests::on_every_device!(chunks_of_few_lengths);
