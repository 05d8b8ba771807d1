//! The judge from outside, against sockets of the tests' own.

mod stand;
mod tap_closes;
mod tap_passes;
mod tap_tells;
