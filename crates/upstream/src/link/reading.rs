//! Reading one run's answer: a stream of events, or a whole one; what it says of tokens, usage and ends is counted beside what is passed on.
//!
//! Invariant: a byte that is passed on is as it came, whether or not it could be read here.

use std::time::Duration;

use bytes::Bytes;
use gateway::{Reason, mended};
use lifecycle::message::{Delta, Passed, Piece, Up};
use lifecycle::{Cause, StepId};

use super::judge;
use super::run::Run;
use crate::calls::{self, More};
use crate::client::Answer;
use crate::sse::{Choice, Event, Scanner};
use crate::{sse, whole};

/// Answers of one run that are told apart.
const CHOICES_MAX: usize = 4096;

impl Run {
    pub(super) async fn events(&mut self, answer: &mut Answer) -> Result<(), Reason> {
        let config = &self.shared.config;
        let mut scanner = Scanner::new(config.line_bytes_max, config.event_bytes_max);
        let mut events: Vec<Event> = Vec::new();
        while let Some(piece) = answer.next().await.map_err(|e| judge::broken_off(&e))? {
            events.clear();
            let pushed = scanner.push(piece, &mut events);
            let empty = answer.empty_at().saturating_duration_since(self.shared.began);
            let (tokens, mut said) = self.take(&events, empty);
            let run = pushed.map_err(|e| Reason::Plain(e.to_string()))?;
            if self.garbled {
                return Err("the engine's stream has an event that is no JSON".to_owned().into());
            }
            if self.forwarded {
                // The tokens stand at the last of them: what was read together is delivered together.
                let last = |bytes| if self.done { Piece::Tail(bytes) } else { Piece::Body(bytes) };
                match (run.across.is_empty(), run.within.is_empty()) {
                    (true, true) => {}
                    (false, true) => self.pass(tokens, last(run.across)),
                    (true, false) => self.pass(tokens, last(run.within)),
                    (false, false) => {
                        self.pass(0, Piece::Body(run.across));
                        self.pass(tokens, last(run.within));
                    }
                }
            } else if !said.is_empty() {
                said.iter_mut().for_each(|delta| delta.attempt = self.attempt.clone());
                self.shared.say(Up::Step { step: StepId(0), deltas: said });
            }
            // Whoever has read `[DONE]` closes, however long the engine takes to end the body: that is nobody's leaving.
            if self.done {
                break;
            }
        }
        let (last, rest) = scanner.finish();
        if let Some(event) = last {
            let empty = answer.empty_at().saturating_duration_since(self.shared.began);
            self.take(std::slice::from_ref(&event), empty);
        }
        // Half an event is no event, and the error that follows it must be one.
        if self.forwarded && self.done && !rest.is_empty() {
            self.pass(0, Piece::Tail(rest));
        }
        Ok(())
    }

    /// What events say: tokens, and for those who do not forward them what they add to each answer. There was nothing to read at `empty`.
    fn take(&mut self, events: &[Event], empty: Duration) -> (u32, Vec<Delta>) {
        let (mut tokens, mut unshown, mut deltas) = (0_u32, 0_u32, Vec::new());
        for event in events {
            // What is alike but for its text may say more beside it.
            if let Some((index, text)) = self.pattern.alike(event).filter(|_| !self.worded) {
                self.tokens.shown(self.shared.now(), empty);
                tokens = tokens.saturating_add(1);
                self.choice(index, true, false);
                if !self.forwarded {
                    deltas.push(self.delta(index, text, true, None));
                }
                continue;
            }
            let chunk = self.pattern.read(event);
            self.garbled |= chunk.unreadable && event.name.is_none() && !self.done;
            self.done |= chunk.done;
            let shown = chunk.said.tokens();
            if shown > 0 {
                self.tokens.shown(self.shared.now(), empty);
                tokens = tokens.saturating_add(shown);
            }
            if let Some(error) = &chunk.said.error {
                self.complaint.get_or_insert_with(|| judge::words(error));
            }
            if let Some(usage) = &chunk.said.usage {
                self.count(usage);
                // Tokens that no event of their own showed come with what says that there were more.
                let all = self.usage.generated.saturating_sub(self.counted);
                unshown = unshown.saturating_add(all.saturating_sub(tokens));
                tokens = tokens.max(all);
            }
            for choice in &chunk.said.choices {
                let finish = self.ended(choice);
                let ends = choice.finish_reason.is_some();
                self.choice(choice.index, choice.generated, ends);
                if !self.forwarded && (choice.generated || ends) {
                    let data = event.data.as_deref().filter(|_| self.worded);
                    let more = data.map(|data| calls::read(data, choice.index)).unwrap_or_default();
                    self.add(choice, more, finish, &mut deltas);
                }
            }
        }
        if let Some(passed) = deltas.last_mut().and_then(|delta| delta.passed.as_mut()) {
            passed.tokens = passed.tokens.saturating_add(unshown);
        }
        self.counted = self.counted.saturating_add(tokens);
        (tokens, deltas)
    }

    /// What one event says of one answer, in its order: text, then parts of calls, then the end.
    fn add(&self, choice: &Choice<'_>, more: More, finish: Option<Cause>, deltas: &mut Vec<Delta>) {
        let mut generated = choice.generated;
        if !choice.text.is_empty() || !more.logprobs.is_empty() || more.calls.is_empty() {
            let text = self.delta(choice.index, &choice.text, std::mem::take(&mut generated), None);
            deltas.push(Delta { logprobs: more.logprobs, ..text });
        }
        for called in more.calls {
            let passed = Passed { tokens: u32::from(std::mem::take(&mut generated)), piece: Piece::Called(Box::new(called)) };
            deltas.push(Delta { passed: Some(Box::new(passed)), ..self.delta(choice.index, "", false, None) });
        }
        if let Some(last) = deltas.last_mut() {
            last.finish = finish;
        }
    }

    /// What one answer of the run says, for whoever makes the caller's answer of it.
    fn delta(&self, index: u32, text: &str, generated: bool, finish: Option<Cause>) -> Delta {
        let passed = Passed { tokens: u32::from(generated), piece: Piece::Said };
        Delta {
            attempt: self.attempt.clone(),
            sequence: index,
            text: text.to_owned(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish,
            passed: Some(Box::new(passed)),
        }
    }

    /// Why an answer came to its own end, if it did.
    fn ended(&mut self, choice: &Choice<'_>) -> Option<Cause> {
        let word = choice.finish_reason.as_deref()?;
        let finish = judge::finish(word);
        self.finish = self.finish.or(finish);
        if finish.is_none() {
            self.given_up.get_or_insert_with(|| word.to_owned());
        }
        finish
    }

    /// One answer of the run has said something, or its end.
    fn choice(&mut self, index: u32, generated: bool, ends: bool) {
        if ends {
            self.unfinished.remove(&index);
            self.finished = self.finished.saturating_add(1);
        } else if generated && self.unfinished.len() < CHOICES_MAX {
            self.unfinished.insert(index);
        }
    }

    fn count(&mut self, usage: &sse::Usage) {
        let small = |n: Option<u64>| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        self.usage.prompt = small(usage.prompt_tokens).unwrap_or(self.usage.prompt);
        self.usage.cached_prompt = small(usage.cached_tokens).unwrap_or(self.usage.cached_prompt);
        self.usage.generated = small(usage.completion_tokens).unwrap_or(self.usage.generated);
    }

    /// An answer that is no stream: as it comes, and what it says when it is whole.
    pub(super) async fn body(&mut self, answer: &mut Answer) -> Result<(), Reason> {
        let mut whole = Vec::new();
        let mut last: Option<Bytes> = None;
        while let Some(piece) = answer.next().await.map_err(|e| judge::broken_off(&e))? {
            whole.extend_from_slice(&piece);
            if let Some(before) = last.replace(piece)
                && self.forwarded
            {
                self.pass(0, Piece::Body(before));
            }
        }
        let is_good = (200..300).contains(&answer.status);
        // What says that it is something else may be read by whoever asked for that.
        let is_json = answer.content_type.as_deref().is_none_or(|kind| kind.to_ascii_lowercase().contains("json"));
        if whole.is_empty() && is_good {
            return Err("the engine's answer is empty".to_owned().into());
        }
        if let Some(said) = whole::read(&whole) {
            said.usage.iter().for_each(|usage| self.count(usage));
            for choice in &said.choices {
                self.ended(choice);
            }
            // A hop that streams may tell a failure so, behind a head that was sent before it knew.
            self.complaint = said.error.as_ref().map(judge::words);
            if is_good && self.completes && said.error.is_none() && said.choices.is_empty() {
                return Err("the engine's answer is no completion".to_owned().into());
            }
        } else if is_good && is_json && serde_json::from_slice::<serde::de::IgnoredAny>(&whole).is_err() && mended(&whole).is_none() {
            return Err("the engine's answer is no JSON".to_owned().into());
        } else if is_good && self.completes {
            return Err("the engine's answer is no completion".to_owned().into());
        }
        if let Some(last) = last.filter(|_| self.forwarded) {
            // All of its tokens are delivered with its end.
            let tokens = self.usage.generated;
            self.counted = tokens;
            self.pass(tokens, Piece::Body(last));
        }
        Ok(())
    }
}
