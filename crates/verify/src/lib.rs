//! Judges from outside: what speaks a protocol of kvit is met as a stranger would meet it, and every verdict names what it proves.
//!
//! Invariant: sees only what crosses the wire. It imports the wire and the words for it, and cannot peek into a worker or a gateway.

pub mod conformance;
pub mod judge;
