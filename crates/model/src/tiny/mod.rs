//! Tiny real models for tests: a llama-architecture GGUF with pseudo-random weights from a seed, written in milliseconds.
//!
//! The engine's tests need a model that is really computed, on any machine, without a download. Weights are scaled so that the layers
//! outweigh the token's own embedding (greedy text does not repeat one token) and end-of-turn has a logit near zero (answers have a length).
//! Invariant: the same spec gives the same bytes on every machine; only additions and multiplications of exact inputs are used.

mod quantize;
mod vocab;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::gguf::TensorKind;

pub use vocab::{EOS, TEMPLATE, VOCAB};
pub use writer::Writer;

/// Which tiny model to write.
#[derive(Clone, Debug, PartialEq)]
pub struct TinySpec {
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub embedding: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of a head; even.
    pub head_dim: u32,
    /// Width of the feed-forward layer.
    pub ffn: u32,
    /// Tokens beyond the built-in 288, unused and never likely; for tests of odd vocabulary sizes.
    pub vocab_extra: u32,
    /// Positions a sequence may have.
    pub context: u32,
    /// Element type of the layers' matrices (and the head, where not tied): F32, F16, Q4_1 or Q8_0.
    pub weights: TensorKind,
    /// Element type of the embedding: F32, F16, Q4_1 or Q8_0.
    pub embeddings: TensorKind,
    /// The head is the embedding.
    pub tied: bool,
    /// Decides all weights.
    pub seed: u64,
}

impl Default for TinySpec {
    fn default() -> Self {
        TinySpec {
            layers: 2,
            embedding: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 128,
            vocab_extra: 0,
            context: 2048,
            weights: TensorKind::Q4_1,
            embeddings: TensorKind::Q8_0,
            tied: true,
            seed: 1,
        }
    }
}

/// Largest value of any size in a spec: a tiny model stays tiny.
pub const SIZE_MAX: u32 = 1 << 16;

impl TinySpec {
    /// Size of the vocabulary.
    pub fn vocab(&self) -> u32 {
        VOCAB + self.vocab_extra
    }

    /// Whether a model can be written from this; says what is wrong otherwise.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [self.layers, self.embedding, self.heads, self.kv_heads, self.head_dim, self.ffn, self.context];
        if sizes.iter().any(|&n| n == 0 || n > SIZE_MAX) || self.vocab_extra > SIZE_MAX {
            return Err(format!("every size must be between 1 and {SIZE_MAX}"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) || !self.head_dim.is_multiple_of(2) {
            return Err("kv_heads must divide heads and head_dim must be even".into());
        }
        for (kind, rows) in
            [(self.weights, &[self.embedding, self.heads * self.head_dim, self.ffn][..]), (self.embeddings, &[self.embedding])]
        {
            if !quantize::can(kind) {
                return Err(format!("weights of {kind} cannot be written; F32, F16, Q4_1 and Q8_0 can"));
            }
            if rows.iter().any(|&n| !u64::from(n).is_multiple_of(kind.block_len())) {
                return Err(format!("rows of {kind} must be multiples of {}", kind.block_len()));
            }
        }
        Ok(())
    }
}

/// Writes the model to `path`. A spec that `check` refuses is an error of kind `InvalidInput`.
pub fn write(path: &Path, spec: &TinySpec) -> std::io::Result<()> {
    spec.check().map_err(|text| std::io::Error::new(std::io::ErrorKind::InvalidInput, text))?;
    std::fs::write(path, bytes(spec))
}

/// The model's file as bytes.
///
/// # Panics
/// On a spec that `TinySpec::check` refuses.
pub fn bytes(spec: &TinySpec) -> Vec<u8> {
    if let Err(text) = spec.check() {
        panic!("{text}");
    }
    let mut w = Writer::default();
    shape(&mut w, spec);
    vocab::describe(&mut w, spec.vocab_extra);
    let (d, q, kv, ffn) = (spec.embedding, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.ffn);
    let mut embedding = values(spec, "token_embd.weight", d, spec.vocab(), HEAD_GAIN);
    quiet(&mut embedding, d as usize);
    w.tensor("token_embd.weight", &[d, spec.vocab()], spec.embeddings, &embedding);
    if !spec.tied {
        let mut head = values(spec, "output.weight", d, spec.vocab(), HEAD_GAIN);
        quiet(&mut head, d as usize);
        w.tensor("output.weight", &[d, spec.vocab()], spec.weights, &head);
    }
    w.tensor("output_norm.weight", &[d], TensorKind::F32, &norm(spec, "output_norm.weight"));
    for layer in 0..spec.layers {
        for name in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{name}.weight");
            w.tensor(&name, &[d], TensorKind::F32, &norm(spec, &name));
        }
        let matrices = [
            ("attn_q", d, q, IN_GAIN),
            ("attn_k", d, kv, IN_GAIN),
            ("attn_v", d, kv, IN_GAIN),
            ("attn_output", q, d, OUT_GAIN),
            ("ffn_gate", d, ffn, IN_GAIN),
            ("ffn_up", d, ffn, IN_GAIN),
            ("ffn_down", ffn, d, OUT_GAIN),
        ];
        for (name, row, rows, gain) in matrices {
            let name = format!("blk.{layer}.{name}.weight");
            w.tensor(&name, &[row, rows], spec.weights, &values(spec, &name, row, rows, gain));
        }
    }
    w.finish()
}

fn shape(w: &mut Writer, spec: &TinySpec) {
    w.str("general.architecture", "llama");
    w.str("general.name", "kvit tiny");
    w.uint("llama.block_count", spec.layers);
    w.uint("llama.context_length", spec.context);
    w.uint("llama.embedding_length", spec.embedding);
    w.uint("llama.feed_forward_length", spec.ffn);
    w.uint("llama.attention.head_count", spec.heads);
    w.uint("llama.attention.head_count_kv", spec.kv_heads);
    w.uint("llama.attention.key_length", spec.head_dim);
    w.uint("llama.attention.value_length", spec.head_dim);
    w.uint("llama.rope.dimension_count", spec.head_dim);
    w.float("llama.rope.freq_base", 10_000.0);
    w.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    w.uint("llama.vocab_size", spec.vocab());
}

/// Spread of logits under a normalised state: enough that the best token has about a sixth of the mass.
const HEAD_GAIN: f32 = 2.4;
/// Spread of what a matrix gives on a normalised input.
const IN_GAIN: f32 = 1.2;
/// The same for matrices that write to the residual stream: larger, so that layers outweigh the embedding.
const OUT_GAIN: f32 = 2.0;
/// Control and unused tokens get this much of a row's size, so that they are rarely chosen.
const QUIET: f32 = 0.25;

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014); the constants of its reference code.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Each tensor draws from its own stream, so that one more tensor changes no other.
fn stream(spec: &TinySpec, name: &str) -> u64 {
    name.bytes().fold(spec.seed ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// About normal, mean 0, variance 1: four uniform 16-bit numbers added, which is exact in f32 on every machine.
fn draw(state: &mut u64) -> f32 {
    let bits = splitmix64(state);
    let sum: u32 = (0..4).map(|i| (bits >> (16 * i)) as u32 & 0xffff).sum();
    (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
}

fn values(spec: &TinySpec, name: &str, row: u32, rows: u32, gain: f32) -> Vec<f32> {
    let mut state = stream(spec, name);
    let scale = gain / (row as f32).sqrt();
    (0..row as usize * rows as usize).map(|_| draw(&mut state) * scale).collect()
}

fn norm(spec: &TinySpec, name: &str) -> Vec<f32> {
    let mut state = stream(spec, name);
    (0..spec.embedding).map(|_| 1.0 + 0.1 * draw(&mut state)).collect()
}

/// Makes the rows of control and unused tokens small.
fn quiet(embedding: &mut [f32], row: usize) {
    for (token, values) in embedding.chunks_exact_mut(row).enumerate() {
        if vocab::is_quiet(token as u32) {
            values.iter_mut().for_each(|x| *x *= QUIET);
        }
    }
}
