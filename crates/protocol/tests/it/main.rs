//! The wire from outside: every message there and back, what is missing, what is garbage, and the bytes as they stand.

mod front;
mod garbage;
mod golden;
mod limits;
mod missing;
mod roundtrip;
mod samples;
mod service;
mod strategy;
mod versions;
mod words;
