//! The bugs themselves: each one other answer to one question of `lifecycle::rules`.
//!
//! Invariant: each differs from the sound rules in a single answer.

use std::time::Duration;

use lifecycle::{AttemptId, Rules, StepId};

macro_rules! bugs {
    ($($(#[$m:meta])* $name:ident { $($body:tt)* })+) => {
        $(
            $(#[$m])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            pub struct $name;
            impl Rules for $name { $($body)* }
        )+
    };
}

bugs! {
    /// A block that its owner leaves waits for no step.
    FreeBeforeFence {
        fn fence_of_block(_newest: Option<StepId>) -> Option<StepId> {
            None
        }
    }
    /// Whoever leaves a shared block takes it from all.
    SharedBlockFreed {
        fn leaves_alone() -> bool {
            false
        }
    }
    /// Blocks that wait for a fence are given away.
    DeferredCountsAsFree {
        fn capacity(available: u32, draining: u32) -> u32 {
            available + draining
        }
    }
    /// What was scheduled counts as computed.
    DroppedBlockPublished {
        fn publishes(_computed: usize, scheduled: usize) -> usize {
            scheduled
        }
    }
    /// The first live attempt whose run's id begins like the one that is named.
    IdByPrefix {
        fn named<'a>(wanted: &AttemptId, _exact: Option<u64>, mut live: impl Iterator<Item = (u64, &'a AttemptId)>) -> Option<u64> {
            live.find(|(_, id)| id.key.run.as_str().starts_with(wanted.key.run.as_str())).map(|(key, _)| key)
        }
    }
    /// A cancel for an unknown attempt is forgotten.
    EarlyCancelLost {
        fn leaves_tombstone() -> bool {
            false
        }
    }
    /// A second cause releases what the first has ended.
    ReleasedAgain {
        fn releases_again() -> bool {
            true
        }
    }
    /// Only the first answer of an attempt ends with it.
    OtherAnswersRunOn {
        fn ends_sequence(sequence: usize) -> bool {
            sequence == 0
        }
    }
    /// A step's word on an attempt that has ended is filtered out.
    LateCompletionFiltered {
        fn counts_late_row() -> bool {
            false
        }
    }
    /// An attempt is released when its end is decided.
    ReleasedAtTheEnd {
        fn is_released(_rows_in_flight: u32) -> bool {
            true
        }
    }
    /// An acknowledged cancel counts as a release.
    AcknowledgementReleases {
        fn acknowledgement_releases() -> bool {
            true
        }
    }
    /// A cancel that is sent counts as a release.
    StateRemovedEarly {
        fn cancel_sent_releases() -> bool {
            true
        }
    }
    /// After a while a cancelled run counts as released.
    BlindTimer {
        fn time_releases(waited: Duration) -> bool {
            waited >= Duration::from_millis(250)
        }
    }
}
