//! What a judgement is made of: what was seen of each try, the verdict on each cell, and the report that all of them make. These are the
//! shapes that the JSON has, so that an old report can be read and compared.
//!
//! Times are milliseconds, with fractions; a try's own are since its trigger, so that what happened before is negative. What was not seen is
//! `null`, never 0.
//!
//! A report of an older release lacks what came since; every field but a few has a default, so that it is read all the same.
//!
//! Invariant: nothing here is a conclusion but [`Verdict`] and what stands beside it in [`Judged`]; the rest was seen or measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cell::{Cell, words};

pub use super::saw::{ClientSaw, CpuSaw, EngineSaw, LogSaw, Look, NeighbourSaw, NeighbourText, TapSaw};

words! {
    /// By what something was seen.
    Source {
        /// The caller itself: what it read, and how its connection ended.
        Client = "client",
        /// A tap between two hops.
        Tap = "tap",
        /// A hop's own log.
        Log = "log",
        /// The engine's counters, looked at again and again.
        Counters = "counters",
        /// The same, looked at before and after only.
        CountersApart = "counters-before-and-after",
        /// Processor time of the engine's processes.
        Cpu = "cpu",
        /// How busy the engine's GPUs are, and what it holds there.
        Gpu = "gpu",
        /// Memory of the engine's processes.
        Memory = "memory",
        /// A further request, which shows how much room there is.
        Probe = "probe",
        /// The stack's own record of the run, where it keeps one.
        Record = "record",
        /// The time that a request which nobody left took to come so far.
        Calibrated = "calibrated",
    }
}

/// What was concluded of a cell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The work stopped in time, and what it held came back.
    Pass,
    /// It did not.
    Fail {
        /// Which fault that is.
        fault: Fault,
        /// What was seen, in a sentence.
        why: String,
    },
    /// Nothing can be said.
    NotProven {
        /// What is missing, and which option would bring it.
        missing: String,
    },
    /// Nobody can ask this of this stack.
    NotApplicable {
        /// Why.
        why: String,
    },
}

impl Verdict {
    /// The word for it.
    pub const fn word(&self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail { .. } => "FAIL",
            Verdict::NotProven { .. } => "not proven",
            Verdict::NotApplicable { .. } => "n/a",
        }
    }

    /// Whether it is a fault.
    pub const fn is_fail(&self) -> bool {
        matches!(self, Verdict::Fail { .. })
    }
}

words! {
    /// What a stack can be convicted of.
    Fault {
        /// The work goes on to its own end.
        NeverStops = "never-stops",
        /// It stops, but only once the engine tries to write to a caller that is gone.
        StopsAtNextWrite = "stops-at-next-write",
        /// It stops later than the tolerance allows.
        StopsLate = "stops-late",
        /// A request that waited was begun after its caller had left.
        QueuedIsBegun = "queued-is-begun",
        /// What the request held did not come back.
        CapacityLeaks = "capacity-leaks",
        /// Something that is kept for each request grows with every departure.
        StateLeaks = "state-leaks",
        /// Other callers' tokens came more slowly.
        NeighboursSlowed = "neighbours-slowed",
        /// Other callers' text was not what it is without the departure.
        NeighboursCorrupted = "neighbours-corrupted",
        /// A cancel was confirmed, and nothing was cancelled.
        CancelDoesNothing = "cancel-does-nothing",
        /// The stack asked the engine again for a request that nobody wants.
        AskedAgain = "asked-again",
        /// A caller that was there lost its answer.
        WantedIsCancelled = "wanted-is-cancelled",
        /// A departure was reported as a success, or as a failure of the engine.
        WrongOutcome = "wrong-outcome",
        /// A request that nobody left did not end well.
        ControlFails = "control-fails",
    }
}

/// One repetition of a cell.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Try {
    /// The id that it was traced by.
    pub id: String,
    /// Whether the phase was really entered, and by what that was seen.
    pub entered: Option<Source>,
    /// Most tokens that it asked for, over all its answers.
    pub asked_tokens: u64,
    /// Tokens that may be made for it though nobody reads them, and how long that may take: what buffers on the way hold, where a caller stopped
    /// reading.
    pub unread_tokens: u64,
    /// See `unread_tokens`.
    pub unread_ms: f64,
    /// What the caller saw.
    pub client: ClientSaw,
    /// What the taps saw, from the caller on.
    pub taps: Vec<TapSaw>,
    /// What the engine's counters showed.
    pub engine: Option<EngineSaw>,
    /// What its processor time showed.
    pub cpu: Option<CpuSaw>,
    /// What the load of its GPUs showed.
    pub gpu: Option<CpuSaw>,
    /// What the logs of the hops said.
    pub logs: Vec<LogSaw>,
    /// Whether the stack confirmed a cancel, where it was told to.
    pub cancel_confirmed: Option<bool>,
    /// What the stack's own record says of its end, where it keeps one: `cancelled/client_closed`.
    pub record: Option<String>,
    /// What became of the neighbour that shared its prompt's beginning, where it had one.
    pub neighbour: Option<NeighbourSaw>,
    /// Why it says nothing, if it does not.
    pub void: Option<String>,
}

/// A hop that the wish to end had to cross, and whether it did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Boundary {
    /// `client → nginx`, `nginx → litellm`, …
    pub name: String,
    /// Whether it was crossed in time; `None` where nobody looked. A report of an older release has no such word.
    #[serde(default)]
    pub crossed: Option<bool>,
    /// When it was crossed, if that is known: the median of the tries. A log says whether, and not when.
    pub crossed_ms: Option<f64>,
    /// By what that was seen; `None` where nobody looked.
    pub by: Option<Source>,
}

impl Boundary {
    /// Whether it was crossed, in reports of every release.
    pub fn is_crossed(&self) -> Option<bool> {
        self.crossed.or_else(|| self.by.map(|_| self.crossed_ms.is_some()))
    }
}

/// The verdict on a cell, and what it rests on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Judged {
    /// The question.
    pub cell: Cell,
    /// The answer.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// By what it was reached.
    #[serde(default)]
    pub by: Vec<Source>,
    /// Tries that count.
    #[serde(default)]
    pub tries: u64,
    /// Medians of the tries: tokens generated after the trigger, steps, time to the stop, time until the room was there again.
    pub tokens_after: Option<f64>,
    /// See `tokens_after`.
    pub steps_after: Option<f64>,
    /// See `tokens_after`.
    pub stop_ms: Option<f64>,
    /// See `tokens_after`.
    pub capacity_ms: Option<f64>,
    /// Each hop, from the caller on.
    #[serde(default)]
    pub boundaries: Vec<Boundary>,
    /// Where the wish to end was lost, if it was and that is known: the name of a boundary, or `nginx → vllm` for a span of several between
    /// which nobody looked.
    pub lost_at: Option<String>,
    /// Entries of the knowledge base that fit.
    #[serde(default)]
    pub advice: Vec<String>,
    /// What has to be said of it though it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// All that was seen.
    #[serde(default)]
    pub seen: Vec<Try>,
}

/// One hop of the stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hop {
    /// What it is called in the report.
    pub name: String,
    /// What it is, if that is known: `nginx`, `haproxy`, `litellm`, `vllm`, …
    pub kind: Option<String>,
    /// Its release, if it says that.
    pub version: Option<String>,
    /// SHA-256 of its configuration, where a file of it was named.
    pub config_sha256: Option<String>,
}

/// A check over many tries.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// `control`, `capacity`, `per-request state`, `memory`, `cache`, `probe`, `neighbours`, `observer`.
    pub name: String,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// By what.
    #[serde(default)]
    pub by: Vec<Source>,
    /// What was measured, by name.
    #[serde(default)]
    pub measured: BTreeMap<String, f64>,
    /// Entries of the knowledge base that fit.
    #[serde(default)]
    pub advice: Vec<String>,
}

impl Check {
    /// One of which nothing was measured yet.
    pub fn new(name: &str, verdict: Verdict, by: Vec<Source>) -> Check {
        Check { name: name.to_owned(), verdict, by, measured: BTreeMap::new(), advice: Vec::new() }
    }

    /// With this figure.
    pub fn with(mut self, name: &str, value: f64) -> Check {
        self.measured.insert(name.to_owned(), value);
        self
    }
}

/// All of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Always `verify`.
    pub object: String,
    /// The release of kvit that judged.
    pub kvit: String,
    /// When it began, in seconds of the calendar.
    pub began_s: u64,
    /// How long it took.
    pub took_s: f64,
    /// Where the stack was asked.
    pub target: String,
    /// The model that was asked for.
    pub model: String,
    /// The profile by which the engine's counters were read.
    pub profile: String,
    /// Every hop that is known, from the caller on; the last is the engine.
    pub hops: Vec<Hop>,
    /// Whether the engine was looked at during tries.
    pub polled: bool,
    /// The settings that verdicts depend on, by name.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// The cells, in the order in which they were asked.
    pub cells: Vec<Judged>,
    /// What was checked over all of them.
    pub checks: Vec<Check>,
    /// What could not be proven, and which option would help.
    pub hints: Vec<String>,
}
