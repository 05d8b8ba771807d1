//! Reads a GGUF header out of untrusted bytes.
//!
//! Invariant: no count or length from the file decides an allocation or a loop before the bytes it speaks of are known to be there;
//! no arithmetic on such numbers is unchecked. The layout is that of `docs/gguf.md` of the ggml project, versions 2 and 3.

use std::collections::HashMap;

use super::error::{CONVERT, FETCH};
use super::{Array, Entry, GgufError, Parsed, TensorInfo, TensorKind, Value};

/// Most metadata keys a file may have.
pub const KEYS_MAX: u64 = 1 << 16;
/// Most tensors a file may have.
pub const TENSORS_MAX: u64 = 1 << 16;
/// Most array elements over all metadata; a vocabulary of 256 Ki with merges, scores and types needs about 1.3 Mi.
pub const ITEMS_MAX: u64 = 1 << 23;
/// How deep arrays may be nested.
pub const DEPTH_MAX: u32 = 4;
/// Longest key in bytes (the format's own limit).
pub const KEY_LEN_MAX: u64 = 65_535;
/// Longest tensor name in bytes (the format's own limit).
pub const NAME_LEN_MAX: u64 = 64;
/// Most dimensions of a tensor (ggml's own limit).
pub const DIMS_MAX: u32 = 4;
/// Alignment of tensor data where the file names none.
const ALIGNMENT_DEFAULT: u64 = 32;
/// Largest alignment accepted: a page of any common machine.
const ALIGNMENT_MAX: u64 = 1 << 16;

/// A place in the bytes; every read is checked.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    items_left: u64,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, needed: u64, field: &str) -> Result<&'a [u8], GgufError> {
        let left = (self.bytes.len() - self.at) as u64;
        if needed > left {
            return Err(GgufError::Truncated { offset: self.at as u64, field: field.to_owned(), needed, left });
        }
        let from = self.at;
        self.at += needed as usize;
        Ok(&self.bytes[from..self.at])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    fn u32(&mut self, field: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A string of at most `max` bytes.
    fn string(&mut self, max: u64, field: &str) -> Result<String, GgufError> {
        let at = self.at;
        let len = self.u64(field)?;
        if len > max {
            return Err(invalid(at, field, format!("a string of {len} bytes, allowed are {max}"), FETCH));
        }
        let bytes = self.take(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(invalid(at + 8 + e.valid_up_to(), field, "not UTF-8".into(), CONVERT)),
        }
    }

    /// A count of things that each take at least `least` bytes: refused where the file cannot hold them.
    fn count(&mut self, max: u64, least: u64, field: &str) -> Result<u64, GgufError> {
        let at = self.at;
        let n = self.u64(field)?;
        if n > max {
            return Err(invalid(at, field, format!("{n}, allowed are {max}"), FETCH));
        }
        let left = (self.bytes.len() - self.at) as u64;
        match n.checked_mul(least) {
            Some(needed) if needed <= left => Ok(n),
            needed => {
                Err(GgufError::Truncated { offset: self.at as u64, field: field.to_owned(), needed: needed.unwrap_or(u64::MAX), left })
            }
        }
    }

    fn value(&mut self, kind: u32, depth: u32, field: &str) -> Result<Value, GgufError> {
        let at = self.at;
        Ok(match kind {
            0 => Value::Uint(u8::from_le_bytes(self.array(field)?).into()),
            1 => Value::Int(i8::from_le_bytes(self.array(field)?).into()),
            2 => Value::Uint(u16::from_le_bytes(self.array(field)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array(field)?).into()),
            4 => Value::Uint(self.u32(field)?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array(field)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(field)?).into()),
            7 => match self.array::<1>(field)?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(invalid(at, field, format!("a truth value of {other}, allowed are 0 and 1"), FETCH)),
            },
            8 => Value::Str(self.string(u64::MAX, field)?),
            9 => Value::Array(self.list(depth, field)?),
            10 => Value::Uint(self.u64(field)?),
            11 => Value::Int(i64::from_le_bytes(self.array(field)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(field)?)),
            other => return Err(invalid(at.saturating_sub(4), field, format!("unknown value type {other}"), FETCH)),
        })
    }

    fn list(&mut self, depth: u32, field: &str) -> Result<Array, GgufError> {
        let at = self.at;
        if depth >= DEPTH_MAX {
            return Err(invalid(at, field, format!("arrays nested deeper than {DEPTH_MAX}"), FETCH));
        }
        let kind = self.u32(field)?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return Err(invalid(at, field, format!("unknown element type {other}"), FETCH)),
        };
        let n = self.count(self.items_left, least, field)?;
        self.items_left -= n;
        // `count` has seen that the bytes for n elements are there, so this reserves no more than a fixed multiple of the file.
        let mut items = Vec::with_capacity(n as usize);
        for _ in 0..n {
            items.push(self.value(kind, depth + 1, field)?);
        }
        Ok(items)
    }
}

fn invalid(offset: usize, field: &str, problem: String, mend: &'static str) -> GgufError {
    GgufError::Invalid { offset: offset as u64, field: field.to_owned(), problem, mend }
}

/// Reads and checks the whole header; afterwards every tensor's bytes are known to lie inside the file.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, GgufError> {
    let mut cursor = Cursor { bytes, at: 0, items_left: ITEMS_MAX };
    let version = preamble(&mut cursor)?;
    // A tensor's entry takes at least: name length 8, dimension count 4, one dimension 8, type 4, offset 8; a key's: 8, type 4, value 1.
    let tensor_count = cursor.count(TENSORS_MAX, 32, "tensor count")?;
    let key_count = cursor.count(KEYS_MAX, 13, "metadata count")?;
    let mut out =
        Parsed { version, entries: Vec::new(), keys: HashMap::new(), tensors: Vec::new(), names: HashMap::new(), metadata_end: 0 };
    for i in 0..key_count {
        entry(&mut cursor, i, &mut out)?;
    }
    out.metadata_end = cursor.at as u64;
    let alignment = alignment(&out)?;
    for i in 0..tensor_count {
        tensor(&mut cursor, i, alignment, &mut out)?;
    }
    place(bytes.len() as u64, cursor.at as u64, alignment, &mut out)?;
    Ok(out)
}

fn preamble(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic: [u8; 4] = cursor.array("magic")?;
    if &magic != b"GGUF" {
        return Err(invalid(0, "magic", format!("{magic:02x?} and not \"GGUF\""), "give a GGUF file"));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        1 => Err(invalid(4, "version", "1, read are 2 and 3".into(), CONVERT)),
        v if v & 0xffff == 0 => Err(invalid(4, "version", "a big-endian file".into(), "use the little-endian file of this model")),
        v => Err(invalid(4, "version", format!("{v}, read are 2 and 3"), "use a newer kvit or a file of version 3")),
    }
}

fn entry(cursor: &mut Cursor<'_>, i: u64, out: &mut Parsed) -> Result<(), GgufError> {
    let at = cursor.at;
    let key = cursor.string(KEY_LEN_MAX, &format!("metadata key {i}"))?;
    let field = format!("metadata {key:?}");
    let kind = cursor.u32(&field)?;
    let offset = cursor.at as u64;
    let value = cursor.value(kind, 0, &field)?;
    if out.keys.insert(key.clone(), out.entries.len()).is_some() {
        return Err(invalid(at, &field, "this key occurs twice".into(), CONVERT));
    }
    out.entries.push(Entry { key, offset, value });
    Ok(())
}

fn alignment(out: &Parsed) -> Result<u64, GgufError> {
    let Some(entry) = out.keys.get("general.alignment").map(|&i| &out.entries[i]) else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    match entry.value {
        Value::Uint(n) if n.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&n) => Ok(n),
        ref other => Err(GgufError::WrongType {
            offset: entry.offset,
            field: "general.alignment".into(),
            found: other.describe(),
            wanted: "a power of two between 8 and 65536",
        }),
    }
}

fn tensor(cursor: &mut Cursor<'_>, i: u64, alignment: u64, out: &mut Parsed) -> Result<(), GgufError> {
    let at = cursor.at;
    let name = cursor.string(NAME_LEN_MAX, &format!("name of tensor {i}"))?;
    let field = format!("tensor {name:?}");
    let rank = cursor.u32(&field)?;
    if rank == 0 || rank > DIMS_MAX {
        return Err(invalid(cursor.at - 4, &field, format!("{rank} dimensions, allowed are 1 to {DIMS_MAX}"), FETCH));
    }
    let dims_at = cursor.at;
    let mut dims = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        dims.push(cursor.u64(&field)?);
    }
    let kind_at = cursor.at;
    let id = cursor.u32(&field)?;
    let kind = TensorKind::from_id(id)
        .ok_or_else(|| invalid(kind_at, &field, format!("unknown element type {id}"), "use a newer kvit or another quantization"))?;
    let elements = dims.iter().try_fold(1u64, |n, &d| if d == 0 { None } else { n.checked_mul(d) });
    let size = elements.filter(|_| dims[0].is_multiple_of(kind.block_len())).and_then(|n| kind.bytes(n));
    let Some(size) = size else {
        let problem = format!("dimensions {dims:?} are no whole blocks of {kind} ({} elements) or too large", kind.block_len());
        return Err(invalid(dims_at, &field, problem, FETCH));
    };
    let offset_at = cursor.at;
    let offset = cursor.u64(&field)?;
    if !offset.is_multiple_of(alignment) {
        return Err(invalid(offset_at, &field, format!("data offset {offset} is no multiple of {alignment}"), CONVERT));
    }
    if out.names.insert(name.clone(), out.tensors.len()).is_some() {
        return Err(invalid(at, &field, "this name occurs twice".into(), CONVERT));
    }
    out.tensors.push(TensorInfo { name, dims, kind, offset, size, offset_at: offset_at as u64 });
    Ok(())
}

/// Turns data offsets into places in the file and sees that they lie in it and apart.
fn place(file: u64, header_end: u64, alignment: u64, out: &mut Parsed) -> Result<(), GgufError> {
    let data = header_end.next_multiple_of(alignment);
    for info in &mut out.tensors {
        let field = || format!("data of tensor {:?}", info.name);
        let begin = data.checked_add(info.offset);
        match begin.and_then(|b| b.checked_add(info.size)) {
            Some(end) if end <= file => info.offset = end - info.size,
            _ => {
                let offset = begin.unwrap_or(u64::MAX);
                return Err(GgufError::Truncated { offset, field: field(), needed: info.size, left: file.saturating_sub(offset) });
            }
        }
    }
    let mut order: Vec<&TensorInfo> = out.tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].size > pair[1].offset {
            let problem = format!("its data lies over that of tensor {:?}", pair[0].name);
            return Err(invalid(pair[1].offset_at as usize, &format!("tensor {:?}", pair[1].name), problem, CONVERT));
        }
    }
    Ok(())
}
