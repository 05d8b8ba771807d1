//! A scripted gateway: one life of it, which keeps its lanes, sends and answers by itself as any gateway would, and does wrong where a case
//! asks for it (`Knobs`).
//!
//! ```text
//!   case ── submit, cancel, knobs ──► State ◄── frames ── pump ◄── stream up
//!                                       └────── frames ──► pump ──► stream down
//! ```
//! Invariant: every frame that comes in is judged before anything else is done with it.

mod down;
mod hear;
mod state;
mod story;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lifecycle::message::{DeadlineLeft, Down, Prompt, Submit};
use lifecycle::params::{Params, Sampling};
use lifecycle::{AttemptId, Cause, Incarnation};
use protocol::worker_v1 as wire;
use protocol::{FromWorker, Opened, VERSIONS};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

use super::bench::connect;
use super::case::Fault;
pub(super) use state::{Answers, Knobs, State};
pub(super) use story::Story;

/// Between two looks, at what is due and at what a case waits for.
const LOOK: Duration = Duration::from_millis(2);

/// What a case wants generated.
#[derive(Clone)]
pub(super) struct Want {
    pub max_tokens: u32,
    pub n: u32,
    pub deadlines: Vec<DeadlineLeft>,
    /// The worker's life that is meant, if it is not the one that answered.
    pub worker: Option<Incarnation>,
    /// The submit's number, if it is not the next one.
    pub number: Option<u64>,
}

impl Want {
    /// So many tokens.
    pub fn tokens(max_tokens: u32) -> Want {
        Want { max_tokens, n: 1, deadlines: Vec::new(), worker: None, number: None }
    }
}

/// One life of a gateway. Clones are the same one.
#[derive(Clone)]
pub(super) struct Gateway {
    state: Arc<Mutex<State>>,
    pump: Arc<Mutex<Option<AbortHandle>>>,
    patience: Duration,
    lease: Duration,
}

impl Gateway {
    /// A life that has spoken with nobody.
    pub fn new(name: String, life: Incarnation, lease: Duration, patience: Duration) -> Gateway {
        Gateway { state: Arc::new(Mutex::new(State::new(name, life))), pump: Arc::default(), patience, lease }
    }

    /// Looks at what it knows, or turns its knobs.
    pub fn see<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The Hello of its next session.
    pub fn hello(&self) -> wire::Hello {
        let lease_us = u64::try_from(self.lease.as_micros()).unwrap_or(u64::MAX);
        self.see(|state| {
            state.session += 1;
            let resume = (state.tenure > 0).then(|| wire::Resume { worker: bytes(state.worker), tenure: state.tenure });
            let (gateway, stamp_us) = (state.name.clone(), state.stamp_now());
            let (incarnation, session, received) = (bytes(state.me), state.session, state.received);
            wire::Hello { versions: VERSIONS.to_vec(), gateway, incarnation, session, resume, received, lease_us, stamp_us }
        })
    }

    /// Opens a session, with another first message than its Hello if one is given.
    pub async fn open(&self, address: &str, first: Option<wire::Down>) -> Result<Opened, Status> {
        let first = first.unwrap_or_else(|| wire::Down { kind: Some(wire::down::Kind::Hello(self.hello())) });
        let opening = async {
            let (send, frames) = mpsc::unbounded_channel();
            // Its receiver is in the next line.
            let _ = send.send(first);
            let mut stream = connect(address).await?.session(UnboundedReceiverStream::new(frames)).await?.into_inner();
            let up = stream.message().await?.ok_or_else(|| Status::unknown("the stream ended before its Welcome"))?;
            Ok::<_, Status>((send, stream, up))
        };
        let late = || Status::unknown(format!("neither Welcome nor an error within {} ms", self.patience.as_millis()));
        let (send, stream, up) = tokio::time::timeout(self.patience, opening).await.map_err(|_| late())??;
        let opened = match FromWorker::try_from(up)? {
            FromWorker::Welcome(opened) => opened,
            FromWorker::Frame(_) => return Err(Status::unknown("the first message up is no Welcome")),
        };
        self.see(|state| state.welcome(&opened)).map_err(Status::unknown)?;
        let session = self.see(|state| state.session);
        let pump = tokio::spawn(pump(self.state.clone(), session, stream, send));
        *self.pump.lock().unwrap_or_else(PoisonError::into_inner) = Some(pump.abort_handle());
        Ok(opened)
    }

    /// Cuts the connection, in the middle of whatever it carried.
    pub fn cut(&self) {
        if let Some(pump) = self.pump.lock().unwrap_or_else(PoisonError::into_inner).take() {
            pump.abort();
        }
    }

    /// The same life goes on beside its open session: what a case opens next replaces that one.
    pub fn leave_open(&self) {
        self.pump.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether a session is open.
    pub fn is_open(&self) -> bool {
        self.pump.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|pump| !pump.is_finished())
    }

    /// Asks for an attempt; gives the submit's number.
    pub fn submit(&self, attempt: &AttemptId, want: Want) -> u64 {
        self.see(|state| {
            let number = want.number.unwrap_or(state.last_submit + 1);
            state.last_submit = state.last_submit.max(number);
            state.numbers.insert(attempt.clone(), number);
            let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
            let params = Params { sampling, max_tokens: Some(want.max_tokens), n: want.n, ignore_eos: true, ..Params::default() };
            let (worker, prompt) = (want.worker.unwrap_or(state.worker), Prompt::Text("Say it again, please".to_owned()));
            state.stories.entry(attempt.clone()).or_default().submitted(want.n, want.max_tokens);
            let submit = Submit { attempt: attempt.clone(), worker, number, model: "".into(), prompt, params, deadlines: want.deadlines };
            state.say(&Down::Submit(Box::new(submit)));
            number
        })
    }

    /// Cancels an attempt. `number` is its submit's; without one the one that this gateway gave it, or the next.
    pub fn cancel(&self, attempt: &AttemptId, cause: Cause, number: Option<u64>) {
        self.see(|state| {
            let number = number.or(state.numbers.get(attempt).copied()).unwrap_or(state.last_submit + 1);
            state.stories.entry(attempt.clone()).or_default().cancelled(cause);
            state.say(&Down::Cancel { attempt: attempt.clone(), cause, number, observed_ago: Duration::from_millis(1) });
        });
    }

    /// Cancels everything that it has running.
    pub fn cancel_all(&self) {
        for attempt in self.see(|state| state.running()) {
            self.cancel(&attempt, Cause::CancelRequested, None);
        }
    }

    /// Says something else.
    pub fn say(&self, message: &Down) {
        self.see(|state| state.say(message));
    }

    /// Waits until something holds, at most as long as anything may take.
    pub async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) -> Result<(), Fault> {
        self.wait(what, self.patience, holds).await
    }

    /// Waits so long.
    pub async fn wait(&self, what: &str, patience: Duration, holds: impl Fn(&State) -> bool) -> Result<(), Fault> {
        let began = Instant::now();
        loop {
            let (holds, breach) = self.see(|state| (holds(state), state.breaches.first().cloned()));
            if let Some(breach) = breach {
                return Err(Fault::Failed(breach));
            }
            if holds {
                return Ok(());
            }
            if began.elapsed() >= patience {
                let heard = self.see(|state| state.summary());
                return Err(Fault::Failed(format!("within {} ms there was not {what}; heard: {heard}", patience.as_millis())));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until an attempt is released; gives its story.
    pub async fn released(&self, attempt: &AttemptId) -> Result<Story, Fault> {
        self.until("Released", |state| state.story(attempt).released).await?;
        Ok(self.see(|state| state.story(attempt)))
    }

    /// Waits until an attempt has so many tokens; it may not be over by then.
    pub async fn has_tokens(&self, attempt: &AttemptId, tokens: u32) -> Result<(), Fault> {
        self.until(&format!("{tokens} tokens"), |state| state.story(attempt).tokens() >= tokens).await?;
        self.still_runs(attempt)
    }

    /// Nothing can be said of the middle of an attempt that is over.
    pub fn still_runs(&self, attempt: &AttemptId) -> Result<(), Fault> {
        match self.see(|state| state.story(attempt).outcome) {
            Some(outcome) if outcome.cause == Cause::Length => Err(Fault::Skipped(
                "the attempt was over before it could be met in the middle: the worker is too fast, or its context too short".into(),
            )),
            Some(outcome) => Err(Fault::Failed(format!("the attempt ended with {}", outcome.cause.as_str()))),
            None => Ok(()),
        }
    }

    /// How many tokens of an attempt have come.
    pub fn tokens(&self, attempt: &AttemptId) -> u32 {
        self.see(|state| state.story(attempt).tokens())
    }
}

/// 16 bytes, big endian.
pub(super) fn bytes(life: Incarnation) -> Vec<u8> {
    life.0.to_be_bytes().to_vec()
}

/// Carries frames between a stream and a state, until the stream ends or is cut.
async fn pump(state: Arc<Mutex<State>>, session: u64, mut stream: Streaming<wire::Up>, send: mpsc::UnboundedSender<wire::Down>) {
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let with = |act: &mut dyn FnMut(&mut State)| act(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
    loop {
        let heard = tokio::select! {
            heard = stream.message() => Some(heard),
            _ = look.tick() => None,
        };
        let mut over = false;
        with(&mut |state| match &heard {
            Some(Ok(Some(up))) => state.hear(session, up),
            Some(Ok(None)) => over = state.over(session, Status::ok("")),
            Some(Err(status)) => over = state.over(session, status.clone()),
            None => {}
        });
        if over {
            return;
        }
        with(&mut |state| state.due(session).into_iter().for_each(|frame| drop(send.send(frame))));
    }
}

/// The stories of attempts that a gateway has submitted or cancelled.
pub(super) type Stories = HashMap<AttemptId, Story>;
