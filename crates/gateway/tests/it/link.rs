//! The link to a worker in another process: real gRPC on both sides, the real session core of a worker, and a scripted engine.
// contract: C-3, C-10, C-24

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gateway::{GatewayConfig, Identity, WireConfig};
use lifecycle::message::{Delta, Receipt, Submit, Up, Usage};
use lifecycle::session::{SessionConfig, WorkerEffect, WorkerSide};
use lifecycle::{Cause, Incarnation, Outcome, StepId};
use observe::{Clock, Journal};
use protocol::worker_v1::{self as wire, worker_server};
use protocol::{Error, FromGateway, Limits, Opened, VERSIONS, snapshot_reply, version};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::simulated::{Stand, linked, soon, tiny};
use crate::wire::{ask as post, get};

const WORKER: Incarnation = Incarnation(7);

/// A worker whose engine answers at once, without records.
struct Scripted {
    side: Mutex<WorkerSide>,
    clock: Clock,
    versions: Vec<u32>,
    frame_bytes_max: u64,
    /// Sessions that break when they have brought a submit.
    breaks: AtomicU32,
    sessions: AtomicU32,
}

impl Scripted {
    fn new() -> Scripted {
        let side = WorkerSide::new("scripted".into(), WORKER, SessionConfig::default());
        let (side, clock, versions) = (Mutex::new(side), Clock::start(), VERSIONS.to_vec());
        Scripted { side, clock, versions, frame_bytes_max: 8 << 20, breaks: AtomicU32::new(0), sessions: AtomicU32::new(0) }
    }

    /// Frames for one connection; whether it breaks now.
    fn act(&self, change: impl FnOnce(&mut WorkerSide) -> Vec<WorkerEffect>) -> (Vec<wire::Up>, bool) {
        let (mut side, mut frames, mut breaks) = (self.side.lock().expect("no panic"), Vec::new(), false);
        let mut effects = std::collections::VecDeque::from(change(&mut side));
        while let Some(effect) = effects.pop_front() {
            match effect {
                WorkerEffect::Send { frame, .. } => frames.push(protocol::up(&frame).expect("it can be sent")),
                WorkerEffect::Submit(submit) => {
                    breaks = self.breaks.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok();
                    for message in answer(&submit) {
                        effects.extend(side.said(message, self.clock.now()));
                    }
                }
                _ => {}
            }
        }
        (frames, breaks)
    }
}

fn answer(submit: &Submit) -> Vec<Up> {
    let attempt = || submit.attempt.clone();
    let delta = |text: &str, token, finish| Delta {
        attempt: attempt(),
        sequence: 0,
        text: text.into(),
        tokens: vec![token],
        logprobs: Vec::new(),
        finish,
        passed: None,
    };
    let usage = Usage { prompt: 3, cached_prompt: 0, generated: 2 };
    let receipt = Receipt { blocks_peak: 1, steps: 2, fence: StepId(2), ..Receipt::default() };
    vec![
        Up::Accepted { attempt: attempt(), prompt_tokens: 3 },
        Up::Step { step: StepId(1), deltas: vec![delta("all ", 1, None)] },
        Up::Step { step: StepId(2), deltas: vec![delta("well", 2, Some(Cause::Stop))] },
        Up::Ended { attempt: attempt(), outcome: Outcome::of(Cause::Stop), usage },
        Up::Released { attempt: attempt(), receipt },
    ]
}

#[derive(Clone)]
struct Service(Arc<Scripted>);

#[tonic::async_trait]
impl worker_server::Worker for Service {
    type SessionStream = ReceiverStream<Result<wire::Up, Status>>;

    async fn session(&self, request: Request<Streaming<wire::Down>>) -> Result<Response<Self::SessionStream>, Status> {
        let (worker, mut down) = (self.0.clone(), request.into_inner());
        worker.sessions.fetch_add(1, Ordering::AcqRel);
        let first = down.message().await?.ok_or_else(|| Status::invalid_argument("no hello"))?;
        let FromGateway::Hello(opening) = FromGateway::try_from(first)? else { return Err(Status::invalid_argument("no hello")) };
        let version = version::choose(&opening.versions, &worker.versions).map_err(Error::Versions)?;
        let (up, frames) = mpsc::channel(256);
        let gateway = opening.hello.gateway.clone();
        let hello = worker.side.lock().expect("no panic").hello(&opening.hello, worker.clock.now());
        let (welcome, effects) = hello.map_err(Error::Refused)?;
        let mut limits = Limits::of(&SessionConfig::default());
        limits.frame_bytes_max = worker.frame_bytes_max;
        up.try_send(Ok(wire::Up::from(&Opened { version, welcome, model: tiny(), limits }))).expect("room");
        tokio::spawn(async move {
            let mut out = worker.act(|_| effects);
            loop {
                if out.1 {
                    // What was to be said is lost with the connection.
                    return drop(up.send(Err(Status::unavailable("cut"))).await);
                }
                for frame in out.0 {
                    if up.send(Ok(frame)).await.is_err() {
                        return;
                    }
                }
                let now = worker.clock.now();
                out = match tokio::time::timeout(Duration::from_millis(10), down.message()).await {
                    Ok(Ok(Some(down))) => match FromGateway::try_from(down) {
                        Ok(FromGateway::Frame(frame)) => worker.act(|side| side.hear(&gateway, frame, now)),
                        _ => return,
                    },
                    Ok(_) => return,
                    Err(_) => worker.act(|side| side.tick(now)),
                };
            }
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    async fn snapshot(&self, _: Request<wire::SnapshotRequest>) -> Result<Response<wire::SnapshotReply>, Status> {
        let cut = lifecycle::message::Snapshot { total: 9, free: 9, ..Default::default() };
        Ok(Response::new(snapshot_reply(WORKER, &cut)?))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Result<Response<wire::DrainReply>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }
}

async fn start(worker: Scripted) -> (Stand<()>, Arc<Scripted>) {
    let worker = Arc::new(worker);
    // A port that was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let service = worker_server::WorkerServer::new(Service(worker.clone()));
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve(address));
    let journal = Journal::new(Clock::start(), observe::Limits::default());
    let who = Identity { name: "g".into(), incarnation: Incarnation(0x2222) };
    let link = gateway::link(&address.to_string(), &who, journal.clock(), WireConfig::default()).expect("an address");
    (linked(GatewayConfig::default(), vec![link], journal).await, worker)
}

async fn is_here(stand: &Stand<()>) {
    soon("the worker is here", async {
        while get(stand.addr, "/health").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn ask(stand: &Stand<()>, id: &str, content: &str) -> (u16, Value) {
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": content}]}).to_string();
    let reply = post(stand.addr, "POST", "/v1/chat/completions", &format!("X-Request-Id: {id}\r\n"), &body).await;
    (reply.status, reply.json())
}

// contract: C-20
#[tokio::test(flavor = "multi_thread")]
async fn what_a_worker_does_not_record_is_recorded_from_its_words() {
    let (stand, _worker) = start(Scripted::new()).await;
    is_here(&stand).await;
    let (status, answer) = ask(&stand, "r1", "hello").await;
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("all well")));
    let run = stand.settled("r1").await;
    assert_eq!((&run["released"], &run["guarantee"]), (&json!(true), &json!("confirmed")), "{run:#}");
    assert_eq!((&run["tokens"]["prompt"], &run["tokens"]["generated"]), (&json!(3), &json!(2)));
    assert!(run["milestones"]["first_token"].is_number() && run["milestones"]["fence_completed"].is_null(), "{run:#}");
    assert!(run["boundaries"][1]["clock_error_ms"].as_f64().is_some_and(|error| error > 0.0), "{run:#}");
    assert_eq!(get(stand.addr, "/v1/kv").await.json()["free"], 9, "a question of its own, beside the session");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_the_worker_would_not_take_ends_its_run_and_not_the_session() {
    let (stand, worker) = start(Scripted { frame_bytes_max: 16 << 10, ..Scripted::new() }).await;
    is_here(&stand).await;
    let (status, _) = ask(&stand, "large", &"x".repeat(20_000)).await;
    let run = stand.settled("large").await;
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("rejected"), &json!("over_limit")), "{status} {run:#}");
    assert!(run["outcome"]["reason"].as_str().is_some_and(|why| why.contains("frame_bytes_max")), "{run:#}");
    assert_eq!(ask(&stand, "small", "hello").await.0, 200);
    assert_eq!(worker.sessions.load(Ordering::Acquire), 1);
}

// contract: C-10
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_costs_no_word() {
    let worker = Scripted::new();
    worker.breaks.store(1, Ordering::Release);
    let (stand, worker) = start(worker).await;
    is_here(&stand).await;
    let (status, answer) = ask(&stand, "r1", "hello").await;
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("all well")));
    assert_eq!(stand.settled("r1").await["attempt"], 1);
    assert_eq!((worker.sessions.load(Ordering::Acquire), worker.breaks.load(Ordering::Acquire)), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_another_version_is_not_spoken_to() {
    let (stand, worker) = start(Scripted { versions: vec![900], ..Scripted::new() }).await;
    soon("it was tried", async {
        while worker.sessions.load(Ordering::Acquire) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let list = get(stand.addr, "/v1/workers").await.json();
    assert_eq!(list["data"][0]["state"], "unknown");
    assert_eq!(get(stand.addr, "/health").await.error().3, "no_worker");
    assert!(worker.side.lock().expect("no panic").gateways().is_empty(), "no session came of it");
}
