//! The engine thread: takes mail, lets the engine decide, carries its effects out, keeps the device busy.
//!
//! It computes nothing itself, so a cancel is applied within microseconds of its arrival, whatever the device is doing.
// contract: C-12, C-13

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::text::Text;
use engine::{Device, Effect, Engine, EngineConfig, Flag, Input, StepPlan, Submission, SubmitError};
use lifecycle::event::{Event, Record};
use lifecycle::message::{Delta, Down, From, Receipt, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Time};
use observe::{Clock, Journal};

use crate::answer::Answer;
use crate::mail::{Job, Mail};
use crate::tokenise;

/// Most items taken out of the mailbox between two plans.
const MAIL_A_STEP: usize = 4096;
/// How much later than the gateway the worker enforces a deadline that the gateway watches too: it is the second line, and the record of a
/// run reads the same whenever both are alive.
// contract: C-22
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);

/// What a worker needs to know beside its device and its model's text side.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// This life of the worker.
    pub incarnation: Incarnation,
    /// The engine's limits.
    pub engine: EngineConfig,
    /// Threads that render and tokenise prompts.
    pub tokenise_threads: usize,
    /// How long an attempt may be here, whatever its gateway says (`worker_deadline`).
    pub deadline: Duration,
}

/// The worker takes no more messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the worker has ended")]
pub struct Closed;

/// A running worker.
pub struct Worker {
    mailbox: Sender<Mail>,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Hands a message to the worker. Order is kept.
    pub fn send(&self, message: From<Down>) -> Result<(), Closed> {
        self.sender()(message)
    }

    /// A sender that outlives this handle. It never waits.
    pub fn sender(&self) -> impl Fn(From<Down>) -> Result<(), Closed> + Send + Sync + 'static {
        let (mailbox, clock) = (self.mailbox.clone(), self.clock);
        move |message| mailbox.send(Mail::Down(message, clock.now())).map_err(|_| Closed)
    }

    /// Ends every attempt (cause `shutdown`), waits until all are released and the threads are gone.
    pub fn stop(mut self) {
        let _ = self.mailbox.send(Mail::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a worker over a device. `up` gets what it has to say; it never waits for a caller, only for the channel.
pub fn start(
    config: WorkerConfig,
    device: Box<dyn Device>,
    text: Arc<Text>,
    journal: Journal,
    up: tokio::sync::mpsc::Sender<From<Up>>,
) -> std::io::Result<Worker> {
    // Senders must not wait: a gateway sends while it holds its table. What waits is bounded by the calls, questions and steps there can be.
    let (mailbox, mail) = channel();
    let jobs = tokenise::start(config.tokenise_threads.max(1), text.clone(), device.limits().context, mailbox.clone())?;
    let engine = Engine::new(config.engine, device.limits());
    let clock = journal.clock();
    let mut thread = EngineThread {
        incarnation: config.incarnation,
        deadline: config.deadline,
        engine,
        device,
        text,
        journal,
        up,
        mailbox: mailbox.clone(),
        jobs,
        answers: HashMap::new(),
        gateway: None,
        refused_plan: None,
        stopping: false,
        audited: true,
    };
    let handle = std::thread::Builder::new().name("kvit-engine".into()).spawn(move || thread.run(mail))?;
    Ok(Worker { mailbox, clock, thread: Some(handle) })
}

/// The gateway watches all deadlines but the queue's.
fn margin(cause: Cause) -> Duration {
    if cause == Cause::QueueDeadline { Duration::ZERO } else { DEADLINE_MARGIN }
}

/// The shell's part of a run: its text, and the switch of its tokeniser.
struct Live {
    answer: Answer,
    unwanted: Flag,
}

struct EngineThread {
    incarnation: Incarnation,
    deadline: Duration,
    engine: Engine,
    device: Box<dyn Device>,
    text: Arc<Text>,
    journal: Journal,
    up: tokio::sync::mpsc::Sender<From<Up>>,
    mailbox: Sender<Mail>,
    jobs: tokenise::Jobs,
    answers: HashMap<AttemptId, Live>,
    /// The newest life of the gateway that was heard.
    gateway: Option<Incarnation>,
    /// A plan that the device had no room for yet.
    refused_plan: Option<StepPlan>,
    stopping: bool,
    audited: bool,
}

impl EngineThread {
    fn run(&mut self, mail: Receiver<Mail>) {
        loop {
            self.keep_device_busy();
            self.audit_when_idle();
            if self.stopping && self.engine.is_idle() {
                return;
            }
            let first = match self.engine.next_deadline() {
                None => mail.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => mail.recv_timeout(at.since(self.journal.clock().now())),
            };
            match first {
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => self.apply(Input::Tick),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // All that has arrived counts before the next step is planned, within reason: planning must not starve.
            for item in mail.try_iter().take(MAIL_A_STEP) {
                self.take(item);
            }
            if self.engine.next_deadline().is_some_and(|at| at <= self.journal.clock().now()) {
                self.apply(Input::Tick);
            }
        }
    }

    fn take(&mut self, item: Mail) {
        match item {
            Mail::Down(From { incarnation, message }, arrived) => {
                // contract: C-3
                if self.gateway.is_some_and(|newest| incarnation < newest) {
                    self.journal.record(None, 0, Event::StaleMessage);
                    return;
                }
                self.gateway = Some(incarnation);
                self.take_down(message, arrived);
            }
            Mail::Tokenised { attempt, result } => match result {
                Ok(tokens) => self.apply(Input::Tokenised { attempt, tokens }),
                Err(outcome) => self.apply(Input::Refused { attempt, outcome }),
            },
            Mail::StepDone(done) => self.apply(Input::StepDone(done)),
            Mail::Stop => {
                self.stopping = true;
                let live: Vec<AttemptId> = self.answers.keys().cloned().collect();
                for attempt in live {
                    self.apply(Input::End { attempt, number: 0, outcome: Outcome::of(Cause::Shutdown) });
                }
            }
        }
    }

    fn take_down(&mut self, message: Down, arrived: Time) {
        match message {
            Down::Submit(submit) => self.submit(*submit),
            Down::Cancel { attempt, cause, number, observed_ago: _ } => {
                if let Some(live) = self.answers.get(&attempt) {
                    live.unwanted.set();
                    let (run, number) = (Some(attempt.key.clone()), attempt.attempt);
                    self.journal.record_at(Record { at: arrived, run, attempt: number, event: Event::CancelReceived { cause } });
                }
                self.apply(Input::End { attempt, number, outcome: Outcome::of(cause) });
            }
            Down::Claim { .. } => {}
            // contract: C-23
            Down::Disclaim { attempts } => {
                for attempt in attempts {
                    self.apply(Input::End { attempt, number: 0, outcome: Outcome::of(Cause::Orphaned) });
                }
            }
            Down::Snapshot { ask, blocks } => {
                let mut snapshot = Box::new(self.engine.snapshot(blocks, &|_| false));
                snapshot.held.answers = self.answers.len() as u32;
                self.say(Up::Snapshot { ask, snapshot });
            }
        }
    }

    fn submit(&mut self, submit: Submit) {
        let refusal = match () {
            // contract: C-2
            () if submit.worker != self.incarnation => {
                Some(Outcome::because(Cause::WorkerLost, "meant for an earlier life of this worker"))
            }
            () if self.stopping => Some(Outcome::because(Cause::Shutdown, "this worker is stopping")),
            () => None,
        };
        if let Some(outcome) = refusal {
            let attempt = submit.attempt;
            self.say(Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() });
            return self.say(Up::Released { attempt, receipt: Receipt::default() });
        }
        if self.answers.contains_key(&submit.attempt) {
            return; // the same message again: it runs already
        }
        let now = self.journal.clock().now();
        let params = submit.params;
        let mut stop_tokens = params.stop_token_ids;
        if !params.ignore_eos {
            stop_tokens.extend_from_slice(self.text.end_tokens());
        }
        // contract: C-22. The worker's own limit goes first: the engine keeps so many deadlines and no more.
        let own = (now.after(self.deadline), Cause::WorkerDeadline);
        let named = submit.deadlines.iter().map(|d| (now.after(d.left + margin(d.cause)), d.cause));
        let deadlines = std::iter::once(own).chain(named).collect();
        let unwanted = Flag::default();
        let answer = Answer::new(self.text.clone(), params.n, &params.stop, params.sampling.logprobs.is_some());
        self.answers.insert(submit.attempt.clone(), Live { answer, unwanted: unwanted.clone() });
        self.apply(Input::Submit(Box::new(Submission {
            attempt: submit.attempt.clone(),
            number: submit.number,
            n: params.n,
            max_tokens: params.max_tokens,
            sampling: params.sampling,
            stop_tokens,
            cache_salt: params.cache_salt.to_string(),
            priority: params.priority,
            deadlines,
        })));
        if !self.engine.knows(&submit.attempt) {
            // Refused as one that was executed, or given up, long ago (C-2).
            self.answers.remove(&submit.attempt);
        }
        if self.answers.contains_key(&submit.attempt) {
            self.jobs.send(Job { attempt: submit.attempt, prompt: submit.prompt, unwanted });
        }
    }

    fn apply(&mut self, input: Input) {
        self.audited = false;
        let now = self.journal.clock().now();
        let effects = self.engine.apply(input, now);
        self.carry_out(effects, now);
    }

    /// What happened goes into the journal before anybody is told: whoever hangs up on a token must not find it recorded as computed after
    /// he left. Then tokens, as one message; then what was decided, in order. A stop string found in the text is one more input.
    fn carry_out(&mut self, mut effects: Vec<Effect>, now: Time) {
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

    fn say(&mut self, message: Up) {
        // An error means that the gateway side is gone; the engine goes on until it is told to stop.
        let _ = self.up.blocking_send(From { incarnation: self.incarnation, message });
    }

    fn keep_device_busy(&mut self) {
        loop {
            let plan = match self.refused_plan.take() {
                Some(plan) => plan,
                None => {
                    let (plan, effects) = self.engine.plan();
                    self.carry_out(effects, self.journal.clock().now());
                    match plan {
                        Some(plan) => plan,
                        None => return,
                    }
                }
            };
            let mailbox = self.mailbox.clone();
            let sink = Box::new(move |done| {
                let _ = mailbox.send(Mail::StepDone(done));
            });
            match self.device.submit(plan, sink) {
                Ok(()) => {}
                Err((SubmitError::Full, plan)) => {
                    self.refused_plan = Some(plan);
                    return;
                }
                Err((SubmitError::Lost(why), _)) => self.apply(Input::DeviceLost(why)),
            }
        }
    }

    /// With nothing alive the whole account can be recomputed; it must agree.
    fn audit_when_idle(&mut self) {
        if self.audited || !self.engine.is_idle() {
            return;
        }
        self.audited = true;
        if let Err(defect) = self.engine.audit() {
            tracing::error!(%defect, "the block account does not agree with the blocks");
            self.journal.record(None, 0, Event::Defect { what: "audit" });
        }
    }
}
