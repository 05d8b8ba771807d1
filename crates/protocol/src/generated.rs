//! What the build makes of the .proto files: messages, clients and servers, one module for each package.
//!
//! Invariant: nothing in here is written by hand, so no lint looks at it.

/// `kvit.worker.v1`: `worker_client::WorkerClient`, `worker_server::WorkerServer` and the messages of a session.
#[allow(missing_docs, rustdoc::all, clippy::all, clippy::pedantic)]
pub mod worker_v1 {
    tonic::include_proto!("kvit.worker.v1");
}

/// `kvit.v1`: `runs_client::RunsClient`, `runs_server::RunsServer` and their messages.
#[allow(missing_docs, rustdoc::all, clippy::all, clippy::pedantic)]
pub mod runs_v1 {
    tonic::include_proto!("kvit.v1");
}
