//! Engines that others wrote, and how kvit drives them: vLLM, SGLang, llama.cpp, and whatever speaks OpenAI's protocol.
//!
//! What stands here is below the gateway's call table: one request to one upstream and what comes back (`client`, `sse`, `whole`), which
//! kind of engine it is (`detect`, `kind`), how it is asked to cancel (`abort`), what its counters show (`counters`), and what that proves
//! (`evidence`); and another kvit, whose record of the very run is read and held against what was seen of it (`record`).
//!
//! Invariant: nothing here believes an engine's word on a cancel; a level above `best_effort` is derived from what was counted, or is what
//! another kvit's record says of the run, where that is one.

pub mod abort;
mod base;
mod breaker;
mod calls;
pub mod client;
pub mod config;
mod conn;
mod connect;
pub mod counters;
pub mod detect;
mod errors;
pub mod evidence;
mod io;
mod json;
pub mod kind;
mod link;
mod pattern;
mod plain;
mod pool;
pub mod record;
pub mod sse;
mod usage;
pub mod whole;
mod words;

pub use link::{InHand, Upstream, link};
pub use words::{WORDS, Word};
