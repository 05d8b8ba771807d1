//! The task of one link: connections one after another, frames in, time, events out.
//!
//! Invariant: it ends with its gateway and with nothing else; between two tries to connect there is a wait, but for the first after a
//! connection that was of use.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::session::SessionConfig;
use protocol::FromWorker;
use protocol::worker_v1 as wire;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Streaming;

use super::core::Shared;
use super::open::{Connection, Failed, open};
use super::{Network, WireConfig};
use crate::LinkEvent;

/// The timers of the runtime do not count while the machine sleeps; the session's clock does.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

type Coming = Pin<Box<dyn Future<Output = Result<Connection, Failed>> + Send>>;

/// How a link's connection stands.
enum Stage {
    /// It is tried again then.
    Waiting(Instant),
    Opening(Coming),
    Open {
        frames: Box<Streaming<wire::Up>>,
        since: Instant,
        heard: Instant,
    },
}

/// What comes next of a connection.
enum Step {
    Try,
    Opened(Box<Connection>),
    Failed(Failed),
    Frame(wire::Up),
    Over(String),
}

impl Stage {
    /// May be dropped at any time: nothing is lost by it.
    async fn next(&mut self, quiet_max: Duration) -> Step {
        match self {
            Stage::Waiting(until) => {
                tokio::time::sleep_until(*until).await;
                Step::Try
            }
            Stage::Opening(coming) => match coming.await {
                Ok(connection) => Step::Opened(Box::new(connection)),
                Err(failed) => Step::Failed(failed),
            },
            Stage::Open { frames, heard, .. } => match tokio::time::timeout_at(*heard + quiet_max, frames.message()).await {
                Ok(Ok(Some(up))) => Step::Frame(up),
                Ok(Ok(None)) => Step::Over("the worker has ended the stream".into()),
                Ok(Err(status)) => Step::Over(status.message().to_owned()),
                Err(_) => Step::Over("nothing came for too long, or nothing of what was said here".into()),
            },
        }
    }
}

/// Runs a link until its gateway lets go of it.
pub(super) async fn run(shared: Arc<Shared>, events: mpsc::Sender<LinkEvent>) {
    let mut stage = Stage::Waiting(Instant::now());
    let mut pace = Pace { config: shared.config, failures: 0, said: None };
    loop {
        while let Some(event) = shared.next_event() {
            if events.send(event).await.is_err() {
                return shared.end();
            }
        }
        let due = shared.until_due().unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        let close = tokio::select! {
            // The same again is the same again. However busy the connection is, time passes and events go out between two frames.
            biased;
            () = events.closed() => return shared.end(),
            step = stage.next(shared.config.quiet_max) => {
                let close = advance(&shared, &mut stage, &mut pace, step);
                // The connection may be busy; its time passes all the same.
                shared.tick() | close
            }
            () = shared.wake.notified() => shared.tick(),
            () = tokio::time::sleep(due) => shared.tick(),
        };
        if close && matches!(stage, Stage::Open { .. }) {
            shared.closed();
            stage = Stage::Waiting(Instant::now() + pace.failed(&*shared.network));
        }
    }
}

/// Takes in what came of a connection. Whether it is to be closed.
fn advance(shared: &Arc<Shared>, stage: &mut Stage, pace: &mut Pace, step: Step) -> bool {
    let now = Instant::now();
    match (step, &mut *stage) {
        (Step::Try, _) => *stage = Stage::Opening(Box::pin(open(shared.clone()))),
        (Step::Opened(connection), _) => {
            let close = shared.welcome(&connection);
            tracing::info!(address = %shared.address, worker = %connection.opened.welcome.worker, "session open");
            pace.said = None;
            *stage = Stage::Open { frames: Box::new(connection.frames), since: now, heard: now };
            return close;
        }
        (Step::Failed(failed), _) => {
            pace.say(shared, &failed);
            let within = shared.tried(failed.nobody).unwrap_or(Duration::MAX);
            let wait = if failed.refused { shared.config.refused_retry } else { pace.failed(&*shared.network).min(within) };
            *stage = Stage::Waiting(now + wait);
        }
        (Step::Frame(up), Stage::Open { heard, .. }) => {
            match FromWorker::try_from(up) {
                Ok(FromWorker::Frame(frame)) => {
                    // A worker that speaks and has not heard us for long shows that this connection does not carry what we say. Its lease for
                    // us runs, so another connection cannot wait until the worker closes this one.
                    if frame.echo.is_none_or(|echo| echo.held < shared.config.quiet_max) {
                        *heard = now;
                    }
                    return shared.hear(frame);
                }
                Ok(FromWorker::Welcome(_)) => tracing::warn!(address = %shared.address, "a second welcome; the session is closed"),
                Err(error) => tracing::warn!(address = %shared.address, %error, "a frame that is none; the session is closed"),
            }
            return true;
        }
        (Step::Over(why), Stage::Open { since, .. }) => {
            tracing::info!(address = %shared.address, why, "session closed");
            shared.closed();
            // At once, if this one was of use: its attempts wait.
            let wait =
                if now.duration_since(*since) >= useful(&shared.config.session) { pace.lost() } else { pace.failed(&*shared.network) };
            *stage = Stage::Waiting(now + wait);
        }
        (Step::Frame(_) | Step::Over(_), _) => {}
    }
    false
}

/// A connection that stood so long was no mistake.
fn useful(session: &SessionConfig) -> Duration {
    2 * session.heartbeat
}

/// How long to wait, and what was said of it in the log.
struct Pace {
    config: WireConfig,
    failures: u32,
    said: Option<String>,
}

impl Pace {
    fn lost(&mut self) -> Duration {
        self.failures = 0;
        Duration::ZERO
    }

    fn failed(&mut self, network: &dyn Network) -> Duration {
        let longest = self.config.retry.saturating_mul(1 << self.failures.min(16)).min(self.config.retry_max);
        self.failures = self.failures.saturating_add(1);
        // Half of it by chance, so that a hundred gateways do not come at once.
        longest.mul_f64(0.5 + 0.5 * network.chance())
    }

    /// Says a reason once, until it changes.
    fn say(&mut self, shared: &Shared, failed: &Failed) {
        if self.said.as_ref() != Some(&failed.why) {
            let (address, why) = (&shared.address, &failed.why);
            if failed.refused {
                tracing::error!(%address, why, "the worker does not speak with this gateway");
            } else {
                tracing::warn!(%address, why, "no session");
            }
            self.said = Some(failed.why.clone());
        }
    }
}
