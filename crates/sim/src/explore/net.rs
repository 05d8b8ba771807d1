//! Between gateway and worker: the real lanes, and under them a network in which frames are lost, doubled and overtake each other.
//!
//! Invariant: nothing here puts messages in order or repeats them but `lifecycle::session::Lane`.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use lifecycle::Time;
use lifecycle::session::{Lane, SessionConfig};

use super::words::{Down, Up};

/// A message either way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message {
    /// Gateway to worker.
    Down(Down),
    /// Worker to gateway.
    Up(Up),
}

/// A message on its way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Frame {
    /// The tenure it was sent in.
    pub tenure: u8,
    /// Its number in its lane.
    pub number: u64,
    /// The message.
    pub message: Message,
}

impl Frame {
    /// Whether it goes to the worker.
    pub fn is_down(&self) -> bool {
        matches!(self.message, Message::Down(_))
    }
}

/// One way's lane: what only the lane's two ends know together.
#[derive(Clone, Debug, Default)]
struct Way {
    pushed: u64,
    /// Numbers that came before their turn.
    early: BTreeSet<u64>,
    received: u64,
    acknowledged: u64,
    on_its_way: u64,
}

/// Two lanes and what is between them.
#[derive(Clone, Debug)]
pub struct Net {
    config: SessionConfig,
    gateway: Lane<Down, Up>,
    worker: Lane<Up, Down>,
    down: Way,
    up: Way,
    /// The gateway's tenure.
    pub tenure: u8,
    /// The worker's.
    pub worker_tenure: u8,
    /// Unordered.
    pub frames: Vec<Frame>,
}

/// What a delivered frame brought.
pub enum Brought {
    /// Messages in order; the frame was early, doubled or gave more than itself otherwise.
    Messages(Vec<Message>),
    /// It belongs to a tenure that is over.
    Stale,
}

impl Net {
    /// Nothing on its way.
    pub fn new() -> Net {
        // Time stands still in a lane: what it would send again by its own clock is sent again by `resend`.
        Net {
            config: SessionConfig::default(),
            gateway: Lane::default(),
            worker: Lane::default(),
            down: Way::default(),
            up: Way::default(),
            tenure: 1,
            worker_tenure: 1,
            frames: Vec::new(),
        }
    }

    /// Hands a message to its lane and lets the lane send.
    pub fn send(&mut self, message: Message) {
        match message {
            Message::Down(down) => {
                self.down.pushed += 1;
                self.gateway.push(down);
            }
            Message::Up(up) => {
                self.up.pushed += 1;
                self.worker.push(up);
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        while let Some((number, down)) = self.gateway.pop_due(&self.config, Time::ZERO) {
            self.down.on_its_way = self.down.on_its_way.max(number);
            self.frames.push(Frame { tenure: self.tenure, number, message: Message::Down(down) });
        }
        while let Some((number, up)) = self.worker.pop_due(&self.config, Time::ZERO) {
            self.up.on_its_way = self.up.on_its_way.max(number);
            self.frames.push(Frame { tenure: self.worker_tenure, number, message: Message::Up(up) });
        }
        self.frames.sort_unstable();
    }

    /// A frame arrives.
    pub fn deliver(&mut self, frame: Frame) -> Brought {
        let down = frame.is_down();
        if frame.tenure != if down { self.worker_tenure } else { self.tenure } {
            return Brought::Stale;
        }
        let way = if down { &mut self.down } else { &mut self.up };
        if frame.number > way.received {
            way.early.insert(frame.number);
        }
        let (messages, received): (Vec<Message>, u64) = match frame.message {
            Message::Down(message) => {
                let taken = self.worker.accept(frame.number, message, &self.config);
                (taken.into_iter().map(Message::Down).collect(), self.worker.received())
            }
            Message::Up(message) => {
                let taken = self.gateway.accept(frame.number, message, &self.config);
                (taken.into_iter().map(Message::Up).collect(), self.gateway.received())
            }
        };
        way.received = received;
        way.early.retain(|number| *number > received);
        Brought::Messages(messages)
    }

    /// How far the receiver has got comes to the sender, who may then send again what is missing.
    pub fn heartbeat(&mut self, down: bool) {
        if self.tenure != self.worker_tenure {
            return;
        }
        if down {
            let missing = self.worker.take_missing();
            self.gateway.acknowledge(self.down.received, missing, &self.config, Time::ZERO);
            self.down.acknowledged = self.down.received;
        } else {
            let missing = self.gateway.take_missing();
            self.worker.acknowledge(self.up.received, missing, &self.config, Time::ZERO);
            self.up.acknowledged = self.up.received;
        }
        self.flush();
    }

    /// Whether a heartbeat would tell anything.
    pub fn owes_heartbeat(&self, down: bool) -> bool {
        let way = if down { &self.down } else { &self.up };
        self.tenure == self.worker_tenure && way.received > way.acknowledged
    }

    /// Whether something is unacknowledged and nothing of this lane is on its way: it is sent again after `resend_after`.
    pub fn may_resend(&self, down: bool) -> bool {
        let way = if down { &self.down } else { &self.up };
        let kept = if down { self.gateway.waiting() } else { self.worker.waiting() };
        let moves = self.frames.iter().any(|f| f.is_down() == down && f.number > way.received);
        self.tenure == self.worker_tenure && kept > 0 && way.received < way.pushed && !moves
    }

    /// The sender's patience is over, or a new connection is made: all that is unacknowledged goes out again.
    pub fn resend(&mut self, down: bool) {
        if down {
            self.gateway.rewind()
        } else {
            self.worker.rewind()
        }
        self.flush();
    }

    /// The worker's end begins a new tenure: nothing of the old one counts there.
    pub fn renew_worker(&mut self) {
        self.worker = Lane::default();
        self.worker_tenure += 1;
        (self.down.received, self.down.early, self.up) = (0, BTreeSet::new(), Way::default());
    }

    /// The gateway's end takes the worker's tenure up.
    pub fn renew_gateway(&mut self) {
        self.gateway = Lane::default();
        self.tenure = self.worker_tenure;
        self.down = Way::default();
        (self.up.received, self.up.early) = (0, BTreeSet::new());
    }

    /// A connection breaks: what it carried is gone.
    pub fn break_connection(&mut self) {
        self.frames.clear();
    }

    /// Whether a frame is the next in its lane.
    pub fn is_next(&self, frame: &Frame) -> bool {
        let way = if frame.is_down() { &self.down } else { &self.up };
        frame.number == way.received + 1
    }

    /// Whether a frame overtakes another of its lane and tenure.
    pub fn overtakes(&self, frame: &Frame) -> bool {
        let way = if frame.is_down() { &self.down } else { &self.up };
        let before =
            |f: &Frame| f.is_down() == frame.is_down() && f.tenure == frame.tenure && f.number > way.received && f.number < frame.number;
        frame.number > way.received && self.frames.iter().any(before)
    }

    /// Whether a frame was here before.
    pub fn is_again(&self, frame: &Frame) -> bool {
        let way = if frame.is_down() { &self.down } else { &self.up };
        frame.number <= way.received || way.early.contains(&frame.number)
    }

    /// Whether nothing is on its way and nothing waits to be.
    pub fn is_quiet(&self) -> bool {
        self.frames.is_empty() && self.down.received == self.down.pushed && self.up.received == self.up.pushed
    }

    /// Writes the state into a fingerprint: numbers by their distance.
    pub fn hash_state<H: Hasher>(&self, out: &mut H) {
        (self.worker_tenure - self.tenure).hash(out);
        for (way, kept) in [(&self.down, self.gateway.waiting()), (&self.up, self.worker.waiting())] {
            let of = |n: u64| way.pushed.wrapping_sub(n);
            (kept, of(way.received), of(way.acknowledged), of(way.on_its_way)).hash(out);
            way.early.iter().for_each(|number| of(*number).hash(out));
        }
        self.gateway.kept().for_each(|m| m.hash(out));
        self.worker.kept().for_each(|m| m.hash(out));
        self.frames.len().hash(out);
        for frame in &self.frames {
            let (way, tenure) = if frame.is_down() { (&self.down, self.worker_tenure) } else { (&self.up, self.tenure) };
            if frame.tenure == tenure && frame.number > way.received {
                (1u8, frame.is_down(), frame.number - way.received, &frame.message).hash(out);
            } else {
                // Whatever it says is thrown away.
                (2u8, frame.is_down(), frame.tenure < tenure).hash(out);
            }
        }
    }
}

impl Default for Net {
    fn default() -> Net {
        Net::new()
    }
}
