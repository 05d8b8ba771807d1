//! Cancel, in every state and by anybody.

use lifecycle::Cause;

use super::{complete, decodes, decoding, ended, long};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Found, case, must};
use crate::conformance::gateway::Want;

pub(super) const CASES: &[Case] = &[
    case!("cancels", in_decode, Short, "C-8, C-12. CancelAcknowledged at once, no token after it, then Ended and Released"),
    case!(
        "cancels",
        twice,
        Short,
        "C-8. \"Does twice what it does once\": each is acknowledged, one Ended, one Released; the first cause wins"
    ),
    case!("cancels", unknown, Short, "\"Sent at once, also when the attempt is not known\"; `won` is absent then"),
    case!("cancels", after_the_end, Short, "C-13. \"Valid in every state, after the end\": acknowledged, and nothing else comes of it"),
    case!(
        "cancels",
        by_another_gateway,
        Short,
        "\"Any gateway may send it ... and is then told CancelAcknowledged, Ended and Released like that one\""
    ),
    case!("cancels", of_two_answers, Short, "C-31. The answers of an attempt are cancelled together"),
    case!("cancels", of_many_at_once, Short, "C-14. Half of eight attempts are cancelled; the others come to their own end"),
    case!("cancels", while_suspended, Short, "C-13. A suspended attempt is cancelled by another gateway, and released"),
];

async fn in_decode(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cancel(&attempt, Cause::ClientClosed, None);
    let story = gateway.released(&attempt).await?;
    ended(&story, Cause::ClientClosed)?;
    must(story.acknowledged == [Some(Cause::ClientClosed)], || format!("the acknowledgements were {:?}", story.acknowledged))?;
    bench.until_state(&attempt, None, bench.options.patience).await?;
    Ok(format!("after {} tokens; none came after the acknowledgement", story.tokens()))
}

async fn twice(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cancel(&attempt, Cause::ClientClosed, None);
    gateway.cancel(&attempt, Cause::CancelRequested, None);
    let acknowledged = |state: &crate::conformance::gateway::State| state.story(&attempt).acknowledged.len() == 2;
    gateway.until("two acknowledgements", acknowledged).await?;
    let story = gateway.released(&attempt).await?;
    ended(&story, Cause::ClientClosed)?;
    let first = [None, Some(Cause::ClientClosed)];
    must(story.acknowledged.iter().all(|won| first.contains(won)), || format!("the acknowledgements were {:?}", story.acknowledged))?;
    Ok("two acknowledgements; the first cause won".to_owned())
}

async fn unknown(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.cancel(&attempt, Cause::CancelRequested, None);
    gateway.cancel(&attempt, Cause::CancelRequested, None);
    gateway.until("two acknowledgements", |state| state.story(&attempt).acknowledged == [None, None]).await?;
    must(gateway.see(|state| state.story(&attempt).outcome.is_none()), || "an attempt that never was has ended".to_owned())?;
    Ok("acknowledged twice, and nothing else".to_owned())
}

async fn after_the_end(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want::tokens(3));
    complete(&gateway.released(&attempt).await?, 3)?;
    gateway.cancel(&attempt, Cause::CancelRequested, None);
    gateway.until("CancelAcknowledged", |state| state.story(&attempt).acknowledged.len() == 1).await?;
    let marker = bench.attempt("marker");
    gateway.submit(&marker, Want::tokens(3));
    complete(&gateway.released(&marker).await?, 3)?;
    Ok("acknowledged; its end stayed what it was".to_owned())
}

async fn by_another_gateway(bench: Bench) -> Found {
    let (owner, attempt) = decoding(&bench, "a").await?;
    let other = bench.connected("b").await?;
    other.cancel(&attempt, Cause::CancelRequested, Some(0));
    let story = other.released(&attempt).await?;
    ended(&story, Cause::CancelRequested)?;
    must(story.acknowledged == [Some(Cause::CancelRequested)], || format!("the acknowledgements were {:?}", story.acknowledged))?;
    ended(&owner.released(&attempt).await?, Cause::CancelRequested)?;
    Ok("owner and canceller were told Ended and Released".to_owned())
}

async fn of_two_answers(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.submit(&attempt, Want { n: 2, ..long(&bench) });
    gateway.has_tokens(&attempt, 4).await?;
    gateway.cancel(&attempt, Cause::ClientLost, None);
    ended(&gateway.released(&attempt).await?, Cause::ClientLost)?;
    bench.until_state(&attempt, None, bench.options.patience).await?;
    Ok("both are gone".to_owned())
}

async fn of_many_at_once(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let attempts: Vec<_> = (0..8).map(|i| bench.attempt(&format!("{i}"))).collect();
    for (i, attempt) in attempts.iter().enumerate() {
        gateway.submit(attempt, if i % 2 == 0 { long(&bench) } else { Want::tokens(16) });
    }
    for attempt in attempts.iter().step_by(2) {
        gateway.cancel(attempt, Cause::ClientClosed, None);
    }
    for (i, attempt) in attempts.iter().enumerate() {
        let story = gateway.released(attempt).await?;
        if i % 2 == 0 { ended(&story, Cause::ClientClosed)? } else { complete(&story, 16)? }
    }
    Ok("four cancelled, four whole".to_owned())
}

async fn while_suspended(bench: Bench) -> Found {
    let (silent, attempt) = decoding(&bench, "a").await?;
    let other = bench.connected("b").await?;
    silent.see(|state| state.knobs.speaks = false);
    bench.until_state(&attempt, Some(protocol::worker_v1::AttemptState::Suspended), bench.options.patience).await?;
    other.cancel(&attempt, Cause::CancelRequested, Some(0));
    ended(&other.released(&attempt).await?, Cause::CancelRequested)?;
    silent.see(|state| state.knobs.speaks = true);
    ended(&silent.released(&attempt).await?, Cause::CancelRequested)?;
    decodes(&bench, &silent, "again").await?;
    Ok("released while its own gateway was silent, which learned of it later".to_owned())
}
