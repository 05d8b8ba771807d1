//! The decisions that servers in the field got wrong, each as a question with its sound answer.
//!
//! The cores ask here instead of deciding in place, so that `sim` can hold a museum: known bugs as other answers to the same questions,
//! which the explorer must catch. What serves is compiled with [`Sound`], whose answers are constants: the questions cost nothing.
//!
//! Invariant: no crate but `sim` has another implementation than [`Sound`], and a default body here is never the bug.

use std::fmt::Debug;
use std::time::Duration;

use crate::{AttemptEvent, AttemptId, AttemptState, CallEvent, CallState, StepId};

/// Answers to the delicate questions of the pool, of the engine and of a gateway's dispatch. Each default is the sound answer.
pub trait Rules: Clone + Copy + Debug + Default + Send + Sync + 'static {
    /// A block leaves an owner, and `newest` is the newest step that may still touch it through that owner. Which step does it wait for?
    // contract: C-16
    fn fence_of_block(newest: Option<StepId>) -> Option<StepId> {
        newest
    }

    /// One of several owners leaves a shared block. Does it leave alone, so that the others keep the block?
    // contract: C-18
    fn leaves_alone() -> bool {
        true
    }

    /// `available` blocks are free or cached, `draining` more wait for a fence. How many may admission give away?
    // contract: C-16
    fn capacity(available: u32, draining: u32) -> u32 {
        let _ = draining;
        available
    }

    /// A sequence goes and leaves its blocks. The first `computed` of them are full and done in every layer; so many are full once all of
    /// its `scheduled` rows are done, which may be dropped or fail. How many may the prefix index offer to others?
    // contract: C-19
    fn publishes(computed: usize, scheduled: usize) -> usize {
        let _ = scheduled;
        computed
    }

    /// A message names `wanted`. `exact` is the live attempt of exactly this id, if there is one; `live` are all of them in the order of
    /// their arrival. Which does it name?
    // contract: C-1
    fn named<'a>(wanted: &AttemptId, exact: Option<u64>, live: impl Iterator<Item = (u64, &'a AttemptId)>) -> Option<u64> {
        let _ = (wanted, live);
        exact
    }

    /// A cancel names an attempt whose submit may still come. Does it leave a tombstone?
    // contract: C-11
    fn leaves_tombstone() -> bool {
        true
    }

    /// A cause comes for an attempt that another has ended already. Is the attempt released because of it?
    // contract: C-4, C-20
    fn releases_again() -> bool {
        false
    }

    /// The end of an attempt of several sequences is decided. Does it end this one of them?
    // contract: C-31
    fn ends_sequence(sequence: usize) -> bool {
        let _ = sequence;
        true
    }

    /// A step is done that holds a row of an attempt that has ended meanwhile. Is the row over, so that the attempt may be released?
    // contract: C-16, C-20
    fn counts_late_row() -> bool {
        true
    }

    /// The end of an attempt is decided, and so many of its rows are in steps that are not over. Is it released now?
    // contract: C-6, C-20
    fn is_released(rows_in_flight: u32) -> bool {
        rows_in_flight == 0
    }

    /// A worker has acknowledged a cancel. Does it hold nothing of the attempt any more?
    // contract: C-6, C-9
    fn acknowledgement_releases() -> bool {
        false
    }

    /// A cancel is on its way to the worker. May the gateway take the run for released?
    // contract: C-9, C-10
    fn cancel_sent_releases() -> bool {
        false
    }

    /// So long ago a cancel was first sent, and the worker has not said `released`. Are its blocks free?
    // contract: C-9, C-23
    fn time_releases(waited: Duration) -> bool {
        let _ = waited;
        false
    }

    /// An attempt's machine meets an event. No question: whoever counts which cells of the machine's table are met listens here.
    fn attempt_meets(state: AttemptState, event: AttemptEvent) {
        let _ = (state, event);
    }

    /// A call's machine meets an event; `current` is the attempt that is current.
    fn call_meets(state: CallState, current: u32, event: CallEvent) {
        let _ = (state, current, event);
    }
}

/// The sound answers: what serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sound;

impl Rules for Sound {}
