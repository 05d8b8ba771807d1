//! The text of a run: each sequence's tokens become text that is safe to show, and stop strings are found where the tokens are.
//!
//! Invariant: what was handed out never has to be taken back: no half character, no beginning of a stop string.

use std::sync::Arc;

use engine::Sampled;
use lifecycle::message::{Delta, TokenLogprob};
use lifecycle::{AttemptId, Cause};
use model::text::detokenizer::Detokenizer;
use model::text::stop::StopFinder;

use crate::text::Text;

/// The n answers of one attempt.
pub(crate) struct Answer {
    text: Arc<Text>,
    logprobs: bool,
    sequences: Vec<SequenceText>,
}

struct SequenceText {
    detokenizer: Detokenizer,
    stops: StopFinder,
    finish: Option<Cause>,
}

impl Answer {
    pub(crate) fn new(text: Arc<Text>, n: u32, stops: &[String], logprobs: bool) -> Answer {
        let one = |_| SequenceText { detokenizer: text.detokenizer(), stops: StopFinder::new(stops), finish: None };
        let sequences = (0..n).map(one).collect();
        Answer { text, logprobs, sequences }
    }

    /// Takes a sequence's next token; `finish` if the engine says that it is the last. The second value says that a stop string was found,
    /// which the engine does not know yet.
    pub(crate) fn push(&mut self, attempt: &AttemptId, sequence: u32, sampled: &Sampled, finish: Option<Cause>) -> (Delta, bool) {
        let mut delta = Delta {
            attempt: attempt.clone(),
            sequence,
            text: String::new(),
            tokens: vec![sampled.token],
            logprobs: self.logprob(sampled).into_iter().collect(),
            finish,
            passed: None,
        };
        let Some(seq) = self.sequences.get_mut(sequence as usize).filter(|s| s.finish.is_none()) else { return (delta, false) };
        let mut hit = false;
        // A stop token ends the answer and is no part of it.
        if finish != Some(Cause::Stop) {
            let piece = seq.detokenizer.push(sampled.token);
            let step = seq.stops.push(&piece);
            delta.text = step.text;
            hit = step.hit;
        }
        if finish.is_some() && !hit {
            let step = seq.stops.push(&seq.detokenizer.finish());
            delta.text.push_str(&step.text);
            hit = step.hit;
            if !hit {
                delta.text.push_str(&seq.stops.finish());
            }
        }
        if hit {
            delta.finish = Some(Cause::Stop);
        }
        seq.finish = delta.finish;
        (delta, hit && finish.is_none())
    }

    /// Whether every sequence came to its own end by a stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.sequences.iter().all(|s| s.finish == Some(Cause::Stop))
    }

    fn logprob(&self, sampled: &Sampled) -> Option<TokenLogprob> {
        let logprob = sampled.logprob.filter(|_| self.logprobs)?;
        let bytes = |token: u32| self.text.token_bytes(token);
        let top = sampled.top.iter().map(|(t, p)| (*t, bytes(*t), *p)).collect();
        Some(TokenLogprob { token: sampled.token, bytes: bytes(sampled.token), logprob, top })
    }
}
