//! Cancels that come before their submit.

use lifecycle::Cause;

use super::{complete, ended};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Found, case, must};
use crate::conformance::gateway::{Knobs, Want};

pub(super) const CASES: &[Case] = &[
    case!(
        "early",
        cancel_before_its_submit,
        Short,
        "C-11. \"Keep a tombstone, so that it computes nothing when it comes\": \"one whose Cancel came first with that cancel's cause\""
    ),
    case!(
        "early",
        cancel_of_another_gateway_before_the_submit,
        Short,
        "C-11. \"Any gateway may send it ... and is then told CancelAcknowledged, Ended and Released like that one\""
    ),
    case!("early", cancel_in_the_same_moment, Short, "C-13. A submit and its cancel at once: no token after the acknowledgement"),
    case!(
        "early",
        no_tombstone_below_the_mark,
        Short,
        "C-2. \"At or below the highest that the worker has taken ... acknowledge, and keep nothing\""
    ),
];

async fn cancel_before_its_submit(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.cancel(&attempt, Cause::ClientClosed, Some(1));
    gateway.until("CancelAcknowledged", |state| state.story(&attempt).acknowledged == [None]).await?;
    gateway.submit(&attempt, Want::tokens(8));
    let story = gateway.released(&attempt).await?;
    ended(&story, Cause::ClientClosed)?;
    must(story.tokens() == 0, || format!("{} tokens were generated", story.tokens()))?;
    // The tombstone is used up.
    let other = bench.attempt("other");
    gateway.submit(&other, Want::tokens(3));
    complete(&gateway.released(&other).await?, 3)?;
    Ok("nothing was generated; it ended with the cancel's cause".to_owned())
}

async fn cancel_of_another_gateway_before_the_submit(bench: Bench) -> Found {
    let (owner, other, attempt) = (bench.connected("a").await?, bench.connected("b").await?, bench.attempt("a"));
    other.cancel(&attempt, Cause::CancelRequested, Some(u64::MAX));
    other.until("CancelAcknowledged", |state| state.story(&attempt).acknowledged == [None]).await?;
    owner.submit(&attempt, Want::tokens(8));
    let story = owner.released(&attempt).await?;
    ended(&story, Cause::CancelRequested)?;
    must(story.tokens() == 0, || format!("{} tokens were generated", story.tokens()))?;
    ended(&other.released(&attempt).await?, Cause::CancelRequested)?;
    Ok("both were told how it ended, and that it is released".to_owned())
}

async fn cancel_in_the_same_moment(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let attempts = ["in-order", "reversed"].map(|of| bench.attempt(of));
    for (attempt, reverse) in attempts.iter().zip([false, true]) {
        gateway.see(|state| state.knobs = Knobs { reverse, ..Knobs::default() });
        gateway.submit(attempt, super::long(&bench));
        gateway.cancel(attempt, Cause::ClientReset, None);
        ended(&gateway.released(attempt).await?, Cause::ClientReset)?;
    }
    Ok("submit and cancel in one breath, in order and reversed".to_owned())
}

async fn no_tombstone_below_the_mark(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    let number = gateway.submit(&attempt, Want::tokens(2));
    complete(&gateway.released(&attempt).await?, 2)?;
    let before = bench.snapshot().await?.tombstones;
    for _ in 0..3 {
        gateway.cancel(&attempt, Cause::CancelRequested, Some(number));
    }
    gateway.until("three acknowledgements", |state| state.story(&attempt).acknowledged.len() == 3).await?;
    let after = bench.snapshot().await?.tombstones;
    must(after == before, || format!("{before} tombstones before, {after} after"))?;
    Ok("three cancels after the end left no tombstone".to_owned())
}
