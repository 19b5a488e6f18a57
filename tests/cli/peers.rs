//! sentence-transformers loads what we save and computes the same vectors.

use std::process::Command;

use kiln_embed::checkpoint::{Directory, Existing, LoadOptions, load, save, write_directory};
use kiln_embed::embedder::Embedder;
use train_native::device::Cpu;

use crate::harness::{Folder, TEXTS, embed};
use crate::named::{NamedKind, NamedModel};

const SCRIPT: &str = r#"
import json, sys
from sentence_transformers import SentenceTransformer
texts = json.load(open(sys.argv[1]))
of = lambda model, prompt: SentenceTransformer(model, device="cpu").encode(texts, prompt_name=prompt or None).tolist()
print(json.dumps([of(*job) for job in zip(sys.argv[2::2], sys.argv[3::2])]))
"#;

/// Vectors by sentence-transformers for each model with a prompt's name (or none), all in one process, which takes its
/// time to start; `None` after printing why it is skipped.
fn peer(folder: &Folder, jobs: &[[&str; 2]]) -> Option<Vec<Vec<Vec<f32>>>> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs sentence-transformers and sets it"
        );
        return None;
    };
    let texts = folder.write("texts.json", serde_json::to_string(&TEXTS).unwrap());
    let output = Command::new(python)
        .args(["-c", SCRIPT, &texts])
        .args(jobs.as_flattened())
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    Some(serde_json::from_str(line.lines().last().unwrap()).unwrap())
}

fn assert_same(a: &[Vec<f32>], b: &[Vec<f32>], what: &str) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let worst = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(a.len() == b.len() && worst < 1e-5, "{what}: {worst}");
    }
}

#[test]
fn it_loads_a_model_that_we_made() {
    // With a prompt, its tokens are kept out of pooling on both sides.
    let jobs =
        [("mean", ""), ("mean", "query"), ("last_token", ""), ("cls", ""), ("weighted_mean", "")];
    let made = jobs.map(|(mode, _)| {
        let folder = Folder::new();
        let model = folder.model(&format!("{{ mode = '{mode}' }}")).display().to_string();
        (folder, model)
    });
    let asked: Vec<[&str; 2]> =
        made.iter().zip(jobs).map(|((_, model), (_, prompt))| [&**model, prompt]).collect();
    let Some(theirs) = peer(&made[0].0, &asked) else { return };
    for (((folder, model), (mode, prompt)), theirs) in made.iter().zip(jobs).zip(&theirs) {
        let prompted = ["--prompt-name", prompt];
        let args: &[&str] = if prompt.is_empty() { &[] } else { &prompted };
        assert_same(&embed(model, folder, args), theirs, &format!("{mode} {prompt}"));
    }
}

/// Copies of named models, as we save them again.
#[test]
fn it_loads_named_models_saved_again() {
    // Those whose heads or code it does not have.
    const OWN: [&str; 4] = [
        "jinaai/jina-embeddings-v2-base-en",
        "jinaai/jina-embeddings-v2-small-en",
        "nomic-ai/nomic-embed-text-v2-moe",
        "nvidia/NV-Embed-v2",
    ];
    if std::env::var_os("KILN_PYTHON").is_none() {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs sentence-transformers and sets it"
        );
        return;
    }
    let folder = Folder::new();
    let mut models = NamedModel::all();
    models
        .retain(|named| named.kind != NamedKind::Reranker && !OWN.contains(&named.model.as_str()));
    assert!(models.len() > 30, "{}", models.len());
    let (mut ours, mut places) = (Vec::new(), Vec::new());
    for named in &models {
        let embedder: Embedder<Cpu> =
            load(&named.folder(), &LoadOptions::default(), &Default::default()).unwrap();
        let saved = folder.path(&named.model.replace('/', "--"));
        write_directory(&saved, &save(&embedder).unwrap(), Existing::Refuse).unwrap();
        ours.push(embedder.embed(&TEXTS).unwrap());
        places.push(saved.display().to_string());
    }
    let jobs: Vec<[&str; 2]> = places.iter().map(|place| [place.as_str(), ""]).collect();
    let theirs = peer(&folder, &jobs).unwrap();
    for ((named, ours), theirs) in models.iter().zip(&ours).zip(&theirs) {
        assert_same(ours, theirs, &named.model);
    }
}

/// A sentence-transformers model with a dense projection, saved by itself, is read by us.
#[test]
fn we_load_its_dense_projection() {
    const MAKE: &str = r#"
import json, sys
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
torch.manual_seed(5)
transformer = Transformer(sys.argv[1])
pooling = Pooling(16, pooling_mode="cls")
dense = Dense(16, 6, activation_function=getattr(torch.nn, sys.argv[4])())
model = SentenceTransformer(modules=[transformer, pooling, dense, Normalize()], device="cpu")
model.save(sys.argv[2])
print(json.dumps(model.encode(json.load(open(sys.argv[3]))).tolist()))
"#;
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        eprintln!(
            "SKIPPED: KILN_PYTHON is not set; tests/run.sh installs sentence-transformers and sets it"
        );
        return;
    };
    for activation in ["Tanh", "ReLU", "GELU"] {
        let folder = Folder::new();
        let model = folder.model("{ mode = 'mean' }");
        let made = folder.arg("made");
        let texts = folder.write("texts.json", serde_json::to_string(&TEXTS).unwrap());
        let mut command = Command::new(&python);
        let command =
            command.args(["-c", MAKE]).arg(model).args([made.as_str(), texts.as_str(), activation]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let line = String::from_utf8(output.stdout).unwrap();
        let theirs: Vec<Vec<f32>> = serde_json::from_str(line.lines().last().unwrap()).unwrap();
        assert_eq!(theirs[0].len(), 6);
        assert_same(&embed(&made, &folder, &[]), &theirs, activation);
    }
}

#[test]
fn it_loads_the_real_model_saved_again() {
    let (Some(minilm), true) =
        (std::env::var_os("KILN_MINILM"), std::env::var_os("KILN_PYTHON").is_some())
    else {
        eprintln!("SKIPPED: KILN_MINILM or KILN_PYTHON is not set; tests/run.sh sets them");
        return;
    };
    let folder = Folder::new();
    let embedder = load::<Cpu>(
        &Directory::new(&minilm).unwrap(),
        &LoadOptions::default(),
        &Default::default(),
    )
    .unwrap();
    let saved = folder.path("minilm");
    write_directory(&saved, &save(&embedder).unwrap(), Existing::Refuse).unwrap();
    let (original, again) = (minilm.to_string_lossy(), saved.display().to_string());
    let theirs = peer(&folder, &[[&original, ""], [&again, ""]]).unwrap();
    assert_same(&theirs[1], &theirs[0], "saved again");
}
