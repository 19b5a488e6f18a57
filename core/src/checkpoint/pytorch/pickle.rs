//! A machine for pickles that builds dictionaries of tensors and nothing else.
//!
//! The instructions are those of Python's `pickletools`, the names those that `torch.save` writes
//! for a state dict. Values are small and are copied; what contains others is kept in a list and
//! referred to by its place there. So a value that refers to another many times, or to itself,
//! takes no more memory than its instructions, and nothing is walked through by recursion.

use std::collections::HashMap;

use safetensors::tensor::Dtype;

use super::fault::{Outcome, broken, foreign, shown};
use super::slice::Slice;

/// Instructions that are read: each takes up to a hundred bytes of memory, and a tensor about forty
/// of them.
const MOST_INSTRUCTIONS: usize = 1 << 21;
/// Dimensions of a tensor.
const MOST_DIMENSIONS: usize = 16;

/// A Python object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits, little-endian.
    Big(&'a [u8]),
    Float,
    Text(&'a str),
    Global(Global),
    Tuple(usize),
    List(usize),
    Dict(usize),
    Storage(usize),
    Tensor(usize),
}

/// What a pickle may name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    /// The class of storages of a type.
    Storage(Dtype),
}

/// Numbers that lie one behind the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Storage<'a> {
    pub(super) dtype: Dtype,
    pub(super) key: &'a str,
    /// Its length in numbers.
    pub(super) count: u64,
}

/// A view of a storage, all in numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tensor {
    pub(super) storage: usize,
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// What a pickle built.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    pub(super) root: Value<'a>,
    pub(super) storages: Vec<Storage<'a>>,
    pub(super) tensors: Vec<Tensor>,
    tuples: Vec<Vec<Value<'a>>>,
    lists: Vec<Vec<Value<'a>>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    /// Its length in bytes.
    pub(super) length: usize,
}

impl<'a> Pickle<'a> {
    /// Reads one pickle from the front of bytes.
    pub(super) fn read(bytes: &'a [u8]) -> Outcome<Self> {
        let mut machine = Machine {
            code: Slice::new(bytes),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            built: Pickle {
                root: Value::None,
                storages: Vec::new(),
                tensors: Vec::new(),
                tuples: Vec::new(),
                lists: Vec::new(),
                dicts: Vec::new(),
                length: 0,
            },
        };
        for _ in 0..MOST_INSTRUCTIONS {
            if machine.step()? {
                machine.built.length = machine.code.at();
                return Ok(machine.built);
            }
        }
        broken(format!("its pickle has more than {MOST_INSTRUCTIONS} instructions"))
    }

    /// The entries of a dictionary, in the order in which they were put there.
    pub(super) fn dict(&self, value: Value<'_>) -> Option<&[(Value<'a>, Value<'a>)]> {
        match value {
            Value::Dict(place) => Some(&self.dicts[place]),
            _ => None,
        }
    }

    /// A dictionary's value; the last where there are several.
    pub(super) fn get(&self, dict: Value<'_>, key: &str) -> Option<Value<'a>> {
        let entries = self.dict(dict)?.iter().rev();
        entries.copied().find(|(name, _)| *name == Value::Text(key)).map(|(_, value)| value)
    }

    pub(super) fn list(&self, value: Value<'_>) -> Option<&[Value<'a>]> {
        match value {
            Value::List(place) => Some(&self.lists[place]),
            _ => None,
        }
    }

    fn tuple(&self, value: Value<'_>) -> Option<&[Value<'a>]> {
        match value {
            Value::Tuple(place) => Some(&self.tuples[place]),
            _ => None,
        }
    }

    /// The sizes or strides of a tensor.
    fn sizes(&self, value: Value<'_>) -> Option<Vec<usize>> {
        let sizes = self.tuple(value).filter(|sizes| sizes.len() <= MOST_DIMENSIONS)?;
        let size = |value: &Value<'_>| match value {
            Value::Int(size) => usize::try_from(*size).ok(),
            _ => None,
        };
        sizes.iter().map(size).collect()
    }

    /// What `_rebuild_tensor_v2` and its predecessor make of their arguments; those that follow are
    /// about gradients.
    fn tensor(&self, arguments: &[Value<'a>]) -> Option<Tensor> {
        let [Value::Storage(storage), Value::Int(offset), shape, strides, ..] = *arguments else {
            return None;
        };
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        let offset = u64::try_from(offset).ok()?;
        (shape.len() == strides.len()).then_some(Tensor { storage, offset, shape, strides })
    }

    /// What `torch.save` writes in the place of a storage. Behind it stood, in its first years, the
    /// place of a view in another one.
    fn storage(&self, id: Value<'a>) -> Option<Storage<'a>> {
        match *self.tuple(id)? {
            [
                Value::Text("storage"),
                Value::Global(Global::Storage(dtype)),
                Value::Text(key),
                Value::Text(_),
                Value::Int(count),
                ref view @ ..,
            ] if matches!(view, [] | [Value::None]) => {
                Some(Storage { dtype, key, count: u64::try_from(count).ok()? })
            }
            _ => None,
        }
    }
}

struct Machine<'a> {
    code: Slice<'a>,
    stack: Vec<Value<'a>>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    built: Pickle<'a>,
}

impl<'a> Machine<'a> {
    /// Follows one instruction; true after the last.
    fn step(&mut self) -> Outcome<bool> {
        let code = self.code.u8();
        match self.read(code)? {
            b'.' => {
                self.built.root = self.pop()?;
                return Ok(true);
            }
            // PROTO and FRAME say nothing that is needed here.
            0x80 => drop(self.whole(Slice::u8)?),
            0x95 => drop(self.whole(Slice::u64)?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'J' => self.int(|code| code.array().map(i32::from_le_bytes))?,
            b'K' => self.int(Slice::u8)?,
            b'M' => self.int(Slice::u16)?,
            0x8a => self.long()?,
            b'G' => {
                self.whole(Slice::u64)?;
                self.stack.push(Value::Float);
            }
            b'X' | b'T' => self.text(|code| code.u32().map(u64::from))?,
            0x8c | b'U' => self.text(|code| code.u8().map(u64::from))?,
            0x8d => self.text(Slice::u64)?,
            b')' => self.add_tuple(Vec::new()),
            0x85 => self.tuple_of(1)?,
            0x86 => self.tuple_of(2)?,
            0x87 => self.tuple_of(3)?,
            b't' => {
                let values = self.marked()?;
                self.add_tuple(values);
            }
            b']' => {
                self.stack.push(Value::List(self.built.lists.len()));
                self.built.lists.push(Vec::new());
            }
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' => {
                let values = self.marked()?;
                self.append(values)?;
            }
            b'}' => self.add_dict(),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let values = self.marked()?;
                self.set(&values)?;
            }
            b'q' => self.remember(|code, _| code.u8().map(u32::from))?,
            b'r' => self.remember(|code, _| code.u32())?,
            0x94 => self.remember(|_, known| u32::try_from(known).ok())?,
            b'h' => self.recall(|code| code.u8().map(u32::from))?,
            b'j' => self.recall(Slice::u32)?,
            b'c' => {
                let (module, name) = (self.whole(Slice::line)?, self.whole(Slice::line)?);
                let utf8 = String::from_utf8_lossy;
                self.name(&utf8(module), &utf8(name))?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.name(module, name)?,
                _ => return self.wrong("a name is no text"),
            },
            b'R' => self.call()?,
            // A state dict's own attribute, `_metadata`: the versions of its modules.
            b'b' => match (self.pop()?, self.top()?) {
                (_, Value::Dict(_)) => {}
                _ => {
                    return foreign("its pickle sets the state of an object that is no dictionary");
                }
            },
            b'Q' => {
                let id = self.pop()?;
                match self.built.storage(id) {
                    Some(storage) => {
                        self.stack.push(Value::Storage(self.built.storages.len()));
                        self.built.storages.push(storage);
                    }
                    None => return foreign("its pickle refers to something that is no storage"),
                }
            }
            other => {
                return foreign(format!(
                    "its pickle has the instruction {:?}, which no file of tensors needs; nothing of it was executed",
                    char::from(other)
                ));
            }
        }
        Ok(false)
    }

    fn wrong<T>(&self, cause: &str) -> Outcome<T> {
        broken(format!("corrupt pickle: {cause} before its byte {}", self.code.at()))
    }

    fn read<T>(&self, value: Option<T>) -> Outcome<T> {
        value.map_or_else(|| broken("truncated: its pickle has no end"), Ok)
    }

    fn whole<T>(&mut self, read: impl FnOnce(&mut Slice<'a>) -> Option<T>) -> Outcome<T> {
        let value = read(&mut self.code);
        self.read(value)
    }

    fn top(&self) -> Outcome<Value<'a>> {
        match self.stack.last() {
            Some(value) if self.stack.len() > self.marks.last().copied().unwrap_or(0) => Ok(*value),
            _ => self.wrong("a value is missing"),
        }
    }

    fn pop(&mut self) -> Outcome<Value<'a>> {
        let value = self.top()?;
        self.stack.pop();
        Ok(value)
    }

    /// What was put on the stack since the last mark.
    fn marked(&mut self) -> Outcome<Vec<Value<'a>>> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => self.wrong("a mark is missing"),
        }
    }

    fn int<T: Into<i64>>(&mut self, read: impl FnOnce(&mut Slice<'a>) -> Option<T>) -> Outcome<()> {
        let value = self.whole(read)?.into();
        self.stack.push(Value::Int(value));
        Ok(())
    }

    /// Two's complement of any length.
    fn long(&mut self) -> Outcome<()> {
        let bytes = self.whole(|code| code.u8().and_then(|count| code.take(count.into())))?;
        self.stack.push(match bytes.last() {
            Some(last) if bytes.len() <= 8 => {
                let mut wide = [if *last < 0x80 { 0 } else { 0xff }; 8];
                wide[..bytes.len()].copy_from_slice(bytes);
                Value::Int(i64::from_le_bytes(wide))
            }
            Some(_) => Value::Big(bytes),
            None => Value::Int(0),
        });
        Ok(())
    }

    fn text(&mut self, length: impl FnOnce(&mut Slice<'a>) -> Option<u64>) -> Outcome<()> {
        let bytes = self.whole(|code| {
            let length = length(code)?;
            code.take(usize::try_from(length).ok()?)
        })?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.stack.push(Value::Text(text)),
            Err(_) => return self.wrong("a text is not UTF-8"),
        }
        Ok(())
    }

    fn add_tuple(&mut self, values: Vec<Value<'a>>) {
        self.stack.push(Value::Tuple(self.built.tuples.len()));
        self.built.tuples.push(values);
    }

    fn tuple_of(&mut self, count: usize) -> Outcome<()> {
        let mut values = (0..count).map(|_| self.pop()).collect::<Outcome<Vec<_>>>()?;
        values.reverse();
        self.add_tuple(values);
        Ok(())
    }

    fn add_dict(&mut self) {
        self.stack.push(Value::Dict(self.built.dicts.len()));
        self.built.dicts.push(Vec::new());
    }

    fn append(&mut self, values: Vec<Value<'a>>) -> Outcome<()> {
        match self.top()? {
            Value::List(place) => self.built.lists[place].extend(values),
            _ => return self.wrong("values are added to what is no list"),
        }
        Ok(())
    }

    fn set(&mut self, values: &[Value<'a>]) -> Outcome<()> {
        let (pairs, rest) = values.as_chunks::<2>();
        match self.top()? {
            Value::Dict(place) if rest.is_empty() => {
                self.built.dicts[place].extend(pairs.iter().map(|&[key, value]| (key, value)));
            }
            _ => return self.wrong("entries are put into what is no dictionary"),
        }
        Ok(())
    }

    fn remember(
        &mut self,
        place: impl FnOnce(&mut Slice<'a>, usize) -> Option<u32>,
    ) -> Outcome<()> {
        let known = self.memo.len();
        let place = self.whole(|code| place(code, known))?;
        self.memo.insert(place, self.top()?);
        Ok(())
    }

    fn recall(&mut self, place: impl FnOnce(&mut Slice<'a>) -> Option<u32>) -> Outcome<()> {
        let place = self.whole(place)?;
        match self.memo.get(&place) {
            Some(value) => self.stack.push(*value),
            None => return self.wrong("a value is recalled that was never remembered"),
        }
        Ok(())
    }

    fn name(&mut self, module: &str, name: &str) -> Outcome<()> {
        let global = match (module, name) {
            ("collections", "OrderedDict") => Some(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => {
                Some(Global::RebuildTensor)
            }
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                Some(Global::RebuildParameter)
            }
            ("torch" | "torch.cuda", class) => storage_type(class).map(Global::Storage),
            _ => None,
        };
        let Some(global) = global else {
            return foreign(format!(
                "its pickle names {}.{}, which no file of tensors needs; nothing of it was executed",
                shown(module),
                shown(name)
            ));
        };
        self.stack.push(Value::Global(global));
        Ok(())
    }

    /// The few functions that may be called, by what they are known to make.
    fn call(&mut self) -> Outcome<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Some(arguments) = self.built.tuple(arguments) else {
            return self.wrong("arguments are no tuple");
        };
        match (function, arguments) {
            (Value::Global(Global::OrderedDict), []) => self.add_dict(),
            (Value::Global(Global::RebuildTensor), arguments) => {
                match self.built.tensor(arguments) {
                    Some(tensor) => {
                        self.stack.push(Value::Tensor(self.built.tensors.len()));
                        self.built.tensors.push(tensor);
                    }
                    None => return self.wrong("a tensor has no storage, sizes and strides"),
                }
            }
            (Value::Global(Global::RebuildParameter), &[tensor @ Value::Tensor(_), ..]) => {
                self.stack.push(tensor);
            }
            _ => {
                return foreign(
                    "its pickle calls what makes no tensor; nothing of it was executed",
                );
            }
        }
        Ok(())
    }
}

/// What the numbers of a storage class are.
fn storage_type(class: &str) -> Option<Dtype> {
    Some(match class {
        "FloatStorage" => Dtype::F32,
        "HalfStorage" => Dtype::F16,
        "BFloat16Storage" => Dtype::BF16,
        "DoubleStorage" => Dtype::F64,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        "ComplexFloatStorage" => Dtype::C64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::pytorch::fault::Fault;

    fn refused(code: &[u8]) -> String {
        match Pickle::read(code).unwrap_err() {
            Fault::Broken(cause) | Fault::Foreign(cause) => cause,
            Fault::Io(error) => panic!("{error}"),
        }
    }

    #[test]
    fn numbers_and_texts_are_read() {
        let root = |code: &'static [u8]| Pickle::read(code).unwrap().root;
        assert_eq!(root(b"\x80\x02J\xff\xff\xff\xff."), Value::Int(-1));
        assert_eq!(root(b"M\x01\x02."), Value::Int(0x201));
        assert_eq!(root(b"\x8a\x00."), Value::Int(0));
        assert_eq!(root(b"\x8a\x01\xfe."), Value::Int(-2));
        assert_eq!(root(b"\x8a\x05\x00\x00\x00\x00\x01."), Value::Int(1 << 32));
        assert_eq!(root(b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."), {
            Value::Big(&[0, 0, 0, 0, 0, 0, 0, 0, 1])
        });
        assert_eq!(root(b"X\x02\x00\x00\x00\xc3\xa9."), Value::Text("\u{e9}"));
        assert_eq!(root(b"\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94."), {
            Value::Text("a")
        });
    }

    #[test]
    fn a_dictionary_is_filled_after_it_is_remembered() {
        let code =
            b"}q\x00(X\x01\x00\x00\x00ah\x00X\x01\x00\x00\x00bK\x05uX\x01\x00\x00\x00bK\x06s.";
        let pickle = Pickle::read(code).unwrap();
        assert_eq!(pickle.get(pickle.root, "a"), Some(pickle.root));
        assert_eq!(pickle.get(pickle.root, "b"), Some(Value::Int(6)));
    }

    #[test]
    fn other_names_are_refused_by_name() {
        for (code, name) in [
            (&b"cos\nsystem\n(X\x02\x00\x00\x00idtR."[..], "os.system"),
            (b"cposix\nsystem\n.", "posix.system"),
            (b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", "builtins.eval"),
            (b"ctorch\nload\n.", "torch.load"),
            (b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "_rebuild_tensor_v2.__globals__"),
            (b"ccollections\nOrderedDict.fromkeys\n.", "collections.OrderedDict.fromkeys"),
            (b"c\x1b[2J\nx\n.", "\\u{1b}[2J.x"),
        ] {
            let error = refused(code);
            assert!(
                error.contains(name) && error.contains("nothing of it was executed"),
                "{error}"
            );
        }
        let long = [&b"c"[..], &[b'a'; 5000], b"\nb\n."].concat();
        assert!(refused(&long).len() < 300);
    }

    #[test]
    fn objects_are_refused() {
        for code in [
            &b"ccollections\nOrderedDict\n)\x81."[..],
            b"(icollections\nOrderedDict\n.",
            b"(ccollections\nOrderedDict\no.",
            b"\x82\x01.",
            b"Pid\n.",
            b"ccollections\nOrderedDict\n}b.",
            b"ccollections\nOrderedDict\n)R)R.",
            b"ccollections\nOrderedDict\n(]tR.",
            b"ctorch\nFloatStorage\n(K\x05tR.",
            b"ctorch._utils\n_rebuild_parameter\n(K\x05\x88NtR.",
            b"(X\x06\x00\x00\x00moduleccollections\nOrderedDict\nNNtQ.",
            b"NQ.",
        ] {
            refused(code);
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for code in [
            &b""[..],
            b".",
            b"(.",
            b"t.",
            b"K\x01(0.",
            b"K\x01(\x85.",
            b"h\x00.",
            b"q\x00.",
            b"K\x01)R.",
            b"K\x01K\x02s.",
            b"}(K\x01u.",
            b"K\x01K\x02a.",
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
            b"X\xff\xff\xff\xff.",
            b"X\x01\x00\x00\x00\xff.",
            b"\x8a\xff\x00.",
            b"NN\x93.",
            b"ctorch",
        ] {
            refused(code);
        }
    }

    #[test]
    fn many_instructions_take_bounded_memory() {
        // Each tuple holds the one before twice: 2^100 leaves.
        let mut bomb = b")q\x00".to_vec();
        bomb.extend(b"h\x00h\x00\x86q\x00".repeat(100));
        bomb.push(b'.');
        assert_eq!(Pickle::read(&bomb).unwrap().root, Value::Tuple(100));

        let deep = [&b")"[..], &b"\x85".repeat(1_000_000), b"."].concat();
        assert_eq!(Pickle::read(&deep).unwrap().root, Value::Tuple(1_000_000));
        let endless = vec![b'}'; MOST_INSTRUCTIONS + 5];
        assert!(refused(&endless).contains("instructions"));

        let sizes = [b"(".to_vec(), b"K\x01".repeat(17), b"t.".to_vec()].concat();
        let pickle = Pickle::read(&sizes).unwrap();
        assert_eq!(pickle.sizes(pickle.root), None);
    }
}
