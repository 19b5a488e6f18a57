//! `import`: GGUF files made with llama.cpp's own Python package.

use std::process::Command;

use crate::harness::{Folder, embed, kiln, stdout};

/// Makes a random model of a family with the tokenizer of a folder, writes its weights to GGUF in
/// several formats under llama.cpp's names, and says which vectors the unpacked numbers give and
/// which numbers those are.
const SCRIPT: &str = r#"
import json, shutil, sys
import gguf, numpy as np, torch
from gguf import GGMLQuantizationType as T
from pathlib import Path
from safetensors.numpy import save_file
from transformers import AutoModel, AutoTokenizer, BertConfig, LlamaConfig, Qwen3Config, XLMRobertaConfig
family, source, texts, out = sys.argv[1], Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
torch.manual_seed(3)
draw = np.random.default_rng(4)
shape = dict(vocab_size=400, hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=40)
config = {
    "bert": lambda: BertConfig(**shape),
    "xlm-roberta": lambda: XLMRobertaConfig(**shape, pad_token_id=1, type_vocab_size=1),
    "llama": lambda: LlamaConfig(**shape, num_key_value_heads=2),
    "qwen3": lambda: Qwen3Config(**shape, num_key_value_heads=2, head_dim=16),
}[family]()
model = AutoModel.from_config(config).float().eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.3 if parameter.dim() == 1 else 0.08)
base = out / "base"
base.mkdir()
for name in ["tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"]:
    shutil.copy(source / name, base / name)
shutil.copytree(source / "1_Pooling", base / "1_Pooling")
config.save_pretrained(base)

arch = {"xlm-roberta": "bert"}.get(family, family)
names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], 2)
writer = gguf.GGUFWriter(out / "model.gguf", arch)
writer.add_pooling_type(gguf.PoolingType.CLS)

def permuted(x, heads):
    # As llama.cpp's converter does it for Llama's queries and keys.
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

def restored(x, heads):
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

kept, state = {}, {}
for name, value in model.state_dict().items():
    if name.startswith("pooler") or "inv_freq" in name or "position_ids" in name:
        continue
    theirs = names.get_name(name, try_suffixes=(".weight", ".bias")) or \
        names.get_name("model." + name, try_suffixes=(".weight", ".bias"))
    value = value.numpy()
    heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2]) if arch == "llama" else None
    packed = permuted(value, heads) if heads else value
    if family == "xlm-roberta" and "position_embd" in theirs:
        packed = packed[2:]
    if value.ndim == 1 or "position" in name or "token_type" in name:
        kind = T.F32
    elif "down_proj" in name or "layer.1.output.dense" in name or "layer.0.output.dense" in name:
        kind = T.Q4_K
    elif "embed_tokens" in name or "word_embeddings" in name:
        kind = T.Q8_0
    elif "v_proj" in name or "value" in name:
        kind = T.F16
    elif "o_proj" in name or "attention.output" in name:
        kind = T.Q5_1
    else:
        kind = T.Q4_0
    if kind == T.Q4_K:
        # No quantizer for it in Python: any bytes are numbers, if the two scales are sound.
        raw = draw.integers(0, 256, (packed.shape[0], packed.shape[1] // 256, 144), dtype=np.uint8)
        raw[..., 0:4] = np.array([2e-4, 1e-3], dtype=np.float16).view(np.uint8)
        raw = raw.reshape(packed.shape[0], -1)
    else:
        raw = gguf.quants.quantize(np.ascontiguousarray(packed), kind)
    writer.add_tensor(theirs, raw, raw_dtype=kind)
    found = gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(packed.shape)
    found = restored(found, heads) if heads else found
    if family == "xlm-roberta" and "position_embd" in theirs:
        found = np.concatenate([np.zeros((2, found.shape[1]), dtype=np.float32), found])
    state[name] = torch.from_numpy(found.copy())
    kept[name] = kind.name
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
missing = model.load_state_dict(state, strict=False)
assert not missing.unexpected_keys
save_file({name: value.numpy() for name, value in state.items()}, out / "unpacked.safetensors")
tokenizer = AutoTokenizer.from_pretrained(base)
rows = []
for text in json.load(open(texts)):
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=16,
                                   return_token_type_ids=False)).last_hidden_state
    rows.append(torch.nn.functional.normalize(states[0].mean(0), dim=0).tolist())
print(json.dumps({"vectors": rows, "kept": kept}))
"#;

/// Compares the numbers of the model that we wrote with those that the GGUF file stands for.
const CHECK: &str = r#"
import json, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
unpacked = load_file(sys.argv[1])
lost = {}
with safe_open(sys.argv[2], "np") as ours:
    schemes = json.loads((ours.metadata() or {}).get("kiln.quantized", "{}"))
    for name, exact in unpacked.items():
        found = ours.get_tensor(name)
        scheme = schemes.get(name, "f32")
        if scheme != "f32":
            if scheme.startswith("int4"):
                found = np.stack([found & 15, found >> 4], -1).reshape(found.shape[0], -1).astype(np.float32) - 8
            scales = ours.get_tensor(name + ".scales").astype(np.float32)
            found = found.astype(np.float32) * np.repeat(scales, found.shape[1] // scales.shape[1], 1)
        found = found.astype(np.float32)
        assert found.shape == exact.shape, (name, found.shape, exact.shape)
        lost[name] = [scheme, float(((found - exact) ** 2).sum() / (exact ** 2).sum())]
print(json.dumps(lost))
"#;

fn python(script: &str, args: &[&str]) -> Option<serde_json::Value> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!("SKIPPED: KILN_PYTHON is not set; tests/run.sh installs gguf and sets it");
        return None;
    };
    let output = Command::new(python)
        .args(["-c", script])
        .args(args)
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    Some(serde_json::from_str(text.lines().last().unwrap()).unwrap())
}

fn imported(family: &str) {
    let folder = Folder::new();
    let source = folder.model("{ mode = 'mean' }").display().to_string();
    let texts = folder.write("texts.json", serde_json::to_string(&crate::harness::TEXTS).unwrap());
    let Some(made) = python(SCRIPT, &[family, &source, &texts, &folder.arg("")]) else { return };
    let (file, base, out) = (folder.arg("model.gguf"), folder.arg("base"), folder.arg("out"));
    let said = kiln(&["import", &file, "--like", &base, "--output", &out]).assert().success();
    let said = String::from_utf8_lossy(&said.get_output().stderr).into_owned();
    assert!(said.contains("cls pooling"), "{said}");

    let weights = folder.arg("out/model.safetensors");
    let lost = python(CHECK, &[&folder.arg("unpacked.safetensors"), &weights]).unwrap();
    for (name, kind) in made["kept"].as_object().unwrap() {
        let (scheme, lost) = (lost[name][0].as_str().unwrap(), lost[name][1].as_f64().unwrap());
        let (expected, most) = match kind.as_str().unwrap() {
            "F32" => ("f32", 0.0),
            "Q8_0" => ("int8:32", 0.0),
            "Q4_0" => ("int4:32", 0.0),
            _ => ("int8:32", 1e-4),
        };
        assert_eq!(scheme, expected, "{name}, which is {kind}");
        assert!(lost <= most, "{name}, which is {kind}: {lost}");
    }

    // Whole numbers give the vectors; rounded again, they are near.
    let theirs: Vec<Vec<f32>> = serde_json::from_value(made["vectors"].clone()).unwrap();
    let least = |actual: Vec<Vec<f32>>| {
        let cosines = actual.iter().zip(&theirs).map(|(a, b)| kiln_embed::index::cosine(a, b));
        cosines.fold(1.0, f32::min)
    };
    let least_packed = least(embed(&out, &folder, &[]));
    assert!(least_packed > 0.999, "{family}: {least_packed}");
    let whole = folder.arg("whole.kiln");
    stdout(&mut kiln(&["import", &file, "--like", &base, "-w", "f32", "--output", &whole]));
    let least_whole = least(embed(&whole, &folder, &[]));
    assert!(least_whole > 0.9995, "{family}: {least_whole}");
    println!(
        "{family}: least cosine to transformers {least_packed}, with the rest in f32 {least_whole}"
    );
}

#[test]
fn bert_is_read() {
    imported("bert");
}

#[test]
fn xlm_roberta_is_read() {
    imported("xlm-roberta");
}

#[test]
fn llama_is_read() {
    imported("llama");
}

#[test]
fn qwen3_is_read() {
    imported("qwen3");
}

#[test]
fn what_is_no_such_model_is_named() {
    let folder = Folder::new();
    let base = folder.model("{ mode = 'mean' }").display().to_string();
    let refused = |file: &str, like: &str, words: &[&str]| {
        let out = folder.arg("out");
        let output = kiln(&["import", file, "--like", like, "--output", &out]).assert().failure();
        let error = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!folder.path("out").exists());
    };
    let write = |bytes: &[u8]| folder.write("x.gguf", bytes);
    refused(&folder.arg("none.gguf"), &base, &["none.gguf"]);
    refused(&write(b"no such thing"), &base, &["x.gguf", "not GGUF"]);
    refused(&write(b"GGUF\x03\0\0\0"), &base, &["cut short"]);
    // A key that promises more than there is memory.
    let mut promises = b"GGUF\x03\0\0\0".to_vec();
    promises.extend([0u64, 1, 1 << 60].iter().flat_map(|number| number.to_le_bytes()));
    refused(&write(&promises), &base, &["x.gguf", "cut short"]);

    let texts = folder.write("texts.json", "[]");
    let made = Folder::new();
    let Some(_) = python(SCRIPT, &["llama", &base, &texts, &made.arg("")]) else { return };
    let like = made.arg("base");
    let bytes = std::fs::read(made.path("model.gguf")).unwrap();
    refused(&write(&bytes[..bytes.len() / 2]), &like, &["cut short", "download it again"]);
    let file = write(&bytes);
    let other = Folder::new();
    let Some(_) = python(SCRIPT, &["bert", &base, &texts, &other.arg("")]) else { return };
    refused(&file, &other.arg("base"), &["\"llama\"", "\"bert\""]);
    refused(&file, &base, &["x.gguf", "do not fit the model"]);
    refused(&file, &folder.arg("nowhere"), &["nowhere"]);
}
