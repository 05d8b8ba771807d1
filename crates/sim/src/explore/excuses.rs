//! Cells that no exploration meets, each with its reason. An empty list of states or events stands for all of them.
//!
//! Invariant: first match counts; a cell that is met must not be in here.

/// A reason, and the cells that it is for.
pub struct Excuse {
    /// `attempt` or `call`.
    pub machine: &'static str,
    states: &'static [&'static str],
    events: &'static [&'static str],
    /// The reason.
    pub why: &'static str,
}

impl Excuse {
    /// Whether it is for this cell.
    pub fn holds(&self, state: &str, event: &str) -> bool {
        let is_in = |list: &[&str], word| list.is_empty() || list.contains(&word);
        is_in(self.states, state) && is_in(self.events, event)
    }
}

const TOKENISING: &str = "suspended(tokenising)";
const QUEUED: &str = "suspended(queued)";
const PREFILLING: &str = "suspended(prefilling)";
const DECODING: &str = "suspended(decoding)";
const PREEMPTED: &str = "suspended(preempted)";

const fn attempt(states: &'static [&'static str], events: &'static [&'static str], why: &'static str) -> Excuse {
    Excuse { machine: "attempt", states, events, why }
}

const fn call(states: &'static [&'static str], events: &'static [&'static str], why: &'static str) -> Excuse {
    Excuse { machine: "call", states, events, why }
}

/// All of them.
pub const EXCUSES: &[Excuse] = &[
    attempt(&["tombstoned"], &[], "the engine keeps early cancels in a list of their own: the attempt begins with its submit"),
    attempt(
        &["unknown"],
        &["tokenised", "scheduled", "first_token", "preempt", "suspend", "attach", "end", "drained"],
        "an attempt that the engine makes is told its submit at once",
    ),
    attempt(&["released"], &[], "the engine forgets an attempt in the moment of its release"),
    attempt(
        &["tokenising", "queued", "prefilling", "decoding", "preempted", "stopping", TOKENISING, QUEUED, PREFILLING, DECODING, PREEMPTED],
        &["submit"],
        "a submit that comes again is known by its id or its number before the machine is asked",
    ),
    attempt(
        &["queued", "prefilling", "decoding", "preempted", "stopping", QUEUED, PREFILLING, DECODING, PREEMPTED],
        &["tokenised"],
        "a prompt is taken only while one is waited for",
    ),
    attempt(
        &["tokenising", "prefilling", "decoding", "stopping", TOKENISING, QUEUED, PREFILLING, DECODING, PREEMPTED],
        &["scheduled"],
        "only who waits with its prompt, and is not suspended, is let in",
    ),
    attempt(
        &["tokenising", "queued", "decoding", "preempted", "stopping", TOKENISING, QUEUED, DECODING, PREEMPTED],
        &["first_token"],
        "the engine tells it only of a token that ends a prefill",
    ),
    attempt(
        &["tokenising", "queued", "preempted", "stopping", TOKENISING, QUEUED, PREFILLING, DECODING, PREEMPTED],
        &["preempt"],
        "only who runs is a victim",
    ),
    attempt(
        &["tokenising", "queued", "prefilling", "decoding", "preempted", TOKENISING, QUEUED, PREFILLING, DECODING, PREEMPTED],
        &["drained"],
        "the engine asks for a release only when the end is decided",
    ),
    call(&[], &["other_attempt"], "Dispatch lets through no word about another attempt than the current one"),
    call(
        &["dispatched", "live", "stopping", "ended", "released", "void", "settled(proven)", "settled(void)", "handed_back"],
        &["dispatch"],
        "only a run that waits is placed",
    ),
    call(
        &["accepted", "waiting again"],
        &["worker_accepted", "worker_ended", "worker_handed_back", "worker_released", "worker_lost", "worker_lost(again)"],
        "Dispatch takes words only of the worker that has the run, and none has",
    ),
    call(
        &["accepted", "waiting again", "dispatched", "live", "handed_back"],
        &["delivered"],
        "an answer is over only once the run's end is wanted or decided, whatever a disconnect means for it (C-25)",
    ),
    call(
        &["accepted", "waiting again", "dispatched", "live", "released", "void", "settled(proven)", "settled(void)", "handed_back"],
        &["retry"],
        "Dispatch repeats only a cancel whose release is still to come",
    ),
    call(&["dispatched", "live", "stopping"], &["worker_released"], "in a lane the end comes before the release"),
    call(
        &["ended", "released", "settled(proven)", "handed_back"],
        &["worker_accepted", "worker_ended", "worker_handed_back"],
        "a worker takes an attempt on once and decides its end once, in this order",
    ),
    call(&["released", "settled(proven)"], &["worker_released"], "an attempt is released once (C-20)"),
    call(
        &["void", "settled(void)"],
        &["worker_accepted", "worker_ended", "worker_handed_back", "worker_released"],
        "the session throws away what is said in a tenure that is over",
    ),
    call(
        &["ended", "released", "void", "settled(proven)", "settled(void)"],
        &["worker_lost(again)"],
        "no further attempt is offered once there is an outcome",
    ),
    call(&["stopping"], &["worker_handed_back"], "Dispatch takes an end for a handing back only while nobody wants the run to end"),
    call(&["handed_back"], &["worker_lost"], "in these worlds a worker always comes again, so a further attempt is always offered"),
    call(&["settled(proven)", "settled(void)"], &["want", "delivered"], "a settled run's dispatch is let go of"),
];
