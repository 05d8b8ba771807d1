//! Lanes: frames lost, doubled, reordered and early, both ways.

use super::complete;
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Fault, Found, case, must};
use crate::conformance::gateway::{Gateway, Knobs, Want};

pub(super) const CASES: &[Case] = &[
    case!("lanes", doubled_down, Short, "\"One that it has ... it throws away\": each frame down comes twice"),
    case!("lanes", reordered_down, Short, "\"A receiver takes message k only after k-1\": what goes down comes last first"),
    case!(
        "lanes",
        early_down,
        Short,
        "\"After one that came too early it says `missing` in its next frame\", and takes nothing before its turn"
    ),
    case!("lanes", lost_down, Short, "\"A frame that is lost costs nothing but time\": one message down in three is lost"),
    case!("lanes", lost_up, Short, "\"Sent again ... when the peer says `missing`\": one message up in three is lost"),
    case!(
        "lanes",
        each_lost_once_up,
        Short,
        "\"Sent again, in order: after `resend_after_ms` without an acknowledgement\": each message up is lost once"
    ),
    case!("lanes", lost_both_ways, Short, "no message is lost and none is taken twice, whatever happens to frames"),
];

/// Three attempts at once, with knobs turned: each has all its tokens, once.
async fn three(bench: &Bench, knobs: Knobs, tokens: u32) -> Result<Gateway, Fault> {
    let gateway = bench.gateway("a");
    gateway.see(|state| state.knobs = knobs);
    bench.connect(&gateway).await?;
    let attempts = ["one", "two", "three"].map(|of| bench.attempt(of));
    // At once, so that they go out together.
    for attempt in &attempts {
        gateway.submit(attempt, Want::tokens(tokens));
    }
    for attempt in &attempts {
        complete(&gateway.released(attempt).await?, tokens)?;
    }
    gateway.until("an acknowledgement of everything", |state| state.acknowledged >= state.last_submit).await?;
    Ok(gateway)
}

fn figures(gateway: &Gateway) -> String {
    let (frames, received) = gateway.see(|state| (state.frames, state.received));
    format!("three attempts whole; {received} messages in {frames} frames")
}

async fn doubled_down(bench: Bench) -> Found {
    let gateway = three(&bench, Knobs { double: true, ..Knobs::default() }, 6).await?;
    Ok(figures(&gateway))
}

async fn reordered_down(bench: Bench) -> Found {
    let gateway = three(&bench, Knobs { reverse: true, ..Knobs::default() }, 6).await?;
    Ok(figures(&gateway))
}

async fn early_down(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let (first, second) = (bench.attempt("first"), bench.attempt("second"));
    gateway.see(|state| state.knobs.hold_first = true);
    gateway.submit(&first, Want::tokens(4));
    gateway.submit(&second, Want::tokens(4));
    gateway.until("`missing`", |state| state.was_missing).await?;
    let taken = gateway.see(|state| (state.acknowledged, state.story(&second).accepted));
    must(taken == (0, None), || format!("message 2 came before message 1, and the worker says {taken:?} of what was taken"))?;
    gateway.see(|state| state.knobs.hold_first = false);
    for attempt in [&first, &second] {
        complete(&gateway.released(attempt).await?, 4)?;
    }
    Ok("message 2 was not taken before message 1, which was asked for".to_owned())
}

async fn lost_down(bench: Bench) -> Found {
    let gateway = three(&bench, Knobs { lose_down: 3, ..Knobs::default() }, 6).await?;
    Ok(figures(&gateway))
}

async fn lost_up(bench: Bench) -> Found {
    let gateway = three(&bench, Knobs { lose_up: 3, ..Knobs::default() }, 24).await?;
    let again = gateway.see(|state| state.frames - state.received);
    must(again > 0, || "nothing came more than once".to_owned())?;
    Ok(figures(&gateway))
}

async fn each_lost_once_up(bench: Bench) -> Found {
    let gateway = three(&bench, Knobs { lose_first: true, ..Knobs::default() }, 6).await?;
    let (frames, received) = gateway.see(|state| (state.frames, state.received));
    must(frames > received, || format!("{frames} frames for {received} messages, of which each was lost once"))?;
    Ok(figures(&gateway))
}

async fn lost_both_ways(bench: Bench) -> Found {
    let knobs = Knobs { lose_down: 2, lose_up: 4, double: true, reverse: true, ..Knobs::default() };
    let gateway = three(&bench, knobs, 24).await?;
    Ok(figures(&gateway))
}
