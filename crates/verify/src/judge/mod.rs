//! `kvit verify`: judges any stack from outside, boundary by boundary.
//!
//! A `cell` is a question: a request in this phase is left in this way; does its work stop? A try asks it once, between a baseline and a look at
//! what is left. What was seen of a try (`result`) goes into a verdict, which names the evidence that it rests on.
//!
//! Invariant: a verdict names what it rests on; what was not seen is never taken for what was well.
// contract: C-29

pub mod advice;
pub mod boundary;
pub mod caller;
pub mod cell;
mod cleanup;
mod conclude;
pub mod cpu;
pub mod device;
mod enter;
pub mod events;
mod fillers;
pub mod fingerprint;
pub mod grpc;
pub mod hop;
pub mod hops;
mod idle;
pub mod logbook;
pub mod logs;
pub mod neighbours;
mod probe;
pub mod profile;
pub mod report;
pub mod result;
pub mod run;
pub mod saw;
pub mod settings;
mod sharing;
pub mod stack;
pub mod tap;
mod target;
pub mod trial;
pub mod verdict;
mod watch;
mod wire;
