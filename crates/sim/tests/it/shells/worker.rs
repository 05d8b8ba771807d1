//! A worker's host: its real gRPC server, and the real engine thread's code, which gets its turns on the simulation's clock.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::EngineConfig;
use lifecycle::message::ModelInfo;
use model::gguf::Gguf;
use observe::{Clock, Journal, Limits};
use turmoil::net::{TcpListener, TcpStream};
use worker::{Text, Turns, WorkerConfig};

use super::device::SimulatedDevice;
use super::net::{Accepting, time};
use super::world::{Cut, PORT, Stage, TICK};

/// How often the engine gets a turn, which is as often as the simulation's time moves.
const TURN: Duration = TICK;
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(50);

pub fn model() -> ModelInfo {
    ModelInfo { id: "simulated".into(), context: 2048, default_max_tokens: 64, created: 0 }
}

fn text() -> Arc<Text> {
    static TEXT: OnceLock<Arc<Text>> = OnceLock::new();
    let load = || {
        let path = std::env::temp_dir().join(format!("kvit-sim-shells-{}.gguf", std::process::id()));
        model::tiny::write(&path, &model::tiny::TinySpec::default()).expect("the tiny model can be written");
        let text = Text::load(&Gguf::open(&path).expect("it can be read")).expect("its tokenizer is supported");
        let _ = std::fs::remove_file(path);
        Arc::new(text)
    };
    TEXT.get_or_init(load).clone()
}

/// One life of a worker.
pub async fn live(stage: Stage, index: usize) -> turmoil::Result {
    let (name, incarnation) = (format!("worker-{index}"), stage.next_life(&format!("worker-{index}")));
    let journal = Journal::new(Clock::over(time), Limits::default());
    let engine = EngineConfig { max_running: 16, ..EngineConfig::default() };
    let config = WorkerConfig { incarnation, engine, tokenise_threads: 1, deadline: Duration::from_secs(600) };
    let device = Box::new(SimulatedDevice::new(stage.chosen.clone()));
    let mut turns = Turns::new(config, name.clone().into(), stage.session, device, text(), journal.clone());
    let socket = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let listener = Accepting { stage: stage.clone(), name: name.clone(), socket };
    let (door, session) = (turns.door(), stage.session);
    let stop = stage.stopped(index);
    let served = tokio::spawn(worker::grpc::serve(door, listener, stage.grpc, session, model(), std::future::pending(), stop));
    let (door, looks) = (turns.door(), stage.clone());
    tokio::spawn(async move {
        // Ends with the worker.
        while let (Ok(snapshot), Ok(sessions)) = (door.snapshot(false).await, door.sessions().await) {
            looks.look(index, Cut { snapshot, sessions, tasks: tasks(), streams: turmoil::established_tcp_stream_count() });
            tokio::time::sleep(LOOK).await;
        }
    });
    let mut told = false;
    while turns.turn() {
        assert_eq!(journal.defects(), 0);
        if served.is_finished() {
            assert!(stage.is_stopped(index), "the server ended by itself");
            // As a worker's process does: first nobody is served any more, then the engine ends.
            if !std::mem::replace(&mut told, true) {
                turns.stop();
            }
        }
        tokio::time::sleep(TURN).await;
    }
    stage.tell(&name, "ends");
    drop((turns, served));
    loop {
        // What is left of it, for the test to count.
        stage.left(index, tasks());
        tokio::time::sleep(TURN).await;
    }
}

/// A host that takes connections and never says a word.
pub async fn mute(stage: Stage, index: usize) -> turmoil::Result {
    let socket = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let mut taken = Vec::new();
    loop {
        taken.push(socket.accept().await?);
        stage.tell(&format!("worker-{index}"), "takes a connection and says nothing");
    }
}

/// A host that opens connections to the first worker and never says a word.
pub async fn strangers(count: usize) -> turmoil::Result {
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(TcpStream::connect(("worker-0", PORT)).await?);
    }
    std::future::pending().await
}

/// Tasks of this host's runtime that are not over.
pub fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}
