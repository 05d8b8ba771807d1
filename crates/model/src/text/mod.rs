//! Between text and tokens: chat template, tokenizer, detokeniser, stop strings.
//!
//! The worker's shell does all of this off the engine's thread; nothing here knows a run.

pub mod bytelevel;
pub mod detokenizer;
pub mod stop;
pub mod template;
pub mod tokenizer;
