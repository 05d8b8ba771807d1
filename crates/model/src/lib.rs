//! GGUF, text, sampler and the forward pass over the paged pool. Knows no request, only step plans and blocks.

pub mod gguf;
pub mod text;
#[cfg(feature = "tiny")]
pub mod tiny;
