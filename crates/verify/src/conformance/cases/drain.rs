//! Drain: the worker stops, and says what became of each attempt. The last case: it leaves a worker that takes nothing.

use lifecycle::Cause;
use protocol::worker_v1 as wire;
use tonic::Code;

use super::{decoding, ended};
use crate::conformance::bench::{Bench, said};
use crate::conformance::case::{Case, Fault, Found, case, must};
use crate::conformance::gateway::Want;

pub(super) const CASES: &[Case] = &[case!(
    "drain",
    told_to_stop,
    Last,
    "Drain: Draining to every gateway, a Submit ends with CAUSE_SHUTDOWN, what is cut short too, and the reply names each attempt once"
)];

async fn told_to_stop(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    let (mut client, request) = (bench.client().await?, wire::DrainRequest { limit_us: 1_000_000 });
    let drain = tokio::spawn(async move { client.drain(request).await });
    let draining = |state: &crate::conformance::gateway::State| state.drainings > 0;
    tokio::select! {
        told = gateway.until("Draining", draining) => told?,
        () = async { while !drain.is_finished() { super::pass(std::time::Duration::from_millis(5)).await } } => {}
    }
    let late = bench.attempt("late");
    gateway.submit(&late, Want::tokens(2));
    let reply =
        tokio::time::timeout(bench.options.patience, drain).await.map_err(|_| Fault::Failed("Drain was not answered".to_owned()))?;
    let reply = match reply.map_err(|error| Fault::Failed(error.to_string()))? {
        Err(status) if status.code() == Code::Unimplemented => {
            return Err(Fault::Skipped("not offered: Drain is UNIMPLEMENTED".to_owned()));
        }
        Err(status) => return Err(Fault::Failed(format!("Drain: {}", said(&status)))),
        Ok(reply) => reply.into_inner(),
    };
    ended(&gateway.released(&late).await?, Cause::Shutdown)?;
    gateway.until("Draining, once", |state| state.drainings == 1).await?;
    let story = gateway.released(&attempt).await?;
    let named = wire::Attempt::from(&attempt);
    let times = |list: &[wire::Attempt]| list.iter().filter(|other| **other == named).count();
    let (finished, handed_back, cancelled) = (times(&reply.finished), times(&reply.handed_back), times(&reply.cancelled));
    must((finished, handed_back, cancelled) == (0, 0, 1) || (finished, handed_back, cancelled) == (1, 0, 0), || {
        format!("the attempt is {finished} times in finished, {handed_back} in handed_back, {cancelled} in cancelled")
    })?;
    must((cancelled == 1) == (story.cause() == Some(Cause::Shutdown)), || "the reply does not fit how it ended".to_owned())?;
    Ok(format!("{} finished, {} handed back, {} cancelled", reply.finished.len(), reply.handed_back.len(), reply.cancelled.len()))
}
