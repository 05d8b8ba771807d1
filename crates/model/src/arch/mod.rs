//! Architectures. So far one: llama.

pub mod forward;
pub mod llama;
pub mod rope;
mod work;
