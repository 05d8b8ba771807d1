//! `kvit serve`: wiring only. Options become the parts' own settings, the model file is found and loaded, worker and gateway are joined.
//!
//! Invariant: `listening on ...` is printed once, after the socket listens and the model is loaded, and nothing else goes to stdout.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use gateway::{Gateway, Here, Identity, Link, LinkClosed};
use observe::Journal;
use worker::Worker;

use super::loaded::{self, Loaded, incarnation, log};
use super::settings;
use super::signals::Signals;
use super::stored;
use crate::config::ServeConfig;
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;

/// Messages of the worker that may wait for the gateway; the gateway's pump never waits for a caller.
const UP_LIMIT: usize = 1024;
/// What this process is called where runs are kept.
const NAME: &str = "serve";

/// Serves until told to stop.
///
/// # Errors
/// An address that cannot be listened on, a journal's folder that cannot be written to, no model, a file that is none, runs that were left
/// unsettled, or a second signal.
pub fn run(config: &ServeConfig, cache: Option<PathBuf>) -> Result<(), Failure> {
    log(config);
    raise_file_limit(config.connections_max, 0);
    // Before the model is fetched and packed: a port or a store that is taken is known at once.
    let listener = bind(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut front = settings::gateway(config);
    front.gpus = settings::gpus(config)?;
    front.otlp.headers = settings::otlp_headers(config)?;
    let store = runtime.block_on(stored::open(config, NAME))?;
    let who = Identity { name: NAME.into(), incarnation: incarnation() };
    let (journal, _files) = loaded::journal(config, who.incarnation)?;
    let path = model_file::resolve(config.model.get(), &Cache::locate(cache)?)?;
    let (worker, link) = start_worker(config, &path, &journal)?;
    let gateway = Gateway::keeping(front, vec![link], journal, (who.incarnation, &who.name), store);
    let served = runtime.block_on(serve(&gateway, listener));
    worker.stop();
    served
}

/// A connection takes two descriptors (the watcher has its own), a thread for connections a few: takes what the system allows, and says so if it
/// is not enough.
pub(super) fn raise_file_limit(connections_max: usize, threads: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 64;
    const OF_THREAD: u64 = 4;
    let wanted = 2 * connections_max as u64 + OF_THREAD * threads as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    let enough = |have: Option<u64>| have.is_none_or(|n| n >= wanted);
    if enough(limit.current) {
        return;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if raised.is_err() || !enough(limit.maximum) {
        tracing::warn!(
            wanted,
            allowed = limit.maximum,
            "too few file descriptors for connections_max: raise the limit or lower the option"
        );
    }
}

pub(super) async fn serve(gateway: &Gateway, listener: TcpListener) -> Result<(), Failure> {
    let signals = Signals::listen()?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    out::line(&format!("listening on http://{address}"))?;
    let served = gateway.serve(listener, signals.drain(), signals.at_once()).await;
    match (signals.code(), served) {
        (None, served) => served.map_err(|e| Failure::Other(e.into())),
        (Some(code), served) => Err(Failure::CutShort { code, left: served.err().map(|e| e.to_string()) }),
    }
}

pub(super) fn bind(config: &ServeConfig) -> anyhow::Result<TcpListener> {
    TcpListener::bind((config.host.as_str(), config.port)).with_context(|| format!("cannot listen on {}:{}", config.host, config.port))
}

/// Loads the model and starts the worker over it.
fn start_worker(config: &ServeConfig, path: &Path, journal: &Journal) -> anyhow::Result<(Worker, Link)> {
    let Loaded { device, text, info } = Loaded::load(config, path)?;
    let incarnation = incarnation();
    let settings = settings::worker(config, &info.id, incarnation);
    let (up, from_worker) = tokio::sync::mpsc::channel(UP_LIMIT);
    let worker = worker::start(settings, device, text, journal.clone(), up).context("cannot start the worker")?;
    let send = worker.sender();
    let send = Box::new(move |message| send(message).map_err(|_| LinkClosed));
    Ok((worker, Link::thread(Here { incarnation, offer: info.into(), name: "local".into() }, send, from_worker)))
}
