//! The cases, in groups by what they are about.
//!
//! Invariant: a case stands on its own: fresh gateways, fresh runs, in any order. The one that leaves the worker of no use is the last.

mod account;
mod attempts;
mod cancels;
mod drain;
mod early;
mod hello;
mod lanes;
mod orphans;
mod sessions;
mod silence;
mod submits;
mod times;

use std::time::Duration;

use lifecycle::{AttemptId, Cause};

use super::bench::Bench;
use super::case::{Case, Fault, must};
use super::gateway::{Gateway, Story, Want};

/// Most tokens that are asked for where an attempt shall go on for long.
const LONG: u32 = 100_000;
/// Positions that are left for the prompt.
const PROMPT: u32 = 64;

/// All of them, in the order in which they run.
pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    let groups: [&[Case]; 12] = [
        hello::CASES,
        sessions::CASES,
        lanes::CASES,
        attempts::CASES,
        submits::CASES,
        early::CASES,
        cancels::CASES,
        times::CASES,
        silence::CASES,
        orphans::CASES,
        account::CASES,
        drain::CASES,
    ];
    groups.into_iter().flatten()
}

/// An attempt that goes on for as long as the worker's context lets it.
fn long(bench: &Bench) -> Want {
    Want::tokens(bench.worker.context.saturating_sub(PROMPT).clamp(1, LONG))
}

/// A gateway with a long attempt that has its first two tokens.
async fn decoding(bench: &Bench, of: &str) -> Result<(Gateway, AttemptId), Fault> {
    let gateway = bench.connected(of).await?;
    let attempt = decodes(bench, &gateway, of).await?;
    Ok((gateway, attempt))
}

/// A long attempt of a gateway that has its first two tokens.
async fn decodes(bench: &Bench, gateway: &Gateway, of: &str) -> Result<AttemptId, Fault> {
    let attempt = bench.attempt(of);
    gateway.submit(&attempt, long(bench));
    gateway.has_tokens(&attempt, 2).await?;
    Ok(attempt)
}

/// An attempt came to its own end, with all its tokens.
fn complete(story: &Story, tokens: u32) -> Result<(), Fault> {
    ended(story, Cause::Length)?;
    must(story.tokens() == tokens, || format!("{} tokens came, and {tokens} were asked for", story.tokens()))
}

/// An attempt ended so.
fn ended(story: &Story, cause: Cause) -> Result<(), Fault> {
    let words = |cause: Option<Cause>| cause.map_or("not at all", Cause::as_str);
    must(story.cause() == Some(cause), || format!("it ended with {}, and not with {}", words(story.cause()), cause.as_str()))
}

/// Lets time pass in which nothing is to be seen.
async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
}
