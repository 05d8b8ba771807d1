//! `kvit serve`: wiring only. Options become the parts' own settings, the model file is found, the parts are started and joined.
//!
//! Invariant: `listening on ...` is printed once, after the socket listens and the model is loaded, and nothing else goes to stdout.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use engine::Device;
use gateway::{Gateway, Link, LinkClosed};
use lifecycle::Incarnation;
use lifecycle::message::ModelInfo;
use model::arch::llama::{Llama, Precision};
use model::cpu::CpuDevice;
use model::gguf::Gguf;
use observe::{Clock, Journal, Limits};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use worker::{Text, Worker, WorkerConfig};

use crate::config::ServeConfig;
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;

/// Exit code of a process that is ended by a second signal before its runs have drained: as a shell shows SIGINT.
const CUT_SHORT: i32 = 130;

/// Messages that may wait between worker and gateway; the gateway's pump takes them without waiting for any caller.
const UP_LIMIT: usize = 4096;
/// Threads that render and tokenise prompts.
const TOKENISE_THREADS: usize = 1;

/// Serves until told to stop.
///
/// # Errors
/// No model, one that cannot be used, an address that cannot be listened on, or a server that broke.
pub fn run(config: &ServeConfig, cache: Option<PathBuf>) -> Result<(), Failure> {
    config.log.install();
    let path = model_file::resolve(config.model.get(), &Cache::locate(cache)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        let (listener, address) = bind(config).await?;
        let journal = Journal::new(Clock::start(), Limits { records: config.journal_records, runs: config.journal_runs });
        let (worker, link) = start_worker(config, &path, &journal)?;
        let gateway = Gateway::new(config.gateway(), link, journal, incarnation());
        announce(address)?;
        let served = gateway.serve(listener, signals.first()).await;
        tokio::task::spawn_blocking(|| worker.stop()).await.context("the worker did not end in good order")?;
        served.context("the server broke")?;
        Ok(())
    })
}

/// Loads the model and starts the engine over it; the link is how the gateway reaches it.
fn start_worker(config: &ServeConfig, path: &Path, journal: &Journal) -> anyhow::Result<(Worker, Link)> {
    let begun = std::time::Instant::now();
    let what = || format!("cannot serve {}", path.display());
    let gguf = Gguf::open(path).with_context(what)?;
    let text = Arc::new(Text::load(&gguf).with_context(what)?);
    let llama = Arc::new(Llama::load(&gguf, Precision::Fast).with_context(what)?);
    let model = ModelInfo {
        id: model_id(path).into(),
        context: llama.shape().context as u32,
        default_max_tokens: config.default_max_tokens,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    let device = CpuDevice::new(llama, config.device()).with_context(what)?;
    let limits = device.limits();
    tracing::info!(
        model = %model.id, isa = device.isa().name(), threads = config.threads.get(), blocks = limits.blocks_total,
        pool_mib = u64::from(limits.blocks_total) * limits.block_bytes >> 20, seconds = begun.elapsed().as_secs_f64(), "model loaded"
    );
    let worker_life = incarnation();
    let engine = config.engine(format!("{}:{}", model.id, gguf.size_bytes()));
    let settings = WorkerConfig { incarnation: worker_life, engine, tokenise_threads: TOKENISE_THREADS };
    let (up_send, up) = tokio::sync::mpsc::channel(UP_LIMIT);
    let worker = worker::start(settings, Box::new(device), text, journal.clone(), up_send)?;
    let to_worker = worker.sender();
    let send = Box::new(move |message| to_worker(message).map_err(|_| LinkClosed));
    Ok((worker, Link { send, up, model, worker: worker_life }))
}

/// One life of this process's part: ordered by time, so that a later life is greater.
fn incarnation() -> Incarnation {
    Incarnation(uuid::Uuid::now_v7().as_u128())
}

/// The model's name on the API: the file's, in lower case and without what says how it is quantised. (What files call themselves inside is
/// often the name of a training run.)
fn model_id(path: &Path) -> String {
    let name = path.file_stem().map(|s| s.to_string_lossy().to_lowercase()).unwrap_or_default();
    match name.rsplit_once(['.', '-']) {
        Some((front, tail)) if ["q", "f16", "f32", "bf16", "iq"].iter().any(|q| tail.starts_with(q)) && !front.is_empty() => front.to_owned(),
        _ => name,
    }
}

/// Takes the port, so that a taken one is found before anything else is started.
async fn bind(config: &ServeConfig) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let wanted = (config.host.as_str(), config.port);
    let listener = TcpListener::bind(wanted).await.with_context(|| format!("cannot listen on {}:{}", config.host, config.port))?;
    let address = listener.local_addr().context("the listening socket has no address")?;
    Ok((listener, address))
}

/// The line that others wait for.
fn announce(address: SocketAddr) -> Result<(), Failure> {
    out::line(&format!("listening on http://{address}"))
}

/// SIGINT and SIGTERM: the first drains, the second ends the process at once.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        let hear = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// Ready at the first signal; from then on a second one ends the process, whatever it is doing.
    async fn first(mut self) {
        self.next().await;
        eprintln!("kvit: draining; a second signal ends the process at once");
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(CUT_SHORT);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
