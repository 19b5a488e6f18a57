//! Every command on real files.

use std::path::Path;

use crate::harness::{Folder, TEXTS, failure, kiln, names, stdout};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn devices_lists_the_cpu_and_says_why_not_the_rest() {
    let actual = json(&stdout(&mut kiln(&["devices", "--json"])));
    let devices = actual["devices"].as_array().unwrap();
    let cpu = devices.iter().find(|listed| listed["device"] == "cpu").unwrap();
    assert!(cpu["name"].as_str().unwrap().contains("int8 and int4 by"), "{cpu}");
    for kind in ["cuda", "vulkan"] {
        let there =
            devices.iter().any(|listed| listed["device"].as_str().unwrap().starts_with(kind));
        let absent = actual["absent"].as_array().unwrap().iter().any(|reason| reason[0] == kind);
        assert!(there != absent, "{kind} must be listed or explained: {actual}");
    }
}

#[test]
fn every_input_format_gives_the_same_vectors() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let lines = |line: fn(&str) -> String| TEXTS.map(line).join("\n") + "\n";
    let jsonl = lines(|text| serde_json::json!({"text": text}).to_string());
    let zst = zstd::encode_all(jsonl.as_bytes(), 1).unwrap();
    let inputs = [
        folder.texts(),
        folder.write("t.jsonl", &jsonl),
        folder.write("t.jsonl.zst", zst),
        folder.write("t.csv", format!("text,n\n{}", lines(|text| format!("\"{text}\",1")))),
        folder.write("t.tsv", format!("n\ttext\n{}", lines(|text| format!("1\t{text}")))),
    ];
    let mut all = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let out = folder.arg(&format!("out{i}.npy"));
        let summary = stdout(&mut kiln(&[
            "embed", "--json", "--model", &model, "--input", input, "--output", &out,
        ]));
        assert_eq!(json(&summary)["texts"], 6);
        all.push(std::fs::read(&out).unwrap());
    }
    let piped = folder.arg("piped.npy");
    kiln(&["embed", "--model", &model, "--input", "-", "--output", &piped])
        .write_stdin(TEXTS.join("\n"))
        .assert()
        .success();
    all.push(std::fs::read(&piped).unwrap());
    // A Parquet file of ours is read as one of texts.
    let parquet = folder.arg("t.parquet");
    kiln(&["embed", "--model", &model, "--input", &inputs[0], "--output", &parquet])
        .assert()
        .success();
    let out = folder.arg("again.npy");
    kiln(&["embed", "--model", &model, "--input", &parquet, "--output", &out]).assert().success();
    all.push(std::fs::read(&out).unwrap());
    assert!(all[0].len() > 6 * 16 * 4);
    assert!(all.iter().all(|bytes| *bytes == all[0]));
}

#[test]
fn search_finds_the_text_itself_in_every_index() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let texts = folder.texts();
    let query = TEXTS[3];
    for name in ["i.jsonl", "i.parquet", "i.npy", "i.safetensors"] {
        let index = folder.arg(name);
        let search = |more: &[&str]| {
            let base = ["search", "--json", "--model", &model, "--query", query, "-k", "3"];
            // The tiny model's query prompt would move the vector.
            let actual = stdout(&mut kiln(&[&base[..], more].concat()));
            json(&actual)[0]["hits"].as_array().unwrap().clone()
        };
        let direct = search(&["--corpus", &texts, "--save-index", &index]);
        let saved = search(&["--index", &index]);
        assert_eq!(direct.len(), 3);
        for (a, b) in direct.iter().zip(&saved) {
            assert_eq!(a["row"], b["row"]);
            assert!((a["score"].as_f64().unwrap() - b["score"].as_f64().unwrap()).abs() < 1e-6);
        }
        if name == "i.parquet" {
            assert_eq!(direct, saved);
        }
    }
    assert!(names(&folder.path("")).iter().all(|name| !name.starts_with(".kiln-")));
}

#[test]
fn the_bundled_model_knows_what_texts_are_about() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../web-demo/kiln-mini.kiln");
    let size = std::fs::metadata(model).unwrap().len();
    assert!(size <= 8_000_000, "{size} bytes");
    let cosine = |a: &str, b: &str| {
        let args = ["similarity", "--json", "--quiet", "--model", model, a, b];
        json(&stdout(&mut kiln(&args)))[0]["cosine"].as_f64().unwrap()
    };
    let near = cosine("a ship on the high seas", "sailing boats and the ocean");
    let far = cosine("a ship on the high seas", "income tax is due in May");
    assert!(near > 0.4 && near > far + 0.3, "{near} {far}");
}

#[test]
fn similarity_of_a_text_with_itself_is_one() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'anchor' }").display().to_string();
    let pairs = json(&stdout(&mut kiln(&[
        "similarity",
        "--json",
        "--quiet",
        "--model",
        &model,
        "a river",
        "a river",
    ])));
    assert!((pairs[0]["cosine"].as_f64().unwrap() - 1.0).abs() < 1e-5);
    let file = folder.write("p.csv", "a,b\none text,one text\nriver,stone\n");
    let pairs = json(&stdout(&mut kiln(&[
        "similarity",
        "--json",
        "--model",
        &model,
        "--input",
        &file,
        "--fields",
        "a,b",
    ])));
    assert_eq!(pairs.as_array().unwrap().len(), 2);
    assert!(pairs[1]["cosine"].as_f64().unwrap() < 0.9999);
}

#[test]
fn inspect_shows_the_model() {
    let folder = Folder::new();
    let model =
        folder.model("{ mode = 'latent_attention', latents = 4, heads = 2 }").display().to_string();
    let shown = json(&stdout(&mut kiln(&["inspect", "--json", "--model", &model])));
    assert_eq!(shown["config"]["hidden_size"], 16);
    assert_eq!(shown["pooling"]["mode"], "latent_attention");
    assert_eq!(shown["prompts"]["query"], "find:");
    assert!(shown["tensors"].as_array().unwrap().len() > 10);
    let text = stdout(kiln(&["inspect", "--tensors", "--model", &model]).env("NO_COLOR", "1"));
    assert!(text.contains("layers.1.self_attn.q_proj.weight") && text.contains("latent_attention"));
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn every_head_survives_saving_and_loading() {
    for pooling in [
        "{ mode = 'cls' }",
        "{ mode = 'last_token' }",
        "{ mode = 'weighted_mean' }",
        "{ mode = 'anchor', score = 'linear' }",
        "{ mode = 'self_attention', heads = 2 }",
        "{ mode = 'latent_attention', latents = 3, heads = 2, feed_forward = 'gelu' }",
        "{ mode = 'last_layer_trainable', latents = 3, latent_size = 8, heads = 2 }",
        "{ mode = 'multi_layer_trainable', latents = 3, heads = 2 }",
    ] {
        let folder = Folder::new();
        let model = folder.model(pooling).display().to_string();
        let out = folder.arg("v.jsonl");
        let summary = json(&stdout(&mut kiln(&[
            "embed",
            "--json",
            "--model",
            &model,
            "--input",
            &folder.texts(),
            "--output",
            &out,
        ])));
        assert_eq!(
            summary["dimensions"],
            if pooling.contains("latent_size") { 8 } else { 16 },
            "{pooling}"
        );
        for line in std::fs::read_to_string(&out).unwrap().lines() {
            let vector = json(line)["embedding"].as_array().unwrap().clone();
            let norm: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
            assert!((norm - 1.0).abs() < 1e-4, "{pooling}");
        }
    }
}

#[test]
fn bench_measures_each_length_and_compares_with_what_it_stored() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'mean' }").display().to_string();
    let ratios = folder.arg("ratios.json");
    let bench = |more: &[&str]| {
        let base =
            ["bench", "--json", "-m", &model, "--runs", "1", "--rounds", "1", "--limit", "2"];
        let mut command = kiln(&[&base[..], more].concat());
        // The peers are not what is tested.
        command.env_remove("KILN_PYTHON");
        command
    };
    let report = json(&stdout(&mut bench(&["--tokens", "8,12", "--weights", "int8:16"])));
    let works = report["works"].as_array().unwrap();
    assert_eq!([&works[0]["tokens"], &works[1]["tokens"]], [16, 24]);
    let lines = works[1]["lines"].as_array().unwrap();
    assert_eq!([&lines[0]["engine"], &lines[1]["engine"]], ["kiln", "kiln int8:16"]);
    assert!(lines[0]["texts_per_second"].as_f64().unwrap() > 0.0, "{lines:?}");
    assert!(lines[0].get("p50_ms").is_none());
    assert!(lines[1]["agreement"].as_f64().unwrap() > 0.9, "{lines:?}");

    let report = json(&stdout(&mut bench(&["--latency", "--store", &ratios])));
    let line = &report["works"][0]["lines"][0];
    let [p50, p95] = ["p50_ms", "p95_ms"].map(|key| line[key].as_f64().unwrap());
    assert!(p50 > 0.0 && p50 <= p95, "{line}");
    // There are no peers to have ratios to.
    let report = json(&stdout(&mut bench(&["--latency", "--check", &ratios])));
    assert!(report["warnings"][0].as_str().unwrap().contains("--store"), "{report}");

    let error = failure(&mut bench(&["--tokens", "8", "--check", &folder.arg("none.json")]));
    assert!(error.contains("none.json"), "{error}");
    let error = failure(&mut bench(&["--latency", "--python", "no-python"]));
    assert!(error.contains("no-python"), "{error}");
}

/// What is probably not meant about a model is said, with the option that changes it.
#[test]
fn models_that_are_probably_meant_otherwise_are_warned_of() {
    let folder = Folder::new();
    let saved = folder.model("{ mode = 'last_token' }");
    let notes = |model: &Path, more: &[&str]| {
        let model = model.display().to_string();
        let mut command = kiln(&["similarity", "--model", &model, "a river", "a ship"]);
        let output = command.args(more).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    // Kiln's own models put EOS after a text; without it the text's last token is pooled.
    assert!(!notes(&saved, &[]).contains("warning"));
    let without = notes(&saved, &["--add-eos", "false"]);
    assert!(without.contains("warning") && without.contains("--add-eos true"), "{without}");
    assert!(!notes(&saved, &["--add-eos", "false", "--text-suffix", " end"]).contains("warning"));
    // gte-Qwen2 attends in both directions, and its files do not say so.
    let config = saved.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["is_causal"] = serde_json::Value::Null;
    std::fs::write(&config, value.to_string()).unwrap();
    let named = folder.path("gte-Qwen2-tiny");
    std::fs::rename(&saved, &named).unwrap();
    assert!(notes(&named, &[]).contains("--attention bidirectional"));
    assert!(!notes(&named, &["--attention", "causal"]).contains("warning"));
    // So may any decoder that has code of its own.
    let other = folder.path("other");
    std::fs::rename(&named, &other).unwrap();
    assert!(!notes(&other, &[]).contains("warning"));
    value["auto_map"] = serde_json::json!({ "AutoModel": "modeling_qwen.Qwen2Model" });
    let config = other.join("config.json");
    std::fs::write(&config, value.to_string()).unwrap();
    let noted = notes(&other, &[]);
    assert!(
        noted.contains("modeling_qwen.Qwen2Model") && noted.contains("--attention causal"),
        "{noted}"
    );
    assert!(!notes(&other, &["--attention", "bidirectional"]).contains("warning"));
    value["is_causal"] = serde_json::Value::Bool(true);
    std::fs::write(&config, value.to_string()).unwrap();
    assert!(!notes(&other, &[]).contains("warning"));
}

/// Of a causal model each layer's last state is what this head compares.
#[test]
fn a_missing_end_is_warned_of_wherever_last_states_are_taken() {
    let folder = Folder::new();
    let model = folder.model("{ mode = 'multi_layer_trainable', latents = 2, heads = 2 }");
    let model = model.display().to_string();
    let notes = |attention: &str, end: &str| {
        let mut command = kiln(&["similarity", "--model", &model, "a river", "a ship"]);
        let output = command.args(["--attention", attention, "--add-eos", end]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(notes("causal", "false").contains("--add-eos true"));
    assert!(!notes("causal", "true").contains("warning"));
    assert!(!notes("bidirectional", "false").contains("warning"));
}

#[test]
fn shells_and_man_know_the_commands() {
    for (shell, sign) in [
        ("bash", "complete -F _kiln"),
        ("zsh", "#compdef kiln"),
        ("fish", "complete -c kiln"),
        ("powershell", "Register-ArgumentCompleter"),
        ("elvish", "edit:completion"),
    ] {
        let script = stdout(&mut kiln(&["completions", shell]));
        for part in [sign, "quickstart", "--max-text-bytes"] {
            // fish writes options without their dashes.
            assert!(script.contains(part.trim_start_matches('-')), "{shell}: {part}");
        }
    }
    assert!(failure(&mut kiln(&["completions", "dos"])).contains("dos"));

    let folder = Folder::new();
    let pages = json(&stdout(&mut kiln(&["man", "--json", "--output", &folder.arg("man1")])));
    let pages: Vec<&str> =
        pages.as_array().unwrap().iter().map(|page| page.as_str().unwrap()).collect();
    for page in ["kiln.1", "kiln-embed.1", "kiln-eval-search.1", "kiln-man.1"] {
        assert!(pages.contains(&page), "{page}: {pages:?}");
    }
    let embed = std::fs::read_to_string(folder.path("man1/kiln-embed.1")).unwrap();
    for part in [".TH kiln-embed 1", "kiln embed", "\\-\\-model", "\\-\\-device"] {
        assert!(embed.contains(part), "{part}: {embed}");
    }
    assert!(!pages.iter().any(|page| page.contains("help")), "{pages:?}");
}
