//! The model crate's tests from outside, in one binary.

mod exact;
