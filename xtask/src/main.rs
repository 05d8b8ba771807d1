//! Developer commands: `cargo xtask test` and its parts.

fn main() {}
