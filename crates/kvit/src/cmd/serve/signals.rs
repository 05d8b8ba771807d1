//! SIGINT and SIGTERM: the first drains, the second ends the process at once.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of a process that is ended by a second signal before its runs have drained: as a shell shows SIGINT.
const CUT_SHORT: i32 = 130;

/// Both signals, from now on heard here and nowhere else.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn listen() -> anyhow::Result<Signals> {
        let hear = |kind| signal(kind).context("cannot listen for signals");
        Ok(Signals { interrupt: hear(SignalKind::interrupt())?, terminate: hear(SignalKind::terminate())? })
    }

    /// Ready at the first signal; from then on a second one ends the process, whatever it is doing.
    pub async fn first(mut self) {
        self.next().await;
        eprintln!("kvit: draining; a second signal ends the process at once");
        tokio::spawn(async move {
            self.next().await;
            eprintln!("kvit: ended before its runs had drained");
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
