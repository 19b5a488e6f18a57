//! What sentence-transformers 6 and transformers 5 take from a model's files beside its shape: how vectors are cut and
//! compared, how long texts may be, what a list of modules leaves out, and which normalizer a tokenizer's class makes.

use kiln_embed::checkpoint::{Files, LoadOptions, load, load_tokenizer, save};
use kiln_embed::embedder::{EmbedOptions, Embedder, Similarity};
use kiln_embed::pooling::PoolingConfig;
use kiln_tests::hostile::model;
use kiln_tests::named_models::NamedModel;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use train_native::device::Cpu;

/// The tiny model, of which some files have other keys, or are not there.
fn changed(changes: &[(&str, Value)]) -> Files {
    let mut files = model().clone();
    changes.iter().for_each(|(name, keys)| change(&mut files, name, keys));
    files
}

/// Puts keys into a file, or takes it away where there are none.
fn change(files: &mut Files, name: &str, keys: &Value) {
    let Value::Object(keys) = keys else {
        files.0.remove(name);
        return;
    };
    let mut file: Value =
        files.0.get(name).map_or(json!({}), |bytes| serde_json::from_slice(bytes).unwrap());
    for (key, value) in keys {
        file[key] = value.clone();
    }
    files.0.insert(name.into(), file.to_string().into());
}

fn opened(files: &Files) -> Embedder<Cpu> {
    load(files, &LoadOptions::default(), &Default::default()).unwrap()
}

const SETTINGS: &str = "config_sentence_transformers.json";
const CALLS: &str = "sentence_bert_config.json";

/// `tests/fixtures/settings.json`.
#[derive(Deserialize)]
struct Fixture {
    texts: Vec<String>,
    cases: Vec<Case>,
}

/// What sentence-transformers made of a model with changed files.
#[derive(Deserialize)]
struct Case {
    model: String,
    changes: BTreeMap<String, Value>,
    max_seq_length: usize,
    similarity: String,
    document: Vec<Vec<f32>>,
    /// Where they are other vectors than those of documents.
    query: Option<Vec<Vec<f32>>>,
}

#[test]
fn each_setting_is_what_sentence_transformers_makes_of_it() {
    let fixture = include_bytes!("../fixtures/settings.json");
    let fixture: Fixture = serde_json::from_slice(fixture).unwrap();
    let models = NamedModel::all();
    let mut wrong = Vec::new();
    for case in &fixture.cases {
        let named = models.iter().find(|model| model.model == case.model).unwrap();
        let mut files = named.folder();
        case.changes.iter().for_each(|(name, keys)| change(&mut files, name, keys));
        let what = format!("{} {}", case.model, serde_json::to_string(&case.changes).unwrap());
        let embedder = match load::<Cpu>(&files, &LoadOptions::default(), &Default::default()) {
            Ok(embedder) => embedder,
            Err(error) => {
                wrong.push(format!("{what}: {error}"));
                continue;
            }
        };
        let length = embedder.tokenizer().config().max_length;
        if length != case.max_seq_length {
            wrong.push(format!("{what}: at most {length} tokens, and not {}", case.max_seq_length));
        }
        if embedder.similarity().name() != case.similarity {
            wrong.push(format!("{what}: {:?}, and not {}", embedder.similarity(), case.similarity));
        }
        let sides = [
            ("documents", embedder.embed_document(&fixture.texts), &case.document),
            (
                "queries",
                embedder.embed_query(&fixture.texts),
                case.query.as_ref().unwrap_or(&case.document),
            ),
        ];
        for (side, vectors, expected) in sides {
            let vectors = vectors.unwrap();
            let shape = |vectors: &[Vec<f32>]| vectors.iter().map(Vec::len).collect::<Vec<_>>();
            assert_eq!(shape(&vectors), shape(expected), "{what}");
            let far = vectors.iter().flatten().zip(expected.iter().flatten());
            let far = far.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            if far.is_nan() || far > 2e-5 {
                wrong.push(format!("{what}: {side} are {far} off"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), fixture.cases.len(), wrong.join("\n"));
}

#[test]
fn the_form_of_instructions_is_kept() {
    const KEY: &str = "kiln_instruction_format";
    let written = |embedder: &Embedder<Cpu>| -> Value {
        serde_json::from_slice(&save(embedder).unwrap().0[SETTINGS]).unwrap()
    };
    let plain = opened(model());
    assert_eq!(plain.prompts().instruction_format(), None);
    assert!(written(&plain).get(KEY).is_none());
    let form = "[INST] Instruct: {instruction}\nQuery: ";
    let told = opened(&changed(&[(SETTINGS, json!({ KEY: form }))]));
    assert_eq!(told.prompts().instruction_format(), Some(form));
    assert_eq!(written(&told)[KEY], form);
    for wrong in [json!(5), json!("Query: ")] {
        let files = changed(&[(SETTINGS, json!({ KEY: wrong }))]);
        let error = load::<Cpu>(&files, &LoadOptions::default(), &Default::default()).unwrap_err();
        assert!(error.to_string().contains(SETTINGS), "{error}");
    }
}

#[test]
fn an_instruction_is_kept_out_of_pooling_and_bos_is_not() {
    let told = opened(&changed(&[(SETTINGS, json!({"kiln_instruction": "masked_after_bos"}))]));
    let again = opened(&save(&told).unwrap());
    for embedder in [&told, &again] {
        let tokens = embedder.tokenizer().encode("find: ", "a river").unwrap();
        let begin = embedder.tokenizer().encode("", "a river").unwrap().content.start;
        let instruction = begin..tokens.content.start;
        assert!(begin > 0 && !instruction.is_empty(), "{instruction:?}");
        let expected = (0..tokens.ids.len()).map(|i| !instruction.contains(&i));
        assert_eq!(tokens.pooling, expected.collect::<Vec<_>>());
    }
}

#[test]
fn how_vectors_are_cut_and_compared_is_kept() {
    let plain = opened(model());
    assert_eq!((plain.similarity(), plain.truncate_dim()), (Similarity::Cosine, None));
    let said = json!({"similarity_fn_name": "dot", "truncate_dim": 5});
    let cut = opened(&changed(&[(SETTINGS, said)]));
    assert_eq!(cut.similarity(), Similarity::Dot);
    let (whole, vectors) = (plain.embed(&["a river"]).unwrap(), cut.embed(&["a river"]).unwrap());
    assert_eq!(vectors[0].len(), 5);
    assert_eq!(vectors[0], whole[0][..5]);
    // What is asked for has the length one.
    let asked = EmbedOptions { normalize: Some(true), ..EmbedOptions::default() };
    let asked = cut.embed_with(&["a river"], &asked, |_| ControlFlow::Continue(())).unwrap();
    let norm = whole[0][..5].iter().map(|x| x * x).sum::<f32>().sqrt();
    for (a, b) in asked[0].iter().zip(&whole[0]) {
        assert!((a - b / norm).abs() < 1e-6, "{a} {b}");
    }
    let saved = save(&cut).unwrap();
    let saved: Value = serde_json::from_slice(&saved.0[SETTINGS]).unwrap();
    assert_eq!((&saved["similarity_fn_name"], &saved["truncate_dim"]), (&json!("dot"), &json!(5)));
    let wide = changed(&[(SETTINGS, json!({"truncate_dim": 17}))]);
    let error = load::<Cpu>(&wide, &LoadOptions::default(), &Default::default()).unwrap_err();
    assert!(error.to_string().contains("truncate_dim is 17"), "{error}");
}

#[test]
fn how_transformers_is_called_is_heeded() {
    let length = |changes: &[(&str, Value)]| {
        let (tokenizer, _) = load_tokenizer(&changed(changes), &LoadOptions::default()).unwrap();
        tokenizer.config().max_length
    };
    assert_eq!(length(&[]), 16);
    // Under another of its names.
    let roberta = ("sentence_roberta_config.json", json!({"max_seq_length": 9}));
    assert_eq!(length(&[(CALLS, Value::Null), roberta]), 9);
    assert_eq!(length(&[(CALLS, json!({"tokenizer_args": {"model_max_length": 7}}))]), 7);
    assert_eq!(length(&[(CALLS, json!({"processor_kwargs": {"model_max_length": 8}}))]), 8);
    let calls = json!({"processing_kwargs": {"text": {"max_length": 6, "padding": true}}});
    assert_eq!(length(&[(CALLS, calls)]), 6);
    let causal = json!({"config_kwargs": {"rms_norm_eps": 0.5}});
    let other = opened(&changed(&[(CALLS, causal)]));
    assert_ne!(other.embed(&["a river"]).unwrap(), opened(model()).embed(&["a river"]).unwrap());
    for (keys, part) in [
        (json!({"processing_kwargs": {"text": {"truncation": false}}}), "text.truncation is false"),
        (json!({"modality_config": {"message": {"format": "flat"}}}), "a chat template"),
    ] {
        let files = changed(&[(CALLS, keys)]);
        let error = load::<Cpu>(&files, &LoadOptions::default(), &Default::default()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_language_model_without_modules_is_pooled_by_its_last_token() {
    let pooling = |keys: Value| {
        let files = changed(&[("modules.json", Value::Null), ("config.json", keys)]);
        opened(&files).model().pooling().config().clone()
    };
    let speaks = json!(["LlamaForCausalLM"]);
    let causal = json!({"architectures": speaks, "is_causal": true});
    assert_eq!(pooling(causal), PoolingConfig::LastToken);
    assert_eq!(pooling(json!({"architectures": speaks, "is_causal": false})), PoolingConfig::Mean);
    assert_eq!(pooling(json!({"architectures": ["LlamaModel"]})), PoolingConfig::Mean);
}

#[test]
fn a_tokenizers_class_makes_its_normalizer() {
    let file = json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "cafe": 1, "caf\u{e9}": 2, "Caf\u{e9}": 3}}
    });
    let ids = |settings: Value| {
        let files = changed(&[
            ("tokenizer.json", Value::Null),
            ("tokenizer_config.json", Value::Null),
            ("tokenizer.json", file.clone()),
            ("tokenizer_config.json", settings),
        ]);
        let (tokenizer, _) = load_tokenizer(&files, &LoadOptions::default()).unwrap();
        tokenizer.encode("", "Caf\u{e9}").unwrap().ids
    };
    let class = "BertTokenizer";
    assert_eq!(ids(json!({"tokenizer_class": "PreTrainedTokenizerFast"})), [1]);
    assert_eq!(ids(json!({"tokenizer_class": class})), [1]);
    assert_eq!(ids(json!({"tokenizer_class": class, "strip_accents": false})), [2]);
    assert_eq!(ids(json!({"tokenizer_class": class, "do_lower_case": false})), [3]);
    // Another class's settings change nothing.
    let other = json!({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false});
    assert_eq!(ids(other), [1]);
}
