//! The model crate's tests from outside, in one binary.

mod exact;
mod reference;
mod text;
mod tiny;

use std::path::PathBuf;

use model::arch::llama::{Llama, Precision};
use model::gguf::Gguf;

/// The model file named by KVIT_TEST_MODEL, or the one in kvit's cache.
fn real_file() -> Gguf {
    let cached = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/kvit/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = std::env::var_os("KVIT_TEST_MODEL").map_or_else(cached, PathBuf::from);
    Gguf::open(&path).unwrap()
}

fn real_model(precision: Precision) -> Llama {
    Llama::load(&real_file(), precision).unwrap()
}
