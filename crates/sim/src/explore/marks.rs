//! Situations that an exploration must have met somewhere, or it shows nothing of them.
//!
//! Invariant: a mark is set where the situation is seen, never because an action was chosen.

macro_rules! marks {
    ($($name:ident = $text:literal),+ $(,)?) => {
        /// One such situation.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Mark { $(#[doc = $text] $name),+ }
        impl Mark {
            /// All of them.
            pub const ALL: &'static [Mark] = &[$(Mark::$name),+];
            /// The situation in words.
            pub const fn text(self) -> &'static str { match self { $(Mark::$name => $text),+ } }
        }
    };
}

marks! {
    CancelQueued = "a cancel in the queue",
    CancelTokenising = "a cancel while the prompt is tokenised",
    CancelPrefill = "a cancel in prefill",
    CancelDecode = "a cancel in decode",
    CancelPreempted = "a cancel of a preempted attempt",
    CancelSuspended = "a cancel of a suspended attempt",
    CancelTwoSteps = "a cancel with rows in two steps in flight",
    CancelAfterRelease = "a cancel that comes after the release",
    CancelTwice = "two causes at one attempt: the second is superseded",
    TombstoneHit = "a submit meets the tombstone of its cancel",
    DroppedEarly = "a row is dropped before its first layer",
    DroppedMidway = "a row is dropped between two layers",
    LateToken = "one token is computed after the cancel's receipt",
    Overrun = "a token is computed after the run's own end",
    Preempted = "an attempt is preempted",
    PreemptedShared = "an attempt is preempted while it shares a block",
    Shared = "two attempts share a block",
    CachedHit = "a prefix is taken from the cache",
    Follows = "an attempt waits for a prefix that another computes",
    Takeover = "an attempt computes a prefix that it had waited for",
    DrainingWaited = "blocks drain while an attempt waits for room",
    SuspendedPrefill = "a suspension in prefill",
    SuspendedDecode = "a suspension in decode",
    Attached = "a suspended attempt goes on",
    Orphaned = "a lease's end ends an attempt",
    SecondSequence = "an attempt of two answers is released by the end of its second",
    StepFailed = "a step fails under an attempt",
    Quarantined = "a block is quarantined",
    GhostWrite = "a step that hung writes late",
    LateFence = "a fence comes for a step that was given up",
    DeviceLost = "the device is lost",
    Dismissed = "readers of a refused worker are told an end before there is an outcome",
    RefusedWaits = "a worker is refused, and a run of it that may be dispatched again waits",
    RefusedLives = "a refused worker lives, and ends a run as it was asked to",
    ToldOtherwise = "the outcome is another than the end that readers were told",
    Voided = "a run is void, for its worker is lost",
    LateAfterVoid = "a late word about a run that is void",
    Redispatched = "a run is dispatched again",
    StaleFrame = "a frame of a tenure that is over",
    FrameAgain = "a frame comes twice",
    FrameEarly = "a frame overtakes another and waits",
    FrameResent = "a lost frame is sent again",
    GatewayDeadline = "a deadline fires at the gateway",
    WorkerDeadline = "a deadline fires at the worker",
    OutcomeRace = "the worker decides otherwise than the gateway had asked",
    NoWorker = "a run ends before any worker has it",
    HandedBack = "a stopping worker hands a waiting attempt back",
    RunningHandedBack = "an attempt that ran is handed back at the end of a stopping worker's limit",
    DrainedRunning = "a run that was told something ends at the end of that limit",
    TurnedAway = "a stopping worker turns a submit away",
    HandedBackLost = "a worker is lost between the word that hands a run back and its release",
    SubmitAgain = "a submit comes twice",
    StopString = "a stop string ends a run while its next row is in flight",
    StopToken = "a stop token ends a run",
    Length = "a run ends by its length",
    CameBack = "a reader comes back in its run's grace",
    RanOut = "nobody comes back in a grace",
    EndedInGrace = "a run comes to its own end in a grace",
    LeftRunning = "a run goes on without a reader",
}

/// A set of marks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Marks(pub u64);

impl Marks {
    /// Adds one.
    pub fn add(&mut self, mark: Mark) {
        self.0 |= 1 << mark as u64;
    }

    /// Adds all of another set.
    pub fn union(&mut self, other: Marks) {
        self.0 |= other.0;
    }

    /// Whether it is in.
    pub fn has(self, mark: Mark) -> bool {
        self.0 >> (mark as u64) & 1 == 1
    }

    /// Those that are not in.
    pub fn missing(self) -> Vec<Mark> {
        Mark::ALL.iter().copied().filter(|mark| !self.has(*mark)).collect()
    }
}
