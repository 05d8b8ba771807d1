//! What can go wrong between text and tokens, by what the caller must do.

use crate::gguf::GgufError;

/// Why a text could not be made into tokens.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The model's file lacks what is needed, or has it in a wrong form: use another file.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The model's tokenizer or template cannot be used: use another model or a newer kvit.
    #[error("{0}")]
    Model(String),
    /// The text or the conversation cannot be encoded: send another one.
    #[error("{0}")]
    Encode(String),
    /// Nobody wants the result any more.
    #[error("cancelled")]
    Cancelled,
}
