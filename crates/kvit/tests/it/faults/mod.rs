//! Real faults on real processes: gateway and worker ended or stopped by a signal, connections cut, frames lost, doubled and late, cables
//! pulled. What is shown is shown by counts (steps, tokens, blocks, frames) or by stamps that the processes made themselves.

mod cancels;
mod cut;
mod drained;
mod gateway_ends;
mod lossy;
mod noise;
mod partition;
mod raw;
pub mod relay;
mod stopped;
mod tap;
mod worker_ends;

pub use tap::{Fate, Seen, Tap};

use std::path::Path;
use std::time::{Duration, Instant};

use lifecycle::message::Snapshot;
use protocol::worker_v1 as wire;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::server::{Caller, PATIENCE, Server, chat_body};
use crate::worker::{Process, client};

/// Steps that take a while on any machine, one in flight, and no log that fills a pipe which nobody reads.
pub const SLOWLY: [&str; 8] = ["--isa", "scalar", "--step-tokens", "32", "--in-flight", "1", "--log", "error"];

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "it never came to: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn slow_worker(model: &Path, flags: &[&str]) -> Process {
    Process::start(model, &[&SLOWLY, flags].concat())
}

/// A gateway all of whose workers are here.
pub fn gateway(workers: &[&str], args: &[&str]) -> Server {
    let gateway = Server::gateway(workers, &[&["--log", "error"], args].concat());
    until("all workers are here", || states(&gateway).iter().all(|state| state == "here").then_some(()));
    gateway
}

pub fn states(gateway: &Server) -> Vec<String> {
    let list = gateway.json("GET", "/v1/workers").1;
    list["data"].as_array().expect("a list").iter().map(|w| w["state"].as_str().expect("a word").to_owned()).collect()
}

/// What a single process answers.
pub fn alone(model: &Path, asked: &[(&str, u32)]) -> Vec<String> {
    let server = Server::start(model, &["--threads", "1", "--log", "error"]);
    let answer = |(content, tokens): &(&str, u32)| {
        let (status, _, body) = server.request("POST", "/v1/chat/completions", None, Some(&chat_body(content, *tokens, false)));
        assert_eq!(status, 200);
        text_of(&serde_json::from_slice(&body).expect("JSON"))
    };
    asked.iter().map(answer).collect()
}

pub fn text_of(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
}

/// Reads a stream to its end: its text, and the code of the error that ends it, if one does.
pub fn finish(caller: &mut Caller) -> (String, Option<String>) {
    let (mut text, mut error) = (String::new(), None);
    while let Some(data) = caller.event() {
        let event: Value = serde_json::from_str(&data).expect("JSON");
        text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        if let Some(code) = event["error"]["code"].as_str() {
            assert!(error.is_none(), "a second error event");
            error = Some(code.to_owned());
            break; // the connection is closed behind it, or serves a next request
        }
    }
    (text, error)
}

pub fn metric(server: &Server, name: &str) -> u64 {
    let text = String::from_utf8(server.request("GET", "/metrics", None, None).2).expect("text");
    let mut found = text.lines().filter(|l| l.starts_with(name) && !l.starts_with('#')).peekable();
    assert!(found.peek().is_some(), "no {name}");
    found.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Waits until the gateway has nothing more to do with a run: it is released, or its worker is lost and nobody can say that.
pub fn over(gateway: &Server, id: &str) -> Value {
    gateway.wait_run(id, "settle", |run| run["settled"] == true)
}

/// The outcome's kind and cause.
pub fn ended(run: &Value) -> (&str, &str) {
    (run["outcome"]["kind"].as_str().unwrap_or_default(), run["outcome"]["cause"].as_str().unwrap_or_default())
}

/// Questions to a worker, beside every session.
pub struct Probe {
    rt: Runtime,
    address: String,
}

impl Probe {
    pub fn of(worker: &Process) -> Probe {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Probe { rt, address: worker.address.clone() }
    }

    pub fn cut(&self) -> Snapshot {
        self.rt.block_on(async {
            let asked = client(&self.address).await.snapshot(wire::SnapshotRequest { blocks: false }).await;
            let cut = asked.expect("it answers").into_inner().snapshot.expect("a cut");
            Snapshot::try_from(cut).expect("one that can be read")
        })
    }

    pub fn drain(&self, limit: Duration) -> wire::DrainReply {
        let limit_us = limit.as_micros() as u64;
        let asked = async { client(&self.address).await.drain(wire::DrainRequest { limit_us }).await };
        self.rt.block_on(asked).expect("it answers").into_inner()
    }

    pub fn until(&self, what: &str, holds: impl Fn(&Snapshot) -> bool) -> Snapshot {
        until(what, || Some(self.cut()).filter(|cut| holds(cut)))
    }

    /// Waits until an attempt of this run stands so.
    pub fn until_run(&self, run: &str, state: &str) -> Snapshot {
        let is_it = |cut: &Snapshot| cut.attempts.iter().any(|a| a.attempt.key.run.as_str() == run && a.state == state);
        self.until(&format!("{run} is {state}"), is_it)
    }

    /// Waits until nothing of any run is left; every block is free or in the prefix index.
    // contract: C-15
    pub fn until_at_rest(&self) -> Snapshot {
        let cut =
            self.until("the worker is at rest", |cut| cut.attempts.is_empty() && cut.active + cut.draining == 0 && cut.held.steps == 0);
        assert!(cut.is_conserved() && cut.free + cut.cached == cut.total && cut.quarantined == 0, "{cut:?}");
        assert!(cut.held.kinds().iter().all(|(_, n)| *n == 0), "{:?}", cut.held);
        assert_eq!((cut.stale_releases, cut.foreign_releases, cut.double_releases), (0, 0, 0));
        cut
    }
}
