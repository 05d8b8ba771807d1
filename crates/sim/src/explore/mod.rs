//! The explorer: every state that two runs, one worker and a bad network can reach, breadth-first over the real cores.
//!
//! The real `Engine`, `Pool`, `Dispatch`, `Call` and `Lane` run between a simulated device, whose memory is part of the state, and a network
//! that loses, doubles and reorders. Each action is an edge; states are told apart by a fingerprint; each is checked against the clauses, and
//! from each a fair way must lead to rest. The first state that breaks a clause is the nearest one, and the way to it is the counterexample.
//!
//! Invariant: an exploration that closes has met every state of its setup, or has said that it stopped before.

mod accounts;
mod action;
mod apply;
mod cells;
mod check;
mod choices;
mod device;
mod drain;
mod excuses;
mod gate;
mod leaving;
mod marks;
mod net;
mod search;
mod session;
mod setup;
mod setups;
mod suite;
mod truth;
mod words;
mod work;
mod world;

pub use accounts::accounts;
pub use action::Action;
pub use cells::{CellAccount, Cells, Listening, excuse};
pub use marks::{Mark, Marks};
pub use search::{Found, Report, Stopped, explore, quietly, story};
pub use setup::{Budget, RunSetup, Setup, Stop};
pub use setups::{all, large};
pub use suite::{Suite, suite};
pub use world::{Scene, Violation, World};
