//! `kvit worker`: wiring only. A model on a device, and a gRPC server through which gateways in other processes have sessions with it.
//!
//! Told to stop it drains: it takes no further run, hands back what waits, lets what runs go on for `drain_ms`, and ends when its gateways
//! have acknowledged all that was said to them.
//!
//! Invariant: `worker NAME listening on ...` is printed once, after the socket listens and the model is loaded, and nothing else goes to
//! stdout.

use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use lifecycle::message::ModelInfo;
use protocol::Drained;
use tokio::sync::watch;
use worker::{Closed, Door, SessionWorker};

use super::loaded::{self, Loaded, incarnation, log};
use super::settings;
use super::signals::Signals;
use crate::config::ServeConfig;
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;

/// How often it is looked whether the engine is still there.
const LOOK: Duration = Duration::from_millis(250);

/// Works until told to stop.
///
/// # Errors
/// An address that cannot be listened on, a journal's folder that cannot be written to, no model, a file that is none, an engine that ended by
/// itself, or a second signal.
pub fn run(config: &ServeConfig, cache: Option<PathBuf>) -> Result<(), Failure> {
    log(config);
    // Before the model is fetched and packed: a port that is taken is known at once.
    let listener = TcpListener::bind(config.listen.as_str()).with_context(|| format!("cannot listen on {}", config.listen))?;
    let (life, name) = (incarnation(), config.name.get_or("worker"));
    let (journal, _files) = loaded::journal(config, life)?;
    let path = model_file::resolve(config.model.get(), &Cache::locate(cache)?)?;
    let Loaded { device, text, info } = Loaded::load(config, &path)?;
    let settings = settings::worker(config, &info.id, life);
    let session = settings::session(config);
    let worker = worker::start_sessions(settings, name.into(), session, device, text, journal).context("cannot start the worker")?;
    tracing::info!(name, incarnation = %life, "worker");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(config, worker, listener, info))
}

async fn serve(config: &ServeConfig, worker: SessionWorker, listener: TcpListener, model: ModelInfo) -> Result<(), Failure> {
    let signals = Signals::listen()?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (stop, mut stopped) = watch::channel(false);
    let told = async move {
        // The sender is gone only with the process.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let (door, grpc, session) = (worker.door(), settings::grpc(config), settings::session(config));
    let serving = worker::grpc::serve(door.clone(), listener, grpc, session, model, signals.drain(), told);
    let mut serving = tokio::spawn(serving);
    out::line(&format!("worker {} listening on grpc://{address}", config.name.get_or("worker")))?;
    tokio::select! {
        served = &mut serving => {
            served.context("the server panicked")?.context("the server ended by itself")?;
        }
        () = gone(&door) => return Err(Failure::Other(anyhow::anyhow!("the engine ended by itself"))),
        () = signals.drain() => {}
    }
    let drained = drain(config, &door, &signals).await.context("the engine ended by itself")?;
    let Drained { finished, handed_back, cancelled, .. } = &drained;
    let [finished, handed_back, cancelled] = [finished.len(), handed_back.len(), cancelled.len()];
    out::note(&format!("kvit: drained: {finished} finished, {handed_back} handed back, {cancelled} cancelled"));
    tokio::task::spawn_blocking(move || worker.stop()).await.context("the engine panicked")?;
    let _ = stop.send(true);
    serving.await.context("the server panicked")?.context("the server ended badly")?;
    match signals.code() {
        None => Ok(()),
        Some(code) => {
            let left = (cancelled > 0).then(|| format!("{cancelled} runs were cancelled"));
            Err(Failure::CutShort { code, left })
        }
    }
}

/// Drains within the limit, at once on a second signal; then lets the gateways acknowledge what they were told.
async fn drain(config: &ServeConfig, door: &Door, signals: &Signals) -> Result<Drained, Closed> {
    let mut draining = pin!(door.drain(Duration::from_millis(config.drain_ms)));
    let drained = tokio::select! {
        drained = &mut draining => drained?,
        () = signals.at_once() => {
            door.drain(Duration::ZERO).await?;
            draining.await?
        }
    };
    door.flush(Duration::from_millis(config.settle_ms)).await?;
    Ok(drained)
}

/// Ready when the engine's thread is gone although nobody told it to go.
async fn gone(door: &Door) {
    while !door.has_ended() {
        tokio::time::sleep(LOOK).await;
    }
}
