//! The gateway: the real `Dispatch` of each run, and what its readers were told.
//!
//! Invariant: what a shell would do with a dispatch's effects is done here and nothing else; whether it was right is asked by `check`.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use kv::Digest;
use lifecycle::message::{ModelInfo, Prompt};
use lifecycle::params::Params;
use lifecycle::{
    AttemptId, Cause, Deadline, Dispatch, DispatchConfig, DispatchEffect, Incarnation, Place, Rules, Time, Word, Work, WorkerIndex,
};

use super::setup::{RunSetup, Setup};

/// The moment at which every deadline has passed, on either side's clock.
pub const LATE: Time = Time(1_000_000);
/// The only worker.
const WORKER: WorkerIndex = WorkerIndex(0);

/// A run at its gateway.
#[derive(Clone, Debug)]
pub struct Run<R: Rules> {
    dispatch: Arc<Dispatch<R>>,
    print: u128,
    /// Tokens that the readers were told, by answer.
    pub told: Vec<Vec<u32>>,
    /// The end that they were told.
    pub end: Option<Cause>,
    /// It was told before the outcome, and is recorded as that.
    pub dismissed: bool,
    /// How often an outcome was written.
    pub outcomes: u8,
    /// How often it was settled.
    pub settled: u8,
    /// Which of the setup's causes have come, as bits.
    pub left: u8,
    /// The number of its current submit; 0 before the first.
    pub number: u64,
    /// The life of the worker that it was last placed on.
    pub life: u8,
    /// Whether somebody reads it.
    pub reads: bool,
    /// Its grace was let pass.
    pub late: bool,
    /// What an attempt of it was, when it was lost: nothing may rewrite it.
    pub voided: bool,
}

/// All runs.
#[derive(Clone, Debug)]
pub struct Gate<R: Rules> {
    /// In the setup's order.
    pub runs: Vec<Run<R>>,
    /// The life of the worker that is known.
    pub life: u8,
    next_number: u64,
    /// That life has said that it stops: nothing is placed on it.
    pub stops: bool,
    /// Deadlines have passed.
    pub late: bool,
}

impl<R: Rules> Run<R> {
    fn new(id: &AttemptId, of: &RunSetup, setup: &Setup) -> Run<R> {
        let deadlines = if setup.deadlines { vec![Deadline::from_left(Time::ZERO, span(LATE), Cause::ClientDeadline)] } else { Vec::new() };
        let config = DispatchConfig {
            // Time passes when it is chosen to: a repetition is due a microsecond later, an answer's grace never ends.
            cancel_repeat: Duration::from_micros(1),
            cancel_repeat_max: Duration::from_micros(1),
            answer_grace: Duration::MAX,
            queue_deadline: Duration::MAX,
            redispatch_max: setup.redispatch,
            unbegun_max: 0,
        };
        let params = Params { n: of.n, ..Params::default() };
        let work = Work { prompt: Prompt::Tokens(Vec::new()), params };
        let dispatch = Arc::new(Dispatch::new(id.key.clone(), work, deadlines, config, Time::ZERO).on_disconnect(of.policy));
        let told = vec![Vec::new(); of.n as usize];
        let mut run = Run {
            dispatch,
            print: 0,
            told,
            end: None,
            dismissed: false,
            outcomes: 0,
            settled: 0,
            left: 0,
            number: 0,
            life: 0,
            reads: true,
            late: false,
            voided: false,
        };
        run.reprint();
        run
    }

    /// The machine.
    pub fn dispatch(&self) -> &Dispatch<R> {
        &self.dispatch
    }

    fn change(&mut self, change: impl FnOnce(&mut Dispatch<R>) -> Vec<DispatchEffect>) -> Vec<DispatchEffect> {
        let effects = change(Arc::make_mut(&mut self.dispatch));
        self.reprint();
        effects
    }

    fn reprint(&mut self) {
        struct Text<'a>(&'a mut Digest);
        impl std::fmt::Write for Text<'_> {
            fn write_str(&mut self, s: &str) -> std::fmt::Result {
                let (words, rest) = s.as_bytes().as_chunks::<4>();
                words.iter().for_each(|word| self.0.write_u32(u32::from_le_bytes(*word)));
                self.0.write(rest);
                Ok(())
            }
        }
        let mut digest = Digest::default();
        // It has no hash; what it prints is all that it is.
        let _ = std::fmt::write(&mut Text(&mut digest), format_args!("{:?}", self.dispatch));
        self.print = digest.value();
    }
}

fn span(time: Time) -> Duration {
    time.since(Time::ZERO)
}

impl<R: Rules> Gate<R> {
    /// All runs of a setup, accepted.
    pub fn new(names: &[AttemptId], setup: &Setup) -> Gate<R> {
        let runs = setup.runs.iter().zip(names).map(|(run, id)| Run::new(id, run, setup)).collect();
        Gate { runs, life: 1, next_number: 1, stops: false, late: false }
    }

    fn now(&self) -> Time {
        if self.late { LATE } else { Time::ZERO }
    }

    /// Sends a waiting run to the worker.
    pub fn place(&mut self, run: usize) -> Vec<DispatchEffect> {
        let model = ModelInfo { id: "m".into(), context: 32, default_max_tokens: 2, created: 0 };
        let place = Place { worker: WORKER, incarnation: Incarnation(u128::from(self.life)), number: self.next_number, model };
        (self.runs[run].number, self.runs[run].life) = (self.next_number, self.life);
        self.next_number += 1;
        let now = self.now();
        self.runs[run].change(|dispatch| dispatch.place(place, now))
    }

    /// Somebody no longer wants it.
    pub fn want(&mut self, run: usize, cause: Cause) -> Vec<DispatchEffect> {
        let now = self.now();
        self.runs[run].change(|dispatch| dispatch.want(cause, now))
    }

    /// The last reader leaves.
    pub fn abandoned(&mut self, run: usize, cause: Cause, delivery: lifecycle::Delivery) -> Vec<DispatchEffect> {
        let now = self.now();
        self.runs[run].reads = false;
        self.runs[run].change(|dispatch| dispatch.abandoned(cause, delivery, now))
    }

    /// A reader asks for it again. Whether it is there for it.
    pub fn returned(&mut self, run: usize) -> (bool, Vec<DispatchEffect>) {
        let mut there = false;
        let effects = self.runs[run].change(|dispatch| {
            let (is_there, effects) = dispatch.returned();
            there = is_there;
            effects
        });
        self.runs[run].reads |= there;
        (there, effects)
    }

    /// A grace passes, and nothing else does.
    pub fn grace_over(&mut self, run: usize) -> Vec<DispatchEffect> {
        self.runs[run].late = true;
        let Some(at) = self.runs[run].dispatch.grace_until() else { return Vec::new() };
        self.runs[run].change(|dispatch| dispatch.tick(at))
    }

    /// A word of a life of the worker.
    pub fn take_in(&mut self, run: usize, life: u8, attempt: u8, word: Word) -> Vec<DispatchEffect> {
        let now = self.now();
        let from = (WORKER, Incarnation(u128::from(life)));
        self.runs[run].change(|dispatch| dispatch.take_in(from, u32::from(attempt), word, now))
    }

    /// The known life of the worker is over.
    pub fn lost(&mut self, run: usize, life: u8) -> Vec<DispatchEffect> {
        let now = self.now();
        self.runs[run].change(|dispatch| dispatch.worker_lost(WORKER, Incarnation(u128::from(life)), true, now))
    }

    /// Nobody listens where the known life of the worker was.
    pub fn refused(&mut self, run: usize, life: u8) -> Vec<DispatchEffect> {
        let now = self.now();
        self.runs[run].change(|dispatch| dispatch.worker_refused(WORKER, Incarnation(u128::from(life)), now))
    }

    /// The caller's answer is over.
    pub fn delivered(&mut self, run: usize, delivery: lifecycle::Delivery) -> Vec<DispatchEffect> {
        let now = self.now();
        self.runs[run].change(|dispatch| dispatch.delivered(delivery, now))
    }

    /// The clock is looked at: deadlines fire; a microsecond later, a cancel is repeated.
    pub fn tick(&mut self, run: usize, repeat: bool) -> Vec<DispatchEffect> {
        let now = Time(self.now().0 + u64::from(repeat));
        self.runs[run].change(|dispatch| dispatch.tick(now))
    }

    /// Whether everything is over for every run.
    pub fn is_settled(&self) -> bool {
        self.runs.iter().all(|run| run.dispatch.call().is_settled())
    }

    /// Writes the state into a fingerprint.
    pub fn hash_state<H: Hasher>(&self, out: &mut H) {
        (self.life, self.next_number, self.stops, self.late).hash(out);
        for run in &self.runs {
            (run.print, &run.told, run.end, run.dismissed, run.outcomes, run.settled, run.left, run.number, run.life, run.voided).hash(out);
            (run.reads, run.late).hash(out);
        }
    }
}
