//! `kvit model inspect`: what a GGUF file says of itself.

use std::path::Path;

use crate::failure::Failure;

pub fn run(_file: &Path, _tensors: bool, _json: bool) -> Result<(), Failure> {
    Ok(())
}
