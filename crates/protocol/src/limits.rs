//! Every limit of the two protocols: its name, its default, and which file states it.
//!
//! Invariant: both .proto files name each of theirs with the default that stands here; a test compares them.

use lifecycle::id::{RUN_ID_MAX_LEN, TENANT_MAX_LEN};
use lifecycle::params::{LOGPROBS_MAX, N_MAX, STOP_MAX_LEN, STOPS_MAX};

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// As in the .proto file.
    pub name: &'static str,
    /// Its value unless somebody says otherwise.
    pub default: u64,
}

const fn limit(name: &'static str, default: u64) -> Limit {
    Limit { name, default }
}

/// Bytes of one frame. Above the largest request that a gateway takes, so that whatever was taken can be sent on.
pub const FRAME_BYTES_MAX: Limit = limit("frame_bytes_max", 8 << 20);
/// Bytes of one snapshot: a million blocks with an owner each have room.
pub const SNAPSHOT_BYTES_MAX: Limit = limit("snapshot_bytes_max", 128 << 20);
/// Messages for one gateway that a worker keeps unacknowledged before it suspends.
pub const OUTBOX_MAX: Limit = limit("outbox_max", 8192);
/// Messages of one lane on their way at once.
pub const WINDOW: Limit = limit("window", 512);
/// Gateways that a worker serves at once.
pub const GATEWAYS_MAX: Limit = limit("gateways_max", 64);
/// Cancels before their submit that a worker keeps for one gateway.
pub const TOMBSTONES_MAX: Limit = limit("tombstones_max", 1024);
/// Longest time between two frames.
pub const HEARTBEAT_MS: Limit = limit("heartbeat_ms", 50);
/// An unacknowledged message goes again after this.
pub const RESEND_AFTER_MS: Limit = limit("resend_after_ms", 200);
/// Without a frame for this long, attempts are suspended.
pub const SUSPEND_AFTER_MS: Limit = limit("suspend_after_ms", 250);
/// Without an echoed stamp for this long, attempts are orphaned.
pub const LEASE_MS: Limit = limit("lease_ms", 10_000);
/// A worker asks a gateway this often which attempts it claims.
pub const ASK_EVERY_MS: Limit = limit("ask_every_ms", 5_000);
/// Hello and Welcome must come within this.
pub const HELLO_TIMEOUT_MS: Limit = limit("hello_timeout_ms", 5_000);
/// Versions in Hello.
pub const VERSIONS_MAX: Limit = limit("versions_max", 16);
/// Bytes of a process's name.
pub const NAME_BYTES_MAX: Limit = limit("name_bytes_max", TENANT_MAX_LEN as u64);
/// Attempts in one Claim, Disclaim or Ask.
pub const ATTEMPTS_MAX: Limit = limit("attempts_max", 4096);
/// Records in one Records.
pub const RECORDS_MAX: Limit = limit("records_max", 4096);
/// Deadlines in one Submit.
pub const DEADLINES_MAX: Limit = limit("deadlines_max", 8);
/// Headers in one AnswerHead.
pub const HEADERS_MAX: Limit = limit("headers_max", 32);
/// Attempts in one answer to Drain.
pub const DRAIN_ATTEMPTS_MAX: Limit = limit("drain_attempts_max", 65_536);
/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: Limit = limit("tenant_bytes_max", TENANT_MAX_LEN as u64);
/// Bytes of a run's id.
pub const RUN_BYTES_MAX: Limit = limit("run_bytes_max", RUN_ID_MAX_LEN as u64);
/// Bytes of one request at the front door.
pub const BODY_BYTES_MAX: Limit = limit("body_bytes_max", 4 << 20);
/// How long Cancel waits for the release.
pub const CANCEL_WAIT_MS: Limit = limit("cancel_wait_ms", 1_000);
/// How long Cancel may be asked to wait.
pub const CANCEL_WAIT_MAX_MS: Limit = limit("cancel_wait_max_ms", 60_000);

/// Those of `session.proto`.
pub const SESSION: [Limit; 21] = [
    FRAME_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    OUTBOX_MAX,
    WINDOW,
    GATEWAYS_MAX,
    TOMBSTONES_MAX,
    HEARTBEAT_MS,
    RESEND_AFTER_MS,
    SUSPEND_AFTER_MS,
    LEASE_MS,
    ASK_EVERY_MS,
    HELLO_TIMEOUT_MS,
    VERSIONS_MAX,
    NAME_BYTES_MAX,
    ATTEMPTS_MAX,
    RECORDS_MAX,
    DEADLINES_MAX,
    HEADERS_MAX,
    DRAIN_ATTEMPTS_MAX,
    TENANT_BYTES_MAX,
    RUN_BYTES_MAX,
];

/// Those of `runs.proto`.
pub const RUNS: [Limit; 8] = [
    BODY_BYTES_MAX,
    RUN_BYTES_MAX,
    limit("n_max", N_MAX as u64),
    limit("stops_max", STOPS_MAX as u64),
    limit("stop_bytes_max", STOP_MAX_LEN as u64),
    limit("logprobs_max", LOGPROBS_MAX as u64),
    CANCEL_WAIT_MS,
    CANCEL_WAIT_MAX_MS,
];
