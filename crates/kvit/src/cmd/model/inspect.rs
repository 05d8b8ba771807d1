//! `kvit model inspect`: what a GGUF file says of itself: metadata, tensors, sizes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use indicatif::HumanBytes;
use model::gguf::{Gguf, Tensor, Value};
use serde_json::json;

use crate::failure::Failure;
use crate::out;

/// Longest text of a metadata value that a line shows, in characters; JSON shows all.
const TEXT_MAX: usize = 60;

/// Prints it.
///
/// # Errors
/// The file cannot be read or is no GGUF; the message names offset and field.
pub fn run(file: &Path, tensors: bool, json: bool) -> Result<(), Failure> {
    let gguf = Gguf::open(file).with_context(|| file.display().to_string())?;
    if json { out::json(&as_json(file, &gguf)) } else { out::line(&as_text(file, &gguf, tensors)) }
}

fn as_text(file: &Path, gguf: &Gguf, every: bool) -> String {
    let mut text = format!("{}: GGUF {}, {}\n\nmetadata\n", file.display(), gguf.version(), HumanBytes(gguf.size_bytes()));
    for (key, value) in gguf.metadata() {
        text += &format!("  {key:<44} {}\n", shown(value));
    }
    text += "\ntensors\n";
    let mut kinds: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let sum = kinds.entry(tensor.kind.name()).or_default();
        *sum = (sum.0 + 1, sum.1 + elements(&tensor), sum.2 + tensor.data.len() as u64);
    }
    for (kind, (count, elements, bytes)) in kinds {
        text += &format!("  {kind:<6} {count:>5} tensors {elements:>12} elements  {}\n", HumanBytes(bytes));
    }
    if every {
        text.push('\n');
        for tensor in gguf.tensors() {
            let dims = tensor.dims.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
            text += &format!("  {:<6} {dims:>16}  {}\n", tensor.kind.name(), tensor.name);
        }
    } else {
        text += "  (--tensors lists every one)";
    }
    text.trim_end().to_owned()
}

/// A value on one line; what is long is cut, and a text's control characters are escaped, for the file is not to be trusted.
fn shown(value: &Value) -> String {
    match value {
        Value::Uint(n) => n.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Str(text) if text.chars().count() > TEXT_MAX => {
            format!("{:?}... ({} bytes)", text.chars().take(TEXT_MAX).collect::<String>(), text.len())
        }
        Value::Str(text) => format!("{text:?}"),
        Value::Array(items) => format!("{} values", items.len()),
    }
}

fn elements(tensor: &Tensor<'_>) -> u64 {
    tensor.dims.iter().product()
}

fn as_json(file: &Path, gguf: &Gguf) -> serde_json::Value {
    let metadata: serde_json::Map<_, _> = gguf.metadata().map(|(key, value)| (key.to_owned(), value_json(value))).collect();
    let tensors: Vec<_> = gguf
        .tensors()
        .map(|t| json!({"name": t.name, "type": t.kind.name(), "dims": t.dims, "elements": elements(&t), "bytes": t.data.len()}))
        .collect();
    json!({
        "object": "gguf", "path": file, "version": gguf.version(), "bytes": gguf.size_bytes(), "metadata": metadata, "tensors": tensors,
    })
}

fn value_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Uint(n) => json!(n),
        Value::Int(n) => json!(n),
        Value::Float(x) => json!(x),
        Value::Bool(b) => json!(b),
        Value::Str(text) => json!(text),
        Value::Array(items) => items.iter().map(value_json).collect(),
    }
}
