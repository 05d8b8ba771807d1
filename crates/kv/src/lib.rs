//! The block pool: who owns each KV block, and when it may be handed out again.
//!
//! Pure; a single owner, no locks; nothing is released in `Drop`.

pub mod block;

pub use block::{BlockId, Generation, Owner};
