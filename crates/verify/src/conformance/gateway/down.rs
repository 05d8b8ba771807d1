//! What goes down: messages by their numbers, again until they are acknowledged, and heartbeats; done wrong where a knob says so.
//!
//! Invariant: without a knob turned, this is a lane as the .proto describes it.

use std::time::{Duration, Instant};

use lifecycle::message::Down;
use protocol::worker_v1 as wire;

use super::bytes;
use super::state::State;

/// Between two frames when there is nothing else to say, if the worker states no other.
const HEARTBEAT: Duration = Duration::from_millis(50);
/// An unacknowledged message goes again after this, if the worker states no other.
const RESEND_AFTER: Duration = Duration::from_millis(200);

impl State {
    /// Puts a message into the lane.
    pub(super) fn say(&mut self, message: &Down) {
        match wire::down_frame::Message::try_from(message) {
            Ok(message) => self.kept.push_back(message),
            Err(error) => self.breaches.push(format!("the judge's own message cannot be sent: {error}")),
        }
    }

    /// A frame; `number` 0 and no message is a heartbeat.
    pub fn frame(&mut self, number: u64, message: Option<wire::down_frame::Message>) -> wire::DownFrame {
        let (echo, stamp_us) = (self.echo(), self.stamp_now());
        let held_us = u64::try_from(echo.held.as_micros()).unwrap_or(u64::MAX);
        let head = wire::Head {
            from: bytes(self.me),
            to: bytes(self.worker),
            tenure: self.tenure,
            number,
            received: self.received,
            missing: std::mem::take(&mut self.missing),
            stamp_us,
            echo: Some(wire::Echo { stamp_us: echo.stamp.0, held_us }),
        };
        (self.told, self.owes, self.beat_at) = (self.received, false, Instant::now());
        wire::DownFrame { head: Some(head), message }
    }

    /// What goes out now.
    pub(super) fn due(&mut self, session: u64) -> Vec<wire::Down> {
        if session != self.session {
            return Vec::new();
        }
        let mut out = std::mem::take(&mut self.raw);
        if self.knobs.speaks {
            let (heartbeat, resend_after) = self.limits.map_or((HEARTBEAT, RESEND_AFTER), |limits| (limits.heartbeat, limits.resend_after));
            if self.sent > self.acknowledged && self.sent_at.elapsed() >= resend_after {
                self.sent = self.acknowledged;
            }
            let mut frames = self.messages();
            if frames.is_empty() && (self.missing || self.owes || self.beat_at.elapsed() >= heartbeat) {
                frames.push(self.frame(0, None));
            }
            out.extend(frames.into_iter().map(|frame| wire::Down { kind: Some(wire::down::Kind::Frame(frame)) }));
        }
        out
    }

    fn messages(&mut self) -> Vec<wire::DownFrame> {
        let last = self.acknowledged + (self.kept.len() as u64).min(self.limits.map_or(1, |limits| limits.window));
        let numbers: Vec<u64> = (self.sent + 1..=last).collect();
        if self.sent == self.acknowledged && !numbers.is_empty() {
            self.sent_at = Instant::now();
        }
        self.sent = self.sent.max(last);
        let mut frames = Vec::new();
        for number in numbers {
            self.counted_down += 1;
            let lost = unlucky(self.counted_down, self.knobs.lose_down);
            if lost || self.knobs.hold_first && number == self.acknowledged + 1 {
                continue;
            }
            let message = self.kept.get((number - self.acknowledged - 1) as usize).cloned();
            for _ in 0..if self.knobs.double { 2 } else { 1 } {
                let frame = self.frame(number, message.clone());
                frames.push(frame);
            }
        }
        if self.knobs.reverse {
            frames.reverse();
        }
        frames
    }
}

/// Whether the message that comes as this one is lost, where one in `each` is. Scattered, and the same in every run: a regular pattern could
/// meet the same message in every repetition.
pub(super) fn unlucky(count: u64, each: u64) -> bool {
    each > 0 && (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33).is_multiple_of(each)
}
