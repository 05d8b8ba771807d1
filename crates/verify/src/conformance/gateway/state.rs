//! What a scripted gateway knows: who it is, how far both lanes are, what it heard, and where it does wrong on purpose.
//!
//! Invariant: a new tenure begins with empty lanes; whoever had something running in the former one finds it in `lost`.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use lifecycle::message::Up;
use lifecycle::session::Echo;
use lifecycle::{AttemptId, Incarnation, Time};
use protocol::{Limits, Opened, worker_v1 as wire};
use tonic::{Code, Status};

use super::{Stories, Story};

/// What the gateway says to a question which attempts it claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    /// Claims what it has running, and disclaims the rest.
    Truth,
    /// Nothing.
    Nothing,
}

/// How it departs from a good gateway.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// Sends frames at all.
    pub speaks: bool,
    /// Takes in what comes; otherwise it is thrown away unread.
    pub hears: bool,
    /// Echoes the newest stamp; otherwise the one that was the newest when this was turned.
    pub echoes: bool,
    /// Of the messages that go out, one in so many is lost; 0 loses none.
    pub lose_down: u64,
    /// Of the messages that come in, one in so many is lost; 0 loses none.
    pub lose_up: u64,
    /// Loses every message that comes in when it comes for the first time.
    pub lose_first: bool,
    /// Sends each message twice.
    pub double: bool,
    /// Sends what is due at once last first.
    pub reverse: bool,
    /// Keeps the oldest unacknowledged message back and sends those behind it.
    pub hold_first: bool,
    /// What it answers to Ask.
    pub answers: Answers,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            speaks: true,
            hears: true,
            echoes: true,
            lose_down: 0,
            lose_up: 0,
            lose_first: false,
            double: false,
            reverse: false,
            hold_first: false,
            answers: Answers::Truth,
        }
    }
}

/// One life of a gateway.
pub struct State {
    pub name: String,
    pub me: Incarnation,
    /// Its newest session.
    pub session: u64,
    pub worker: Incarnation,
    pub tenure: u64,
    /// The lease that holds.
    pub lease: Duration,
    pub limits: Option<Limits>,
    pub knobs: Knobs,
    pub last_submit: u64,
    /// The number that each attempt was submitted with.
    pub numbers: HashMap<AttemptId, u64>,
    /// Frames that a case made by hand, to be sent as they are.
    pub raw: Vec<wire::Down>,
    pub stories: Stories,
    /// Attempts that were named in Ask, in the order in which they were.
    pub asked: Vec<AttemptId>,
    pub drainings: u32,
    /// What was wrong in what came.
    pub breaches: Vec<String>,
    /// How sessions ended.
    pub ended: HashMap<u64, Status>,
    /// Frames with a message that came, repetitions too.
    pub frames: u64,
    /// The status with which the worker is expected to end the newest session, if it is.
    pub may_end: Option<Code>,
    /// Frames of any kind, and whether the worker ever said `missing`.
    pub beats: u64,
    pub was_missing: bool,

    /// The clock's beginning.
    pub(super) began: Instant,
    /// Down lane: what is not acknowledged, the last number that was acknowledged, the last that was sent, and when.
    pub(super) kept: VecDeque<wire::down_frame::Message>,
    pub acknowledged: u64,
    pub(super) sent: u64,
    pub(super) sent_at: Instant,
    pub(super) again_at: Option<Instant>,
    pub(super) counted_down: u64,
    /// Up lane: what was taken, and the last number that the worker was told of.
    pub(super) taken: Vec<wire::up_frame::Message>,
    pub received: u64,
    pub(super) told: u64,
    pub(super) missing: bool,
    pub(super) owes: bool,
    pub(super) counted_up: u64,
    pub(super) highest: u64,
    pub(super) last_step: u64,
    /// The worker's newest stamp and when it was heard; the newest one that was sent.
    pub stamp: (Time, Instant),
    pub(super) stamped: u64,
    pub(super) beat_at: Instant,
}

impl State {
    pub(super) fn new(name: String, me: Incarnation) -> State {
        let now = Instant::now();
        State {
            name,
            me,
            session: 0,
            worker: Incarnation(0),
            tenure: 0,
            lease: Duration::ZERO,
            limits: None,
            knobs: Knobs::default(),
            last_submit: 0,
            numbers: HashMap::new(),
            raw: Vec::new(),
            stories: Stories::new(),
            asked: Vec::new(),
            drainings: 0,
            breaches: Vec::new(),
            ended: HashMap::new(),
            frames: 0,
            may_end: None,
            beats: 0,
            was_missing: false,
            began: now,
            kept: VecDeque::new(),
            acknowledged: 0,
            sent: 0,
            sent_at: now,
            again_at: None,
            counted_down: 0,
            taken: Vec::new(),
            received: 0,
            told: 0,
            missing: false,
            owes: false,
            counted_up: 0,
            highest: 0,
            last_step: 0,
            stamp: (Time::ZERO, now),
            stamped: 0,
            beat_at: now,
        }
    }

    /// Its clock; what it gives was sent.
    pub(super) fn stamp_now(&mut self) -> u64 {
        self.stamped = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        self.stamped
    }

    pub(super) fn echo(&self) -> Echo {
        Echo { stamp: self.stamp.0, held: self.stamp.1.elapsed() }
    }

    /// The worker has answered Hello.
    pub(super) fn welcome(&mut self, opened: &Opened) -> Result<(), String> {
        let welcome = &opened.welcome;
        let same = self.worker == welcome.incarnation && self.tenure == welcome.tenure;
        if welcome.incarnation == self.worker && welcome.tenure < self.tenure {
            return Err(format!("Welcome.tenure is {}, and was {} before", welcome.tenure, self.tenure));
        }
        if !same {
            (self.acknowledged, self.sent, self.received, self.told, self.highest, self.last_step) = (0, 0, 0, 0, 0, 0);
            (self.kept, self.taken) = (VecDeque::new(), Vec::new());
            self.stories.values_mut().filter(|story| !story.released).for_each(|story| story.lost = true);
        }
        let (lost, sent) = (welcome.received < self.acknowledged, self.acknowledged + self.kept.len() as u64);
        if lost || welcome.received > sent {
            return Err(format!(
                "Welcome.received is {}, of {sent} messages of which {} were acknowledged",
                welcome.received, self.acknowledged
            ));
        }
        self.acknowledge(welcome.received);
        self.sent = self.acknowledged;
        (self.worker, self.tenure, self.lease) = (welcome.incarnation, welcome.tenure, welcome.lease);
        (self.limits, self.stamp, self.beat_at) = (Some(opened.limits), (welcome.stamp, Instant::now()), Instant::now());
        Ok(())
    }

    /// The worker has taken all messages up to this one.
    pub(super) fn acknowledge(&mut self, received: u64) {
        for _ in self.acknowledged..received {
            self.kept.pop_front();
        }
        self.acknowledged = self.acknowledged.max(received);
        self.sent = self.sent.max(received);
        self.sent_at = Instant::now();
    }

    /// A session's stream has ended. Always true.
    pub(super) fn over(&mut self, session: u64, status: Status) -> bool {
        let expected = session < self.session && status.code() == Code::Cancelled;
        if session == self.session && self.may_end == Some(status.code()) {
            self.ended.insert(session, status);
            return true;
        }
        if session == self.session {
            self.breaches.push(format!("the worker ended the session: {:?} ({})", status.code(), status.message()));
        } else if !expected {
            let code = status.code();
            self.breaches
                .push(format!("a session that a newer one replaced ended with {code:?} ({}), and not CANCELLED", status.message()));
        }
        self.ended.insert(session, status);
        true
    }

    /// What is known of an attempt.
    pub fn story(&self, attempt: &AttemptId) -> Story {
        self.stories.get(attempt).cloned().unwrap_or_default()
    }

    /// Attempts of this gateway that are not released.
    pub fn running(&self) -> Vec<AttemptId> {
        self.stories.iter().filter(|(_, story)| story.mine && !story.released && !story.lost).map(|(id, _)| id.clone()).collect()
    }

    /// What was heard, in a few words.
    pub fn summary(&self) -> String {
        let stories: Vec<String> = self.stories.values().map(Story::summary).collect();
        let stories = if stories.is_empty() { "nothing of any attempt".to_owned() } else { stories.join("; ") };
        format!("{stories}; the worker has taken {} of {} messages", self.acknowledged, self.acknowledged + self.kept.len() as u64)
    }

    /// Takes in one message of the worker, whose turn it is.
    pub(super) fn take(&mut self, up: Up) {
        let (mut wrong, name) = (None, |attempt: &AttemptId| attempt.key.run.as_str().to_owned());
        let mut told = |attempt: &AttemptId, found: Result<(), String>| {
            wrong = wrong.take().or(found.err().map(|why| format!("{}: {why}", name(attempt))))
        };
        match up {
            Up::Accepted { attempt, prompt_tokens } => told(&attempt, self.known(&attempt).accepted(prompt_tokens)),
            Up::Step { step, deltas } => {
                if step.0 <= self.last_step {
                    self.breaches.push(format!("Step.step is {} after {}: it ascends", step.0, self.last_step));
                }
                self.last_step = step.0;
                for delta in deltas {
                    told(&delta.attempt, self.known(&delta.attempt).delta(&delta));
                }
            }
            Up::CancelAcknowledged { attempt, won } => told(&attempt, self.known(&attempt).acknowledged(won)),
            Up::Ended { attempt, outcome, usage } => told(&attempt, self.known(&attempt).ended(outcome, usage)),
            Up::Released { attempt, receipt } => told(&attempt, self.known(&attempt).released(receipt)),
            Up::Ask { attempts } => self.answer(attempts),
            Up::Draining => self.drainings += 1,
            Up::DeviceLost { why } => self.breaches.push(format!("DeviceLost: {why}")),
            // The last two have no form in this protocol.
            Up::Snapshot { .. } | Up::Records { .. } | Up::LetGo { .. } | Up::Reported { .. } => {}
        }
        self.breaches.extend(wrong);
    }

    fn known(&mut self, attempt: &AttemptId) -> &mut Story {
        self.stories.entry(attempt.clone()).or_default()
    }
}
