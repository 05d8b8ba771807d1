//! An attempt in order: accepted, steps, ended, released.

use lifecycle::Cause;

use super::{complete, ended};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Found, case, must};
use crate::conformance::gateway::Want;

pub(super) const CASES: &[Case] = &[
    case!("attempts", one_answer, Short, "Accepted, then Steps, then Ended, then Released, each once; max_tokens and Usage hold"),
    case!("attempts", two_answers, Short, "C-31. \"Number of answers ... They share the prompt, and end and are released together\""),
    case!("attempts", one_token, Short, "\"Most tokens to generate a sequence, at least 1\""),
    case!("attempts", four_at_once, Short, "attempts of one gateway do not disturb each other"),
    case!(
        "attempts",
        parameters_out_of_range,
        Short,
        "\"An attempt whose parameters are out of them ends with CAUSE_INVALID, and the session goes on\""
    ),
];

async fn one_answer(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want::tokens(8));
    let story = gateway.released(&attempt).await?;
    complete(&story, 8)?;
    must(story.accepted.is_some_and(|tokens| tokens > 0), || "Accepted.prompt_tokens is 0 or was never said".to_owned())?;
    Ok(format!("{} tokens of prompt, 8 generated", story.usage.prompt))
}

async fn two_answers(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want { n: 2, ..Want::tokens(5) });
    complete(&gateway.released(&attempt).await?, 10)?;
    Ok("two answers of 5 tokens, one Ended, one Released".to_owned())
}

async fn one_token(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want::tokens(1));
    complete(&gateway.released(&attempt).await?, 1)?;
    Ok("one".to_owned())
}

async fn four_at_once(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let attempts = [3, 9, 5, 12].map(|tokens| (bench.attempt(&format!("{tokens}")), tokens));
    for (attempt, tokens) in &attempts {
        gateway.submit(attempt, Want::tokens(*tokens));
    }
    for (attempt, tokens) in &attempts {
        complete(&gateway.released(attempt).await?, *tokens)?;
    }
    Ok("3, 9, 5 and 12 tokens".to_owned())
}

async fn parameters_out_of_range(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let (many, none) = (bench.attempt("many"), bench.attempt("none"));
    gateway.submit(&many, Want { n: 17, ..Want::tokens(5) });
    gateway.submit(&none, Want::tokens(0));
    for attempt in [&many, &none] {
        let story = gateway.released(attempt).await?;
        ended(&story, Cause::Invalid)?;
        must(story.tokens() == 0, || "tokens of an attempt that was turned down".to_owned())?;
    }
    let good = bench.attempt("good");
    gateway.submit(&good, Want::tokens(2));
    complete(&gateway.released(&good).await?, 2)?;
    Ok("17 answers and 0 tokens are turned down; what comes after them runs".to_owned())
}
