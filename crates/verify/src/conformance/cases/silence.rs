//! Gateways that are not heard, or do not hear.

use std::time::{Duration, Instant};

use lifecycle::{AttemptId, Cause};
use protocol::worker_v1::AttemptState;

use super::{decodes, decoding, ended, pass};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Fault, Found, case, must};
use crate::conformance::gateway::Gateway;

pub(super) const CASES: &[Case] = &[
    case!(
        "silence",
        silent_gateway_is_suspended,
        Short,
        "C-10. \"Without a frame for this long, attempts are suspended\"; another gateway's go on"
    ),
    case!("silence", heard_again, Short, "C-10. \"Hear of it again: go on where they were\": no token is lost, none comes twice"),
    case!("silence", cut_for_longer_than_suspend_after, Short, "C-10. \"A stream that closes ends nothing; it counts as silence\""),
    case!(
        "silence",
        deaf_gateway_is_suspended,
        Short,
        "\"A gateway that is heard but has echoed no stamp of the last four `suspend_after_ms` ... its attempts are suspended too\""
    ),
    case!(
        "silence",
        lease_over,
        Long,
        "C-9. \"After that it ends the gateway's attempts with CAUSE_ORPHANED\"; who was stopped learns how they ended"
    ),
    case!(
        "silence",
        lease_over_of_a_deaf_gateway,
        Long,
        "C-9. \"Its own newest stamp that this gateway has echoed ... + lease\": to be heard does not prolong it"
    ),
    case!("silence", not_before_the_longer_lease, Long, "C-9. \"The longer one holds\": nothing is orphaned before it is over"),
];

/// Waits until nothing comes of an attempt any more, then sees that nothing comes for a while.
async fn stands_still(bench: &Bench, gateway: &Gateway, attempt: &AttemptId) -> Result<u32, Fault> {
    let suspended = Some(AttemptState::Suspended);
    if let Err(fault) = bench.until_state(attempt, suspended, bench.surely_suspended() + bench.options.patience).await {
        gateway.still_runs(attempt)?;
        return Err(fault);
    }
    // What the last step had for it is still on its way.
    pass(bench.worker.suspend_after).await;
    let tokens = gateway.tokens(attempt);
    pass(bench.worker.suspend_after * 2).await;
    let later = gateway.tokens(attempt);
    must(later == tokens, || format!("suspended, and {} tokens more came", later - tokens))?;
    gateway.still_runs(attempt)?;
    Ok(tokens)
}

async fn silent_gateway_is_suspended(bench: Bench) -> Found {
    let (silent, attempt) = decoding(&bench, "a").await?;
    let (other, neighbour) = decoding(&bench, "b").await?;
    silent.see(|state| state.knobs.speaks = false);
    let tokens = stands_still(&bench, &silent, &attempt).await?;
    let before = other.tokens(&neighbour);
    other.has_tokens(&neighbour, before + 3).await?;
    must(silent.tokens(&attempt) == tokens, || "the silent gateway's attempt went on".to_owned())?;
    let state = bench.state_of(&attempt).await?;
    let why = || format!("the neighbour's went on only when the silent gateway's was {state:?}");
    must(state == Some(AttemptState::Suspended), why)?;
    Ok(format!("it stood at {tokens} tokens while the neighbour's went on from {before}"))
}

/// After a silence: further tokens come, and when the attempt is cancelled its count of tokens is that of those that came.
async fn goes_on(gateway: &Gateway, attempt: &AttemptId, from: u32) -> Result<u32, Fault> {
    gateway.has_tokens(attempt, from + 10).await?;
    gateway.cancel(attempt, Cause::CancelRequested, None);
    let story = gateway.released(attempt).await?;
    ended(&story, Cause::CancelRequested)?;
    Ok(story.tokens())
}

async fn heard_again(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.see(|state| state.knobs.speaks = false);
    let tokens = stands_still(&bench, &gateway, &attempt).await?;
    gateway.see(|state| state.knobs.speaks = true);
    let all = goes_on(&gateway, &attempt, tokens).await?;
    Ok(format!("it stood at {tokens} tokens and went on; {all} were generated, and {all} came"))
}

async fn cut_for_longer_than_suspend_after(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cut();
    bench.until_state(&attempt, Some(AttemptState::Suspended), bench.surely_suspended() + bench.options.patience).await?;
    must(bench.connect(&gateway).await?, || "the tenure did not go on".to_owned())?;
    let tokens = gateway.tokens(&attempt);
    let all = goes_on(&gateway, &attempt, tokens).await?;
    Ok(format!("suspended in between at {tokens} tokens; {all} were generated, and {all} came"))
}

async fn deaf_gateway_is_suspended(bench: Bench) -> Found {
    let (deaf, attempt) = decoding(&bench, "a").await?;
    let (other, neighbour) = decoding(&bench, "b").await?;
    deaf.see(|state| state.knobs.echoes = false);
    let tokens = stands_still(&bench, &deaf, &attempt).await?;
    let before = other.tokens(&neighbour);
    other.has_tokens(&neighbour, before + 3).await?;
    deaf.see(|state| state.knobs.echoes = true);
    deaf.has_tokens(&attempt, tokens + 3).await?;
    Ok(format!("it stood at {tokens} tokens while it said heartbeats with an old echo, and went on with a new one"))
}

async fn orphaned(bench: &Bench, gateway: &Gateway, attempt: &AttemptId, since: Instant) -> Result<Duration, Fault> {
    let lease = gateway.see(|state| state.lease);
    bench.until_state(attempt, None, lease + bench.options.patience).await?;
    let took = since.elapsed();
    // What was echoed last was made a heartbeat or two before.
    must(took + bench.worker.suspend_after * 4 >= lease, || format!("it was gone after {took:?}, before the lease of {lease:?}"))?;
    Ok(took)
}

async fn lease_over(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cut();
    let took = orphaned(&bench, &gateway, &attempt, Instant::now()).await?;
    must(bench.connect(&gateway).await?, || "the tenure was forgotten before one more lease was over".to_owned())?;
    ended(&gateway.released(&attempt).await?, Cause::Orphaned)?;
    decodes(&bench, &gateway, "again").await?;
    Ok(format!("orphaned after {:.1} s; the gateway that came back was told, and goes on", took.as_secs_f64()))
}

async fn lease_over_of_a_deaf_gateway(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.see(|state| state.knobs.echoes = false);
    let took = orphaned(&bench, &gateway, &attempt, Instant::now()).await?;
    ended(&gateway.released(&attempt).await?, Cause::Orphaned)?;
    let old = gateway.see(|state| {
        state.knobs.echoes = true;
        state.stamp.0
    });
    // A submit that still goes with the old echo comes when no lease holds, and a good worker orphans it at once.
    gateway.until("a new stamp to echo", |state| state.stamp.0 > old).await?;
    decodes(&bench, &gateway, "again").await?;
    Ok(format!("orphaned after {:.1} s of heartbeats with an old echo; a new one began a new lease", took.as_secs_f64()))
}

async fn not_before_the_longer_lease(bench: Bench) -> Found {
    let gateway = bench.gateway_that_states("a", bench.worker.lease * 2);
    bench.connect(&gateway).await?;
    let attempt = decodes(&bench, &gateway, "a").await?;
    gateway.cut();
    let since = Instant::now();
    pass(bench.worker.lease + bench.worker.lease / 2).await;
    let state = bench.state_of(&attempt).await?;
    must(state == Some(AttemptState::Suspended), || {
        format!("after {:?} of a lease of {:?} it is {state:?}", since.elapsed(), bench.worker.lease * 2)
    })?;
    must(bench.connect(&gateway).await?, || "the tenure did not go on".to_owned())?;
    let tokens = gateway.tokens(&attempt);
    gateway.has_tokens(&attempt, tokens + 3).await?;
    Ok(format!("alive after {:.1} s, and went on", since.elapsed().as_secs_f64()))
}
