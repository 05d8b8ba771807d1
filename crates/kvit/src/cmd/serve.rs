//! `kvit serve`: wiring only. Options become the parts' own settings, the model file is found and loaded, worker and gateway are joined.
//!
//! Invariant: `listening on ...` is printed once, after the socket listens and the model is loaded, and nothing else goes to stdout.

mod settings;
mod signals;

use std::io::IsTerminal;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use gateway::{Gateway, Here, Link, LinkClosed};
use lifecycle::Incarnation;
use lifecycle::message::ModelInfo;
use model::arch::llama::{Llama, Precision};
use model::cpu::CpuDevice;
use model::error::ModelError;
use model::gguf::Gguf;
use observe::{Clock, Journal};
use worker::{Text, Worker};

use crate::config::ServeConfig;
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;
use signals::Signals;

/// Messages of the worker that may wait for the gateway; the gateway's pump never waits for a caller.
const UP_LIMIT: usize = 1024;

/// Serves until told to stop.
///
/// # Errors
/// An address that cannot be listened on, no model, a file that is none, runs that were left unsettled, or a second signal.
pub fn run(config: &ServeConfig, cache: Option<PathBuf>) -> Result<(), Failure> {
    tracing_subscriber::fmt()
        .with_max_level(settings::level(config))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    raise_file_limit(config.connections_max);
    // Before the model is fetched and packed: a port that is taken is known at once.
    let listener = bind(config)?;
    let path = model_file::resolve(config.model.get(), &Cache::locate(cache)?)?;
    let journal = Journal::new(Clock::start(), settings::journal(config));
    let (worker, link) = start_worker(config, &path, &journal)?;
    let gateway = Gateway::new(settings::gateway(config), vec![link], journal, incarnation());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(&gateway, listener));
    worker.stop();
    served
}

/// A connection takes two descriptors (the watcher has its own): takes what the system allows, and says so if it is not enough.
fn raise_file_limit(connections_max: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const OTHERS: u64 = 64;
    let wanted = 2 * connections_max as u64 + OTHERS;
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

async fn serve(gateway: &Gateway, listener: TcpListener) -> Result<(), Failure> {
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

fn bind(config: &ServeConfig) -> anyhow::Result<TcpListener> {
    TcpListener::bind((config.host.as_str(), config.port)).with_context(|| format!("cannot listen on {}:{}", config.host, config.port))
}

/// Loads the model and starts the worker over it.
fn start_worker(config: &ServeConfig, path: &Path, journal: &Journal) -> anyhow::Result<(Worker, Link)> {
    let named = || path.display().to_string();
    let gguf = Gguf::open(path).with_context(named)?;
    let text = Text::load(&gguf).with_context(named)?;
    let llama = Llama::load(&gguf, Precision::Fast).with_context(named)?;
    let device = CpuDevice::new(Arc::new(llama), settings::device(config)).map_err(|e| {
        let option = if matches!(e, ModelError::Pool { .. }) { "; lower kv_blocks" } else { "" };
        anyhow::Error::from(e).context(format!("cannot start the device{option}"))
    })?;
    let id = model_id(path);
    tracing::info!(model = %id, isa = device.isa().name(), threads = config.threads.get(), blocks = config.kv_blocks, "model loaded");
    let info = ModelInfo {
        id: id.as_str().into(),
        context: engine::Device::limits(&device).context,
        default_max_tokens: config.default_max_tokens,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    let incarnation = incarnation();
    let settings = settings::worker(config, &id, incarnation);
    let (up, from_worker) = tokio::sync::mpsc::channel(UP_LIMIT);
    let worker = worker::start(settings, Box::new(device), Arc::new(text), journal.clone(), up).context("cannot start the worker")?;
    let send = worker.sender();
    let send = Box::new(move |message| send(message).map_err(|_| LinkClosed));
    Ok((worker, Link::thread(Here { incarnation, model: info, name: "local".into() }, send, from_worker)))
}

/// A fresh one: this life of this process's gateway or worker.
fn incarnation() -> Incarnation {
    Incarnation(uuid::Uuid::now_v7().as_u128())
}

/// The model's name on the API: the file's, in lower case, without its ending and its quantisation.
fn model_id(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let quantisation = |tail: &str| {
        let digits = tail.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        ["q", "iq", "f", "bf"].contains(&&tail[..tail.len() - digits.len()]) && digits.starts_with(|c: char| c.is_ascii_digit())
    };
    match stem.rsplit_once(['.', '-']) {
        Some((name, tail)) if quantisation(tail) && !name.is_empty() => name.to_owned(),
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_called_by_its_file_without_the_quantisation() {
        for (file, id) in [
            ("models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
            ("Qwen2.5-0.5B-Instruct-BF16.gguf", "qwen2.5-0.5b-instruct"),
            ("Qwen2.5-0.5B.gguf", "qwen2.5-0.5b"),
            ("tiny.gguf", "tiny"),
            ("q8_0.gguf", "q8_0"),
        ] {
            assert_eq!(model_id(Path::new(file)), id, "{file}");
        }
    }
}
