//! `kvit diagnose` and `/v1/diagnose` on real processes: a scripted incident for each verdict, and healthy runs under load.

mod bundles;
mod engines;
mod incidents;

use std::process::Output;
use std::time::Instant;

use serde_json::Value;

use super::{Said, kvit, said};
use crate::server::{PATIENCE, Server};

/// What the command says of a server.
fn command(server: &Server, words: &[&str]) -> Said {
    let cache = tempfile::tempdir().expect("a folder");
    let output: Output = kvit(cache.path(), &[&["diagnose", "--server", &url(server)], words].concat()).output().expect("it runs");
    said(output)
}

fn url(server: &Server) -> String {
    format!("http://127.0.0.1:{}", server.port)
}

/// The server's own verdict. On a starved machine a worker may answer too late for one question.
fn diagnosed(server: &Server) -> Value {
    let since = Instant::now();
    loop {
        let (status, diagnosis) = server.json("GET", "/v1/diagnose");
        assert_eq!(status, 200, "{diagnosis}");
        if diagnosis["verdict"] != "cannot_tell" || since.elapsed() > PATIENCE {
            return diagnosis;
        }
    }
}

fn until(what: &str, server: &Server, wanted: &str) -> Value {
    let since = Instant::now();
    loop {
        let diagnosis = diagnosed(server);
        if diagnosis["verdict"] == wanted {
            return diagnosis;
        }
        assert!(since.elapsed() < PATIENCE, "{what}: {diagnosis:#}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
