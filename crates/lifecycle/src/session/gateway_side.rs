//! A gateway's side of its sessions with one worker: whether it is heard, which life of it answers, whether its host refuses connections, and
//! when a life is over for good.
//!
//! Invariant: `Lost` is said once for each tenure in which anything was sent, and after it nothing of that tenure is sent or delivered.
// contract: C-2, C-3, C-9, C-10, C-20

use std::sync::Arc;
use std::time::Duration;

use super::SessionConfig;
use super::frame::{ClockSample, Frame, Hello, PeerClock, Welcome};
use super::lane::Lane;
use super::refusals::Refusals;
use crate::message::{Down, Up};
use crate::{Incarnation, Time};

/// What is to be done, in order.
#[derive(Clone, Debug)]
pub enum GatewayEffect {
    /// Put a frame onto the open connection. It may be dropped: it comes again.
    Send(Box<Frame<Down>>),
    /// A message of the worker's, once and in order.
    Deliver(Up),
    /// This life of the worker can be given attempts from now on.
    Here {
        /// The worker's name.
        name: Arc<str>,
        /// Its life.
        incarnation: Incarnation,
    },
    /// Nothing was heard for `suspend_after`. It ends nothing (C-10).
    Silent,
    /// Nobody listens where it was: its host has refused connections for `refused_after`. It ends nothing (C-9); whoever waits for a word of
    /// this life need not wait longer.
    Refused {
        /// Which life.
        incarnation: Incarnation,
    },
    /// It was heard again.
    Back,
    /// That life holds nothing of ours any more, or never will again: a newer life answered, its lease ran out, or it began anew with us.
    Lost {
        /// Which life.
        incarnation: Incarnation,
        /// Why, for a person.
        why: &'static str,
    },
    /// Close the connection: what answers there is not to be spoken to.
    Close {
        /// Why, for a person.
        why: &'static str,
    },
}

/// How a link stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkState {
    /// No life of the worker is known, or the last one is lost.
    Away,
    /// It is heard.
    Here,
    /// It was not heard for a while.
    Silent,
}

/// A life of the worker that attempts may be placed on.
#[derive(Clone, Debug)]
struct Known {
    name: Arc<str>,
    life: Incarnation,
    tenure: u64,
    lease: Duration,
    lane: Lane<Down, Up>,
    heard: Time,
    silent: bool,
    refusals: Refusals,
    clock: PeerClock,
    owes: bool,
    heartbeat_at: Time,
}

/// A gateway's side of one worker.
#[derive(Clone, Debug)]
pub struct GatewaySide {
    me: Incarnation,
    name: Arc<str>,
    config: SessionConfig,
    known: Option<Known>,
    /// The newest life that was ever known: an older one is not spoken to again.
    newest: Option<Incarnation>,
    /// The newest connection's number, and whether its welcome has come.
    session: u64,
    open: bool,
    /// The newest hello is not answered, and its connection not over.
    expects: bool,
    stale: u64,
}

impl GatewaySide {
    /// A worker that was never heard of.
    pub fn new(gateway: Arc<str>, me: Incarnation, config: SessionConfig) -> GatewaySide {
        GatewaySide { me, name: gateway, config, known: None, newest: None, session: 0, open: false, expects: false, stale: 0 }
    }

    /// How it stands.
    pub fn state(&self) -> LinkState {
        match &self.known {
            None => LinkState::Away,
            Some(known) if known.silent => LinkState::Silent,
            Some(_) => LinkState::Here,
        }
    }

    /// The worker's life, if it is not lost.
    pub fn worker(&self) -> Option<Incarnation> {
        self.known.as_ref().map(|k| k.life)
    }

    /// The worker's clock against ours.
    pub fn clock(&self) -> Option<ClockSample> {
        self.known.as_ref().and_then(|k| k.clock.sample)
    }

    /// Messages that the worker has not acknowledged.
    pub fn waiting(&self) -> usize {
        self.known.as_ref().map_or(0, |k| k.lane.waiting())
    }

    /// Messages that were sent more than once in this tenure.
    pub fn resent(&self) -> u64 {
        self.known.as_ref().map_or(0, |k| k.lane.resent())
    }

    /// Messages that changed nothing because they were of another life or tenure (C-3).
    pub const fn stale(&self) -> u64 {
        self.stale
    }

    /// A try to connect came to an end: its host refused it (it answered, and nobody listens there), or anything else, a connection included.
    // contract: C-9, C-10
    pub fn tried(&mut self, is_refused: bool, now: Time) -> Vec<GatewayEffect> {
        let Some(known) = &mut self.known else { return Vec::new() };
        if !is_refused {
            known.refusals.broken();
        } else if known.refusals.refused(self.config.refused_after, now) {
            return vec![GatewayEffect::Refused { incarnation: known.life }];
        }
        Vec::new()
    }

    /// How long until a further refusal would tell something; `None` if none would. Another try later than that keeps callers waiting.
    pub fn try_within(&self, now: Time) -> Option<Duration> {
        self.known.as_ref()?.refusals.left(self.config.refused_after, now)
    }

    /// A connection is there: what is to be said on it first.
    pub fn hello(&mut self, now: Time) -> Hello {
        self.session += 1;
        self.open = false;
        self.expects = true;
        Hello {
            gateway: self.name.clone(),
            incarnation: self.me,
            session: self.session,
            resume: self.known.as_ref().map(|k| (k.life, k.tenure)),
            received: self.known.as_ref().map_or(0, |k| k.lane.received()),
            lease: self.config.lease,
            stamp: now,
        }
    }

    /// The worker's answer to the newest hello.
    pub fn welcome(&mut self, welcome: &Welcome, now: Time) -> Vec<GatewayEffect> {
        let mut out = Vec::new();
        // An answer to a hello that was given up: it may go on with a tenure that is over here.
        if !std::mem::take(&mut self.expects) {
            self.stale += 1;
            return vec![GatewayEffect::Close { why: "an answer that is not waited for" }];
        }
        if self.newest.is_some_and(|newest| welcome.incarnation < newest) {
            self.stale += 1;
            return vec![GatewayEffect::Close { why: "an older life of the worker answers" }];
        }
        match &mut self.known {
            Some(known) if (known.life, known.tenure) == (welcome.incarnation, welcome.tenure) => {
                known.lane.acknowledge(welcome.received, false, &self.config, now);
                known.lane.rewind();
                known.clock.hear(welcome.stamp, None, now);
                known.heartbeat_at = now;
            }
            // Another process. It says nothing about what the one before it does.
            Some(known) if known.name != welcome.worker => {
                return vec![GatewayEffect::Close { why: "a worker of another name answers; the one before it has a lease" }];
            }
            Some(known) => {
                let why =
                    if known.life == welcome.incarnation { "the worker holds nothing of us any more" } else { "a newer life answers" };
                out.push(GatewayEffect::Lost { incarnation: known.life, why });
                self.begin(welcome, now, &mut out);
            }
            None => self.begin(welcome, now, &mut out),
        }
        self.open = true;
        self.heard(now, &mut out);
        self.flush(now, &mut out);
        out
    }

    fn begin(&mut self, welcome: &Welcome, now: Time, out: &mut Vec<GatewayEffect>) {
        self.newest = Some(welcome.incarnation);
        self.known = Some(Known {
            name: welcome.worker.clone(),
            life: welcome.incarnation,
            tenure: welcome.tenure,
            lease: self.config.lease.max(welcome.lease),
            lane: Lane::default(),
            heard: now,
            silent: false,
            refusals: Refusals::default(),
            clock: PeerClock::new(welcome.stamp, now),
            owes: true,
            heartbeat_at: now,
        });
        out.push(GatewayEffect::Here { name: welcome.worker.clone(), incarnation: welcome.incarnation });
    }

    /// The newest connection is over. It proves nothing (C-10).
    pub fn closed(&mut self) {
        self.open = false;
        self.expects = false;
    }

    /// Sends a message, now or when a connection is there; false if no life of the worker is known. A cancel that is on its way is only
    /// sent again, not added.
    // contract: C-8, C-9
    pub fn send(&mut self, message: Down, now: Time) -> (bool, Vec<GatewayEffect>) {
        let mut out = Vec::new();
        let Some(known) = &mut self.known else { return (false, out) };
        let again = |kept: &Down| match (kept, &message) {
            (Down::Cancel { attempt: a, cause: c, .. }, Down::Cancel { attempt, cause, .. }) => a == attempt && c == cause,
            _ => false,
        };
        if matches!(message, Down::Cancel { .. }) && known.lane.kept().any(again) {
            known.lane.rewind();
        } else {
            known.lane.push(message);
        }
        self.flush(now, &mut out);
        (true, out)
    }

    /// A frame came in on the newest connection.
    pub fn hear(&mut self, frame: Frame<Up>, now: Time) -> Vec<GatewayEffect> {
        let mut out = Vec::new();
        let (me, config) = (self.me, self.config);
        let meant = |k: &&mut Known| frame.to == me && frame.from == k.life && frame.tenure == k.tenure;
        let Some(known) = self.known.as_mut().filter(meant) else {
            // contract: C-3
            self.stale += 1;
            return out;
        };
        known.lane.acknowledge(frame.received, frame.missing, &config, now);
        known.clock.hear(frame.stamp, frame.echo, now);
        known.owes |= frame.number > 0;
        let messages = frame.message.map(|message| known.lane.accept(frame.number, message, &config)).unwrap_or_default();
        self.heard(now, &mut out);
        out.extend(messages.into_iter().map(GatewayEffect::Deliver));
        self.flush(now, &mut out);
        out
    }

    fn heard(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        let Some(known) = &mut self.known else { return };
        known.heard = now;
        let was_refused = known.refusals.over();
        if std::mem::take(&mut known.silent) | was_refused {
            out.push(GatewayEffect::Back);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Time) -> Vec<GatewayEffect> {
        let mut out = Vec::new();
        let Some(known) = &mut self.known else { return out };
        // contract: C-9. The worker counts from a stamp that it made before we heard of it, so its lease ends before this.
        if now >= known.lost_at() {
            let incarnation = known.life;
            self.known = None;
            self.open = false;
            self.expects = false;
            out.push(GatewayEffect::Lost { incarnation, why: "its lease ran out" });
            out.push(GatewayEffect::Close { why: "its lease ran out" });
            return out;
        }
        if now >= known.heard.after(self.config.suspend_after) && !std::mem::replace(&mut known.silent, true) {
            out.push(GatewayEffect::Silent);
        }
        self.flush(now, &mut out);
        out
    }

    /// When `tick` is next worth calling.
    pub fn next_due(&self) -> Option<Time> {
        let known = self.known.as_ref()?;
        let frames = [Some(known.heartbeat_at), known.lane.resend_at(&self.config)].into_iter().flatten().filter(|_| self.open);
        let silent = (!known.silent).then(|| known.heard.after(self.config.suspend_after));
        frames.chain(silent).chain([known.lost_at()]).min()
    }

    /// What is to be said now.
    fn flush(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        let (me, config, open) = (self.me, self.config, self.open);
        let Some(known) = self.known.as_mut().filter(|_| open) else { return };
        let first = out.len();
        while let Some((number, message)) = known.lane.pop_due(&config, now) {
            out.push(GatewayEffect::Send(Box::new(known.frame(me, number, Some(message), now))));
        }
        let missing = known.lane.take_missing();
        if out.len() == first && (missing || known.owes || now >= known.heartbeat_at) {
            out.push(GatewayEffect::Send(Box::new(known.frame(me, 0, None, now))));
        }
        if let Some(GatewayEffect::Send(last)) = out.get_mut(first..).and_then(<[_]>::last_mut) {
            last.missing = missing;
            known.owes = false;
            known.heartbeat_at = now.after(config.heartbeat);
        }
    }
}

impl Known {
    /// When the worker's lease for us is over for certain.
    fn lost_at(&self) -> Time {
        self.heard.after(self.lease).after(SessionConfig::clock_error(self.lease))
    }

    fn frame(&self, me: Incarnation, number: u64, message: Option<Down>, now: Time) -> Frame<Down> {
        Frame {
            from: me,
            to: self.life,
            tenure: self.tenure,
            number,
            received: self.lane.received(),
            missing: false,
            stamp: now,
            echo: Some(self.clock.echo(now)),
            message,
        }
    }
}
