//! From a file to the tensors of its state dict.

use std::collections::BTreeSet;
use std::ops::Range;

use super::archive::Archive;
use super::fault::{Outcome, broken, bytes_at, foreign, shown};
use super::legacy;
use super::pickle::{Pickle, Storage, Tensor, Value};
use super::strides::is_row_major;
use crate::Result;
use crate::checkpoint::header::Entry;
use crate::folder::ReadSeek;

/// Tensors may share their numbers, as tied weights do: together they may have so many times the
/// bytes of the file.
const MOST_SHARED: u64 = 8;
/// The keys under which training loops keep a state dict beside other things.
const NESTED: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// The tensors of a file.
///
/// # Errors
/// Truncated, corrupt, or with anything but tensors.
pub(in crate::checkpoint) fn read_header(
    label: &str,
    reader: &mut dyn ReadSeek,
    length: u64,
) -> Result<Vec<Entry>> {
    read(reader, length).map_err(|fault| fault.named(label))
}

fn read(reader: &mut dyn ReadSeek, length: u64) -> Outcome<Vec<Entry>> {
    match bytes_at(reader, 0, length.min(4) as usize)?[..] {
        [b'P', b'K', 3, 4] => read_archive(reader, length),
        [0x80, ..] => {
            let head = legacy::head(reader, length)?;
            let (pickle, places) = legacy::read(&head, reader, length)?;
            entries(&pickle, length, |storage| Ok(places.get(storage.key).cloned()))
        }
        [] => broken("is empty"),
        _ => broken("is neither a zip archive nor a pickle, as torch.save writes them"),
    }
}

fn read_archive(reader: &mut dyn ReadSeek, length: u64) -> Outcome<Vec<Entry>> {
    let archive = Archive::open(reader, length)?;
    if archive.has("constants.pkl") || archive.has("code/") {
        return foreign("is a TorchScript archive, a program and no file of tensors");
    }
    if archive.read(reader, "byteorder")?.is_some_and(|order| order != b"little") {
        return foreign("its numbers are big-endian");
    }
    let Some(bytes) = archive.read(reader, "data.pkl")? else {
        return foreign("is a zip archive that torch.save did not write: it has no data.pkl");
    };
    let pickle = Pickle::read(&bytes)?;
    entries(&pickle, length, |storage| archive.locate(reader, &format!("data/{}", storage.key)))
}

/// The tensors of a state dict, each with its place in the file.
fn entries(
    pickle: &Pickle<'_>,
    length: u64,
    mut locate: impl FnMut(&Storage<'_>) -> Outcome<Option<Range<u64>>>,
) -> Outcome<Vec<Entry>> {
    let mut places = Vec::new();
    for storage in &pickle.storages {
        let place = locate(storage)?;
        let bytes = storage.count.checked_mul(storage.dtype.bitsize() as u64 / 8);
        match place {
            Some(place) if bytes == Some(place.end - place.start) => places.push(place),
            Some(_) => {
                return broken(format!("corrupt: a storage is not of {} numbers", storage.count));
            }
            None => return broken("corrupt: a storage is not there"),
        }
    }
    let mut entries = Vec::new();
    let mut names = BTreeSet::new();
    let mut left = length.saturating_mul(MOST_SHARED);
    for (name, value) in state_dict(pickle)? {
        let (Value::Text(name), Value::Tensor(tensor)) = (name, value) else {
            let name = match name {
                Value::Text(name) => shown(name),
                _ => "a key that is no text".into(),
            };
            return foreign(format!("its entry {name} is no tensor"));
        };
        if !names.insert(*name) {
            return broken(format!("corrupt: the tensor {} is there twice", shown(name)));
        }
        let tensor = &pickle.tensors[*tensor];
        let storage = &pickle.storages[tensor.storage];
        let size = storage.dtype.bitsize() as u64 / 8;
        let Some((numbers, count)) = extent(tensor, storage.count) else {
            return broken(format!(
                "corrupt: the tensor {} of shape {:?} is not within its storage of {} numbers",
                shown(name),
                tensor.shape,
                storage.count
            ));
        };
        left = match left.checked_sub(count.max(numbers.end - numbers.start) * size) {
            Some(left) => left,
            None => {
                return foreign(format!(
                    "its tensors share numbers, and have more than {MOST_SHARED} times the bytes of the file"
                ));
            }
        };
        let start = places[tensor.storage].start;
        let straight = count == 0 || is_row_major(&tensor.shape, &tensor.strides);
        // Where there is one place only, any step leads to the next.
        let step = |(&n, &stride): (&usize, &usize)| if n > 1 { stride } else { 0 };
        entries.push(Entry {
            name: name.to_string(),
            dtype: storage.dtype,
            shape: tensor.shape.clone(),
            strides: (!straight)
                .then(|| tensor.shape.iter().zip(&tensor.strides).map(step).collect()),
            bytes: start + numbers.start * size..start + numbers.end * size,
        });
    }
    Ok(entries)
}

/// From the first number of a tensor to the last within its storage, and how many it has; `None`
/// where it is not within, or has more numbers than the storage.
fn extent(tensor: &Tensor, length: u64) -> Option<(Range<u64>, u64)> {
    let mut count = 1u64;
    let mut end = tensor.offset.checked_add(1)?;
    for (&n, &stride) in tensor.shape.iter().zip(&tensor.strides) {
        count = count.checked_mul(n as u64)?;
        end = end.checked_add((n as u64).saturating_sub(1).checked_mul(stride as u64)?)?;
    }
    if count == 0 {
        end = tensor.offset;
    }
    (end <= length && count <= length).then_some((tensor.offset..end, count))
}

/// The entries of the state dict: the whole of the file, or what is under a name that training
/// loops use.
fn state_dict<'p, 'a>(pickle: &'p Pickle<'a>) -> Outcome<&'p [(Value<'a>, Value<'a>)]> {
    let Some(root) = pickle.dict(pickle.root) else {
        return foreign("holds no dictionary of tensors");
    };
    if root.iter().any(|(_, value)| matches!(value, Value::Tensor(_))) {
        return Ok(root);
    }
    let optimizer = |key: &Value<'_>| matches!(key, Value::Text(key) if key.contains("optim") || *key == "param_groups");
    if root.iter().any(|(key, _)| optimizer(key)) {
        return foreign("holds the state of an optimizer; save the model's state_dict() alone");
    }
    let nested = NESTED.iter().find_map(|key| pickle.dict(pickle.get(pickle.root, key)?));
    match nested {
        Some(entries) => Ok(entries),
        None if root.is_empty() => Ok(root),
        None => foreign("holds no dictionary of tensors"),
    }
}
