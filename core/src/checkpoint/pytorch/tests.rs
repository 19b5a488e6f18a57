//! Files that PyTorch wrote (`tests/reference/pytorch_files.py`), files that an attacker could
//! write, and files with damage.

use proptest::prelude::*;
use safetensors::tensor::Dtype;

use crate::checkpoint::{Files, Weights, write_safetensors};

macro_rules! fixture {
    ($name:literal) => {
        &include_bytes!(concat!("../../../../tests/fixtures/pytorch/", $name))[..]
    };
}

const VALUES: [f32; 6] = [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5];

fn files(all: &[(&str, &[u8])]) -> Files {
    Files(all.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec().into())).collect())
}

fn open(bytes: &[u8]) -> crate::Result<Weights> {
    Weights::open(&files(&[("pytorch_model.bin", bytes)]), "model")
}

fn refused(bytes: &[u8]) -> String {
    let error = open(bytes).err().expect("a refusal").to_string();
    assert!(error.starts_with("model/pytorch_model.bin: "), "{error}");
    assert!(!error.contains('\n') && error.len() < 500, "{error}");
    error
}

/// The state dict of the script, whose entries are named by their kinds.
fn check_all(weights: &mut Weights) {
    let mut read = |name: &str, shape: &[usize], dtype, values: &[f32]| {
        let info = &weights.tensors()[name];
        assert_eq!((&info.shape[..], info.dtype), (shape, dtype), "{name}");
        assert_eq!(weights.read(name).unwrap().unwrap(), values, "{name}");
    };
    read("weight", &[2, 3], Dtype::F32, &VALUES);
    read("tied", &[2, 3], Dtype::F32, &VALUES);
    read("half", &[6], Dtype::F16, &VALUES);
    read("bf16", &[6], Dtype::BF16, &VALUES);
    read("double", &[6], Dtype::F64, &VALUES);
    read("transposed", &[3, 2], Dtype::F32, &[-1.0, 0.5, -0.5, 1.0, 0.0, 1.5]);
    read("slice", &[3], Dtype::F32, &[0.0, 0.5, 1.0]);
    read("column", &[2], Dtype::F32, &[-0.5, 1.0]);
    read("parameter", &[6], Dtype::F32, &VALUES);
    read("scalar", &[], Dtype::F32, &[2.5]);
    read("empty", &[0, 3], Dtype::F32, &[]);
    let unused: Vec<&str> = weights.unused().collect();
    assert_eq!(unused, ["mask", "position_ids"]);
    assert_eq!(weights.tensors()["mask"].dtype, Dtype::BOOL);
    assert_eq!(weights.tensors()["position_ids"].shape, [1, 4]);
    let error = weights.read("position_ids").unwrap_err().to_string();
    assert!(error.contains("the tensor position_ids is I64"), "{error}");
}

#[test]
fn what_torch_wrote_is_read() {
    for bytes in [
        fixture!("zip.bin"),
        fixture!("protocol-4.bin"),
        fixture!("wide.bin"),
        fixture!("legacy.bin"),
    ] {
        check_all(&mut open(bytes).unwrap());
    }
    let mut nested = open(fixture!("nested.bin")).unwrap();
    assert_eq!(nested.tensors().keys().collect::<Vec<_>>(), ["weight"]);
    assert_eq!(nested.read("weight").unwrap().unwrap(), VALUES);
}

#[test]
fn shards_are_joined() {
    let index = include_str!("../../../../tests/fixtures/pytorch/index.json");
    let all = |index: &str| {
        let all = files(&[
            ("2_Dense/pytorch_model.bin.index.json", index.as_bytes()),
            ("2_Dense/shard-1.bin", fixture!("shard-1.bin")),
            ("2_Dense/shard-2.bin", fixture!("shard-2.bin")),
        ]);
        Weights::open(&all, "2_Dense/model")
    };
    let mut weights = all(index).unwrap();
    assert_eq!(weights.tensors().len(), 6);
    assert_eq!(weights.read("bf16").unwrap().unwrap(), VALUES);
    assert_eq!(weights.read("tied").unwrap().unwrap(), VALUES);
    let outside = all(&index.replace("shard-1.bin", "../x.bin")).err().unwrap().to_string();
    assert!(outside.contains("outside the folder"), "{outside}");
    let elsewhere = all(&index.replace("\"half\": \"shard-1.bin\"", "\"half\": \"shard-2.bin\""));
    let elsewhere = elsewhere.err().unwrap().to_string();
    assert!(elsewhere.contains("the tensor half is in shard-1.bin"), "{elsewhere}");
}

#[test]
fn a_pytorch_file_stands_for_a_missing_safetensors_file() {
    let small = fixture!("small.bin");
    let safe = write_safetensors(&[("safe".to_string(), vec![1], vec![1.0])], &[]).unwrap();
    let both = files(&[("model.safetensors", &safe), ("pytorch_model.bin", small)]);
    let names = |weights: Weights| weights.tensors().keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(Weights::open(&both, "model").unwrap()), ["safe"]);

    let dense = files(&[("2_Dense/pytorch_model.bin", small)]);
    assert_eq!(names(Weights::open(&dense, "2_Dense/model").unwrap()), ["weight"]);
    let adapter = files(&[("adapter_model.bin", small)]);
    assert_eq!(names(Weights::open(&adapter, "adapter_model").unwrap()), ["weight"]);
    for (files, stem) in [(&dense, "model"), (&adapter, "model"), (&adapter, "parameters")] {
        let error = Weights::open(files, stem).err().unwrap().to_string();
        assert!(error.contains(&format!("no {stem}.safetensors there")), "{error}");
    }
}

#[test]
fn what_is_no_state_dict_is_refused_by_name() {
    for (bytes, cause) in [
        (fixture!("training.bin"), "the state of an optimizer"),
        (fixture!("optimizer.bin"), "the state of an optimizer"),
        (fixture!("number.bin"), "its entry version is no tensor"),
        (fixture!("sparse.bin"), "torch._utils._rebuild_sparse_tensor"),
        (fixture!("module.bin"), "torch.nn.modules.linear.Linear"),
        (fixture!("script.bin"), "TorchScript"),
        (fixture!("compressed.bin"), "is compressed (method 8)"),
        (fixture!("big-endian.bin"), "big-endian"),
        (fixture!("evil-system.bin"), "names posix.system"),
        (fixture!("evil-eval.bin"), "names __builtin__.eval"),
        (fixture!("evil-nested.bin"), "names __builtin__.exec"),
        (fixture!("evil-state.bin"), "nothing of it was executed"),
        (fixture!("evil-legacy.bin"), "names posix.system"),
        (b"\x80\x02}.", "not one that torch.save wrote"),
    ] {
        let error = refused(bytes);
        assert!(error.contains(cause) && error.contains("convert it to safetensors"), "{error}");
    }
    let error = refused(fixture!("expanded.bin"));
    assert!(error.contains("expanded of shape [4] is not within its storage of 1"), "{error}");
    for bytes in [&b""[..], b"PK", b"\x93NUMPY", b"GGUF"] {
        assert!(refused(bytes).contains("copy the file again"));
    }
}

#[test]
fn pointers_of_git_are_recognised() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    for (name, stem) in [("pytorch_model.bin", "model"), ("a/model.safetensors", "a/model")] {
        let error = Weights::open(&files(&[(name, pointer)]), stem).err().unwrap().to_string();
        let expected = "is a Git LFS pointer, not the file; run git lfs pull";
        assert_eq!(error, format!("model/{name}: {expected}"));
    }
}

/// A file in the old format, with an object that is written here by hand and zeros as numbers.
fn legacy(object: &[u8], storages: &[(&str, u64)]) -> Vec<u8> {
    let mut bytes = fixture!("legacy.bin")[..137].to_vec();
    bytes.extend(object);
    bytes.push(b']');
    for (key, _) in storages {
        bytes.extend(text(key));
        bytes.push(b'a');
    }
    bytes.push(b'.');
    for (_, count) in storages {
        bytes.extend(count.to_le_bytes());
        bytes.extend(vec![0; 4 * *count as usize]);
    }
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&[0x8c, text.len() as u8], text.as_bytes()].concat()
}

fn int(value: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &value.to_le_bytes()].concat()
}

/// A view of a storage of f32, as instructions.
fn tensor(key: &str, count: i64, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let list = |values: &[i64]| {
        [b"(".to_vec(), values.iter().flat_map(|&n| int(n)).collect(), b"t".to_vec()].concat()
    };
    [
        b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec(),
        text("storage"),
        b"ctorch\nFloatStorage\n".to_vec(),
        text(key),
        text("cpu"),
        int(count),
        b"tQ".to_vec(),
        int(offset),
        list(shape),
        list(strides),
        b"\x89NtR".to_vec(),
    ]
    .concat()
}

fn one(tensor: &[u8]) -> Vec<u8> {
    [b"}", &text("w")[..], tensor, b"s."].concat()
}

#[test]
fn tensors_stay_within_their_storages() {
    let view = |offset, shape: &[i64], strides: &[i64]| {
        open(&legacy(&one(&tensor("a", 6, offset, shape, strides)), &[("a", 6)]))
    };
    assert_eq!(view(0, &[2, 3], &[3, 1]).unwrap().read("w").unwrap().unwrap(), [0.0; 6]);
    view(5, &[1], &[1 << 62]).unwrap().read("w").unwrap();
    view(6, &[0], &[1]).unwrap().read("w").unwrap();
    view(0, &[1, 1, 2], &[i64::MAX, i64::MAX, 1]).unwrap().read("w").unwrap();
    view(0, &[0, i64::MAX], &[1, 1]).unwrap().read("w").unwrap();
    for (offset, shape, strides) in [
        (1, &[2, 3][..], &[3, 1][..]),
        (7, &[0], &[1]),
        (-1, &[1], &[1]),
        (0, &[-1], &[1]),
        (0, &[2], &[-1]),
        (0, &[2], &[6]),
        (0, &[7], &[0]),
        (i64::MAX, &[2], &[i64::MAX]),
        (0, &[i64::MAX, i64::MAX], &[0, 0]),
        (0, &[1 << 32, 1 << 32], &[1 << 32, 1]),
        (0, &[2, 3], &[1]),
        (0, &[1; 17], &[1; 17]),
    ] {
        let error = view(offset, shape, strides).err();
        assert!(error.is_some(), "{offset} {shape:?} {strides:?}");
    }
}

#[test]
fn storages_are_those_of_the_file() {
    let object = |count| one(&tensor("a", count, 0, &[1], &[1]));
    open(&legacy(&object(2), &[("a", 2)])).unwrap();
    assert!(refused(&legacy(&object(3), &[("a", 2)])).contains("truncated"));
    assert!(refused(&legacy(&object(1), &[("a", 2)])).contains("not of 1 numbers"));
    assert!(refused(&legacy(&object(i64::MAX), &[("a", 2)])).contains("truncated"));
    assert!(refused(&legacy(&object(2), &[("b", 2)])).contains("nothing uses"));
    assert!(refused(&legacy(&object(2), &[])).contains("is not there"));
    assert!(refused(&legacy(&object(2), &[("a", 2), ("a", 2)])).contains("twice"));
}

#[test]
fn a_storage_is_not_shared_without_end() {
    let tensor = tensor("a", 4096, 0, &[4096], &[1]);
    let share = |times: u32| {
        let mut object = b"}".to_vec();
        for i in 0..times {
            object.extend([&text(&format!("w{i}"))[..], &tensor[..], b"s"].concat());
        }
        open(&legacy(&[&object[..], b"."].concat(), &[("a", 4096)]))
    };
    assert_eq!(share(8).unwrap().tensors().len(), 8);
    let error = share(100).err().unwrap().to_string();
    assert!(error.contains("8 times the bytes"), "{error}");
    let twice = [&b"}"[..], &text("w"), &tensor, b"s", &text("w"), &tensor, b"s."].concat();
    assert!(refused(&legacy(&twice, &[("a", 4096)])).contains("w is there twice"));
}

/// Reads everything that is there.
fn read_all(bytes: &[u8]) -> Option<Vec<(String, Option<Vec<f32>>)>> {
    let mut weights = open(bytes).ok()?;
    let names: Vec<String> = weights.tensors().keys().cloned().collect();
    Some(
        names
            .into_iter()
            .map(|name| {
                let values = weights.read(&name).ok().flatten();
                (name, values)
            })
            .collect(),
    )
}

#[test]
fn every_truncation_is_an_error() {
    for whole in
        [fixture!("zip.bin"), fixture!("wide.bin"), fixture!("legacy.bin"), fixture!("nested.bin")]
    {
        let values = read_all(whole).unwrap();
        assert!(values.len() == 1 || values.len() == 13);
        for length in 0..whole.len() {
            let error = refused(&whole[..length]);
            assert!(error.contains("copy the file again"), "{length}: {error}");
        }
    }
}

proptest! {
    #[test]
    fn changed_bytes_never_panic(
        which in 0usize..5,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let all = [
            fixture!("zip.bin"),
            fixture!("wide.bin"),
            fixture!("legacy.bin"),
            fixture!("protocol-4.bin"),
            fixture!("training.bin"),
        ];
        let mut bytes = all[which].to_vec();
        for (place, to) in changes {
            let place = place.index(bytes.len());
            bytes[place] = to;
        }
        read_all(&bytes);
    }

    #[test]
    fn any_pickle_never_panics(code in proptest::collection::vec(
        prop::sample::select(b"().NtRQbsuae}]hqrjXKMJGcU\x80\x85\x86\x87\x88\x89\x8a\x8c\x8d\x93\x94\x95\0\x01\n".to_vec()),
        0..60,
    )) {
        prop_assert!(open(&legacy(&code, &[])).is_err() || code.contains(&b'.'));
    }
}
