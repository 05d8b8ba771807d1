//! What can go wrong with a model: its file does not fit the architecture, or a step asks for what can't be computed.

use crate::gguf::GgufError;

/// Why a model can't be loaded or a step can't be run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file is damaged or lacks a key or tensor.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is of another architecture.
    #[error("the model's architecture is {0:?}; only llama is supported")]
    Architecture(String),
    /// A key of the metadata has a value that can't be used.
    #[error("the model's {key} is {value}, which is not supported: {needed}")]
    Metadata {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is needed.
        needed: &'static str,
    },
    /// A tensor's shape does not fit the metadata.
    #[error("the model's tensor {tensor} has shape {found:?} where {needed} is needed")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, row length first.
        found: Vec<u64>,
        /// What is needed.
        needed: String,
    },
    /// A tensor's element type is not supported.
    #[error("the model's tensor {tensor} is of type {kind}; matrices may be Q4_1, Q8_0, F16 and F32")]
    Kind {
        /// The tensor.
        tensor: String,
        /// Its type.
        kind: &'static str,
    },
    /// The block pool's memory could not be reserved.
    #[error("a pool of {blocks} blocks takes {} MiB, which the system refuses", bytes >> 20)]
    Pool {
        /// Blocks asked for.
        blocks: usize,
        /// What they take.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Memory for weights could not be reserved, or a thread not started.
    #[error("the system refused memory or a thread")]
    System(#[from] std::io::Error),
    /// A step can't be computed as it was asked for.
    #[error("step refused: {0}")]
    Step(String),
}
