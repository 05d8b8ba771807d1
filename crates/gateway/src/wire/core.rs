//! The session's core behind its mutex: what is sent, heard and due, and what the gateway is to be told.
//!
//! Three queues, each bounded: messages that the worker has not acknowledged lie in the core's lane, one submit and one cancel a run of the
//! table (`calls_max`); frames for the connection are dropped beyond `frames_max`; events wait for the task, which hears no further frame
//! until they are gone: those of one frame, and one for each call or question that was sent meanwhile.
//!
//! Invariant: nothing is awaited under the lock, and effects are carried out under it, so that frames go out in the order of their making.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::message::{Down, From, ModelInfo, Prompt, Receipt, Submit, Up, Usage};
use lifecycle::session::{ClockSample, Frame, GatewayEffect, GatewaySide, Hello};
use lifecycle::{Cause, Incarnation, Outcome, Time};
use observe::Clock;
use protocol::worker_v1::{self as wire, worker_client::WorkerClient};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};
use tonic::transport::{Channel, Endpoint};

use super::open::Connection;
use super::{Identity, Network, WireConfig};
use crate::{Here, LinkEvent};

/// Bytes of a submit beside what a caller can make long.
const SUBMIT_ROOM: u64 = 8 << 10;

/// What the task and the senders share.
pub(super) struct Shared {
    pub address: Arc<str>,
    pub endpoint: Endpoint,
    pub network: Box<dyn Network>,
    pub config: WireConfig,
    /// There is an event, or something is due earlier than before.
    pub wake: Notify,
    me: Incarnation,
    clock: Clock,
    runtime: Handle,
    core: Mutex<Core>,
}

struct Core {
    side: GatewaySide,
    /// The newest connection, while it is open.
    line: Option<Line>,
    model: Option<ModelInfo>,
    events: VecDeque<LinkEvent>,
    /// The gateway has let go of the link.
    over: bool,
    told_clock: Option<ClockSample>,
}

struct Line {
    out: mpsc::Sender<Frame<Down>>,
    client: WorkerClient<Channel>,
    frame_bytes_max: u64,
}

impl Shared {
    pub(super) fn new(
        address: Arc<str>,
        (endpoint, network): (Endpoint, Box<dyn Network>),
        who: &Identity,
        clock: Clock,
        config: WireConfig,
    ) -> Shared {
        let side = GatewaySide::new(who.name.clone(), who.incarnation, config.session);
        let core = Core { side, line: None, model: None, events: VecDeque::new(), over: false, told_clock: None };
        let (me, runtime, wake) = (who.incarnation, Handle::current(), Notify::new());
        Shared { address, endpoint, network, config, wake, me, clock, runtime, core: Mutex::new(core) }
    }

    /// Every change of the core is complete before anything that may panic.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message; false if the link is over. Without a worker that is known it goes nowhere: whoever sent it is told of the loss.
    pub(super) fn send(self: &Arc<Self>, message: Down) -> bool {
        let mut core = self.lock();
        if core.over {
            return false;
        }
        let message = match message {
            Down::Snapshot { ask, blocks } => {
                if let Some(client) = core.line.as_ref().map(|line| line.client.clone()) {
                    self.runtime.spawn(self.clone().snapshot(client, ask, blocks));
                }
                return true;
            }
            Down::Submit(submit) => match self.refuse(&core, submit) {
                Ok(submit) => Down::Submit(submit),
                Err(words) => {
                    core.events.extend(words);
                    self.wake.notify_one();
                    return true;
                }
            },
            other => other,
        };
        let (_known, effects) = core.side.send(message, self.clock.now());
        core.carry_out(effects, self.clock.now());
        drop(core);
        self.wake.notify_one();
        true
    }

    /// A submit that the worker would not take must not go into a lane, which would send it again on every connection. It ends here, by the
    /// words that the worker would have had for it.
    fn refuse(&self, core: &Core, submit: Box<Submit>) -> Result<Box<Submit>, Vec<LinkEvent>> {
        let (Some(line), Some(life)) = (&core.line, core.side.worker()) else { return Ok(submit) };
        if size_at_most(&submit) <= line.frame_bytes_max {
            return Ok(submit);
        }
        let (attempt, message) = (submit.attempt.clone(), Some(Down::Submit(submit)));
        let stamp = self.clock.now();
        let (from, to, tenure, number, received) = (self.me, life, u64::MAX, u64::MAX, u64::MAX);
        let frame = Frame { from, to, tenure, number, received, missing: true, stamp, echo: None, message };
        let fits = protocol::down(&frame).and_then(|down| protocol::fits(&down, line.frame_bytes_max));
        match (fits, frame.message) {
            (Ok(()), Some(Down::Submit(submit))) => Ok(submit),
            (fits, _) => {
                let why = fits.err().map_or_else(String::new, |error| format!("the worker does not take it: {error}"));
                let outcome = Outcome::because(Cause::OverLimit, why);
                let ended = Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() };
                let released = Up::Released { attempt, receipt: Receipt::default() };
                Err([ended, released].into_iter().map(|message| LinkEvent::Up(From { incarnation: life, message })).collect())
            }
        }
    }

    async fn snapshot(self: Arc<Self>, mut client: WorkerClient<Channel>, ask: u64, blocks: bool) {
        let asked = client.snapshot(wire::SnapshotRequest { blocks });
        let answer = match tokio::time::timeout(self.config.ask_timeout, asked).await {
            Ok(Ok(reply)) => From::try_from(reply.into_inner()).map_err(|e| e.to_string()),
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_) => Err("no answer in time".to_owned()),
        };
        match answer {
            Ok(From { incarnation, message }) => {
                let message = Up::Snapshot { ask, snapshot: Box::new(message) };
                self.lock().events.push_back(LinkEvent::Up(From { incarnation, message }));
                self.wake.notify_one();
            }
            // Whoever asked has its own time.
            Err(why) => tracing::debug!(address = %self.address, why, "no snapshot"),
        }
    }

    // --- for the task ---

    /// A connection is there.
    pub(super) fn hello(&self) -> Hello {
        let (mut core, now) = (self.lock(), self.clock.now());
        let effects = core.side.tried(false, now);
        core.carry_out(effects, now);
        core.side.hello(now)
    }

    /// A try to connect failed: it was refused, or anything else. How long the next one may be put off at most.
    pub(super) fn tried(&self, is_refused: bool) -> Option<Duration> {
        let (mut core, now) = (self.lock(), self.clock.now());
        let effects = core.side.tried(is_refused, now);
        core.carry_out(effects, now);
        core.side.try_within(now)
    }

    /// A connection was welcomed. Whether it is to be closed.
    pub(super) fn welcome(&self, connection: &Connection) -> bool {
        let (mut core, now) = (self.lock(), self.clock.now());
        let opened = &connection.opened;
        let (out, client) = (connection.out.clone(), connection.client.clone());
        core.line = Some(Line { out, client, frame_bytes_max: opened.limits.frame_bytes_max });
        core.model = Some(opened.model.clone());
        let stale = core.side.stale();
        let effects = core.side.welcome(&opened.welcome, now);
        if core.side.stale() > stale {
            core.events.push_back(LinkEvent::Stale);
        }
        core.carry_out(effects, now)
    }

    /// A frame came. Whether the connection is to be closed.
    pub(super) fn hear(&self, frame: Frame<Up>) -> bool {
        let (mut core, now) = (self.lock(), self.clock.now());
        let stale = core.side.stale();
        let effects = core.side.hear(frame, now);
        if core.side.stale() > stale {
            core.events.push_back(LinkEvent::Stale);
        }
        let sample = core.side.clock();
        if let Some(clock) = sample.filter(|_| sample != core.told_clock) {
            core.told_clock = sample;
            core.events.push_back(LinkEvent::Clock(clock));
        }
        core.carry_out(effects, now)
    }

    /// Time has passed. Whether the connection is to be closed.
    pub(super) fn tick(&self) -> bool {
        let (mut core, now) = (self.lock(), self.clock.now());
        if core.side.next_due().is_none_or(|due| now < due) {
            return false;
        }
        let effects = core.side.tick(now);
        core.carry_out(effects, now)
    }

    /// How long until `tick` is worth calling; `None` for a worker that is not known.
    pub(super) fn until_due(&self) -> Option<Duration> {
        let due = self.lock().side.next_due()?;
        Some(due.since(self.clock.now()))
    }

    /// The connection is over.
    pub(super) fn closed(&self) {
        let mut core = self.lock();
        core.side.closed();
        core.line = None;
    }

    pub(super) fn next_event(&self) -> Option<LinkEvent> {
        self.lock().events.pop_front()
    }

    /// The gateway has let go of the link.
    pub(super) fn end(&self) {
        let mut core = self.lock();
        core.over = true;
        core.line = None;
    }
}

impl Core {
    /// Whether the connection is to be closed.
    fn carry_out(&mut self, effects: Vec<GatewayEffect>, now: Time) -> bool {
        let mut close = false;
        for effect in effects {
            match effect {
                GatewayEffect::Send(frame) => {
                    if let Some(line) = &self.line {
                        // Full: the lane sends it again. Closed: its end is on its way.
                        let _ = line.out.try_send(*frame);
                    }
                }
                GatewayEffect::Deliver(message) => self.deliver(message, now),
                GatewayEffect::Here { name, incarnation } => {
                    let Some(model) = self.model.clone() else { continue };
                    self.told_clock = None;
                    self.events.push_back(LinkEvent::Here(Here { incarnation, offer: model.into(), name }));
                }
                GatewayEffect::Refused { incarnation } => self.events.push_back(LinkEvent::Refused { incarnation }),
                GatewayEffect::Silent => self.events.push_back(LinkEvent::Silent),
                GatewayEffect::Back => self.events.push_back(LinkEvent::Back),
                GatewayEffect::Lost { incarnation, why } => self.events.push_back(LinkEvent::Lost { incarnation, why: why.into() }),
                GatewayEffect::Close { why } => {
                    tracing::warn!(why, "a session is closed");
                    close = true;
                }
            }
        }
        close
    }

    fn deliver(&mut self, mut message: Up, now: Time) {
        if let Up::Records { records } = &mut message {
            let clock = self.side.clock();
            // Before any comparison nothing is known but that it was not later than now.
            records.iter_mut().for_each(|record| record.at = clock.map_or(now, |clock| clock.ours(record.at)).min(now));
        }
        if let Some(incarnation) = self.side.worker() {
            self.events.push_back(LinkEvent::Up(From { incarnation, message }));
        }
    }
}

/// No frame with this submit is larger, however its parts are encoded.
fn size_at_most(submit: &Submit) -> u64 {
    let prompt: usize = match &submit.prompt {
        Prompt::Chat(turns) => turns.iter().map(|turn| turn.role.len() + turn.content.len() + 32).sum(),
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(ids) => 5 * ids.len(),
        Prompt::Forward(forward) => forward.path.len() + forward.body.len(),
        Prompt::Worded(fields) => fields.len(),
    };
    let params = &submit.params;
    let stops: usize = params.stop.iter().map(|stop| stop.len() + 8).sum();
    let lists = 16 * params.sampling.logit_bias.len() + 5 * params.stop_token_ids.len() + params.cache_salt.len();
    SUBMIT_ROOM.saturating_add((prompt + stops + lists) as u64)
}
