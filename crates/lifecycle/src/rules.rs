//! The decisions that servers in the field got wrong, each as a question with its sound answer.
//!
//! The cores ask here instead of deciding in place, so that `sim` can hold a museum: known bugs as other answers to the same questions,
//! which the explorer must catch. What serves is compiled with [`Sound`], whose answers are constants: the questions cost nothing.
//!
//! Invariant: no crate but `sim` has another implementation than [`Sound`], and a default body here is never the bug.

use std::fmt::Debug;
use std::time::Duration;

/// Answers to the delicate questions of the cores. Each default is the sound answer.
pub trait Rules: Clone + Copy + Debug + Default + Send + Sync + 'static {
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
}

/// The sound answers: what serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sound;

impl Rules for Sound {}
