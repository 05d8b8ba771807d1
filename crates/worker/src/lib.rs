//! The worker: an engine thread that owns every decision, a device that computes, and the threads that prepare prompts.
//!
//! ```text
//!   gateway ──Down──► mailbox ──► engine thread ──plan──► device
//!                       ▲  ▲          │    ▲                │
//!     tokenising threads┘  └──────────┼────┴── StepDone ────┘
//!                                     └──Up──► gateway      (journal: every effect that is a record)
//! ```
//! The gateway is in the same process and speaks over channels (`start`), or there are many in other processes, which have sessions over gRPC
//! (`start_sessions`, `grpc`).
//!
//! Invariant: cannot see `gateway`; no run's and no session's state lives outside the engine thread, but for a prompt being tokenised.

mod answer;
mod busy;
mod carry;
mod door;
mod drain;
mod engine_thread;
pub mod grpc;
mod mail;
mod sessions;
mod start;
mod text;
mod tokenise;
mod turns;

pub use door::{Door, Session};
pub use sessions::{Outlet, SessionsCut};
pub use start::{Closed, SessionWorker, Worker, WorkerConfig, start, start_sessions};
pub use text::Text;
pub use turns::Turns;
