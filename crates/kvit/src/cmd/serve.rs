//! `kvit serve`: wiring only. Options become the parts' own settings, the model file is found, the parts are started and joined.
//!
//! Invariant: `listening on ...` is printed once, after the socket listens and the model is loaded, and nothing else goes to stdout.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::ServeConfig;
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;

/// Exit code of a process that is ended by a second signal before its runs have drained: as a shell shows SIGINT.
const CUT_SHORT: i32 = 130;

/// Serves until told to stop.
///
/// # Errors
/// No model, an address that cannot be listened on, or a server that broke.
pub fn run(config: &ServeConfig, cache: Option<PathBuf>) -> Result<(), Failure> {
    let _model = model_file::resolve(config.model.get(), &Cache::locate(cache)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        let (listener, address) = bind(config).await?;
        announce(address)?;
        signals.first().await;
        drop(listener);
        Ok(())
    })
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
