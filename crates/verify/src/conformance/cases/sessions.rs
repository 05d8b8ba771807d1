//! One session after the other: replaced, cut, taken up again, begun anew.

use std::time::Duration;

use lifecycle::message::Down;
use lifecycle::{AttemptId, Incarnation};
use protocol::worker_v1 as wire;

use super::{complete, decoding, ended, pass};
use crate::conformance::bench::{Bench, fresh_life};
use crate::conformance::case::{Case, Found, case, must};
use crate::conformance::gateway::{Gateway, Want, bytes};

pub(super) const CASES: &[Case] = &[
    case!("sessions", heartbeats, Short, "\"heartbeat_ms: longest time between two frames while a session is open\""),
    case!(
        "sessions",
        newer_one_replaces,
        Short,
        "\"Of a session that a newer one has replaced ... the worker ends it with CANCELLED\"; attempts go on"
    ),
    case!(
        "sessions",
        cut_and_resumed,
        Short,
        "C-10. \"It may break at any moment ... no message is lost, none is taken twice, no attempt notices\""
    ),
    case!(
        "sessions",
        resumed_with_messages_on_their_way,
        Short,
        "\"Unacknowledged messages are sent again ... when a session is opened\", both ways"
    ),
    case!(
        "sessions",
        begun_anew_by_the_same_life,
        Short,
        "\"The same life of the gateway begins anew ... the attempts of that are ended with CAUSE_ORPHANED\""
    ),
    case!(
        "sessions",
        frames_of_another_life_or_tenure,
        Short,
        "C-3. \"A frame whose from ..., to ..., or tenure is not the one that holds changes nothing\""
    ),
    case!(
        "sessions",
        broken_frames,
        Short,
        "\"An enum value, a kind of message or a required field that is missing or not known ends the stream with INVALID_ARGUMENT and names the field\""
    ),
];

async fn heartbeats(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let before = gateway.see(|state| state.beats);
    pass(bench.worker.heartbeat * 20).await;
    let beats = gateway.see(|state| state.beats) - before;
    // A machine that is busy may be late; a quarter of them is too few all the same.
    must(beats >= 5, || format!("{beats} frames in 20 heartbeats' time"))?;
    Ok(format!("{beats} frames in 20 heartbeats' time"))
}

async fn newer_one_replaces(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    let (before, tokens) = (gateway.see(|state| state.session), gateway.tokens(&attempt));
    gateway.leave_open();
    let same = bench.connect(&gateway).await?;
    must(same, || "the tenure did not go on".to_owned())?;
    gateway.until("the end of the session that was replaced", |state| state.ended.contains_key(&before)).await?;
    gateway.has_tokens(&attempt, tokens + 3).await?;
    Ok("CANCELLED for the old one, and the attempt went on over the new one".to_owned())
}

async fn cut_and_resumed(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let (attempt, wanted) = (bench.attempt("a"), 48);
    gateway.submit(&attempt, Want::tokens(wanted));
    let mut cuts = 0;
    while cuts < 3 && !gateway.see(|state| state.story(&attempt).released) {
        gateway.until("tokens, or the end", |state| state.story(&attempt).tokens() > 8 * cuts || state.story(&attempt).released).await?;
        gateway.cut();
        pass(Duration::from_millis(20)).await;
        must(bench.connect(&gateway).await?, || "the tenure did not go on".to_owned())?;
        cuts += 1;
    }
    complete(&gateway.released(&attempt).await?, wanted)?;
    Ok(format!("{cuts} cuts, {wanted} tokens, each once"))
}

async fn resumed_with_messages_on_their_way(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cut();
    // Said while nothing is open: it goes out on the next session.
    let other = bench.attempt("other");
    gateway.submit(&other, Want::tokens(4));
    gateway.cancel(&attempt, lifecycle::Cause::CancelRequested, None);
    must(bench.connect(&gateway).await?, || "the tenure did not go on".to_owned())?;
    complete(&gateway.released(&other).await?, 4)?;
    ended(&gateway.released(&attempt).await?, lifecycle::Cause::CancelRequested)?;
    Ok("a submit and a cancel that were said between two sessions arrived once, and so did the rest of the answer".to_owned())
}

async fn begun_anew_by_the_same_life(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    gateway.cut();
    let (me, tenure, session) = gateway.see(|state| (state.me, state.tenure, state.session));
    let anew = Gateway::new(bench.name("a"), me, bench.options.lease, bench.options.patience);
    anew.see(|state| state.session = session);
    bench.connect(&anew).await?;
    let next = anew.see(|state| state.tenure);
    must(next > tenure, || format!("the tenure was {tenure}, and is {next}"))?;
    bench.until_state(&attempt, None, bench.options.patience).await?;
    anew.cut();
    gateway.see(|state| state.stories.clear());
    Ok(format!("tenure {next} after {tenure}, and the attempt is gone"))
}

/// A submit by hand in a frame by hand.
fn forged(gateway: &Gateway, attempt: &AttemptId, forge: impl Fn(&mut wire::Head)) {
    gateway.see(|state| {
        let submit = wire::Submit {
            attempt: Some(attempt.into()),
            worker: bytes(state.worker),
            number: 1,
            model: String::new(),
            prompt: Some(wire::submit::Prompt::Text(wire::Text { text: "forged".to_owned() })),
            params: Some((&lifecycle::params::Params::default()).into()),
            deadlines: Vec::new(),
        };
        let mut frame = state.frame(state.acknowledged + 1, Some(wire::down_frame::Message::Submit(submit)));
        if let Some(head) = frame.head.as_mut() {
            head.received = u64::MAX / 2;
            forge(head);
        }
        state.raw.push(wire::Down { kind: Some(wire::down::Kind::Frame(frame)) });
    });
}

async fn frames_of_another_life_or_tenure(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let ghost = bench.attempt("ghost");
    forged(&gateway, &ghost, |head| head.from = bytes(fresh_life()));
    forged(&gateway, &ghost, |head| head.to = bytes(Incarnation(bench.worker.life.0 - 1)));
    forged(&gateway, &ghost, |head| head.tenure += 1);
    let beats = gateway.see(|state| state.beats);
    gateway.until("further heartbeats", |state| state.beats > beats + 5).await?;
    let heard = gateway.see(|state| (state.acknowledged, state.stories.contains_key(&ghost)));
    must(heard == (0, false), || "a frame of another life or tenure was taken".to_owned())?;
    let attempt = bench.attempt("true");
    gateway.submit(&attempt, Want::tokens(3));
    complete(&gateway.released(&attempt).await?, 3)?;
    gateway.say(&Down::Claim { attempts: Vec::new() });
    must(bench.state_of(&ghost).await?.is_none(), || "the forged submit runs".to_owned())?;
    Ok("three forged submits changed nothing, and a true one with the same number was taken".to_owned())
}

/// The field that is to be named, and a way to break it.
type Break = (&'static str, fn(&mut wire::DownFrame));

async fn broken_frames(bench: Bench) -> Found {
    use wire::down_frame::Message;
    let breaks: [Break; 5] = [
        ("head", |frame| frame.head = None),
        ("message", |frame| frame.message = None),
        ("attempt", |frame| frame.message = Some(Message::Cancel(wire::Cancel { cause: 1, ..wire::Cancel::default() }))),
        ("run", |frame| {
            let attempt = Some(wire::Attempt { tenant: "default".to_owned(), run: String::new(), attempt: 1 });
            frame.message = Some(Message::Cancel(wire::Cancel { attempt, cause: 7, ..wire::Cancel::default() }));
        }),
        ("cause", |frame| {
            let attempt = Some(wire::Attempt { tenant: "default".to_owned(), run: "r".to_owned(), attempt: 1 });
            frame.message = Some(Message::Cancel(wire::Cancel { attempt, cause: 999, ..wire::Cancel::default() }));
        }),
    ];
    let gateway = bench.gateway("a");
    gateway.see(|state| state.may_end = Some(tonic::Code::InvalidArgument));
    for (field, breaks) in breaks {
        bench.connect(&gateway).await?;
        let session = gateway.see(|state| {
            let mut frame = state.frame(state.acknowledged + 1, Some(Message::Claim(wire::Claim::default())));
            breaks(&mut frame);
            state.raw.push(wire::Down { kind: Some(wire::down::Kind::Frame(frame)) });
            state.session
        });
        gateway
            .until(&format!("an end of the session whose frame had no good {field}"), |state| state.ended.contains_key(&session))
            .await?;
        let said = gateway.see(|state| state.ended.get(&session).map(|status| status.message().to_owned())).unwrap_or_default();
        must(said.contains(field), || format!("a frame had no good {field}, and the worker says `{said}`"))?;
    }
    gateway.see(|state| state.may_end = None);
    must(bench.connect(&gateway).await?, || "the tenure did not go on".to_owned())?;
    let attempt = bench.attempt("good");
    gateway.submit(&attempt, Want::tokens(2));
    complete(&gateway.released(&attempt).await?, 2)?;
    Ok(format!("{} ways to break a frame, each named; the next session goes on", breaks.len()))
}
