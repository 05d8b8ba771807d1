//! A GGUF model file: memory-mapped, checked once when it is opened, then only looked up.
//!
//! Weights stay in the map, so a model costs no memory twice and opening one takes milliseconds. The file is untrusted: whatever its
//! bytes, opening ends in a `Gguf` whose every tensor lies inside the file or in an error that says where and what to do.
//! Invariant: after `open`, no look-up can fail for a reason that lies in the file's layout.

mod error;
mod kind;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

pub use error::GgufError;
pub use kind::TensorKind;
pub use parse::{DEPTH_MAX, DIMS_MAX, ITEMS_MAX, KEY_LEN_MAX, KEYS_MAX, NAME_LEN_MAX, TENSORS_MAX};

use error::CONVERT;

/// A metadata array.
pub type Array = Vec<Value>;

/// A metadata value. Widths are not kept: a `u8` and a `u64` of the same value are the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// u8, u16, u32, u64.
    Uint(u64),
    /// i8, i16, i32, i64.
    Int(i64),
    /// f32, f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Str(String),
    /// Values of one type.
    Array(Array),
}

impl Value {
    /// As an integer, if it is one that fits.
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Value::Uint(n) => n.try_into().ok(),
            Value::Int(n) => Some(n),
            _ => None,
        }
    }

    /// As a text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Type, and the value where it is short: for messages and listings.
    pub fn describe(&self) -> String {
        match self {
            Value::Uint(n) => format!("unsigned integer {n}"),
            Value::Int(n) => format!("integer {n}"),
            Value::Float(x) => format!("number {x}"),
            Value::Bool(b) => format!("truth value {b}"),
            Value::Str(text) if text.len() <= 64 => format!("text {text:?}"),
            Value::Str(text) => format!("text of {} bytes", text.len()),
            Value::Array(items) => format!("array of {}", items.len()),
        }
    }
}

/// A tensor: its shape, and its bytes in the map.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its dimensions in GGUF's order: `dims[0]` is the length of a row, the one that is contiguous. One to four, none zero.
    pub dims: &'a [u64],
    /// How elements are stored.
    pub kind: TensorKind,
    /// Exactly the tensor's bytes. Not aligned for any wider type when the file was given as bytes: read by `from_le_bytes`.
    pub data: &'a [u8],
}

#[derive(Debug)]
struct Entry {
    key: String,
    offset: u64,
    value: Value,
}

#[derive(Debug)]
struct TensorInfo {
    name: String,
    dims: Vec<u64>,
    kind: TensorKind,
    /// In the file, once placed.
    offset: u64,
    size: u64,
    /// Where the header says the offset.
    offset_at: u64,
}

#[derive(Debug)]
struct Parsed {
    version: u32,
    entries: Vec<Entry>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    metadata_end: u64,
}

#[derive(Debug)]
enum Source {
    Map(memmap2::Mmap),
    Bytes(Vec<u8>),
}

/// A GGUF file that was read and checked.
#[derive(Debug)]
pub struct Gguf {
    source: Source,
    parsed: Parsed,
}

/// Length of magic, version and the two counts: where metadata begins.
const PREAMBLE: u64 = 24;

impl Gguf {
    /// Maps and checks the file at `path`. The file must not be truncated while it is in use (the system then ends the process): replace a model
    /// by renaming a new file over it.
    pub fn open(path: &Path) -> Result<Gguf, GgufError> {
        let fail = |source| GgufError::Open { path: path.to_owned(), source };
        let file = File::open(path).map_err(fail)?;
        // SAFETY: the map is private to this process and only read. A writer could change or shorten the file under us; no Rust reference
        // into it is trusted for more than its bounds, and the documentation asks for replacement by renaming, as every mapped model does.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        let parsed = parse::parse(&map)?;
        Ok(Gguf { source: Source::Map(map), parsed })
    }

    /// Checks a file that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
        let parsed = parse::parse(&bytes)?;
        Ok(Gguf { source: Source::Bytes(bytes), parsed })
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.parsed.version
    }

    /// The file's size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entry(key).map(|e| &e.value)
    }

    /// An unsigned integer of any width that fits 32 bits.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        self.wanted(key, "an integer between 0 and 4294967295", |v| v.as_int().and_then(|n| n.try_into().ok()))
    }

    /// A finite number.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        self.wanted(key, "a finite number", |v| match *v {
            Value::Float(x) if (x as f32).is_finite() => Some(x as f32),
            _ => None,
        })
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        self.wanted(key, "a truth value", |v| match *v {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        self.wanted(key, "a text", Value::as_str)
    }

    /// An array of texts.
    pub fn strings(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        self.wanted(key, "an array of texts", |v| match v {
            Value::Array(items) => items.iter().map(Value::as_str).collect(),
            _ => None,
        })
    }

    /// An array of integers of any width.
    pub fn ints(&self, key: &str) -> Result<Vec<i64>, GgufError> {
        self.wanted(key, "an array of integers", |v| match v {
            Value::Array(items) => items.iter().map(Value::as_int).collect(),
            _ => None,
        })
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, GgufError> {
        match self.parsed.names.get(name) {
            Some(&i) => Ok(self.view(&self.parsed.tensors[i])),
            None => Err(GgufError::Missing {
                from: self.parsed.metadata_end,
                to: self.size_bytes(),
                field: format!("tensor {name:?}"),
                mend: CONVERT,
            }),
        }
    }

    /// All tensors in the file's order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.parsed.tensors.iter().map(|info| self.view(info))
    }

    /// All metadata in the file's order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.parsed.entries.iter().map(|e| (e.key.as_str(), &e.value))
    }

    fn bytes(&self) -> &[u8] {
        match &self.source {
            Source::Map(map) => map,
            Source::Bytes(bytes) => bytes,
        }
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> Tensor<'a> {
        let data = &self.bytes()[info.offset as usize..(info.offset + info.size) as usize];
        Tensor { name: &info.name, dims: &info.dims, kind: info.kind, data }
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        self.parsed.keys.get(key).map(|&i| &self.parsed.entries[i])
    }

    fn wanted<'a, T>(&'a self, key: &str, wanted: &'static str, pick: impl Fn(&'a Value) -> Option<T>) -> Result<T, GgufError> {
        let entry = self.entry(key).ok_or_else(|| GgufError::Missing {
            from: PREAMBLE,
            to: self.parsed.metadata_end,
            field: format!("metadata {key:?}"),
            mend: CONVERT,
        })?;
        pick(&entry.value).ok_or_else(|| GgufError::WrongType {
            offset: entry.offset,
            field: format!("metadata {key:?}"),
            found: entry.value.describe(),
            wanted,
        })
    }
}
