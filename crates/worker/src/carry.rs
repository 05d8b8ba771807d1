//! What the engine wants done: records into the journal, tokens into text, words to gateways.
//!
//! Invariant: what happened is in the journal before anybody is told of it.
// contract: C-6

use engine::{Effect, Input};
use lifecycle::event::{Event, Record};
use lifecycle::message::{Delta, Up};
use lifecycle::{AttemptId, Cause, Outcome, Time};

use crate::engine_thread::EngineThread;

impl EngineThread {
    pub(crate) fn apply(&mut self, input: Input) {
        self.audited = false;
        let now = self.journal.clock().now();
        let effects = self.engine.apply(input, now);
        self.carry_out(effects, now);
    }

    /// What happened goes into the journal before anybody is told: whoever hangs up on a token must not find it recorded as computed after
    /// he left. Then tokens, as one message; then what was decided, in order. A stop string found in the text is one more input.
    pub(crate) fn carry_out(&mut self, mut effects: Vec<Effect>, now: Time) {
        let step = self.engine.newest_done();
        let (deltas, stops) = self.texts(&effects);
        self.stop_beats_length(&mut effects);
        for effect in &effects {
            if let Effect::Journal(attempt, event) = effect {
                let (run, attempt) = attempt.as_ref().map_or((None, 0), |id| (Some(id.key.clone()), id.attempt));
                self.journal.record_at(Record { at: now, run, attempt, event: event.clone() });
            }
        }
        if !deltas.is_empty() {
            self.say(Up::Step { step, deltas });
        }
        for effect in effects {
            self.carry_out_one(effect);
        }
        for (attempt, sequence) in stops {
            self.apply(Input::Stop { attempt, sequence });
        }
    }

    /// The text of the new tokens, and the sequences in which a stop string was found that the engine does not know of.
    fn texts(&mut self, effects: &[Effect]) -> (Vec<Delta>, Vec<(AttemptId, u32)>) {
        let (mut deltas, mut stops) = (Vec::new(), Vec::new());
        for effect in effects {
            let Effect::Token { attempt, sequence, sampled, finish } = effect else { continue };
            let Some(live) = self.answers.get_mut(attempt) else { continue };
            live.generated = true;
            let (delta, stop_found) = live.answer.push(attempt, *sequence, sampled, *finish);
            deltas.push(delta);
            if stop_found {
                stops.push((attempt.clone(), *sequence));
            }
        }
        (deltas, stops)
    }

    /// A stop string may end with the very token that reaches the cap. The engine counts and says `length`; the caller is told `stop`, as
    /// everywhere in the field, so the record must say it too.
    // contract: C-6
    fn stop_beats_length(&self, effects: &mut [Effect]) {
        for effect in effects {
            let (attempt, outcome) = match effect {
                Effect::Journal(Some(attempt), Event::AttemptEnded { outcome }) | Effect::Ended { attempt, outcome, .. } => {
                    (attempt, outcome)
                }
                _ => continue,
            };
            if outcome.cause == Cause::Length && self.answers.get(attempt).is_some_and(|live| live.answer.is_stopped()) {
                *outcome = Outcome::of(Cause::Stop);
            }
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Journal(..) | Effect::Token { .. } => {}
            Effect::Accepted { attempt, prompt_tokens } => self.say(Up::Accepted { attempt, prompt_tokens }),
            Effect::CancelAcknowledged { attempt, won } => self.say(Up::CancelAcknowledged { attempt, won }),
            Effect::Ended { attempt, outcome, usage } => {
                if let Some(live) = self.answers.remove(&attempt) {
                    live.unwanted.set();
                }
                if let Some(draining) = &mut self.draining {
                    draining.ended(&attempt, &outcome, usage);
                }
                self.say(Up::Ended { attempt, outcome, usage });
            }
            Effect::Released { attempt, receipt } => self.say(Up::Released { attempt, receipt }),
            Effect::DeviceLost(why) => {
                tracing::error!(%why, "the device is lost: every run fails until the server is started again");
                self.refused_plan = None;
                self.say(Up::DeviceLost { why });
            }
        }
    }
}
