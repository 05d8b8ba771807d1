//! Decides which step computes what: admission, continuous batching, chunked prefill, preemption, prefix take-over, cancel in every state.
//!
//! Pure: no tokio, no tensors, no clock. `apply(input, now)` and `plan(now)` change the state and leave effects; a device runs the plans.
//!
//! ```text
//!   Submit ─► tokenising ─► waiting ─► running ─► steps in flight ─► ended ─► (fence) ─► released
//!                 │            ▲          │ preempt
//!                 └── cancel, deadline and error end it from every one of these; a lost session suspends it in every one
//! ```

mod admission;
mod attempt;
mod blocks;
pub mod config;
pub mod device;
mod done;
mod ending;
mod engine;
mod fingerprint;
mod fork;
pub mod io;
mod pace;
mod plan;
mod snapshot;
mod suspend;
mod tombstone;

pub use config::EngineConfig;
pub use device::{
    Device, DeviceError, DeviceLimits, DoneSink, Flag, Row, RowDone, RowTokens, Sampled, Slot, SlotStart, StepDone, StepPlan, SubmitError,
};
pub use engine::Engine;
pub use fork::FlagMap;
pub use io::{Effect, Input, Submission};

#[cfg(test)]
mod tests;
