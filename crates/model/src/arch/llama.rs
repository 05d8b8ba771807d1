//! The Llama architecture: its sizes out of the metadata, its weights packed for the kernels.
//!
//! Invariant: whatever the file says, a `Llama` that was made is consistent: every matrix has the shape that the forward pass relies on.

use std::io;

use crate::arch::rope::Rope;
use crate::error::ModelError;
use crate::gguf::{Gguf, Tensor, TensorKind};
use crate::kernel::pack::{BLOCK, Kind, Matrix};
use crate::kernel::simd::LANES;

/// Most layers, heads and so on that a file may claim: far above any model that a CPU runs, low enough that products do not overflow.
const SIZE_MAX: u32 = 1 << 20;

/// How weights are held and activations multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Weights as in the file; int8 activations for quantised ones.
    Fast,
    /// Everything in floats: to compare with an f32 reference, not to serve.
    Reference,
}

/// A model's sizes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Width of the residual stream.
    pub dim: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// K and V heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Width of the feed-forward.
    pub feed_forward: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Positions the model was trained for.
    pub context: usize,
    /// Added to the mean square in a norm.
    pub epsilon: f32,
}

/// Matrices over the same activations whose outputs lie side by side.
pub(crate) struct Linear {
    pub(crate) parts: Vec<Matrix>,
}

impl Linear {
    /// Outputs, with the last part's padding.
    pub(crate) fn width(&self) -> usize {
        self.parts.iter().map(|m| m.tiles() * LANES).sum()
    }
}

pub(crate) struct Layer {
    pub(crate) attention_norm: Vec<f32>,
    pub(crate) qkv: Linear,
    pub(crate) output: Linear,
    pub(crate) feed_forward_norm: Vec<f32>,
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Linear,
}

/// A loaded model.
pub struct Llama {
    pub(crate) shape: Shape,
    pub(crate) rope: Rope,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Vec<f32>,
    pub(crate) head: Matrix,
    /// The embedding where it is not the output matrix too.
    embedding: Option<Matrix>,
}

impl Llama {
    /// Loads and packs the model. Takes as long as reading the file, and as much memory again.
    pub fn load(gguf: &Gguf, precision: Precision) -> Result<Llama, ModelError> {
        let architecture = gguf.str("general.architecture")?;
        if architecture != "llama" {
            return Err(ModelError::Architecture(architecture.to_owned()));
        }
        let loader = Loader { gguf, precision };
        let shape = loader.shape()?;
        let rope = loader.rope(&shape)?;
        let layers = (0..shape.layers).map(|i| loader.layer(i, &shape)).collect::<Result<_, _>>()?;
        let tied = gguf.tensor("output.weight").is_err();
        let embedding = if tied { None } else { Some(loader.matrix("token_embd.weight", shape.dim, Some(shape.vocab))?) };
        let head = loader.matrix(if tied { "token_embd.weight" } else { "output.weight" }, shape.dim, Some(shape.vocab))?;
        let norm = loader.floats("output_norm.weight", shape.dim)?;
        Ok(Llama { shape, rope, layers, norm, head, embedding })
    }

    /// The model's sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Writes a token's embedding; `token` is below the vocabulary's size.
    pub(crate) fn embed(&self, token: u32, out: &mut [f32]) {
        self.embedding.as_ref().unwrap_or(&self.head).row(token as usize, out);
    }
}

struct Loader<'a> {
    gguf: &'a Gguf,
    precision: Precision,
}

impl Loader<'_> {
    fn size(&self, key: &'static str, multiple_of: u32, needed: &'static str) -> Result<usize, ModelError> {
        let value = self.gguf.u32(key)?;
        if value == 0 || value > SIZE_MAX || !value.is_multiple_of(multiple_of) {
            return Err(ModelError::Metadata { key, value: value.to_string(), needed });
        }
        Ok(value as usize)
    }

    fn shape(&self) -> Result<Shape, ModelError> {
        const POSITIVE: &str = "a number from 1 to 2^20";
        const BLOCKS: &str = "a multiple of 32 up to 2^20";
        let dim = self.size("llama.embedding_length", BLOCK as u32, BLOCKS)?;
        let heads = self.size("llama.attention.head_count", 1, POSITIVE)?;
        let kv_heads = match self.gguf.u32("llama.attention.head_count_kv") {
            Ok(_) => self.size("llama.attention.head_count_kv", 1, POSITIVE)?,
            Err(_) => heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::Metadata {
                key: "llama.attention.head_count_kv",
                value: kv_heads.to_string(),
                needed: "a divisor of the number of query heads",
            });
        }
        let head_dim = match self.gguf.u32("llama.attention.key_length") {
            Ok(n) => n as usize,
            Err(_) => dim / heads,
        };
        let widths_fit = head_dim > 0 && head_dim <= 1024 && head_dim.is_multiple_of(LANES) && (heads * head_dim).is_multiple_of(BLOCK);
        if !widths_fit || self.gguf.u32("llama.attention.value_length").is_ok_and(|n| n as usize != head_dim) {
            return Err(ModelError::Metadata {
                key: "llama.attention.key_length",
                value: head_dim.to_string(),
                needed: "a multiple of 16 up to 1024, equal for K and V, the heads together a multiple of 32",
            });
        }
        let epsilon = self.gguf.f32("llama.attention.layer_norm_rms_epsilon")?;
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            let key = "llama.attention.layer_norm_rms_epsilon";
            return Err(ModelError::Metadata { key, value: epsilon.to_string(), needed: "a number from 0 on" });
        }
        let embedding = self.gguf.tensor("token_embd.weight")?;
        Ok(Shape {
            dim,
            layers: self.size("llama.block_count", 1, POSITIVE)?,
            heads,
            kv_heads,
            head_dim,
            feed_forward: self.size("llama.feed_forward_length", BLOCK as u32, BLOCKS)?,
            vocab: self.rows(&embedding, dim, None)?,
            context: self.size("llama.context_length", 1, POSITIVE)?,
            epsilon,
        })
    }

    fn rope(&self, shape: &Shape) -> Result<Rope, ModelError> {
        let dims = match self.gguf.u32("llama.rope.dimension_count") {
            Ok(n) => n as usize,
            Err(_) => shape.head_dim,
        };
        if dims > shape.head_dim || !dims.is_multiple_of(2) {
            let key = "llama.rope.dimension_count";
            return Err(ModelError::Metadata { key, value: dims.to_string(), needed: "an even number up to the head's size" });
        }
        if let Ok(kind) = self.gguf.str("llama.rope.scaling.type")
            && kind != "none"
        {
            let key = "llama.rope.scaling.type";
            return Err(ModelError::Metadata { key, value: kind.to_owned(), needed: "none, or factors in the tensor rope_freqs.weight" });
        }
        let base = self.gguf.f32("llama.rope.freq_base").unwrap_or(10_000.0);
        if !(base.is_finite() && base > 0.0) {
            let key = "llama.rope.freq_base";
            return Err(ModelError::Metadata { key, value: base.to_string(), needed: "a number above 0" });
        }
        let factors = match self.gguf.tensor("rope_freqs.weight") {
            Ok(_) => Some(self.floats("rope_freqs.weight", dims / 2)?),
            Err(_) => None,
        };
        Ok(Rope::new(base, dims, shape.head_dim, factors.as_deref()))
    }

    fn layer(&self, i: usize, s: &Shape) -> Result<Layer, ModelError> {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        Ok(Layer {
            attention_norm: self.floats(&name("attn_norm"), s.dim)?,
            qkv: self.linear(&[(name("attn_q"), q), (name("attn_k"), kv), (name("attn_v"), kv)], s.dim)?,
            output: self.linear(&[(name("attn_output"), s.dim)], q)?,
            feed_forward_norm: self.floats(&name("ffn_norm"), s.dim)?,
            gate: self.matrix(&name("ffn_gate"), s.dim, Some(s.feed_forward))?,
            up: self.matrix(&name("ffn_up"), s.dim, Some(s.feed_forward))?,
            down: self.linear(&[(name("ffn_down"), s.dim)], s.feed_forward)?,
        })
    }

    /// The rows of a matrix tensor of `columns`, which must be `needed` where given.
    fn rows(&self, t: &Tensor, columns: usize, needed: Option<usize>) -> Result<usize, ModelError> {
        match *t.dims {
            [c, r] if c == columns as u64 && needed.map_or(r > 0 && r <= u64::from(SIZE_MAX), |n| r == n as u64) => Ok(r as usize),
            _ => Err(ModelError::Shape {
                tensor: t.name.to_string(),
                found: t.dims.to_vec(),
                needed: format!("[{columns}, {}]", needed.map_or("the vocabulary".to_owned(), |n| n.to_string())),
            }),
        }
    }

    fn floats(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let t = self.gguf.tensor(name)?;
        if t.kind != TensorKind::F32 || *t.dims != [len as u64] {
            return Err(ModelError::Shape { tensor: name.to_owned(), found: t.dims.to_vec(), needed: format!("[{len}] of F32") });
        }
        Ok(t.data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn finish(&self, matrix: io::Result<Matrix>) -> Result<Matrix, ModelError> {
        let matrix = matrix?;
        Ok(if self.precision == Precision::Reference && matrix.kind() != Kind::F32 { matrix.to_float()? } else { matrix })
    }

    fn matrix(&self, name: &str, columns: usize, rows: Option<usize>) -> Result<Matrix, ModelError> {
        let t = self.gguf.tensor(name)?;
        self.rows(&t, columns, rows)?;
        self.finish(Matrix::pack(kind(&t)?, columns, &[t.data]))
    }

    /// Tensors over the same activations; neighbours of one kind become one matrix.
    fn linear(&self, tensors: &[(String, usize)], columns: usize) -> Result<Linear, ModelError> {
        let mut found = Vec::new();
        for (name, rows) in tensors {
            let t = self.gguf.tensor(name)?;
            self.rows(&t, columns, Some(*rows))?;
            found.push(t);
        }
        let mut parts = Vec::new();
        for run in found.chunk_by(|a, b| a.kind == b.kind) {
            let sources: Vec<&[u8]> = run.iter().map(|t| t.data).collect();
            parts.push(self.finish(Matrix::pack(kind(&run[0])?, columns, &sources))?);
        }
        Ok(Linear { parts })
    }
}

fn kind(t: &Tensor) -> Result<Kind, ModelError> {
    match t.kind {
        TensorKind::F32 => Ok(Kind::F32),
        TensorKind::F16 => Ok(Kind::F16),
        TensorKind::Q4_1 => Ok(Kind::Q4_1),
        TensorKind::Q8_0 => Ok(Kind::Q8_0),
        other => Err(ModelError::Kind { tensor: t.name.to_owned(), kind: other.name() }),
    }
}
