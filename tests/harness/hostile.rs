//! What strangers hand to Kiln: each function reads bytes the way the program does, and must come back
//! with a value or an error. The fuzz targets (`tests/fuzz`) call them with what libFuzzer makes up,
//! the test command with the corpus that is kept.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use kiln_embed::checkpoint::{
    Files, Folder, KilnFile, LoadOptions, Manifest, Weights, load, load_adapters,
    load_vector_adapter, read_embedder_config, save, task_adapter, task_names, write_kiln_file,
};
use kiln_embed::embedder::Embedder;
use kiln_embed::index::Index;
use sha2::{Digest as _, Sha256};
use train_native::compress::{Storage, StoragePlan, import_gguf};
use train_native::device::Cpu;
use train_native::recipe::Recipe;
use train_native::serve::{Limits, Protocol, parse_request};
use train_native::terminal::Terminal;
use train_native::text::{Columns, TextFile};
use train_native::train::new_model;
use train_native::vectors::read_blocks;

/// A way to read bytes.
pub type Reader = fn(&[u8]);

/// Every reader, by the name of its fuzz target and of its folder in the corpus.
pub const READERS: [(&str, Reader); 17] = [
    ("kiln_file", kiln_file),
    ("safetensors", safetensors),
    ("shards", shards),
    ("pytorch", pytorch),
    ("config", config),
    ("tokenizer", tokenizer),
    ("tokenizer_config", tokenizer_config),
    ("modules", modules),
    ("peft", peft),
    ("task_adapters", task_adapters),
    ("gguf", gguf),
    ("index", index),
    ("npy", npy),
    ("parquet", parquet),
    ("csv", csv),
    ("jsonl", jsonl),
    ("http_body", http_body),
];

/// A model in which one file at a time is replaced.
pub fn model() -> &'static Files {
    static MODEL: OnceLock<Files> = OnceLock::new();
    MODEL.get_or_init(|| {
        let recipe = "name = 'tiny'\n[model]\nmax_length = 16\npooling = { mode = 'mean' }\n\
             prompts = { query = 'find:' }\n[model.new]\nvocab_size = 300\nhidden_size = 16\n\
             intermediate_size = 24\nlayers = 1\nheads = 2\n\
             [[stage]]\nname = 's'\ndata = ['x']\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n";
        let recipe = Recipe::parse(recipe).expect("the recipe of a tiny model");
        let new = recipe.model.new.as_ref().expect("its shape");
        let texts = ["the river floods the lower streets", "a violinist from a small town"];
        let embedder: Embedder<Cpu> =
            new_model(new, &recipe.model, texts.into_iter(), &Default::default())
                .expect("a tiny model");
        save(&embedder).expect("its files")
    })
}

/// The tiny model in one file.
pub fn model_file() -> Vec<u8> {
    let mut files = model().clone();
    let embedder = load::<Cpu>(&files, &LoadOptions::default(), &Default::default());
    let embedder = embedder.expect("the tiny model");
    let test = kiln_embed::checkpoint::SelfTest::of(&embedder, 0.9).expect("its own test");
    Manifest::seal(&mut files, "f32", test).expect("a manifest");
    let mut bytes = Vec::new();
    write_kiln_file(&files, &mut bytes).expect("bytes in memory");
    bytes
}

/// Loads a model and, where that works, embeds with it: what was accepted must compute.
fn embed_with(folder: &dyn Folder) {
    let _ = read_embedder_config(folder);
    let Ok(embedder) = load::<Cpu>(folder, &LoadOptions::default(), &Default::default()) else {
        return;
    };
    let texts = ["the river floods", "", "\u{feff}ship \u{1F6A2} 蜂蜜\n"];
    if let Ok(vectors) = embedder.embed(&texts) {
        assert!(vectors.iter().flatten().all(|value| value.is_finite()), "a vector with NaN");
    }
    let _ = embedder.verify();
}

/// The tiny model with bytes in the place of one of its files.
fn replaced(name: &str, data: &[u8]) -> Files {
    let mut files = model().clone();
    files.0.insert(name.into(), data.to_vec().into());
    files
}

/// A whole `.kiln` file. Where the sum of its header is zero the right one is put in, so that fuzzing
/// gets behind it.
pub fn kiln_file(data: &[u8]) {
    let mut data = data.to_vec();
    if let Some((prelude, rest)) = data.split_at_mut_checked(48)
        && prelude[16..] == [0; 32]
    {
        let length = u64::from_le_bytes(prelude[8..16].try_into().expect("eight bytes"));
        let header = &rest[..rest.len().min(length as usize)];
        prelude[16..].copy_from_slice(&Sha256::digest(header));
    }
    let data = &data[..];
    if let Ok(file) = KilnFile::from_bytes("model.kiln", data.to_vec()) {
        let _ = Manifest::read(&file).map(|manifest| manifest.map(|all| all.check_files(&file)));
        embed_with(&file);
    }
}

/// Weights in one file, every tensor of them.
pub fn safetensors(data: &[u8]) {
    every_tensor(&replaced("model.safetensors", data));
}

/// The same in PyTorch's format.
pub fn pytorch(data: &[u8]) {
    let mut files = replaced("pytorch_model.bin", data);
    files.0.remove("model.safetensors");
    every_tensor(&files);
}

fn every_tensor(files: &Files) {
    if let Ok(mut weights) = Weights::open(files, "model") {
        let names: Vec<String> = weights.tensors().keys().cloned().collect();
        for name in names {
            let _ = weights.read(&name);
        }
    }
    embed_with(files);
}

/// The list of a sharded model's files.
pub fn shards(data: &[u8]) {
    embed_with(&replaced("model.safetensors.index.json", data));
}

/// A model's shape.
pub fn config(data: &[u8]) {
    embed_with(&replaced("config.json", data));
}

/// `tokenizer.json`.
pub fn tokenizer(data: &[u8]) {
    embed_with(&replaced("tokenizer.json", data));
}

/// Special tokens' names, and what sentence-transformers keeps beside them; the first byte says where.
pub fn tokenizer_config(data: &[u8]) {
    const FILES: [&str; 4] = [
        "tokenizer_config.json",
        "special_tokens_map.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
    ];
    if let Some((&first, data)) = data.split_first() {
        embed_with(&replaced(FILES[usize::from(first) % FILES.len()], data));
    }
}

/// sentence-transformers' list of modules and their settings; the first byte says which.
pub fn modules(data: &[u8]) {
    const FILES: [&str; 3] = ["modules.json", "1_Pooling/config.json", "kiln.json"];
    if let Some((&first, data)) = data.split_first() {
        embed_with(&replaced(FILES[usize::from(first) % FILES.len()], data));
    }
}

/// Two files by their names: one up to the first zero byte of `data`, and the other.
fn two_files(data: &[u8], names: [&str; 2]) -> Files {
    let border = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let parts = [&data[..border], data.get(border + 1..).unwrap_or_default()];
    let file = |(name, part): (&str, &[u8])| (name.to_string(), part.to_vec().into());
    Files(names.into_iter().zip(parts).map(file).collect())
}

/// LoRA adapters: a configuration up to the first zero byte, then the weights.
pub fn peft(data: &[u8]) {
    let files = two_files(data, ["adapter_config.json", "adapter_model.safetensors"]);
    static BASE: OnceLock<Embedder<Cpu>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        load(model(), &LoadOptions::default(), &Default::default()).expect("the tiny model")
    });
    let (backbone, shape) = (base.model().backbone().clone(), base.model().config());
    let _ = load_adapters(backbone, shape, &files, base.device());
    // The same bytes as an adapter of vectors.
    let _ = load_vector_adapter(&two_files(data, ["config.json", "model.safetensors"]));
}

/// A model whose own file has an adapter for each task: its configuration up to the first zero byte, then the weights.
pub fn task_adapters(data: &[u8]) {
    let files = two_files(data, ["config.json", "model.safetensors"]);
    for task in task_names(&files).unwrap_or_default() {
        if let Ok(adapter) = task_adapter(&files, &task) {
            let mut weights =
                Weights::open(&adapter, "adapter_model").expect("what was just written");
            for name in weights.tensors().keys().cloned().collect::<Vec<String>>() {
                let _ = weights.read(&name).expect("what was just written");
            }
        }
    }
}

/// A file on disk for the readers that take a path.
fn on_disk(name: &str, data: &[u8]) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        // Memory where there is such a folder; one for each process, whose threads write other names.
        let memory = PathBuf::from("/dev/shm");
        let root = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let folder = root.join(format!("kiln-hostile-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for hostile files");
        folder
    });
    let path = folder.join(name);
    let mut file = std::fs::File::create(&path).expect("a hostile file");
    file.write_all(data).expect("a hostile file");
    path
}

/// Weights of llama.cpp.
pub fn gguf(data: &[u8]) {
    let path = on_disk("model.gguf", data);
    let quiet = Terminal { json: true, quiet: true };
    let _ = import_gguf(&path, model(), "model", &StoragePlan::all(Storage::F16), quiet);
}

/// A saved index of the page.
pub fn index(data: &[u8]) {
    if let Ok(mut index) = Index::from_bytes(data) {
        let width = index.vector(0).map_or(1, |vector| vector.len());
        let _ = index.search(&vec![1.0; width], usize::MAX, 4);
        let _ = index.push(&vec![1.0; width]);
        let _ = index.swap_remove(0);
        let _ = Index::from_bytes(&index.to_bytes()).expect("what was just written");
    }
}

/// All rows of a file of vectors.
fn vectors(path: &std::path::Path) {
    if let Ok(blocks) = read_blocks(path, 64) {
        for block in blocks {
            let Ok(block) = block else { break };
            let finite = |value: &f32| value.is_finite();
            assert!(block.iter().all(|row| row.vector.iter().all(finite)), "NaN was let through");
        }
    }
}

/// Vectors of NumPy.
pub fn npy(data: &[u8]) {
    vectors(&on_disk("vectors.npy", data));
}

/// Texts, rows and vectors in Parquet.
pub fn parquet(data: &[u8]) {
    let path = on_disk("rows.parquet", data);
    rows(&path);
    vectors(&path);
}

/// Texts in CSV; a tab in the first byte makes it TSV.
pub fn csv(data: &[u8]) {
    let name = if data.first() == Some(&b'\t') { "rows.tsv" } else { "rows.csv" };
    rows(&on_disk(name, data));
}

/// Texts and vectors in JSONL.
pub fn jsonl(data: &[u8]) {
    let path = on_disk("rows.jsonl", data);
    rows(&path);
    vectors(&path);
}

fn rows(path: &std::path::Path) {
    let columns = Columns { fields: vec!["text".into()], optional: vec!["title".into()] };
    let Ok(file) = TextFile::open(&path.display().to_string(), columns) else { return };
    let _ = file.count();
    if let Ok(records) = file.records() {
        for record in records.take(10_000) {
            let _ = record.map(|record| record.joined());
        }
    }
    if let Ok(objects) = file.objects() {
        objects.take(10_000).for_each(drop);
    }
}

/// A request's body, as both protocols of the server read it.
pub fn http_body(data: &[u8]) {
    let limits = Limits::default();
    for protocol in [Protocol::OpenAi, Protocol::Tei] {
        match parse_request(protocol, data, &limits) {
            Ok(request) => {
                let bytes: usize = request.texts.iter().map(String::len).sum();
                assert!(
                    bytes <= data.len() && (1..=limits.max_texts).contains(&request.texts.len())
                );
            }
            Err(refusal) => assert!(
                !refusal.message().chars().any(char::is_control) && refusal.message().len() < 2000,
                "{refusal:?}"
            ),
        }
    }
}

/// The folder of a reader's cases.
pub fn corpus(name: &str) -> PathBuf {
    super::fixture("").join("../fuzz/corpus").join(name)
}
