//! Writes GGUF version 3.
//!
//! Invariant: what it writes, `gguf` reads; offsets are aligned to 32 bytes.

use super::quantize;
use crate::gguf::TensorKind;

/// Collects metadata and tensors, then gives the file.
#[derive(Debug, Default)]
pub struct Writer {
    keys: u64,
    tensors: u64,
    metadata: Vec<u8>,
    infos: Vec<u8>,
    data: Vec<u8>,
}

const ALIGNMENT: usize = 32;

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Writer {
    fn key(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.keys += 1;
        put_str(&mut self.metadata, key);
        self.metadata.extend(kind.to_le_bytes());
        &mut self.metadata
    }

    /// Adds a u32.
    pub fn uint(&mut self, key: &str, value: u32) {
        self.key(key, 4).extend(value.to_le_bytes());
    }

    /// Adds an f32.
    pub fn float(&mut self, key: &str, value: f32) {
        self.key(key, 6).extend(value.to_le_bytes());
    }

    /// Adds a truth value.
    pub fn bool(&mut self, key: &str, value: bool) {
        self.key(key, 7).push(value.into());
    }

    /// Adds a text.
    pub fn str(&mut self, key: &str, value: &str) {
        put_str(self.key(key, 8), value);
    }

    /// Adds an array of texts.
    pub fn strings<S: AsRef<str>>(&mut self, key: &str, values: &[S]) {
        let out = self.key(key, 9);
        out.extend(8u32.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| put_str(out, v.as_ref()));
    }

    /// Adds an array of i32.
    pub fn ints(&mut self, key: &str, values: &[i32]) {
        let out = self.key(key, 9);
        out.extend(5u32.to_le_bytes());
        out.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }

    /// Adds a tensor; `dims[0]` is the length of a row. `kind` is F32, F16, Q4_1 or Q8_0.
    pub fn tensor(&mut self, name: &str, dims: &[u32], kind: TensorKind, values: &[f32]) {
        self.tensors += 1;
        put_str(&mut self.infos, name);
        self.infos.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|&d| self.infos.extend(u64::from(d).to_le_bytes()));
        self.infos.extend(kind.id().to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(quantize::encode(kind, values));
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensors.to_le_bytes());
        out.extend(self.keys.to_le_bytes());
        out.extend(self.metadata);
        out.extend(self.infos);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(self.data);
        out
    }
}
