//! `kvit worker` as a process: what it prints, that a gateway's session works on it, and what signals do.
// contract: C-5, C-13

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lifecycle::message::{Down, Prompt, Submit, Up};
use lifecycle::params::{Params, Sampling};
use lifecycle::session::{GatewayEffect, GatewaySide, SessionConfig};
use lifecycle::{AttemptId, Cause, Incarnation, RunId, RunKey, Tenant, Time};
use protocol::worker_v1::{self as wire, worker_client::WorkerClient};
use protocol::{FromWorker, Opening, VERSIONS};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::server::{PATIENCE, lasting_model, tiny_model, until_stopped};
use crate::{kvit, run};

/// A worker's process; ended by its id when dropped.
pub struct Process {
    child: Child,
    pub address: String,
    _cache: tempfile::TempDir,
}

impl Process {
    pub fn start(model: &std::path::Path, flags: &[&str]) -> Process {
        Process::named("w1", "127.0.0.1:0", model, flags)
    }

    pub fn named(name: &str, listen: &str, model: &std::path::Path, flags: &[&str]) -> Process {
        let cache = tempfile::tempdir().expect("a folder");
        let model = model.to_str().expect("a path that is text");
        let mut args = vec!["worker", "--listen", listen, "--name", name, "--threads", "1", "--kv-blocks", "2048", "--model", model];
        args.extend_from_slice(flags);
        let mut child = kvit(cache.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the worker can be started");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("it is piped")).read_line(&mut line).expect("it says where it listens");
        let promised = format!("worker {name} listening on grpc://");
        let address = line.trim_end().strip_prefix(&promised).expect("the promised line").to_owned();
        Process { child, address, _cache: cache }
    }

    pub fn signal(&self, name: &str) {
        use rustix::process::Signal;
        let pid = rustix::process::Pid::from_child(&self.child);
        let signal = match name {
            "INT" => Signal::INT,
            "KILL" => Signal::KILL,
            "STOP" => Signal::STOP,
            "CONT" => Signal::CONT,
            _ => Signal::TERM,
        };
        rustix::process::kill_process(pid, signal).expect("it is there");
        if name == "STOP" {
            until_stopped(self.child.id());
        }
    }

    /// Its exit code and what it said on stderr.
    pub fn ended(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
        (self.child.wait().expect("it is ours").code(), said)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn client(address: &str) -> WorkerClient<Channel> {
    let channel = Endpoint::from_shared(format!("http://{address}")).expect("an address is one").connect().await.expect("it listens");
    WorkerClient::new(channel)
}

/// A gateway with one session, and what it was told.
struct Gateway {
    side: GatewaySide,
    since: Instant,
    say: mpsc::UnboundedSender<wire::Down>,
    stream: tonic::Streaming<wire::Up>,
    told: Vec<Up>,
}

impl Gateway {
    async fn connect(address: &str) -> Gateway {
        let since = Instant::now();
        let mut side = GatewaySide::new("g".into(), Incarnation(1), SessionConfig::default());
        let (say, down) = mpsc::unbounded_channel();
        let opening = Opening { versions: VERSIONS.to_vec(), hello: side.hello(Time::ZERO) };
        say.send(wire::Down::from(&opening)).expect("its stream is there");
        let mut stream = client(address).await.session(UnboundedReceiverStream::new(down)).await.expect("it is taken").into_inner();
        let welcome = stream.message().await.expect("no error").expect("a welcome");
        let Ok(FromWorker::Welcome(opened)) = FromWorker::try_from(welcome) else { panic!("the first message is a welcome") };
        assert_eq!(&*opened.welcome.worker, "w1");
        let effects = side.welcome(&opened.welcome, Time::ZERO);
        let mut gateway = Gateway { side, since, say, stream, told: Vec::new() };
        gateway.carry_out(effects);
        gateway
    }

    fn now(&self) -> Time {
        Time::ZERO.after(self.since.elapsed())
    }

    fn carry_out(&mut self, effects: Vec<GatewayEffect>) {
        for effect in effects {
            match effect {
                // Its stream may be over.
                GatewayEffect::Send(frame) => drop(self.say.send(protocol::down(&frame).expect("it can be said"))),
                GatewayEffect::Deliver(message) => self.told.push(message),
                _ => {}
            }
        }
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&Up) -> bool) {
        while !self.told.iter().any(&holds) {
            assert!(self.since.elapsed() < PATIENCE, "it never came to: {what}; {:?}", self.told);
            if let Ok(Ok(Some(message))) = tokio::time::timeout(Duration::from_millis(10), self.stream.message()).await {
                let Ok(FromWorker::Frame(frame)) = FromWorker::try_from(message) else { panic!("what comes later is a frame") };
                let effects = self.side.hear(frame, self.now());
                self.carry_out(effects);
            }
            let effects = self.side.tick(self.now());
            self.carry_out(effects);
        }
    }

    fn submit(&mut self, name: &str, max_tokens: u32) {
        let key = RunKey { tenant: Tenant::default(), run: RunId::parse(name).expect("an id") };
        let params = Params {
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..Params::default()
        };
        let worker = self.side.worker().expect("it is known");
        let (attempt, prompt) = (AttemptId { key, attempt: 1 }, Prompt::Text("Go on".into()));
        let submit = Submit { attempt, worker, number: 1, model: "".into(), prompt, params, deadlines: Vec::new() };
        let (_, effects) = self.side.send(Down::Submit(Box::new(submit)), self.now());
        self.carry_out(effects);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn a_worker_says_where_it_listens_and_a_signal_ends_it_when_nothing_runs() {
    let worker = Process::start(&tiny_model(), &[]);
    let cut = runtime().block_on(async { client(&worker.address).await.snapshot(wire::SnapshotRequest { blocks: false }).await });
    assert_eq!(cut.expect("it answers").into_inner().snapshot.map(|s| (s.total, s.free)), Some((2048, 2048)));
    worker.signal("TERM");
    let (code, said) = worker.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("drained: 0 finished, 0 handed back, 0 cancelled"), "{said}");
}

#[test]
fn the_first_signal_drains_and_the_second_cancels_and_every_gateway_is_told() {
    let worker = Process::start(&lasting_model(), &["--drain-ms", "600000"]);
    runtime().block_on(async {
        let mut gateway = Gateway::connect(&worker.address).await;
        gateway.submit("long", 15_000);
        gateway.until("a token", |up| matches!(up, Up::Step { .. })).await;
        worker.signal("TERM");
        gateway.until("the news", |up| matches!(up, Up::Draining)).await;
        // It goes on.
        let steps = gateway.told.iter().filter_map(|up| if let Up::Step { step, .. } = up { Some(*step) } else { None }).max();
        gateway.until("a further step", |up| matches!(up, Up::Step { step, .. } if Some(*step) > steps)).await;
        worker.signal("INT");
        gateway.until("its release", |up| matches!(up, Up::Released { .. })).await;
        let cause = gateway.told.iter().find_map(|up| if let Up::Ended { outcome, .. } = up { Some(outcome.cause) } else { None });
        assert_eq!(cause, Some(Cause::Shutdown));
    });
    let (code, said) = worker.ended();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("drained: 0 finished, 0 handed back, 1 cancelled"), "{said}");
}

#[test]
fn a_flag_of_serve_is_refused_and_a_name_must_be_one() {
    let said = run(&["worker", "--port", "1"]);
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("--port is no option of `kvit worker`"), "{}", said.err);
    let said = run(&["serve", "--lease-ms", "1"]);
    assert!(said.code == 2 && said.err.contains("--lease-ms is no option of `kvit serve`"), "{}", said.err);
    assert_eq!(run(&["worker", "--name", "no blanks"]).code, 2);
    let said = run(&["worker", "--lease-ms", "100"]);
    assert!(said.code == 2 && said.err.contains("lease_ms must be above suspend_after_ms (250)"), "{}", said.err);
    let help = run(&["worker", "--help"]).out;
    assert!(help.contains("--lease-ms") && !help.contains("--calls-max"), "{help}");
}
