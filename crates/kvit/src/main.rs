//! The `kvit` binary: command line, configuration and wiring. No logic.

fn main() {}
