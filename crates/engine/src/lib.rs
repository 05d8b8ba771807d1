//! Decides which step computes what: admission, continuous batching, chunked prefill, preemption, prefix take-over, cancel in every state.
//!
//! Pure: no tokio, no tensors, no clock. `apply(input, now) -> effects`; a device runs the plans.

pub mod device;

pub use device::{
    Device, DeviceError, DeviceLimits, DoneSink, Flag, Row, RowDone, RowTokens, Sampled, Slot, SlotStart, StepDone, StepPlan, SubmitError,
};
