//! The engine thread: takes mail, lets the engine decide, carries its effects out, keeps the device busy.
//!
//! It computes nothing itself, so a cancel is applied within microseconds of its arrival, whatever the device is doing.
// contract: C-9, C-12, C-13

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use engine::{Device, Engine, Flag, Input, StepPlan, Submission, SubmitError};
use lifecycle::event::{Event, Record};
use lifecycle::message::{Down, From, Receipt, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, Time};
use observe::Journal;

use crate::answer::Answer;
use crate::busy::Busy;
use crate::drain::Draining;
use crate::mail::{Job, Mail};
use crate::sessions::Links;
use crate::start::WorkerConfig;
use crate::text::Text;
use crate::tokenise;

/// Most items taken out of the mailbox between two plans.
const MAIL_A_STEP: usize = 4096;
/// How much later than the gateway the worker enforces a deadline that the gateway watches too: it is the second line, and the record of a
/// run reads the same whenever both are alive.
// contract: C-22
const DEADLINE_MARGIN: Duration = Duration::from_millis(100);

/// The gateway watches all deadlines but the queue's.
fn margin(cause: Cause) -> Duration {
    if cause == Cause::QueueDeadline { Duration::ZERO } else { DEADLINE_MARGIN }
}

/// The shell's part of a run: its text, and the switch of its tokeniser.
pub(crate) struct Live {
    pub answer: Answer,
    pub unwanted: Flag,
    /// Whether it has a token.
    pub generated: bool,
}

pub(crate) struct EngineThread {
    pub(crate) incarnation: Incarnation,
    deadline: Duration,
    pub(crate) engine: Engine,
    device: Box<dyn Device>,
    text: Arc<Text>,
    pub(crate) journal: Journal,
    /// Who speaks with it.
    pub(crate) links: Links,
    pub(crate) mailbox: Sender<Mail>,
    jobs: tokenise::Jobs,
    pub(crate) answers: HashMap<AttemptId, Live>,
    /// A plan that the device had no room for yet.
    pub(crate) refused_plan: Option<StepPlan>,
    /// It was told to stop, and what has become of whom since.
    pub(crate) draining: Option<Draining>,
    pub(crate) stopping: bool,
    pub(crate) audited: bool,
    /// How long the device has worked.
    pub(crate) busy: Busy,
}

impl EngineThread {
    pub(crate) fn new(
        config: WorkerConfig,
        device: Box<dyn Device>,
        text: Arc<Text>,
        journal: Journal,
        links: Links,
        (mailbox, jobs): (Sender<Mail>, tokenise::Jobs),
    ) -> EngineThread {
        EngineThread {
            incarnation: config.incarnation,
            deadline: config.deadline,
            engine: Engine::new(config.engine, device.limits()),
            device,
            text,
            journal,
            links,
            mailbox,
            jobs,
            answers: HashMap::new(),
            refused_plan: None,
            draining: None,
            stopping: false,
            audited: true,
            busy: Busy::default(),
        }
    }

    pub(crate) fn run(&mut self, mail: Receiver<Mail>) {
        while self.prepare() {
            let first = match self.next_due() {
                None => mail.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => mail.recv_timeout(at.since(self.now())),
            };
            match first {
                Ok(item) => self.take(item),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.take_waiting(&mail);
        }
    }

    /// One round of `run` that does not wait; whether there is to be another.
    pub(crate) fn turn(&mut self, mail: &Receiver<Mail>) -> bool {
        self.take_waiting(mail);
        self.prepare()
    }

    /// What is to be done before the next mail. False once it was told to stop and nothing is left.
    fn prepare(&mut self) -> bool {
        self.keep_device_busy();
        self.busy.planned(&self.journal);
        self.audit_when_idle();
        self.answer_waiting();
        !(self.stopping && self.engine.is_idle())
    }

    /// All that has arrived counts before the next step is planned, within reason: planning must not starve.
    fn take_waiting(&mut self, mail: &Receiver<Mail>) {
        for item in mail.try_iter().take(MAIL_A_STEP) {
            self.take(item);
        }
        self.pass_time();
    }

    pub(crate) fn now(&self) -> Time {
        self.journal.clock().now()
    }

    /// When something happens although no mail comes.
    fn next_due(&self) -> Option<Time> {
        let drain = self.draining.as_ref().and_then(Draining::next_due);
        [self.engine.next_deadline(), self.links.next_due(), drain].into_iter().flatten().min()
    }

    fn pass_time(&mut self) {
        if self.engine.next_deadline().is_some_and(|at| at <= self.now()) {
            self.apply(Input::Tick);
        }
        self.end_what_is_over_the_limit();
        self.look_at_sessions();
    }

    fn take(&mut self, item: Mail) {
        match item {
            Mail::Down(From { incarnation, message }, arrived) => {
                // contract: C-3
                if !self.links.is_current(incarnation) {
                    self.journal.record(None, 0, Event::StaleMessage);
                    return;
                }
                self.take_down(message, arrived);
            }
            Mail::Hello { hello, outlet, reply } => self.hello(&hello, outlet, reply),
            Mail::Frame { gateway, connection, frame, arrived, _room } => self.hear(&gateway, connection, *frame, arrived),
            Mail::Closed { gateway, connection } => self.closed(&gateway, connection),
            Mail::Snapshot { blocks, reply } => {
                // Whoever asked may be gone.
                let _ = reply.send(self.snapshot(blocks));
            }
            Mail::Sessions { reply } => drop(reply.send(self.links.cut())),
            Mail::Drain { limit, reply } => self.drain(limit, reply),
            Mail::Flush { within, reply } => self.links.flush_by(self.journal.clock().now().after(within), reply),
            Mail::Tokenised { attempt, result } => match result {
                Ok(tokens) => self.apply(Input::Tokenised { attempt, tokens }),
                Err(outcome) => self.apply(Input::Refused { attempt, outcome }),
            },
            Mail::StepDone(done) => {
                self.busy.done(&self.journal);
                self.apply(Input::StepDone(done));
            }
            Mail::Stop => {
                self.stopping = true;
                self.say_draining();
                let live: Vec<AttemptId> = self.answers.keys().cloned().collect();
                for attempt in live {
                    self.apply(Input::End { attempt, number: 0, outcome: Outcome::of(Cause::Shutdown) });
                }
            }
        }
        self.settle();
    }

    fn take_down(&mut self, message: Down, arrived: Time) {
        match message {
            Down::Submit(submit) => self.submit(*submit),
            Down::Cancel { attempt, cause, number, observed_ago: _ } => self.cancel(attempt, cause, number, arrived),
            Down::Claim { .. } => {}
            // contract: C-23
            Down::Disclaim { attempts } => {
                for attempt in attempts {
                    self.apply(Input::End { attempt, number: 0, outcome: Outcome::of(Cause::Orphaned) });
                }
            }
            Down::Snapshot { ask, blocks } => {
                let snapshot = Box::new(self.snapshot(blocks));
                self.say(Up::Snapshot { ask, snapshot });
            }
        }
    }

    pub(crate) fn snapshot(&self, blocks: bool) -> lifecycle::message::Snapshot {
        let mut snapshot = self.engine.snapshot(blocks, &|attempt| self.links.is_orphaned(attempt));
        snapshot.held.answers = self.answers.len() as u32;
        snapshot.tombstones += self.links.tombstones();
        self.links.count(&mut snapshot);
        snapshot
    }

    /// A cancel that arrived, or that the lease's end makes.
    pub(crate) fn cancel(&mut self, attempt: AttemptId, cause: Cause, number: u64, arrived: Time) {
        if let Some(live) = self.answers.get(&attempt) {
            live.unwanted.set();
            self.note(&attempt, arrived, Event::CancelReceived { cause });
        }
        self.apply(Input::End { attempt, number, outcome: Outcome::of(cause) });
    }

    pub(crate) fn note(&mut self, attempt: &AttemptId, at: Time, event: Event) {
        self.keep(Record { at, run: Some(attempt.key.clone()), attempt: attempt.attempt, event });
    }

    /// Into the journal, and to the gateway in another process whose run it is.
    pub(crate) fn keep(&mut self, record: Record) {
        self.links.keep(&record);
        self.journal.record_at(record);
    }

    /// Turns a submit away that the engine does not know. Whoever sent it is told, so that neither side keeps an entry.
    // contract: C-2
    fn turn_away(&mut self, attempt: AttemptId, outcome: Outcome) {
        self.say(Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() });
        self.say(Up::Released { attempt, receipt: Receipt::default() });
    }

    pub(crate) fn submit(&mut self, submit: Submit) {
        // contract: C-2
        if submit.worker != self.incarnation {
            let outcome = Outcome::because(Cause::WorkerLost, "meant for an earlier life of this worker");
            return self.turn_away(submit.attempt, outcome);
        }
        if self.stopping || self.draining.is_some() {
            return self.turn_away(submit.attempt, Outcome::because(Cause::Shutdown, "this worker is stopping"));
        }
        if self.answers.contains_key(&submit.attempt) {
            return; // the same message again: it runs already
        }
        // A gateway of another make may not have looked.
        if let Err(why) = submit.params.check() {
            return self.turn_away(submit.attempt, Outcome::because(Cause::Invalid, why.to_string()));
        }
        let now = self.now();
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
        self.answers.insert(submit.attempt.clone(), Live { answer, unwanted: unwanted.clone(), generated: false });
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
        if self.engine.knows(&submit.attempt) {
            if self.answers.contains_key(&submit.attempt) {
                self.jobs.send(Job { attempt: submit.attempt, prompt: submit.prompt, unwanted });
            }
        } else if self.answers.remove(&submit.attempt).is_some() && self.links.has_sessions() {
            // Refused without a word as one that was executed, or given up, long ago (C-2). In one process its release is on its way or
            // was said; a session's side knows that it was not, and waits for an end.
            let why = "below the worker's mark: it was executed or given up long ago";
            self.turn_away(submit.attempt, Outcome::because(Cause::WorkerError, why));
        }
    }

    fn keep_device_busy(&mut self) {
        loop {
            let plan = match self.refused_plan.take() {
                Some(plan) => plan,
                None => {
                    // contract: C-9. No step is planned for a gateway whose lease is over.
                    self.look_at_sessions();
                    let (plan, effects) = self.engine.plan();
                    self.carry_out(effects, self.now());
                    self.settle();
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
                Ok(()) => self.busy.submitted(self.journal.clock().now()),
                Err((SubmitError::Full, plan)) => {
                    self.refused_plan = Some(plan);
                    return;
                }
                Err((SubmitError::Lost(why), _)) => {
                    self.apply(Input::DeviceLost(why));
                    self.settle();
                }
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
