//! The binary as a person or a script meets it: real processes, their output and their exit codes.

mod behind;
mod commands;
mod conformance;
mod control;
mod damaged;
mod deadlines;
mod demo;
mod diagnose;
mod documents;
mod drain;
mod endings;
mod evicted;
mod faults;
mod gateway;
mod gateways;
mod gpus;
mod grace;
mod grpc;
mod grpc_client;
mod grpc_faults;
mod grpc_leaving;
mod http2;
mod http2_leaving;
mod joining;
mod keys;
mod lab;
mod leaky;
mod leaving;
mod leaving_client;
mod leaving_guest;
mod leaving_matrix;
mod lost;
mod outside;
mod perfetto;
mod pipelined;
mod prometheus;
mod raced;
mod replayed;
mod restarts;
mod server;
mod servers;
mod soak;
mod stalled;
mod storm;
mod tap;
mod top;
mod top_terminal;
mod traces;
mod verify;
mod worker;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `kvit` with a clean environment: no option of the machine's, an empty cache, no way out.
fn kvit(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("KVIT_")) {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("KVIT_STORE", "none")
        .env("KVIT_CACHE", cache)
        .env("HF_HUB_OFFLINE", "1")
        .env("PATH", cache)
        .stdin(Stdio::null());
    command
}

struct Said {
    code: i32,
    out: String,
    err: String,
}

fn said(output: Output) -> Said {
    Said {
        code: output.status.code().expect("ended by a signal"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(args: &[&str]) -> Said {
    let cache = tempfile::tempdir().unwrap();
    said(kvit(cache.path(), args).output().unwrap())
}
