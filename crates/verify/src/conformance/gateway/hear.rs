//! What comes up: each frame is judged by what the .proto says of frames, then its message is taken if its turn has come.
//!
//! Invariant: whatever a case is about, a frame that breaks the .proto is a breach and fails it.

use std::time::{Duration, Instant};

use lifecycle::AttemptId;
use lifecycle::message::{Down, Up};
use lifecycle::session::Frame;
use prost::Message;
use protocol::{FromWorker, worker_v1 as wire};

use super::down::unlucky;
use super::state::{Answers, State};

/// Shortest pause between two repetitions that the worker asked for.
const PAUSE: Duration = Duration::from_millis(10);

impl State {
    /// A frame came in on a session.
    pub(super) fn hear(&mut self, session: u64, up: &wire::Up) {
        if session != self.session || !self.knobs.hears {
            return;
        }
        match FromWorker::try_from(up.clone()) {
            Err(error) => self.breaches.push(format!("a message that is none: {error}")),
            Ok(FromWorker::Welcome(_)) => self.breaches.push("a second Welcome".to_owned()),
            Ok(FromWorker::Frame(frame)) => {
                if let Err(why) = self.head(&frame, up.encoded_len() as u64) {
                    self.breaches.push(why);
                }
                self.beats += 1;
                self.was_missing |= frame.missing;
                let message = match &up.kind {
                    Some(wire::up::Kind::Frame(wire::UpFrame { message: Some(message), .. })) => message,
                    _ => return,
                };
                self.message(frame, message);
            }
        }
    }

    /// What every frame has.
    fn head(&mut self, frame: &Frame<Up>, bytes: u64) -> Result<(), String> {
        let must = |holds: bool, why: String| if holds { Ok(()) } else { Err(why) };
        must(frame.from == self.worker, format!("Head.from is {}, and Welcome.incarnation was {}", frame.from, self.worker))?;
        must(frame.to == self.me, format!("Head.to is {}, and Hello.incarnation was {}", frame.to, self.me))?;
        must(frame.tenure == self.tenure, format!("Head.tenure is {}, and Welcome.tenure was {}", frame.tenure, self.tenure))?;
        must(frame.stamp >= self.stamp.0, format!("Head.stamp_us went back from {:?} to {:?}", self.stamp.0, frame.stamp))?;
        let echo = frame.echo.ok_or("Head.echo is missing: there is a stamp from Hello on")?;
        must(echo.stamp.0 <= self.stamped, format!("Head.echo has {:?}, a stamp that was not made yet", echo.stamp))?;
        let (received, sent) = (frame.received, self.sent);
        must(received >= self.acknowledged, format!("Head.received went back from {} to {received}", self.acknowledged))?;
        must(received <= sent, format!("Head.received is {received}, and only {sent} were sent"))?;
        if let Some(limits) = self.limits {
            must(bytes <= limits.frame_bytes_max, format!("a frame of {bytes} bytes; frame_bytes_max is {}", limits.frame_bytes_max))?;
            let most = self.told + limits.window;
            must(
                frame.number <= most,
                format!("message {} while {} were acknowledged and window is {}", frame.number, self.told, limits.window),
            )?;
        }
        if self.knobs.echoes {
            self.stamp = (frame.stamp, Instant::now());
        }
        if received > self.acknowledged {
            self.acknowledge(received);
        }
        if frame.missing && self.again_at.is_none_or(|at| at.elapsed() >= PAUSE) {
            (self.sent, self.again_at) = (self.acknowledged, Some(Instant::now()));
        }
        Ok(())
    }

    /// A message came: it is taken if its turn has come, and it is not to be lost on purpose.
    fn message(&mut self, frame: Frame<Up>, message: &wire::up_frame::Message) {
        let (number, Some(up)) = (frame.number, frame.message) else { return };
        self.frames += 1;
        self.counted_up += 1;
        let first = number > self.highest;
        self.highest = self.highest.max(number);
        if number <= self.received {
            self.owes = true;
            if self.taken.get(number as usize - 1) != Some(message) {
                self.breaches.push(format!("message {number} came again, and is another one"));
            }
            return;
        }
        if unlucky(self.counted_up, self.knobs.lose_up) || self.knobs.lose_first && first {
            return;
        }
        self.owes = true;
        if number > self.received + 1 {
            self.missing = true;
            return;
        }
        self.received = number;
        self.taken.push(message.clone());
        self.take(up);
    }

    /// The worker asks which attempts are this gateway's.
    pub(super) fn answer(&mut self, attempts: Vec<AttemptId>) {
        self.asked.extend(attempts.iter().cloned());
        if self.knobs.answers == Answers::Nothing {
            return;
        }
        let running = self.running();
        let (claimed, disclaimed): (Vec<_>, Vec<_>) = attempts.into_iter().partition(|attempt| running.contains(attempt));
        for message in [Down::Claim { attempts: claimed }, Down::Disclaim { attempts: disclaimed }] {
            self.say(&message);
        }
    }
}
