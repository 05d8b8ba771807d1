//! What is explored: the runs, the pool, and which faults may happen how often.
//!
//! Invariant: whatever could happen without end has a budget here, so every setup has finitely many states.

use lifecycle::{Cause, OnDisconnect};

/// A run of a setup.
#[derive(Clone, Debug)]
pub struct RunSetup {
    /// Its id.
    pub name: &'static str,
    /// Its prompt.
    pub prompt: Vec<u32>,
    /// Its answers.
    pub n: u32,
    /// Most tokens of an answer.
    pub cap: u32,
    /// Why it may no longer be wanted, each once, at any time.
    pub leaves: Vec<Cause>,
    /// How it may come to its own end before its cap.
    pub stop: Stop,
    /// What its reader's leaving means.
    pub policy: OnDisconnect,
}

/// A run's stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// None: it ends by length.
    Never,
    /// Its first token is a stop token.
    Token,
    /// A stop string is in the text of its first token; the text is looked at when the token is there.
    Text,
}

impl RunSetup {
    /// A run with one answer of two tokens, which nobody leaves.
    pub fn new(name: &'static str, prompt: &[u32]) -> RunSetup {
        RunSetup { name, prompt: prompt.to_vec(), n: 1, cap: 2, leaves: Vec::new(), stop: Stop::Never, policy: OnDisconnect::Cancel }
    }

    /// The same run, which may be left for these causes.
    pub fn leaves(mut self, causes: &[Cause]) -> RunSetup {
        self.leaves = causes.to_vec();
        self
    }

    /// The same run with a policy.
    pub fn on_disconnect(mut self, policy: OnDisconnect) -> RunSetup {
        self.policy = policy;
        self
    }

    /// The same run with so many answers of so many tokens.
    pub fn answers(mut self, n: u32, cap: u32) -> RunSetup {
        (self.n, self.cap) = (n, cap);
        self
    }

    /// The same run with a stop.
    pub fn stops(mut self, stop: Stop) -> RunSetup {
        self.stop = stop;
        self
    }
}

/// How often each fault may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// A frame is lost.
    pub losses: u8,
    /// A frame comes twice.
    pub doubles: u8,
    /// A frame overtakes another of its lane.
    pub overtakings: u8,
    /// A cancel comes from another gateway, beside the session, and so before or after its submit.
    pub strays: u8,
    /// A submit comes again, beside the lanes that would have stopped it.
    pub submits_again: u8,
    /// The session is lost and its attempts are suspended.
    pub cuts: u8,
    /// The engine is told again that the session is lost, or there.
    pub sessions_again: u8,
    /// The host of a worker that is not heard refuses connections for long enough, be the worker dead or not.
    pub refused: u8,
    /// The lease of a lost session ends.
    pub leases: u8,
    /// The worker's process dies and another life of it begins.
    pub restarts: u8,
    /// The worker is told to stop; when it is empty its process ends and a new life begins.
    pub drains: u8,
    /// A step fails.
    pub failures: u8,
    /// A step hangs.
    pub hangs: u8,
    /// The device is lost.
    pub losses_of_device: u8,
    /// The cancel driver repeats a cancel.
    pub repeats: u8,
    /// The shell's tokeniser refuses a prompt.
    pub refusals: u8,
    /// A reader comes back to a run that was left.
    pub returns: u8,
}

/// One bounded world.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// The runs, placed in this order.
    pub runs: Vec<RunSetup>,
    /// Blocks of the pool.
    pub blocks: u32,
    /// Positions of a block.
    pub block_tokens: u32,
    /// Sequences that run at once.
    pub slots: u32,
    /// Tokens of a step.
    pub step_tokens: u32,
    /// Steps in flight.
    pub in_flight: u32,
    /// Gateway and worker share a process: no lanes, nothing on its way.
    pub near: bool,
    /// The engine plans when told to, so that several messages may come between two plans; else after each.
    pub lazy: bool,
    /// A step's begin and end are two moments, so that a cancel may come while it runs.
    pub fine_steps: bool,
    /// A prompt takes time to be tokenised.
    pub slow_tokeniser: bool,
    /// The caller takes time to take its answer's end.
    pub slow_reader: bool,
    /// What has arrived is acknowledged at some later time, by a heartbeat.
    pub slow_heartbeat: bool,
    /// The runs have deadlines, which may pass at any time, on each side by its own clock.
    pub deadlines: bool,
    /// How often a run whose worker was lost is dispatched again.
    pub redispatch: u32,
    /// Cancels that the engine remembers for submits that have not come.
    pub tombstones: u32,
    /// The faults.
    pub budget: Budget,
}

impl Setup {
    /// A setup in one process without faults.
    pub fn new(name: &'static str, about: &'static str, runs: Vec<RunSetup>) -> Setup {
        Setup {
            name,
            about,
            runs,
            blocks: 3,
            block_tokens: 2,
            slots: 3,
            step_tokens: 4,
            in_flight: 2,
            near: true,
            lazy: false,
            fine_steps: true,
            slow_tokeniser: false,
            slow_reader: false,
            slow_heartbeat: false,
            deadlines: false,
            redispatch: 0,
            tombstones: 4,
            budget: Budget::default(),
        }
    }
}
