//! The wire: `kvit.worker.v1` between gateway and worker, `kvit.v1` between callers and the gateway, and their conversions to `lifecycle`.
//!
//! The .proto files under `proto/` are the documentation; the code is made from them when this crate is built. Everything that comes from the
//! wire is checked here, once: what is absent, unknown or beyond a limit is a typed [`Error`] that names the field, and never taken for
//! something else.
//!
//! Invariant: no byte of these protocols is made or read elsewhere, and no byte can make a panic here.

mod error;
mod field;
mod frame;
mod generated;
mod hello;
mod ids;
pub mod kept;
pub mod limits;
mod message;
mod params;
mod prompt;
mod quiet;
mod runs;
mod snapshot;
pub mod version;
mod words;

pub use error::Error;
pub use frame::{FromGateway, FromWorker, down, fits, up};
pub use generated::{runs_v1, worker_v1};
pub use hello::{Limits, Opened, Opening};
pub use runs::{GenerateAsk, run_state};
pub use snapshot::{Drained, snapshot_reply};
pub use version::{NoCommonVersion, PROTOCOL_VERSION, VERSIONS};

/// Both files' descriptors, encoded: for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
