//! The async shells under a simulated network: the gateway's link task and the worker's gRPC server with its sessions, as they serve, between
//! simulated hosts (`turmoil`) on a simulated clock.
//!
//! Real: `gateway::wire`, `worker::grpc`, the code of the engine thread with `worker::sessions`, engine, pool, tonic and HTTP/2. Simulated: TCP
//! and time, the device, the gateway's call table, and that the engine thread is a task which gets its turns.
//!
//! A wait is a number of simulated milliseconds, so it is the same on every machine.

mod device;
mod ends;
mod faults;
mod gateway;
mod net;
mod storm;
mod worker;
mod world;

use std::time::Duration;

use world::{Plan, Stage};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// So many runs, one every so many milliseconds, turn about at so many gateways.
fn runs(count: usize, every: u64, gateways: usize, cap: u32) -> Vec<Plan> {
    (0..count).map(|i| Plan { gateway: i % gateways, at: ms(every * i as u64), cancel: None, cap }).collect()
}

/// Every run has some tokens.
fn all_stream(stage: &Stage) -> bool {
    (0..stage.plans.len()).all(|run| stage.run(run).tokens.len() >= 5)
}
