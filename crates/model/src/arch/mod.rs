//! Architectures. So far one: llama.

pub mod forward;
mod head;
pub mod llama;
pub mod rope;
mod work;
