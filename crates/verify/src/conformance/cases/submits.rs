//! At most once: submits that come again, for others, or under a name that is taken.

use lifecycle::{Cause, Incarnation};

use super::{complete, decoding, ended, long};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Found, case, must};
use crate::conformance::gateway::Want;

pub(super) const CASES: &[Case] = &[
    case!("submits", twice_with_one_number, Short, "C-2. \"It runs at most once\": the same submit in a second message"),
    case!("submits", twice_with_a_new_number, Short, "C-2. \"One that this gateway's life has running changes nothing\""),
    case!(
        "submits",
        for_another_life_of_the_worker,
        Short,
        "C-2. \"One that is meant for another life of the worker is turned down with CAUSE_WORKER_LOST\""
    ),
    case!("submits", name_that_another_gateway_runs, Short, "\"One that another gateway has running is turned down with CAUSE_INVALID\""),
    case!("submits", name_that_an_earlier_life_runs, Short, "\"Ended first (CAUSE_ORPHANED) and the new one begins when it is released\""),
];

async fn twice_with_one_number(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    let number = gateway.submit(&attempt, Want::tokens(24));
    gateway.submit(&attempt, Want { number: Some(number), ..Want::tokens(24) });
    complete(&gateway.released(&attempt).await?, 24)?;
    // After the end, too: whatever came of it would break the story.
    gateway.submit(&attempt, Want { number: Some(number), ..Want::tokens(24) });
    let marker = bench.attempt("marker");
    gateway.submit(&marker, Want::tokens(6));
    complete(&gateway.released(&marker).await?, 6)?;
    Ok("submitted three times, run once".to_owned())
}

async fn twice_with_a_new_number(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.submit(&attempt, long(&bench));
    let marker = bench.attempt("marker");
    gateway.submit(&marker, Want::tokens(6));
    complete(&gateway.released(&marker).await?, 6)?;
    gateway.still_runs(&attempt)?;
    let cut = bench.snapshot().await?;
    let named = protocol::worker_v1::Attempt::from(&attempt);
    let times = cut.attempts.iter().filter(|cut| cut.attempt.as_ref() == Some(&named)).count();
    must(times == 1, || format!("it is {times} times in Snapshot"))?;
    Ok("submitted twice, run once".to_owned())
}

async fn for_another_life_of_the_worker(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want { worker: Some(Incarnation(bench.worker.life.0 - 1)), ..Want::tokens(4) });
    let story = gateway.released(&attempt).await?;
    ended(&story, Cause::WorkerLost)?;
    must(story.tokens() == 0 && story.accepted.is_none(), || "it was taken on".to_owned())?;
    Ok("turned down with worker_lost, and released".to_owned())
}

async fn name_that_another_gateway_runs(bench: Bench) -> Found {
    let (owner, attempt) = decoding(&bench, "a").await?;
    let other = bench.connected("b").await?;
    other.submit(&attempt, Want::tokens(4));
    ended(&other.released(&attempt).await?, Cause::Invalid)?;
    let tokens = owner.tokens(&attempt);
    owner.has_tokens(&attempt, tokens + 3).await?;
    Ok("turned down with invalid; the owner's went on".to_owned())
}

async fn name_that_an_earlier_life_runs(bench: Bench) -> Found {
    let (before, attempt) = decoding(&bench, "a").await?;
    before.cut();
    let after = bench.gateway("a");
    // The new life submits before it has answered what it is asked of the old one.
    after.see(|state| state.knobs.answers = crate::conformance::gateway::Answers::Nothing);
    bench.connect(&after).await?;
    after.submit(&attempt, Want::tokens(5));
    complete(&after.released(&attempt).await?, 5)?;
    Ok("the new life's has all its 5 tokens from the first on".to_owned())
}
