//! Bad input: one line that says what, where and what to do; never a panic or half a file.

use std::path::Path;

use crate::harness::{Disk, Folder, failure, kiln, kiln_on, names, stdout};

const MEAN: &str = "{ mode = 'mean' }";

/// Spoils a fresh model, embeds with it, and returns the error.
fn spoiled(spoil: impl FnOnce(&Path)) -> String {
    let folder = Folder::new();
    let model = folder.model(MEAN);
    spoil(&model);
    let texts = folder.texts();
    let error = failure(&mut kiln(&[
        "embed",
        "--model",
        &model.display().to_string(),
        "--input",
        &texts,
        "--output",
        &folder.arg("out.npy"),
    ]));
    assert_eq!(
        names(folder.path("").as_path()),
        ["model", "texts.txt"],
        "something was left behind"
    );
    error
}

fn edit(path: &Path, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, change(bytes)).unwrap();
}

fn has(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

#[test]
fn truncated_weights() {
    let error = spoiled(|model| {
        edit(&model.join("model.safetensors"), |mut b| {
            b.truncate(b.len() / 2);
            b
        })
    });
    has(&error, &["model.safetensors", "truncated"]);
}

#[test]
fn empty_weights() {
    has(
        &spoiled(|model| std::fs::write(model.join("model.safetensors"), "").unwrap()),
        &["model.safetensors", "0 bytes"],
    );
}

#[test]
fn a_header_that_promises_a_terabyte() {
    let error = spoiled(|model| {
        edit(&model.join("model.safetensors"), |mut b| {
            b[..8].copy_from_slice(&1_000_000_000_000u64.to_le_bytes());
            b
        })
    });
    has(&error, &["model.safetensors", "1000000000000"]);
}

#[test]
fn nan_in_the_weights() {
    let error = spoiled(|model| {
        edit(&model.join("model.safetensors"), |mut b| {
            let i = b.len() - 4;
            b[i..].copy_from_slice(&f32::NAN.to_le_bytes());
            b
        })
    });
    has(&error, &["model.safetensors", "NaN"]);
}

#[test]
fn wrong_json() {
    has(
        &spoiled(|model| std::fs::write(model.join("config.json"), "{\"model_type\":").unwrap()),
        &["config.json", "not valid JSON"],
    );
    has(
        &spoiled(|model| std::fs::write(model.join("modules.json"), "{}").unwrap()),
        &["modules.json", "is no list"],
    );
    has(
        &spoiled(|model| std::fs::write(model.join("tokenizer.json"), "[1]").unwrap()),
        &["tokenizer.json"],
    );
    has(
        &spoiled(|model| std::fs::write(model.join("1_Pooling/config.json"), "{}").unwrap()),
        &["1_Pooling/config.json", "no pooling mode"],
    );
}

#[test]
fn unknown_architecture() {
    let error = spoiled(|model| {
        edit(&model.join("config.json"), |b| {
            String::from_utf8(b).unwrap().replace("\"llama\"", "\"mamba\"").into_bytes()
        })
    });
    has(&error, &["mamba", "bert", "qwen3"]);
}

#[test]
fn a_config_of_another_model() {
    let replace = |from: &'static str, to: &'static str| {
        spoiled(move |model| {
            edit(&model.join("config.json"), |b| {
                String::from_utf8(b).unwrap().replace(from, to).into_bytes()
            })
        })
    };
    has(
        &replace("\"hidden_size\": 16", "\"hidden_size\": 32"),
        &["expected", "found", "[300, 16]"],
    );
    has(
        &replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
        &["missing", "layers.2."],
    );
    has(
        &replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
        &["no place", "layers.1."],
    );
    has(
        &replace("\"vocab_size\": 300", "\"vocab_size\": 16000000"),
        &["config.json belongs to these weights"],
    );
}

#[test]
fn a_tokenizer_that_does_not_fit() {
    let error = spoiled(|model| {
        edit(&model.join("tokenizer.json"), |b| {
            let mut value: serde_json::Value = serde_json::from_slice(&b).unwrap();
            value["model"]["vocab"]["toolarge"] = 5000.into();
            serde_json::to_vec(&value).unwrap()
        })
    });
    has(&error, &["tokenizer.json", "5000", "300"]);
}

#[test]
fn folders_and_paths_that_are_not_there() {
    let folder = Folder::new();
    let texts = folder.texts();
    let out = folder.arg("out.npy");
    let embed = |model: &str, input: &str, output: &str| {
        failure(&mut kiln(&["embed", "--model", model, "--input", input, "--output", output]))
    };
    let model = folder.model(MEAN).display().to_string();
    std::fs::create_dir(folder.path("empty")).unwrap();
    has(&embed(&folder.arg("empty"), &texts, &out), &["empty", "config.json", "saved model"]);
    has(&embed(&folder.arg("nowhere"), &texts, &out), &["nowhere", "no such folder"]);
    has(&embed(&texts, &texts, &out), &["texts.txt", "a model is a folder"]);
    has(&embed(&model, &folder.arg("none.txt"), &out), &["none.txt", "No such file"]);
    has(&embed(&model, &folder.arg("empty"), &out), &["empty", "many files", "out.npy"]);
    // A path that goes through a file can be read by nobody, not even by root.
    has(&embed(&model, &format!("{texts}/inside.txt"), &out), &["inside.txt", "Not a directory"]);
    has(&embed(&model, &texts, &folder.arg("no/folder/out.npy")), &["out.npy", "No such file"]);
    has(&embed(&model, &texts, &folder.arg("out.png")), &["out.png", ".npy"]);
}

#[test]
fn texts_that_are_none() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let embed = |input: &str| {
        failure(&mut kiln(&[
            "embed",
            "--model",
            &model,
            "--input",
            input,
            "--output",
            &folder.arg("out.npy"),
        ]))
    };
    has(&embed(&folder.write("empty.txt", "")), &["empty.txt", "empty"]);
    has(&embed(&folder.write("blank.jsonl", "\n\n")), &["blank.jsonl", "no text"]);
    has(&embed(&folder.write("latin1.txt", b"good\nbad \xe9\n")), &["latin1.txt:2", "UTF-8"]);
    has(&embed(&folder.write("a.jsonl", "{\"text\":\"x\"}\n{\"text\":")), &["a.jsonl:2", "JSON"]);
    has(&embed(&folder.write("b.jsonl", "{\"body\":\"x\"}\n")), &["b.jsonl:1", "text", "body"]);
    has(&embed(&folder.write("c.jsonl", "{\"text\":[1]}\n")), &["c.jsonl:1", "not a text"]);
    has(&embed(&folder.write("d.csv", "name,body\na,b\n")), &["d.csv", "text", "name, body"]);
    has(&embed(&folder.write("e.parquet", "not parquet")), &["e.parquet"]);
    has(&embed(&folder.write("f.txt.zst", "not zstd")), &["f.txt.zst"]);
    has(
        &failure(
            kiln(&["embed", "--model", &model, "--input", "-", "--output", &folder.arg("o.npy")])
                .write_stdin(""),
        ),
        &["standard input is empty"],
    );
}

#[test]
fn options_that_make_no_sense() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let texts = folder.texts();
    let out = folder.arg("o.npy");
    let embed = |more: &[&str]| {
        let base = ["embed", "--model", &model, "--input", &texts, "--output", &out];
        failure(&mut kiln(&[&base[..], more].concat()))
    };
    has(&embed(&["--dimensions", "17"]), &["17 dimensions", "16"]);
    has(&embed(&["--prompt-name", "passage"]), &["passage", "query"]);
    has(&embed(&["--max-length", "2"]), &["max_length"]);
    has(&embed(&["--pooling", "latent_attention"]), &["recipe"]);
    has(&embed(&["--pooling", "sum"]), &["sum", "mean"]);
    has(&failure(&mut kiln(&["search", "--model", &model, "--query", "x"])), &["--corpus"]);
}

#[test]
fn a_device_that_is_not_there() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let texts = folder.texts();
    let out = folder.arg("o.npy");
    let embed = |device: &str| {
        failure(&mut kiln_on(
            device,
            &["embed", "--model", &model, "--input", &texts, "--output", &out],
        ))
    };
    has(&embed("cuda:99"), &["CUDA", "kiln devices"]);
    has(&embed("cuda:x"), &["device number"]);
    has(&embed("tpu"), &["cuda[:n]"]);
}

#[test]
fn indexes_that_do_not_fit() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let search = |index: &str| {
        failure(&mut kiln(&["search", "--model", &model, "--query", "x", "--index", index]))
    };
    has(&search(&folder.write("a.jsonl", "{\"embedding\":[1,2]}\n")), &["2 dimensions", "16"]);
    has(&search(&folder.write("b.jsonl", "{}\n")), &["b.jsonl:1", "embedding"]);
    has(&search(&folder.write("c.npy", "no")), &["c.npy"]);
    has(&search(&folder.write("d.safetensors", "no")), &["d.safetensors"]);
    has(&search(&folder.write("e.txt", "no")), &["e.txt", ".npy"]);
}

#[test]
fn recipes_that_make_no_sense() {
    let folder = Folder::new();
    let train = |recipe: &str| {
        let recipe = folder.write("r.toml", recipe);
        failure(&mut kiln(&["train", "--recipe", &recipe, "--output", &folder.arg("out")]))
    };
    let stage = "[[stage]]\nname='s'\ndata=['none.jsonl']\nsteps=1\nbatch_size=2\nlr=1e-3\n";
    has(
        &train(&format!("name='x'\n[model]\nbase='m'\n{stage}warm_up=3\n")),
        &["r.toml", "warm_up"],
    );
    has(&train(&format!("name='x'\n[model]\n{stage}")), &["r.toml", "base or new"]);
    has(&train(&format!("name='x'\n[model]\nbase='m'\n{stage}")), &["none.jsonl"]);
    let data = folder.write("none.jsonl", "{\"query\":\"q\"}\n");
    has(&train(&format!("name='x'\n[model]\nbase='m'\n{stage}")), &["none.jsonl:1", "pos"]);
    std::fs::remove_file(data).unwrap();
}

#[test]
fn a_full_disk() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let texts: Vec<String> = (0..4000).map(|n| format!("text {n} of {}", n * 7919)).collect();
    let texts = folder.write("many.txt", texts.join("\n"));
    let Some(disk) = Disk::mount(folder.path("disk"), "64k") else {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return;
    };
    for name in ["out.npy", "out.jsonl", "out.parquet", "out.safetensors"] {
        let out = disk.0.join(name).display().to_string();
        let error =
            failure(&mut kiln(&["embed", "--model", &model, "--input", &texts, "--output", &out]));
        has(&error, &[name, "No space left"]);
        assert!(names(&disk.0).is_empty(), "left on the full disk: {:?}", names(&disk.0));
    }
}

/// A process that may have less memory than a batch needs.
#[test]
#[cfg(target_os = "linux")]
fn no_memory_left() {
    let folder = Folder::new();
    let line = format!(
        "ulimit -v 2500000; exec {} --device cpu --quiet train --recipe nv-embed-small --output {} \
         --set order=[\"'retrieval'\"] --set stage.1.batch_size=2048 --set compute.chunk=8192",
        env!("CARGO_BIN_EXE_kiln"),
        folder.arg("out"),
    );
    let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    has(&error, &["error: out of memory", "compute.chunk", "batch_size"]);
    assert!(!folder.path("out/model").exists());
}

/// What cannot work in a recipe is told in a line, before anything is trained.
#[test]
fn recipes_whose_texts_have_no_room() {
    let folder = Folder::new();
    folder.write("data.jsonl", crate::training::DATA);
    let base = folder.model("{ mode = 'last_token' }").display().to_string();
    let recipe = |model: &str, stage: &str| {
        folder.write(
            "recipe.toml",
            format!(
                "name = 'tiny'\n[model]\nbase = '{base}'\nmax_length = 8\n{model}\n\
                 [[stage]]\nname = 'first'\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n{stage}\n"
            ),
        )
    };
    let data = "data = ['data.jsonl']";
    let long = "one two three four five six seven eight nine ten";
    let train = |model: &str, stage: &str| {
        let out = folder.arg("run");
        failure(&mut kiln(&["--quiet", "train", "-r", &recipe(model, stage), "-o", &out]))
    };
    for (model, stage, words) in [
        (format!("text_suffix = '{long}'"), data.to_string(), ["max_length 8", "text_suffix"]),
        (
            format!("prompts = {{ query = '{long}: ' }}"),
            data.into(),
            ["the model's prompt", "model.max_length"],
        ),
        (
            String::new(),
            format!("data = [{{ path = 'data.jsonl', instructions = ['{long}'] }}]"),
            ["the prompt of data", "model.max_length"],
        ),
        (
            String::new(),
            format!(
                "{data}\nobjective = 'mntp'\nmntp = {{ mask_token = 'no such token', tied = true }}"
            ),
            ["mntp.mask_token", "vocabulary"],
        ),
        (
            String::new(),
            format!("{data}\nobjective = 'reconstruction'\nloss = {{ temperature = 1.0 }}"),
            ["\"reconstruction\"", "does not use loss"],
        ),
        (
            "add_eos = false".into(),
            format!(
                "{data}\nobjective = 'reconstruction'\nreconstruction = {{ predict_eos = true, tied = true }}"
            ),
            ["predict_eos", "add_eos"],
        ),
        // What ends a text is its suffix, and no EOS.
        (
            "add_eos = false\ntext_suffix = 'a'".into(),
            format!(
                "{data}\nobjective = 'reconstruction'\nreconstruction = {{ predict_eos = true, tied = true }}"
            ),
            ["predict_eos", "add_eos"],
        ),
    ] {
        let error = train(&model, &stage);
        assert!(words.iter().all(|word| error.contains(word)), "{model} {stage}: {error}");
    }
}

/// A base that has neither a language-model head nor ties one to its embeddings.
#[test]
fn a_base_without_a_language_model_head() {
    let folder = Folder::new();
    folder.write("data.jsonl", crate::training::DATA);
    let base = folder.model("{ mode = 'last_token' }");
    let config = base.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["tie_word_embeddings"] = false.into();
    std::fs::write(&config, value.to_string()).unwrap();
    let recipe = |settings: &str| {
        folder.write(
            "recipe.toml",
            format!(
                "name = 'tiny'\n[model]\nbase = '{}'\nmax_length = 24\n[[stage]]\nname = 'first'\n\
                 data = ['data.jsonl']\nobjective = 'reconstruction'\nsteps = 1\nbatch_size = 2\nlr = 1e-3\n{settings}\n",
                base.display()
            ),
        )
    };
    let train = |settings: &str, out: &str| {
        let out = folder.arg(out);
        kiln(&["--quiet", "train", "-r", &recipe(settings), "-o", &out])
    };
    let error = failure(&mut train("", "none"));
    assert!(error.contains("lm_head.weight") && error.contains("reconstruction.tied"), "{error}");
    stdout(&mut train("reconstruction = { tied = true }", "tied"));
    stdout(&mut train("reconstruction = { tied = false }", "own"));
}

/// An encoder writes nothing, whatever is said about its head.
#[test]
fn an_encoder_that_is_to_write() {
    let folder = Folder::new();
    folder.write("data.jsonl", crate::training::DATA);
    let Some(base) = std::env::var_os("KILN_MINILM") else {
        eprintln!(
            "SKIPPED: KILN_MINILM names no folder with all-MiniLM-L6-v2; tests/run.sh installs it"
        );
        return;
    };
    for objective in ["reconstruction", "mntp"] {
        let recipe = folder.write(
            "recipe.toml",
            format!(
                "name = 'tiny'\n[model]\nbase = '{}'\nmax_length = 16\n\
                 [[stage]]\nname = 'first'\ndata = ['data.jsonl']\nsteps = 1\nbatch_size = 2\nlr = 1e-9\n\
                 [[stage]]\nname = 'second'\nobjective = '{objective}'\n{objective} = {{ tied = true }}\n\
                 data = ['data.jsonl']\nsteps = 1\nbatch_size = 2\nlr = 1e-9\n",
                base.display()
            ),
        );
        let out = folder.arg(objective);
        let error = failure(&mut kiln(&["--quiet", "train", "-r", &recipe, "-o", &out]));
        assert!(error.contains("\"second\"") && error.contains("is an encoder"), "{error}");
        assert!(!folder.path(objective).join("metrics.jsonl").exists(), "before training begins");
    }
}
