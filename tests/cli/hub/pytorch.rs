//! Models whose weights are PyTorch's alone, from the Hub.

use std::path::Path;

use kiln_embed::checkpoint::{Directory, Existing, Weights, write_directory};
use serde_json::{Map, Value, json};

use super::{Hub, nest};
use crate::harness::{Folder, failure, kiln};
use crate::named::NamedModel;

/// A file as `torch.save` wrote it before PyTorch 1.6: pickles of a mark, the version, the machine, the tensors and
/// the storages' keys, then the numbers.
fn pytorch(tensors: &[(String, Vec<usize>, Vec<f32>)]) -> Vec<u8> {
    fn text(text: &str) -> Vec<u8> {
        [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
    }
    fn int(value: usize) -> Vec<u8> {
        [&b"J"[..], &(value as i32).to_le_bytes()].concat()
    }
    fn tuple(values: impl Iterator<Item = usize>) -> Vec<u8> {
        [b"(".to_vec(), values.flat_map(int).collect(), b"t".to_vec()].concat()
    }
    let mut parts = vec![
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02".to_vec(),
        int(1001),
        b".\x80\x02}".to_vec(),
        text("little_endian"),
        b"\x88s.\x80\x02}".to_vec(),
    ];
    for (key, (name, shape, values)) in tensors.iter().enumerate() {
        let strides = (1..=shape.len()).map(|at| shape[at..].iter().product::<usize>());
        parts.extend([
            text(name),
            b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
            text("storage"),
            b"ctorch\nFloatStorage\n".to_vec(),
            text(&key.to_string()),
            text("cpu"),
            int(values.len()),
            b"NtQ".to_vec(),
            int(0),
            tuple(shape.iter().copied()),
            tuple(strides),
            b"\x89NtRs".to_vec(),
        ]);
    }
    parts.push(b".\x80\x02](".to_vec());
    parts.extend((0..tensors.len()).map(|key| text(&key.to_string())));
    parts.push(b"e.".to_vec());
    for (.., values) in tensors {
        parts.push((values.len() as u64).to_le_bytes().to_vec());
        parts.push(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    }
    parts.concat()
}

/// Puts PyTorch's file, or so many shards and their index, in the place of a folder's `model.safetensors`.
fn to_pytorch(folder: &Path, shards: usize) {
    let mut weights = Weights::open(&Directory::new(folder).unwrap(), "model").unwrap();
    let shapes: Vec<(String, Vec<usize>)> =
        weights.tensors().iter().map(|(name, info)| (name.clone(), info.shape.clone())).collect();
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let values = weights.read(&name).unwrap().unwrap();
            (name, shape, values)
        })
        .collect();
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    if shards == 1 {
        std::fs::write(folder.join("pytorch_model.bin"), pytorch(&tensors)).unwrap();
        return;
    }
    let mut map = Map::new();
    for (at, part) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
        let shard = format!("pytorch_model-{:05}-of-{shards:05}.bin", at + 1);
        map.extend(part.iter().map(|(name, ..)| (name.clone(), Value::from(shard.as_str()))));
        std::fs::write(folder.join(shard), pytorch(part)).unwrap();
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    std::fs::write(folder.join("pytorch_model.bin.index.json"), index.to_string()).unwrap();
}

/// bge-m3's weights are PyTorch's alone, larger models' are in shards, and LaBSE and distiluse have a Dense of theirs.
#[test]
fn weights_in_pytorchs_format_come_from_the_hub() {
    type Change<'a> = &'a dyn Fn(&Path);
    let (whole, split) = (|model: &Path| to_pytorch(model, 1), |model: &Path| to_pytorch(model, 3));
    let inside = |model: &Path| {
        to_pytorch(model, 3);
        nest(model, "0_Transformer");
    };
    let dense = |model: &Path| to_pytorch(&model.join("2_Dense"), 1);
    let all = |model: &Path| {
        whole(model);
        dense(model);
    };
    let cases: [(&str, &str, Change<'_>); 5] = [
        ("bge-m3", "BAAI/bge-m3", &whole),
        ("split", "BAAI/bge-m3", &split),
        ("inside", "BAAI/bge-m3", &inside),
        ("labse", "sentence-transformers/LaBSE", &dense),
        ("distiluse", "sentence-transformers/distiluse-base-multilingual-cased-v2", &all),
    ];
    let folder = Folder::new();
    let hub_folder = folder.path("hub/someone");
    std::fs::create_dir_all(&hub_folder).unwrap();
    let Some(hub) = Hub::start(&folder) else { return };
    let (texts, out) = (folder.texts(), folder.arg("vectors.jsonl"));
    let embed = |model: &str, cache: &str| {
        let mut command =
            kiln(&["--quiet", "embed", "--model", model, "--input", &texts, "--output", &out]);
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", folder.arg(cache));
        command
    };
    let vectors = |model: &str| {
        embed(model, "cache").assert().success();
        std::fs::read_to_string(&out).unwrap()
    };
    for (name, model, change) in cases {
        let model = NamedModel::all().into_iter().find(|one| one.model == model).unwrap();
        let local = hub_folder.join(name);
        write_directory(&local, &model.folder(), Existing::Refuse).unwrap();
        let expected = vectors(&local.display().to_string());
        change(&local);
        assert_eq!(vectors(&format!("someone/{name}")), expected, "{name}");
    }

    // Of shards each counts.
    let shard = hub_folder.join("split/pytorch_model-00002-of-00003.bin");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::remove_file(&shard).unwrap();
    let error = failure(&mut embed("someone/split", "without"));
    let missing = "there is no pytorch_model-00002-of-00003.bin at revision \"main\"";
    assert!(error.contains("someone/split") && error.contains(missing), "{error}");
    std::fs::write(&shard, &bytes[..bytes.len() - 4]).unwrap();
    let error = failure(&mut embed("someone/split", "short"));
    let parts = ["pytorch_model-00002-of-00003.bin", "truncated"];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}
