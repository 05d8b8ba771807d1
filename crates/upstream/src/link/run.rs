//! One run at an upstream, from its submit to its end.
//!
//! Invariant: what is passed on was read as it came; nothing is said behind the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gateway::{THEIRS, UNREACHED};
use http::HeaderMap;
use lifecycle::message::{Delta, Passed, Piece, Prompt, Receipt, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Guarantee, Outcome, StepId};
use tokio::sync::watch;

use super::judge::End;
use super::{Shared, Task, ask, held, judge};
use crate::abort::{Asks, RequestName};
use crate::client::{Answer, CallError, Limits};
use crate::evidence::Tokens;
use crate::pattern::Pattern;
use crate::sse::{Event, Scanner};
use crate::{sse, whole};

/// Answers of one run that are told apart.
const CHOICES_MAX: usize = 4096;

struct Run {
    shared: Arc<Shared>,
    attempt: AttemptId,
    forwarded: bool,
    tokens: Arc<Tokens>,
    usage: Usage,
    /// Tokens counted by their events.
    counted: u32,
    finish: Option<Cause>,
    /// Answers of the run that have ended, and those that have begun and not ended.
    finished: u32,
    unfinished: BTreeSet<u32>,
    asked: u32,
    /// The stream's proper end was read.
    done: bool,
    pattern: Pattern,
    /// The engine's own error, in a stream.
    complaint: Option<String>,
}

pub(super) async fn run(shared: Arc<Shared>, submit: Submit, mut cancelled: watch::Receiver<Option<Cause>>) {
    let number = submit.number;
    let name = RequestName(shared.life.0 ^ u128::from(number));
    let (path, body, forwarded) = match &submit.prompt {
        Prompt::Forward(forward) => (forward.path.clone(), ask::capped(forward, &submit.params, &shared.config), true),
        _ => match ask::request(&submit, shared.config.cap) {
            Ok((path, body)) => (path, body, false),
            Err(why) => {
                return shared.give_back(submit.attempt, Outcome::because(Cause::Invalid, why));
            }
        },
    };
    let tokens = held(&shared.ledger).sent(number, shared.now());
    let mut run = Run::new(&shared, &submit, forwarded, tokens);
    let mut headers = HeaderMap::new();
    let body = shared.aborter().name(name, &mut headers, body);
    let before = *cancelled.borrow_and_update();
    let end = match before {
        Some(cause) => End::Unsent(cause),
        None => tokio::select! {
            biased;
            cause = wanted(&mut cancelled) => End::Cancelled(cause),
            end = run.call(&path, headers, body) => end,
        },
    };
    // Whatever was read is dropped by now, and its connection closed with it.
    if end.is_proven() {
        held(&shared.ledger).ended(number);
    } else {
        shared.tell_engine(name, asks(&path), shared.limits());
    }
    run.end(end, number);
}

async fn wanted(cancelled: &mut watch::Receiver<Option<Cause>>) -> Cause {
    loop {
        if let Some(cause) = *cancelled.borrow_and_update() {
            return cause;
        }
        if cancelled.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn asks(path: &str) -> Asks {
    match path {
        "/v1/chat/completions" => Asks::Chat,
        "/v1/completions" => Asks::Completions { prompts: 1 },
        _ => Asks::Other,
    }
}

impl Shared {
    /// Ends a run of which the engine has got nothing.
    fn give_back(&self, attempt: AttemptId, outcome: Outcome) {
        self.say(Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() });
        held(&self.live).remove(&attempt);
        self.say(Up::Released { attempt, receipt: Receipt::default() });
    }

    pub(super) fn limits(&self) -> Limits {
        let (head_timeout, answer_bytes_max) = (self.config.look_timeout, self.config.look_bytes_max);
        Limits { head_timeout, idle_timeout: head_timeout, answer_bytes_max }
    }

    /// Reads the end of a body whose stream has said its own, so that its connection can be used again.
    fn let_end(self: &Arc<Self>, mut answer: Answer) {
        let (task, patience) = (Task::begin(self), self.config.look_timeout);
        tokio::spawn(async move {
            let _task = task;
            let _ = tokio::time::timeout(patience, async { while let Ok(Some(_)) = answer.next().await {} }).await;
        });
    }

    /// Asks the engine to cancel by id, where it knows that, beside the close.
    fn tell_engine(self: &Arc<Self>, name: RequestName, asks: Asks, limits: Limits) {
        let (shared, aborter) = (self.clone(), self.aborter());
        if aborter.request(name, asks).is_none() {
            return;
        }
        let task = Task::begin(self);
        tokio::spawn(async move {
            let _task = task;
            let told = aborter.send(&shared.client, name, asks, limits).await;
            tracing::debug!(upstream = %shared.config.name, ?told, "asked to cancel by id");
        });
    }
}

impl Run {
    fn new(shared: &Arc<Shared>, submit: &Submit, forwarded: bool, tokens: Arc<Tokens>) -> Run {
        Run {
            shared: shared.clone(),
            attempt: submit.attempt.clone(),
            forwarded,
            tokens,
            usage: Usage::default(),
            counted: 0,
            finish: None,
            finished: 0,
            unfinished: BTreeSet::new(),
            asked: submit.params.n,
            done: false,
            pattern: Pattern::default(),
            complaint: None,
        }
    }

    async fn call(&mut self, path: &str, headers: HeaderMap, body: Bytes) -> End {
        // In a place of its own, which is given back before the first token: what asks takes more room than what reads.
        let asking = Box::pin(self.shared.client.post(path, headers, body));
        let mut answer = match asking.await {
            Ok(answer) => answer,
            Err(CallError::NotSent(why)) => return End::NotSent(why.to_string()),
            Err(CallError::Lost(why)) => return End::Lost(judge::broken(&why)),
        };
        let (status, is_events) = (answer.status, answer.is_event_stream());
        if let Some(why) = judge::unfit(&answer, self.forwarded) {
            return End::Lost(why);
        }
        if self.forwarded {
            self.shared.say(Up::Accepted { attempt: self.attempt.clone(), prompt_tokens: 0 });
            let content_type = answer.content_type.as_deref().map(Into::into);
            let headers = std::mem::take(&mut answer.headers);
            self.pass(0, Piece::Head { status, content_type, headers: judge::headers(&headers) });
        } else if (200..300).contains(&status) {
            self.shared.say(Up::Accepted { attempt: self.attempt.clone(), prompt_tokens: 0 });
        }
        if is_events && self.shared.capabilities().is_some_and(|met| met.capabilities.closes_behind_streams) {
            answer.close_behind();
        }
        let read = if is_events && (200..300).contains(&status) { self.events(answer).await } else { self.body(answer).await };
        match read {
            Err(why) => End::Lost(why),
            Ok(()) => self.judge(status, is_events),
        }
    }

    /// What an answer that was read to its end is.
    fn judge(&mut self, status: u16, is_events: bool) -> End {
        let theirs = || format!("{THEIRS}{status}");
        match status {
            200..=299 => {}
            // Nobody but a hop that gave up says so.
            408 => return End::Said(Outcome::because(Cause::UpstreamError, theirs())),
            429 => return End::Said(Outcome::because(Cause::QueueFull, theirs())),
            400..=499 => return End::Said(Outcome::because(Cause::Invalid, theirs())),
            _ => return End::Said(Outcome::because(Cause::UpstreamError, theirs())),
        }
        if let Some(why) = self.complaint.take() {
            return End::Said(Outcome::because(Cause::UpstreamError, format!("{THEIRS}an error in its stream: {why}")));
        }
        if is_events && !self.done && (self.finished < self.asked || !self.unfinished.is_empty()) {
            return End::Lost("the engine closed the stream before its end".to_owned());
        }
        End::Said(Outcome::of(self.finish.unwrap_or(Cause::Stop)))
    }

    async fn events(&mut self, mut answer: Answer) -> Result<(), String> {
        let config = &self.shared.config;
        let mut scanner = Scanner::new(config.line_bytes_max, config.event_bytes_max);
        let mut events: Vec<Event> = Vec::new();
        while let Some(piece) = answer.next().await.map_err(|e| judge::broken_off(&e))? {
            events.clear();
            let pushed = scanner.push(piece, &mut events);
            let empty = answer.empty_at().saturating_duration_since(self.shared.began);
            let (tokens, mut said) = self.take(&events, empty);
            let run = pushed.map_err(|e| e.to_string())?;
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
        if self.done {
            self.shared.let_end(answer);
        }
        Ok(())
    }

    /// What events say: tokens, and for those who do not forward them what they add to each answer. There was nothing to read at `empty`.
    fn take(&mut self, events: &[Event], empty: Duration) -> (u32, Vec<Delta>) {
        let (mut tokens, mut deltas) = (0_u32, Vec::new());
        for event in events {
            if let Some((index, text)) = self.pattern.alike(event) {
                self.tokens.shown(self.shared.now(), empty);
                tokens = tokens.saturating_add(1);
                self.choice(index, true, false);
                if !self.forwarded {
                    deltas.push(self.delta(index, text, true, None));
                }
                continue;
            }
            let chunk = self.pattern.read(event);
            self.done |= chunk.done;
            let shown = chunk.said.tokens();
            if shown > 0 {
                self.tokens.shown(self.shared.now(), empty);
                tokens = tokens.saturating_add(shown);
            }
            if let Some(error) = &chunk.said.error {
                self.complaint.get_or_insert_with(|| error.message.chars().take(judge::WORDS_MAX).collect());
            }
            self.count(chunk.said.usage.as_ref());
            for choice in &chunk.said.choices {
                let finish = choice.finish_reason.as_deref().map(judge::finish);
                self.finish = self.finish.or(finish);
                self.choice(choice.index, choice.generated, finish.is_some());
                if !self.forwarded && (choice.generated || finish.is_some()) {
                    deltas.push(self.delta(choice.index, &choice.text, choice.generated, finish));
                }
            }
        }
        self.counted = self.counted.saturating_add(tokens);
        (tokens, deltas)
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

    /// One answer of the run has said something, or its end.
    fn choice(&mut self, index: u32, generated: bool, ends: bool) {
        if ends {
            self.unfinished.remove(&index);
            self.finished = self.finished.saturating_add(1);
        } else if generated && self.unfinished.len() < CHOICES_MAX {
            self.unfinished.insert(index);
        }
    }

    fn count(&mut self, usage: Option<&sse::Usage>) {
        let Some(usage) = usage else { return };
        let small = |n: Option<u64>| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        self.usage.prompt = small(usage.prompt_tokens).unwrap_or(self.usage.prompt);
        self.usage.cached_prompt = small(usage.cached_tokens).unwrap_or(self.usage.cached_prompt);
        self.usage.generated = small(usage.completion_tokens).unwrap_or(self.usage.generated);
    }

    /// An answer that is no stream: as it comes, and what it says when it is whole.
    async fn body(&mut self, mut answer: Answer) -> Result<(), String> {
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
        if whole.is_empty() && (200..300).contains(&answer.status) {
            return Err("the engine's answer is empty".to_owned());
        }
        if let Some(said) = whole::read(&whole) {
            self.count(said.usage.as_ref());
            self.finish = said.choices.iter().find_map(|choice| choice.finish_reason.as_deref().map(judge::finish));
        } else if (200..300).contains(&answer.status) && serde_json::from_slice::<serde::de::IgnoredAny>(&whole).is_err() {
            return Err("the engine's answer is no JSON".to_owned());
        }
        if let Some(last) = last.filter(|_| self.forwarded) {
            // All of its tokens are delivered with its end.
            let tokens = self.usage.generated;
            self.counted = tokens;
            self.pass(tokens, Piece::Body(last));
        }
        Ok(())
    }

    fn pass(&self, tokens: u32, piece: Piece) {
        let delta = Delta::passed(self.attempt.clone(), tokens, piece);
        self.shared.say(Up::Step { step: StepId(0), deltas: vec![delta] });
    }

    fn end(mut self, end: End, number: u64) {
        self.usage.generated = self.usage.generated.max(self.counted);
        let (shared, attempt) = (self.shared.clone(), self.attempt.clone());
        match &end {
            End::Said(outcome) if outcome.cause != Cause::UpstreamError => shared.worked(),
            End::Said(_) | End::Lost(_) => shared.failed(),
            // It says nothing of the engine; that one cannot be reached is asked after.
            End::Cancelled(_) | End::Unsent(_) | End::NotSent(_) => {}
        }
        let proven = end.is_proven();
        let outcome = match end {
            End::Said(outcome) => outcome,
            End::Cancelled(cause) => {
                shared.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(cause) });
                Outcome::of(cause)
            }
            End::Unsent(cause) => {
                shared.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(cause) });
                return shared.give_back(attempt, Outcome::of(cause));
            }
            End::Lost(why) => Outcome::because(Cause::UpstreamError, why),
            End::NotSent(why) => {
                tracing::warn!(upstream = %shared.config.name, %why, "cannot be reached");
                shared.doubt();
                let outcome = Outcome::because(Cause::WorkerLost, format!("{UNREACHED}{why}"));
                return shared.give_back(attempt, outcome);
            }
        };
        if !proven {
            held(&shared.unproven).insert(number, attempt.clone());
        }
        shared.say(Up::Ended { attempt: attempt.clone(), outcome, usage: self.usage });
        held(&shared.live).remove(&attempt);
        if proven {
            // The engine's own end of the answer.
            shared.say(Up::LetGo { attempt, guarantee: Guarantee::Observed });
        } else {
            // Only now: a verdict that came before somebody could be told of it would be lost, and its slot with it.
            held(&shared.ledger).closed(number, shared.now());
            shared.closed.notify_one();
            shared.unwitnessed.notify_one();
        }
    }
}
