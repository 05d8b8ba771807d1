//! GGUF, text, sampler and the forward pass over the paged pool. Knows no request, only step plans and blocks.

pub mod arch;
pub mod bench;
pub mod cpu;
pub mod error;
pub mod gguf;
pub mod kernel;
pub mod kv_memory;
pub mod sampler;
pub mod text;
pub mod threads;
#[cfg(feature = "tiny")]
pub mod tiny;
