//! SIGINT and SIGTERM: the first drains, the second cancels what still runs, the third ends the process as it stands.
//!
//! Invariant: from the moment this listens, no signal of these two is lost, and each counts once.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::out;

/// What a shell adds to a signal's number to show that it ended a process.
const BY_SIGNAL: i32 = 128;

/// How far the signals that came ask to go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Asked {
    Nothing,
    Drain,
    /// At once, and the exit code that says so.
    AtOnce(u8),
}

/// Both signals, from now on heard here and nowhere else.
pub struct Signals {
    asked: watch::Receiver<Asked>,
}

impl Signals {
    /// Begins to listen. Needs the runtime that the returned value is used in.
    ///
    /// # Errors
    /// The system does not let us.
    pub fn listen() -> anyhow::Result<Signals> {
        let hear = |kind| signal(kind).context("cannot listen for signals");
        let mut both = (hear(SignalKind::interrupt())?, hear(SignalKind::terminate())?);
        let (tell, asked) = watch::channel(Asked::Nothing);
        tokio::spawn(async move {
            next(&mut both).await;
            out::note("kvit: draining; a second signal cancels what still runs");
            tell.send_replace(Asked::Drain);
            let code = next(&mut both).await;
            out::note("kvit: cancelling what still runs; a third signal ends the process as it stands");
            tell.send_replace(Asked::AtOnce(code));
            let code = next(&mut both).await;
            out::note("kvit: ended with runs that nobody was told of");
            std::process::exit(code.into());
        });
        Ok(Signals { asked })
    }

    /// Ready when the first signal has come.
    pub fn drain(&self) -> impl Future<Output = ()> + use<> {
        reached(self.asked.clone(), |asked| *asked >= Asked::Drain)
    }

    /// Ready when the second signal has come.
    pub fn at_once(&self) -> impl Future<Output = ()> + use<> {
        reached(self.asked.clone(), |asked| matches!(asked, Asked::AtOnce(_)))
    }

    /// The exit code of a process that a second signal has ended.
    pub fn code(&self) -> Option<u8> {
        match *self.asked.borrow() {
            Asked::AtOnce(code) => Some(code),
            Asked::Nothing | Asked::Drain => None,
        }
    }
}

/// Ready when it is so; never, if the listening task is gone, which no signal can follow.
async fn reached(mut asked: watch::Receiver<Asked>, far_enough: impl FnMut(&Asked) -> bool) {
    if asked.wait_for(far_enough).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The next signal of either kind, as an exit code.
async fn next((interrupt, terminate): &mut (Signal, Signal)) -> u8 {
    let number = tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt(),
        _ = terminate.recv() => SignalKind::terminate(),
    };
    u8::try_from(BY_SIGNAL + number.as_raw_value()).unwrap_or(u8::MAX)
}
