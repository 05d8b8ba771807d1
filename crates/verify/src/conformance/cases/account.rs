//! Snapshot: one cut that adds up.

use protocol::worker_v1::AttemptState;

use super::{decoding, ended};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Found, case, must};

pub(super) const CASES: &[Case] = &[
    case!(
        "account",
        adds_up_and_names_what_runs,
        Short,
        "C-15. \"free + active + cached + draining + quarantined = total\", with a live attempt and a suspended one"
    ),
    case!("account", at_rest, Short, "\"With nothing alive all are 0, but for `slots_total`\""),
];

async fn adds_up_and_names_what_runs(bench: Bench) -> Found {
    let (silent, suspended) = decoding(&bench, "a").await?;
    silent.see(|state| state.knobs.speaks = false);
    let (_, live) = decoding(&bench, "b").await?;
    bench.until_state(&suspended, Some(AttemptState::Suspended), bench.surely_suspended() + bench.options.patience).await?;
    let cut = bench.snapshot().await?;
    let state = bench.state_of(&live).await?;
    let alive = [AttemptState::Queued, AttemptState::Prefilling, AttemptState::Decoding, AttemptState::Preempted];
    must(state.is_some_and(|state| alive.contains(&state)), || format!("an attempt that runs is {state:?}"))?;
    must(cut.active > 0, || "two attempts are alive, and no block is active".to_owned())?;
    must(cut.attempts.len() >= 2, || format!("two attempts are alive, and {} are listed", cut.attempts.len()))?;
    Ok(format!("{} free, {} active, {} cached, {} draining, {} in all", cut.free, cut.active, cut.cached, cut.draining, cut.total))
}

async fn at_rest(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cancel(&attempt, lifecycle::Cause::CancelRequested, None);
    ended(&gateway.released(&attempt).await?, lifecycle::Cause::CancelRequested)?;
    let cut = bench.snapshot().await?;
    if !cut.attempts.is_empty() {
        return Err(crate::conformance::case::Fault::Skipped(format!("{} attempts of somebody else are alive", cut.attempts.len())));
    }
    let held = cut.held.ok_or_else(|| crate::conformance::case::Fault::Failed("Snapshot.held is missing".to_owned()))?;
    let held = [held.attempts, held.owners, held.waiting, held.running, held.deadlines, held.slots, held.answers];
    must(held.iter().all(|n| *n == 0), || format!("nothing is alive, and the tables' lengths are {held:?}"))?;
    let alive = [cut.active, cut.queued, cut.running, cut.stopping];
    must(alive.iter().all(|n| *n == 0), || format!("nothing is alive; active, queued, running, stopping are {alive:?}"))?;
    Ok("nothing is alive, and nothing is held".to_owned())
}
