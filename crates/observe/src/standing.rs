//! How a run stands, and what changes with it: whether a filter picks it, and the gauges that a record moves.
//!
//! Invariant: a record that changes nothing of how its run stands moves no gauge.

use std::collections::VecDeque;

use lifecycle::event::Record;

use crate::fold::{Run, Stands};
use crate::metrics::Totals;
use crate::runs::RunFilter;
use crate::view::RunState;
use crate::waiting::Waiting;

/// Whether the filter picks this run.
pub(crate) fn matches(run: &Run, filter: &RunFilter) -> bool {
    let outcome = run.outcome.as_ref();
    filter.state.is_none_or(|s| run.state() == s)
        && !(filter.live && run.state() == RunState::Ended)
        && filter.outcome.is_none_or(|k| outcome.is_some_and(|o| o.kind() == k))
        && filter.cause.is_none_or(|c| outcome.is_some_and(|o| o.cause == c))
}

/// Folds a record into its run and into the totals. What was true before is what the last record left.
pub(crate) fn fold_into(run: &mut Run, record: &Record, (totals, ended, waiting): (&mut Totals, &mut VecDeque<u64>, &mut Waiting)) {
    run.fold(record, totals);
    let stands = Stands { state: run.state(), over: run.is_over(), awaits: run.awaits_acknowledgement(), orphans: run.orphans() };
    if stands == run.stands {
        return;
    }
    let before = std::mem::replace(&mut run.stands, stands);
    totals.runs[before.state as usize] -= 1;
    totals.runs[stands.state as usize] += 1;
    totals.unacknowledged = totals.unacknowledged - u64::from(before.awaits) + u64::from(stands.awaits);
    totals.orphans = totals.orphans - before.orphans + stands.orphans;
    waiting.follow(run, [stands.awaits, stands.orphans > 0], record.at);
    if stands.over && !before.over {
        ended.push_back(run.seq);
    }
}
