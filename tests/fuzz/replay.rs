//! The corpus of the fuzz targets, read once: seeds, and the cases that fuzzing once found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kiln_tests::hostile::{READERS, corpus};

/// Every case comes back, with a value or an error.
#[test]
fn every_case_is_read_without_a_panic() {
    let mut failed = Vec::new();
    for (name, read) in READERS {
        let folder = corpus(name);
        let cases = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
        let mut count = 0;
        for case in cases {
            let path = case.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            count += 1;
            if catch_unwind(AssertUnwindSafe(|| read(&data))).is_err() {
                failed.push(path.display().to_string());
            }
        }
        assert!(count > 1, "{} has no cases", folder.display());
    }
    assert!(failed.is_empty(), "these cases panic:\n{}", failed.join("\n"));
}

/// Writes the seeds anew: `cargo test -p kiln-tests --test parity seeds -- --ignored`.
#[test]
#[ignore = "writes files into the repository"]
fn seeds() {
    use kiln_embed::index::{Index, IndexPrecision};
    use kiln_tests::hostile::{model, model_file};

    let write = |name: &str, case: &str, bytes: &[u8]| {
        let folder = corpus(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(case), bytes).unwrap();
    };
    let files = &model().0;
    let file = |name: &str| files[name].to_vec();
    // Behind a byte that says which of several files it is.
    let nth = |i: u8, bytes: &[u8]| [&[i], bytes].concat();

    let mut whole = model_file();
    write("kiln_file", "model", &whole);
    whole[16..48].fill(0);
    write("kiln_file", "sum-of-header-repaired", &whole);
    write("safetensors", "model", &file("model.safetensors"));
    write("safetensors", "empty", b"\x02\0\0\0\0\0\0\0{}");
    let index = serde_json::json!({"metadata": {}, "weight_map": {"embed_tokens.weight": "model.safetensors"}});
    write("shards", "one", index.to_string().as_bytes());
    write("shards", "outside", br#"{"weight_map": {"a": "../../etc/passwd", "b": "/etc/passwd"}}"#);
    for case in ["zip", "wide", "legacy", "evil-state"] {
        let path = kiln_tests::fixture("pytorch").join(format!("{case}.bin"));
        write("pytorch", case, &std::fs::read(path).unwrap());
    }
    write("config", "model", &file("config.json"));
    for family in ["bert", "xlm-roberta", "mistral", "llama-yarn", "qwen2-window", "qwen3"] {
        let path = kiln_tests::fixture("families").join(family).join("config.json");
        write("config", family, &std::fs::read(path).unwrap());
    }
    write("tokenizer", "model", &file("tokenizer.json"));
    let word_piece = serde_json::json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "[CLS]": 1, "river": 2, "##s": 3}}
    });
    write("tokenizer", "word-piece", word_piece.to_string().as_bytes());
    let unigram = serde_json::json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["\u{2581}river", -1.0], ["s", -2.0]], "byte_fallback": false}
    });
    write("tokenizer", "unigram", unigram.to_string().as_bytes());
    let optional = [
        (0, "names", file("tokenizer_config.json")),
        (
            1,
            "special-tokens",
            br#"{"bos_token": {"content": "<s>"}, "pad_token": "[PAD]"}"#.to_vec(),
        ),
        (2, "length", br#"{"max_seq_length": 16, "do_lower_case": true}"#.to_vec()),
        (
            3,
            "prompts",
            br#"{"prompts": {"query": "find:"}, "default_prompt_name": "query"}"#.to_vec(),
        ),
    ];
    for (i, case, bytes) in optional {
        write("tokenizer_config", case, &nth(i, &bytes));
    }
    write("modules", "list", &nth(0, &file("modules.json")));
    write("modules", "pooling", &nth(1, &file("1_Pooling/config.json")));
    write("modules", "manifest", &nth(2, br#"{"format": 1, "written_by": "", "weights": "f32", "files": {"config.json": {"bytes": 2, "sha256": ""}}, "self_test": {"texts": ["a"], "vectors": [[1.0]], "least_cosine": 0.9}}"#));
    write("peft", "empty", b"{}");
    write("peft", "adapter", &[&br#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "m", "bias": "none"}"#[..], b"\0", &adapter()].concat());
    write("task_adapters", "two-tasks", &task_adapters(2));
    // As many tasks as their names, and stacks of fewer.
    write("task_adapters", "one-stack", &task_adapters(1));
    for (case, precision) in [
        ("f32", IndexPrecision::F32),
        ("int8", IndexPrecision::Int8),
        ("binary-int8", IndexPrecision::BinaryInt8),
    ] {
        let mut index = Index::new(3, precision).unwrap();
        index.push(&[0.5, -1.0, 0.25]).unwrap();
        index.push(&[1.0, 0.0, 0.25]).unwrap();
        write("index", case, &index.to_bytes());
    }
    let whole = gguf();
    write("gguf", "llama", &whole);
    write("gguf", "cut", &whole[..whole.len() / 2]);
    write("gguf", "promises", &[&whole[..8], &[0xff; 15], &[0; 9]].concat());
    write("csv", "plain", b"id,title,text\n1,a,\"b, \"\"c\"\"\nd\"\n2,,e\n");
    write("csv", "tabs", b"\tid\ttext\n\t1\ta \"quoted\" word\n");
    write("csv", "mark", b"\xef\xbb\xbftext\nriver\n\"never closed\n");
    write(
        "jsonl",
        "texts",
        b"{\"_id\": 7, \"text\": \"river\", \"title\": null}\n\n{\"text\": \"\\ud800\"}\n",
    );
    write(
        "jsonl",
        "vectors",
        b"{\"id\": \"a\", \"embedding\": [0.5, 1e300]}\n{\"embedding\": []}\n",
    );
    write(
        "http_body",
        "openai",
        br#"{"input": ["a", "b"], "encoding_format": "base64", "dimensions": 3}"#,
    );
    write("http_body", "tei", br#"{"inputs": "a", "truncate": true, "normalize": false}"#);

    let place = tempfile::tempdir().unwrap();
    for (ending, name) in [("npy", "npy"), ("parquet", "parquet")] {
        let path = place.path().join("vectors").with_extension(ending);
        let mut writer = train_native::vectors::VectorWriter::create(&path, 2, 3).unwrap();
        let row = |id: &str, vector: [f32; 3]| train_native::vectors::VectorRow {
            id: Some(id.into()),
            text: "river".into(),
            vector: vector.to_vec(),
        };
        writer.write(&[row("a", [0.5, 1.0, 0.0]), row("b", [1.0, 0.0, 2.0])]).unwrap();
        writer.finish().unwrap();
        write(name, "two-rows", &std::fs::read(&path).unwrap());
    }
    write("npy", "overflow", &npy("(4294967296, 4294967296)"));
    write("npy", "fortran", &npy("(2, 1)"));
    write("parquet", "cut", b"PAR1\x15\x04PAR1");
}

/// The head of a NumPy file of f32 with a shape, and eight bytes of numbers.
fn npy(shape: &str) -> Vec<u8> {
    let order = if shape.contains("1)") { "True" } else { "False" };
    let header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), &[0; 8]].concat()
}

/// The tiny model as llama.cpp keeps it, its matrices in half precision.
fn gguf() -> Vec<u8> {
    const NAMES: [(&str, &str); 11] = [
        ("embed_tokens", "token_embd"),
        ("layers.0.input_layernorm", "blk.0.attn_norm"),
        ("layers.0.self_attn.q_proj", "blk.0.attn_q"),
        ("layers.0.self_attn.k_proj", "blk.0.attn_k"),
        ("layers.0.self_attn.v_proj", "blk.0.attn_v"),
        ("layers.0.self_attn.o_proj", "blk.0.attn_output"),
        ("layers.0.post_attention_layernorm", "blk.0.ffn_norm"),
        ("layers.0.mlp.gate_proj", "blk.0.ffn_gate"),
        ("layers.0.mlp.up_proj", "blk.0.ffn_up"),
        ("layers.0.mlp.down_proj", "blk.0.ffn_down"),
        ("norm", "output_norm"),
    ];
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut weights =
        kiln_embed::checkpoint::Weights::open(kiln_tests::hostile::model(), "model").unwrap();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([NAMES.len() as u64, 3].iter().flat_map(|count| count.to_le_bytes()));
    file.extend(
        [text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat(),
    );
    file.extend([text("llama.pooling_type"), [4u32, 1].map(u32::to_le_bytes).concat()].concat());
    let words = [8u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec(), text("a"), text("b")];
    file.extend(
        [text("tokenizer.ggml.tokens"), 9u32.to_le_bytes().to_vec(), words.concat()].concat(),
    );
    let mut data: Vec<u8> = Vec::new();
    for (ours, theirs) in NAMES {
        let name = format!("{ours}.weight");
        let shape = weights.tensors()[&name].shape.clone();
        let values = weights.read(&name).unwrap().unwrap();
        file.extend(text(&format!("{theirs}.weight")));
        file.extend((shape.len() as u32).to_le_bytes());
        file.extend(shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        // F16 for matrices, F32 for what is no matrix.
        file.extend(u32::from(shape.len() == 2).to_le_bytes());
        data.resize(data.len().next_multiple_of(32), 0);
        file.extend((data.len() as u64).to_le_bytes());
        match shape.len() {
            2 => data.extend(values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes())),
            _ => data.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        }
    }
    file.resize(file.len().next_multiple_of(32), 0);
    [file, data].concat()
}

/// Adapters of one projection of the tiny model.
fn adapter() -> Vec<u8> {
    let name =
        |kind: &str| format!("base_model.model.layers.0.self_attn.q_proj.lora_{kind}.weight");
    let tensors =
        [(name("A"), vec![2, 16], vec![0.01; 32]), (name("B"), vec![16, 2], vec![0.02; 32])];
    kiln_embed::checkpoint::write_safetensors(&tensors, &[]).unwrap()
}

/// A jina-embeddings-v3 of one layer with names of two tasks, and a projection's stacks of so many.
fn task_adapters(tasks: usize) -> Vec<u8> {
    let config = serde_json::json!({
        "model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "vocab_size": 6,
        "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "max_position_embeddings": 16, "type_vocab_size": 1, "pad_token_id": 1, "lora_rank": 1, "lora_alpha": 3,
        "lora_adaptations": ["a", "b"],
    });
    let name =
        |end: &str| format!("roberta.encoder.layers.0.mixer.Wqkv.parametrizations.weight.{end}");
    let tensor =
        |end: &str, shape: &[usize]| (name(end), shape.to_vec(), vec![0.5; shape.iter().product()]);
    let tensors = [
        tensor("original", &[12, 4]),
        tensor("0.lora_A", &[tasks, 1, 4]),
        tensor("0.lora_B", &[tasks, 12, 1]),
    ];
    let weights = kiln_embed::checkpoint::write_safetensors(&tensors, &[]).unwrap();
    [config.to_string().as_bytes(), b"\0", &weights].concat()
}
