//! The judge from outside: against servers whose faults are known, and its taps against sockets of the tests' own.

mod convicted;
mod scripted;
mod stand;
mod tap_closes;
mod tap_passes;
mod tap_tells;
