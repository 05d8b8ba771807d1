//! Between text and tokens: chat template, tokenizer, detokeniser, stop strings.
//!
//! The worker's shell does all of this off the engine's thread; nothing here knows a run. Everything is read out of the GGUF, so a model
//! is one file. Invariant: no text from a caller, however long or strange, panics, takes more than linear time (words: n log n), or
//! decodes to half a character.

pub mod bytelevel;
pub mod detokenizer;
mod error;
mod pretokenizer;
pub mod stop;
pub mod template;
#[cfg(test)]
mod tests;
pub mod tokenizer;

pub use error::TextError;
