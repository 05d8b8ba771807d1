//! The worker: an engine thread that owns every decision, a device that computes, and the threads that prepare prompts.
//!
//! ```text
//!   gateway ──Down──► mailbox ──► engine thread ──plan──► device
//!                       ▲  ▲          │    ▲                │
//!     tokenising threads┘  └──────────┼────┴── StepDone ────┘
//!                                     └──Up──► gateway      (journal: every effect that is a record)
//! ```
//! Invariant: cannot see `gateway`; no run's state lives outside the engine thread, but for a prompt being tokenised.

mod answer;
mod engine_thread;
mod mail;
mod text;
mod tokenise;

pub use engine_thread::{Closed, Worker, WorkerConfig, start};
pub use text::Text;
