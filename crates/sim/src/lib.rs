//! Proves the cores: the explorer, the simulator and the museum of bugs. Never in the serving path; it drives the cores that serve.
//!
//! Invariant: nothing here is imported but by `kvit`, for its commands, and nothing here decides anything that the cores decide.

pub mod explore;
pub mod museum;
pub mod simulate;
