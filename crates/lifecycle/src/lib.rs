//! The words of the contract as types: ids, causes, outcomes, milestones, events and the messages between gateway and worker.
//!
//! Pure: no I/O, no clock, no randomness. Knows nothing of blocks, wire or storage.

pub mod affinity;
pub mod attempt;
pub mod call;
pub mod cause;
pub mod deadline;
pub mod dispatch;
pub mod effect;
pub mod event;
pub mod id;
mod make;
pub mod message;
pub mod milestone;
pub mod params;
pub mod policy;
pub mod register;
pub mod rules;
pub mod session;
pub mod time;
pub mod waste;
pub mod workers;

pub use affinity::Affinity;
pub use attempt::{Applied, AttemptEvent, AttemptState, Defect, Resumable};
pub use call::{Call, CallEffect, CallEvent, CallState};
pub use cause::{Cause, Delivery, Guarantee, Outcome, OutcomeKind, Phase};
pub use deadline::Deadline;
pub use dispatch::{Dispatch, DispatchConfig, DispatchEffect, Place, Said, Word, Work};
pub use effect::{EffectEvent, EffectState, Fate, Party};
pub use id::{AttemptId, IdError, Incarnation, RunId, RunKey, StepId, Tenant};
pub use make::{Make, Shown, Shows};
pub use milestone::{Boundary, BoundaryTimes, Milestone, Milestones};
pub use policy::OnDisconnect;
pub use register::Register;
pub use rules::{Rules, Sound};
pub use time::Time;
pub use waste::{ByPhase, Estimate, StepWork, Totals, Waste, WasteMeter};
pub use workers::{Load, Need, Offer, Presence, WorkerIndex, WorkerState, Workers};
