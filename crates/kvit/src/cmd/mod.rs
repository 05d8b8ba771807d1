//! The commands, one file each: read the arguments, ask or do, print.

pub mod estimate;
pub mod kv;
pub mod model;
pub mod runs;
pub mod serve;
pub mod trace;
