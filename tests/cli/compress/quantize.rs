//! Weights in fewer bits: every scheme, and which tensor is kept how.

use std::path::Path;

use serde_json::Value;

use super::{MEAN, calibration, json, least_cosine};
use crate::harness::{Folder, embed, failure, kiln, kiln_on, names, stdout};
use crate::named::noise;

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let (texts, out) = (folder.texts(), folder.arg("v.jsonl"));
    let with = |weights: &str| {
        kiln(&["embed", "-m", &model, "-i", &texts, "-o", &out, "--weights", weights])
    };
    for wrong in ["int3", "q8", "int8:6", ""] {
        let error = failure(&mut with(wrong));
        assert!(error.contains("int8") && error.contains("f32"), "{error}");
    }
    // Rows of 16 and 24 take smaller blocks than they are asked for.
    with("int8:128").assert().success();
}

/// Two runs write the same bytes.
#[test]
fn quantizing_twice_gives_the_same_files() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let outs = ["a", "b"].map(|name| folder.arg(name));
    for out in &outs {
        kiln(&["quantize", "-m", &model, "-s", "int4:8", "-o", out]).assert().success();
    }
    for name in names(Path::new(&outs[0])) {
        if !name.starts_with("1_") {
            let [a, b] =
                outs.each_ref().map(|out| std::fs::read(Path::new(out).join(&name)).unwrap());
            assert_eq!(a, b, "{name}");
        }
    }
}

#[test]
fn every_scheme_gives_nearly_the_same_vectors() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let full = embed(&model, &folder, &[]);
    let texts = calibration(&folder);
    let gptq = ["--method", "gptq", "--calibration", &texts, "--act-order"];
    for (scheme, more, least) in [
        ("int8:8", &[][..], 0.9999),
        ("int8:channel", &[][..], 0.9995),
        ("int4:8", &[][..], 0.99),
        ("int4:8", &gptq[..], 0.99),
        ("fp8-e4m3", &[][..], 0.999),
        ("fp8-e5m2:8", &[][..], 0.995),
        ("f16", &[][..], 0.999999),
        ("bf16", &[][..], 0.999),
    ] {
        let out = folder.arg("quantized");
        let said = json(
            kiln(&["--json", "quantize", "-m", &model, "-s", scheme, "-o", &out, "--overwrite"])
                .args(more),
        );
        let vectors = embed(&out, &folder, &[]);
        let actual = least_cosine(&full, &vectors);
        assert!(actual > least, "{scheme}: {actual}");
        if scheme != "f16" && more.is_empty() {
            // Rounded as they are loaded, weights are those of the file; bf16 leaves tables as they are.
            let loaded = embed(&model, &folder, &["--weights", scheme]);
            let alike = least_cosine(&loaded, &vectors);
            assert!(loaded == vectors || scheme == "bf16" && alike > least, "{scheme}: {alike}");
        }
        // Without the rounding of activations they are no further from the full ones.
        let floating = embed(&out, &folder, &["--weights", "f32"]);
        assert!(least_cosine(&full, &floating) > least, "{scheme}");
        // What the command says of itself is about other texts, and near.
        assert!(said["cosine"].as_f64().unwrap() > f64::from(least) - 0.01, "{said}");
        let kept =
            said["matrix_bytes"].as_f64().unwrap() / said["matrix_bytes_f32"].as_f64().unwrap();
        let most = match scheme {
            "f16" | "bf16" => 0.5,
            "int4:8" => 0.1876,
            _ => 0.3126,
        };
        assert!(kept <= most, "{scheme}: {kept}");
        // One file is the same model, and makes the same folder again.
        let (file, again) = (folder.arg("m.kiln"), folder.arg("again"));
        kiln(&["export", "-m", &out, "-o", &file, "--overwrite"]).assert().success();
        assert_eq!(embed(&file, &folder, &[]), vectors, "{scheme}");
        kiln(&["export", "-m", &file, "-o", &again, "--overwrite"]).assert().success();
        for name in names(Path::new(&out)) {
            if !name.starts_with("1_") {
                let read = |folder: &str| std::fs::read(Path::new(folder).join(&name)).unwrap();
                assert_eq!(read(&out), read(&again), "{name}");
            }
        }
    }
}

/// Of a table nearly all is rounded. Model2Vec's own int8 codes are the numbers: no direction needs their scale.
#[test]
fn a_table_of_tokens_takes_a_quarter() {
    const SHAPE: [usize; 2] = [2000, 64];
    let folder = Folder::new();
    let weights = |dtype: &str, bytes: &[u8]| {
        let header = serde_json::json!({
            "embeddings": {"dtype": dtype, "shape": SHAPE, "data_offsets": [0, bytes.len()]}
        });
        let header = header.to_string();
        let length = header.len().next_multiple_of(8);
        let header = format!("{header:length$}");
        [&(length as u64).to_le_bytes()[..], header.as_bytes(), bytes].concat()
    };
    let model = |name: &str, weights: Vec<u8>| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        std::fs::create_dir(folder.path(name)).unwrap();
        for file in ["config.json", "tokenizer.json"] {
            let from = fixtures.join("static/model2vec").join(file);
            std::fs::copy(from, folder.path(name).join(file)).unwrap();
        }
        folder.write(&format!("{name}/model.safetensors"), weights);
        folder.arg(name)
    };
    let values = noise("table", SHAPE[0] * SHAPE[1]);
    let codes: Vec<i8> = values.iter().map(|value| (value * 127.0).round() as i8).collect();
    let floats = |values: Vec<f32>| -> Vec<u8> {
        weights("F32", &values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
    };
    let full = model("full", floats(values.iter().map(|&value| value as f32).collect()));
    let numbers = model("numbers", floats(codes.iter().map(|&code| code.into()).collect()));
    let bytes: Vec<u8> = codes.iter().map(|&code| code as u8).collect();
    let own = model("own", weights("I8", &bytes));

    let (small, file) = (folder.arg("small"), folder.arg("small.kiln"));
    let length = |path: &str| std::fs::metadata(path).unwrap().len();
    let most = length(&format!("{full}/model.safetensors")) * 3 / 10;
    let expected = embed(&full, &folder, &[]);
    for base in [&full, &own] {
        kiln(&["quantize", "-m", base, "-o", &small, "--overwrite"]).assert().success();
        kiln(&["export", "-m", &small, "-o", &file, "--overwrite"]).assert().success();
        for path in [&format!("{small}/model.safetensors"), &file] {
            assert!(length(path) < most, "{path}: {} of {most}", length(path));
        }
        let vectors = embed(&small, &folder, &[]);
        assert_eq!(embed(&file, &folder, &[]), vectors);
        let cosine = least_cosine(&expected, &vectors);
        assert!(cosine > 0.9999 && vectors != expected, "{cosine}");
    }
    let vectors = embed(&own, &folder, &[]);
    assert_eq!(vectors, embed(&numbers, &folder, &[]));
    assert!(least_cosine(&expected, &vectors) > 0.9999);
}

/// Nothing judges the vectors of products in bf16 where a file's test does not hold.
#[test]
fn products_in_bf16_are_for_models_that_are_tested() {
    let folder = Folder::new();
    let (model, half) = (folder.model(MEAN).display().to_string(), folder.arg("half"));
    kiln(&["quantize", "-m", &model, "-s", "bf16", "-o", &half]).assert().success();
    let both = |more: &[&str]| {
        let floats = [more, &["--weights", "f32"]].concat();
        (embed(&half, &folder, more), embed(&half, &folder, &floats))
    };
    let (kept, floats) = both(&[]);
    assert_ne!(kept, floats);
    let options = [["--pooling", "last_token"], ["--attention", "causal"], ["--max-length", "3"]];
    for more in options.iter().chain(&[["--add-eos", "true"]]) {
        let (kept, floats) = both(more);
        assert_eq!(kept, floats, "{more:?}");
    }
}

#[test]
fn tensors_are_kept_as_rules_and_budgets_say() {
    let folder = Folder::new();
    let model = folder.model(MEAN).display().to_string();
    let out = folder.arg("q.kiln");
    let stored = |args: &[&str]| -> Vec<(String, String)> {
        let said = json(
            kiln(&["--json", "quantize", "-m", &model, "-s", "int4:8", "-o", &out, "--overwrite"])
                .args(args),
        );
        let lines = said["tensors"].as_array().unwrap();
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_string();
        lines.iter().map(|line| (text(line, "tensor"), text(line, "storage"))).collect()
    };
    let lines = stored(&["--tensor", "embed_tokens*=int8:4", "--tensor", "*.0.mlp.*=f16"]);
    assert_eq!(lines.len(), 15, "{lines:?}");
    for (tensor, storage) in lines {
        let expected = match tensor.as_str() {
            "embed_tokens.weight" => "int8:4",
            name if name.contains(".0.mlp.") => "f16",
            _ => "int4:8",
        };
        assert_eq!(storage, expected, "{tensor}");
    }
    // A budget that nothing meets asks for 16 bits everywhere; blocks of 32 do not fit.
    assert!(stored(&["--error-budget", "1e-9"]).iter().all(|(_, storage)| storage == "f16"));
    // Mixed bits inside one block are computed with all the same.
    kiln(&[
        "quantize",
        "-m",
        &model,
        "-s",
        "int4:8",
        "--tensor",
        "*q_proj*=int8:8",
        "-o",
        &out,
        "--overwrite",
    ])
    .assert()
    .success();
    assert!(least_cosine(&embed(&model, &folder, &[]), &embed(&out, &folder, &[])) > 0.99);
}

#[test]
fn a_quantized_model_is_the_same_on_vulkan() {
    let folder = Folder::new();
    let listed = stdout(kiln_on("auto", &["--json", "devices"]).arg("--quiet"));
    if !listed.contains("vulkan:0") {
        eprintln!("SKIPPED: no Vulkan adapter; tests/run.sh installs a software one");
        return;
    }
    let model = folder.model(MEAN).display().to_string();
    for scheme in ["int8:8", "int4:8", "fp8-e4m3"] {
        let out = folder.arg("q.kiln");
        kiln(&["quantize", "-m", &model, "-s", scheme, "-o", &out, "--overwrite"])
            .assert()
            .success();
        let cpu = embed(&out, &folder, &[]);
        let texts = folder.texts();
        let vectors = folder.arg("vulkan.jsonl");
        kiln_on("vulkan", &["embed", "--model", &out, "--input", &texts, "--output", &vectors])
            .assert()
            .success();
        let lines = std::fs::read_to_string(&vectors).unwrap();
        let vulkan: Vec<Vec<f32>> = lines
            .lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                serde_json::from_value(line["embedding"].clone()).unwrap()
            })
            .collect();
        let actual = least_cosine(&cpu, &vulkan);
        assert!(actual > 0.999, "{scheme}: {actual}");
    }
}
