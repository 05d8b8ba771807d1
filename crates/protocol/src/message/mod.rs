//! The messages that frames carry, both ways.
//!
//! Invariant: a message comes out of `lifecycle` and of the wire as the same one, or not at all.

mod down;
mod record;
mod up;
