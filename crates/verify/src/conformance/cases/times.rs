//! Deadlines.

use std::time::Duration;

use lifecycle::Cause;
use lifecycle::message::DeadlineLeft;

use super::{complete, ended, long};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Fault, Found, case, must};
use crate::conformance::gateway::Want;

pub(super) const CASES: &[Case] = &[
    case!(
        "times",
        deadline_in_decode,
        Short,
        "C-22. \"The moments after which the attempt ends: in the queue, in prefill and in decode alike\""
    ),
    case!(
        "times",
        deadline_that_is_over,
        Short,
        "C-22. \"Time left; 0 is over\"; CAUSE_QUEUE_DEADLINE \"only while it waits for its first step\", so nothing is generated then"
    ),
    case!("times", deadline_that_is_never, Short, "\"2^64 - 1 is never\""),
    case!("times", earliest_of_three, Short, "C-22. Of several deadlines the one that comes first ends the attempt, with its own cause"),
];

fn deadline(left: Duration, cause: Cause) -> DeadlineLeft {
    DeadlineLeft { left, cause }
}

const NEVER: Duration = Duration::from_micros(u64::MAX);

async fn deadline_in_decode(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    let deadlines = vec![deadline(Duration::from_millis(700), Cause::ClientDeadline)];
    gateway.submit(&attempt, Want { deadlines, ..long(&bench) });
    let story = gateway.released(&attempt).await?;
    if story.cause() == Some(Cause::Length) {
        gateway.still_runs(&attempt)?;
    }
    ended(&story, Cause::ClientDeadline)?;
    if story.tokens() == 0 {
        return Err(Fault::Skipped("the worker has no token within 700 ms: the deadline was met before decode".to_owned()));
    }
    Ok(format!("after {} tokens", story.tokens()))
}

async fn deadline_that_is_over(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let (queue, other) = (bench.attempt("queue"), bench.attempt("other"));
    gateway.submit(&queue, Want { deadlines: vec![deadline(Duration::ZERO, Cause::QueueDeadline)], ..long(&bench) });
    let story = gateway.released(&queue).await?;
    ended(&story, Cause::QueueDeadline)?;
    must(story.tokens() == 0, || format!("its time in the queue was over, and {} tokens were generated", story.tokens()))?;
    // The gateway watches this one too: the worker may leave it the first word.
    gateway.submit(&other, Want { deadlines: vec![deadline(Duration::ZERO, Cause::GatewayDeadline)], ..long(&bench) });
    ended(&gateway.released(&other).await?, Cause::GatewayDeadline)?;
    Ok("nothing was generated after the queue's; the gateway's ended the attempt".to_owned())
}

async fn deadline_that_is_never(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want { deadlines: vec![deadline(NEVER, Cause::ClientDeadline)], ..Want::tokens(4) });
    complete(&gateway.released(&attempt).await?, 4)?;
    Ok("it came to its own end".to_owned())
}

async fn earliest_of_three(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    let deadlines = vec![
        deadline(NEVER, Cause::ClientDeadline),
        deadline(Duration::from_millis(300), Cause::GatewayDeadline),
        deadline(Duration::from_secs(60), Cause::WorkerDeadline),
    ];
    gateway.submit(&attempt, Want { deadlines, ..long(&bench) });
    let story = gateway.released(&attempt).await?;
    if story.cause() == Some(Cause::Length) {
        gateway.still_runs(&attempt)?;
    }
    ended(&story, Cause::GatewayDeadline)?;
    Ok("the one with 300 ms".to_owned())
}
