//! One run at an upstream, from its submit to its end.
//!
//! Invariant: what is passed on was read as it came; nothing is said behind the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway::Reason;
use http::{HeaderMap, HeaderName, HeaderValue};
use lifecycle::message::{DeadlineLeft, Delta, Piece, Prompt, Receipt, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Guarantee, Outcome, StepId};
use tokio::sync::watch;

use super::judge::End;
use super::proof::Left;
use super::tell::Held;
use super::{Met, Shared, Task, ask, held, judge, tell};
use crate::abort::RequestName;
use crate::client::{Answer, CallError, Limits, Sent};
use crate::evidence::Tokens;
use crate::kind::DeadlineBy;
use crate::pattern::Pattern;

pub(super) struct Run {
    pub(super) shared: Arc<Shared>,
    pub(super) attempt: AttemptId,
    pub(super) forwarded: bool,
    /// Calls and log-probabilities are read of its answer.
    pub(super) worded: bool,
    /// A forwarded request for a completion, in events or not.
    pub(super) completes: bool,
    pub(super) tokens: Arc<Tokens>,
    pub(super) usage: Usage,
    /// Tokens counted by their events.
    pub(super) counted: u32,
    pub(super) finish: Option<Cause>,
    /// The engine's word for an end that is none of the answer's own.
    pub(super) given_up: Option<String>,
    /// Answers of the run that have ended, and those that have begun and not ended.
    pub(super) finished: u32,
    pub(super) unfinished: BTreeSet<u32>,
    asked: u32,
    /// What it is called there.
    name: RequestName,
    /// What it was known to be when the run was sent.
    met: Option<Arc<Met>>,
    /// It has begun an answer that is no refusal.
    taken: bool,
    /// The stream's proper end was read.
    pub(super) done: bool,
    /// An event before it was neither JSON nor anything else that a stream may have.
    pub(super) garbled: bool,
    pub(super) pattern: Pattern,
    /// The engine's own error, in a stream, or in an answer that says that it is none.
    pub(super) complaint: Option<String>,
    /// How long it wants to be left alone, where it said that it has too much to do.
    crowded: Option<Duration>,
    /// Whether anything of the request was taken.
    sent: Arc<Sent>,
}

pub(super) async fn run(shared: Arc<Shared>, (submit, epoch): (Submit, u64), mut cancelled: watch::Receiver<Option<Cause>>) {
    let number = submit.number;
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
    let asks = || tell::asks(&path, &submit);
    let body = shared.aborter().name(run.name, &mut headers, body, asks);
    headers.extend(shared.time_left(&submit.deadlines));
    headers.extend(shared.ear.trace_headers(&submit.attempt));
    let (name, sent, bytes) = (run.name, run.sent.clone(), body.len() as u64);
    // In a place of its own, which is given back before the first token: what asks takes more room than what reads.
    let mut open = Held::Asking(Box::pin(shared.client.post_watched(&path, headers, body, &sent)));
    let before = *cancelled.borrow_and_update();
    let end = match before {
        Some(cause) => End::Unsent(cause),
        None => tokio::select! {
            biased;
            cause = wanted(&mut cancelled) => End::Cancelled(cause),
            end = run.call(&mut open) => end,
        },
    };
    // contract: C-29. What was given up while there was no connection yet is in nobody's hands.
    let end = match end {
        End::Cancelled(cause) if !run.sent.any() => End::Unsent(cause),
        end => end,
    };
    // What an engine has not got all of it never begins, once it is closed.
    let is_there = !end.is_proven() && open.is_open() && sent.taken() >= bytes;
    let told_first = if is_there { shared.told_first(name, asks) } else { None };
    let holding = told_first.map(|asks| shared.tell_first(name, asks, std::mem::replace(&mut open, Held::Nothing)));
    // Whatever else was read is dropped now, and its connection closed with it.
    drop(open);
    if end.is_proven() {
        held(&shared.ledger).ended(number);
    } else if holding.is_none() {
        shared.tell_engine(name, asks, shared.limits());
    }
    run.end(end, (number, epoch), &submit.prompt, holding).await;
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

impl Shared {
    /// Ends a run of which the engine has got nothing.
    fn give_back(&self, attempt: AttemptId, outcome: Outcome) {
        self.say(Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() });
        held(&self.live).remove(&attempt);
        self.say(Up::Released { attempt, receipt: Receipt::default() });
    }

    /// What is said of the time that a run has left, where the upstream has a word for that. Its time to wait here is none of the upstream's.
    // contract: C-28
    fn time_left(&self, deadlines: &[DeadlineLeft]) -> Option<(HeaderName, HeaderValue)> {
        let looked = || {
            let met = self.capabilities()?;
            let is_litellm = met.detected.is_litellm || self.is_litellm.load(Ordering::Acquire);
            if met.detected.is_kvit { Some(DeadlineBy::Kvit) } else { is_litellm.then_some(DeadlineBy::LiteLlm) }
        };
        let by = self.config.deadline.or_else(looked)?;
        let left = deadlines.iter().filter(|deadline| deadline.cause != Cause::QueueDeadline).map(|deadline| deadline.left).min();
        by.header(left?)
    }

    pub(super) fn limits(&self) -> Limits {
        let (head_timeout, answer_bytes_max) = (self.config.look_timeout, self.config.look_bytes_max);
        Limits { head_timeout, idle_timeout: head_timeout, answer_bytes_max }
    }

    /// Reads the end of a body whose stream has said its own, so that its connection can be used again.
    pub(super) fn let_end(self: &Arc<Self>, mut answer: Answer) {
        let (task, patience) = (Task::begin(self), self.config.look_timeout);
        tokio::spawn(async move {
            let _task = task;
            let _ = tokio::time::timeout(patience, async { while let Ok(Some(_)) = answer.next().await {} }).await;
        });
    }
}

impl Run {
    fn new(shared: &Arc<Shared>, submit: &Submit, forwarded: bool, tokens: Arc<Tokens>) -> Run {
        Run {
            shared: shared.clone(),
            attempt: submit.attempt.clone(),
            forwarded,
            worded: matches!(&submit.prompt, Prompt::Worded(_)),
            completes: matches!(&submit.prompt, Prompt::Forward(forward) if ask::generates(&forward.path)),
            tokens,
            usage: Usage::default(),
            counted: 0,
            finish: None,
            given_up: None,
            finished: 0,
            unfinished: BTreeSet::new(),
            asked: submit.params.n,
            name: RequestName(submit.request_name()),
            met: shared.capabilities(),
            taken: false,
            done: false,
            garbled: false,
            pattern: Pattern::default(),
            complaint: None,
            crowded: None,
            sent: Arc::default(),
        }
    }

    async fn call(&mut self, open: &mut Held<'_>) -> End {
        let Held::Asking(asking) = open else { return End::Lost("nothing was asked".to_owned().into()) };
        let asked = asking.await;
        *open = Held::Nothing;
        let mut answer = match asked {
            Ok(answer) => answer,
            Err(CallError::NotSent(why)) => return End::NotSent(why),
            Err(CallError::Lost(why)) => return End::Lost(judge::broken(&why)),
        };
        if answer.is_litellm {
            self.shared.is_litellm.store(true, Ordering::Release);
        }
        let (status, is_events) = (answer.status, answer.is_event_stream());
        if let Some(why) = judge::unfit(&answer, self.forwarded, self.completes) {
            return End::Lost(why.into());
        }
        if matches!(status, 401 | 403) {
            return self.unwelcome(answer).await;
        }
        if status == 429 {
            self.crowded = judge::retry_after(&answer.headers);
        }
        self.head(&mut answer);
        if is_events && self.shared.capabilities().is_some_and(|met| met.capabilities.closes_behind_streams) {
            answer.close_behind();
        }
        *open = Held::Reading(Box::new(answer));
        let Held::Reading(answer) = open else { return End::Lost("nothing is read".to_owned().into()) };
        let read = if is_events && (200..300).contains(&status) { self.events(answer).await } else { self.body(answer).await };
        if let Err(why) = read {
            return End::Lost(why);
        }
        if let Held::Reading(answer) = std::mem::replace(open, Held::Nothing)
            && self.done
        {
            self.shared.let_end(*answer);
        }
        self.judge(status, is_events)
    }

    /// Passes the head of an answer on.
    fn head(&mut self, answer: &mut Answer) {
        let status = answer.status;
        self.taken = (200..300).contains(&status);
        if self.forwarded || (200..300).contains(&status) {
            self.shared.say(Up::Accepted { attempt: self.attempt.clone(), prompt_tokens: 0 });
        }
        if self.forwarded {
            let content_type = answer.content_type.as_deref().map(Into::into);
            let headers = std::mem::take(&mut answer.headers);
            self.pass(0, Piece::Head { status, content_type, headers: judge::headers(&headers) });
        }
    }

    /// An answer of 401 or 403. No caller's key is ever sent on, so it is kvit's own that is refused, which no caller can mend; unless it says
    /// that it is about what was asked.
    async fn unwelcome(&mut self, mut answer: Answer) -> End {
        let (status, headers, content_type) = (answer.status, std::mem::take(&mut answer.headers), answer.content_type.clone());
        let body = match answer.whole().await {
            Ok(body) => body,
            Err(why) => return End::Lost(judge::broken_off(&why)),
        };
        if !judge::is_about_content(status, &body) {
            return End::Unwelcome(judge::unwelcome(&self.shared.config, status));
        }
        if self.forwarded {
            self.shared.say(Up::Accepted { attempt: self.attempt.clone(), prompt_tokens: 0 });
            self.pass(0, Piece::Head { status, content_type: content_type.as_deref().map(Into::into), headers: judge::headers(&headers) });
            self.pass(0, Piece::Body(body));
        }
        self.judge(status, false)
    }

    /// What an answer that was read to its end is.
    fn judge(&mut self, status: u16, is_events: bool) -> End {
        // Who is passed the answer has its words.
        let words = self.complaint.as_deref().filter(|_| !self.forwarded);
        let theirs = Reason::Theirs(words.map_or_else(|| status.to_string(), |words| format!("{status}: {words}")));
        match status {
            200..=299 => {}
            // Nobody but a hop that gave up says so.
            408 => return End::Said(theirs.because(Cause::UpstreamError)),
            // contract: C-29. Another kvit says so as soon as it knows the end, and not when it has let go; nginx logs it, and sends it to nobody.
            499 => return End::GivenUp(theirs.because(Cause::UpstreamError)),
            429 => return End::Said(theirs.because(Cause::QueueFull)),
            400..=499 => return End::Said(theirs.because(Cause::Invalid)),
            _ => return End::Said(theirs.because(Cause::UpstreamError)),
        }
        if let Some(why) = self.complaint.take() {
            let place = if is_events { "stream" } else { "answer" };
            return End::Said(Reason::Theirs(format!("an error in its {place}: {why}")).because(Cause::UpstreamError));
        }
        if let Some(word) = self.given_up.take() {
            return End::Said(Outcome::because(Cause::UpstreamError, judge::given_up(&word)));
        }
        if is_events && !self.done && (self.finished < self.asked || !self.unfinished.is_empty()) {
            return End::Lost("the engine closed the stream before its end".to_owned().into());
        }
        End::Said(Outcome::of(self.finish.unwrap_or(Cause::Stop)))
    }

    pub(super) fn pass(&self, tokens: u32, piece: Piece) {
        let delta = Delta::passed(self.attempt.clone(), tokens, piece);
        self.shared.say(Up::Step { step: StepId(0), deltas: vec![delta] });
    }

    /// Says the end to whoever reads, at once; and then, behind what is still held open, how well it is proven.
    async fn end(mut self, end: End, (number, epoch): (u64, u64), prompt: &Prompt, holding: Option<impl Future<Output = ()>>) {
        self.usage.generated = self.usage.generated.max(self.counted);
        let (shared, attempt) = (self.shared.clone(), self.attempt.clone());
        match &end {
            End::Said(outcome) if outcome.cause == Cause::QueueFull => shared.crowded(epoch, self.crowded),
            End::Said(outcome) if outcome.cause != Cause::UpstreamError => shared.worked(epoch),
            End::Unwelcome(why) => {
                tracing::error!(upstream = %shared.config.name, %why, "refuses the gateway itself");
                shared.failed(epoch);
            }
            End::Said(_) | End::Lost(_) => {
                shared.failed(epoch);
                shared.wonder();
            }
            // It says nothing of the engine; that one cannot be reached is asked after.
            End::Cancelled(_) | End::GivenUp(_) | End::Unsent(_) | End::NotSent(_) => {}
        }
        let (proven, cancelled) = (end.is_proven(), end.cancelled());
        let keeps_record = self.met.take().filter(|met| met.keeps_records());
        let outcome = match end {
            End::Said(outcome) | End::GivenUp(outcome) => outcome,
            End::Cancelled(cause) => {
                // Another kvit says itself that it has it.
                if keeps_record.is_none() {
                    shared.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(cause) });
                }
                Outcome::of(cause)
            }
            End::Unsent(cause) => {
                shared.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(cause) });
                return shared.give_back(attempt, Outcome::of(cause));
            }
            End::Lost(why) => why.because(Cause::UpstreamError),
            End::Unwelcome(why) => Outcome::because(Cause::UpstreamError, why),
            End::NotSent(why) => {
                tracing::warn!(upstream = %shared.config.name, %why, "cannot be reached");
                shared.not_sent(&why);
                shared.doubt();
                return shared.give_back(attempt, Reason::Unreached(why.to_string()).because(Cause::WorkerLost));
            }
        };
        if !proven {
            held(&shared.unproven).insert(number, attempt.clone());
        }
        shared.say(Up::Ended { attempt: attempt.clone(), outcome, usage: self.usage });
        held(&shared.live).remove(&attempt);
        if let Some(holding) = holding {
            holding.await;
        }
        if proven {
            // The engine's own end of the answer.
            shared.say(Up::LetGo { attempt, guarantee: Guarantee::Observed });
        } else if let Some(sent) = keeps_record {
            held(&shared.ledger).ended(number);
            let closed = shared.now();
            shared.prove(Left { number, attempt, name: self.name, sent, shown: self.counted, taken: self.taken, cancelled, closed });
        } else {
            // Only now: a verdict that came before somebody could be told of it would be lost, and its slot with it.
            held(&shared.ledger).closed_on_its_way(number, shared.now(), ask::on_its_way(prompt));
            shared.closed.notify_one();
            shared.unwitnessed.notify_one();
        }
    }
}
