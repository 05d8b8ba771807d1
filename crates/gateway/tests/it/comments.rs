//! A stream that says nothing for a while says so: comments, which readers ignore, in the queue, in prefill and between tokens.
// contract: C-28

use lifecycle::{Cause, Outcome};

use crate::simulated::{Stand, stand};
use crate::wire::{Leave, chat_request, ms, read_until, send};

const COMMENT: &str = ": keepalive\n\n";

async fn talkative() -> Stand {
    stand(gateway::GatewayConfig { keepalive_comment: ms(15), ..Default::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_stream_gets_comments_and_its_answer_is_whole() {
    let mut stand = talkative().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    // Taken on, which is all that a queued run and one in prefill have in common.
    let attempt = stand.worker.accept().await.attempt;
    let mut text = String::new();
    for _ in 0..3 {
        text += &read_until(&mut socket, COMMENT).await;
    }
    stand.worker.token(&attempt, "one").await;
    text += &read_until(&mut socket, "one").await;
    text += &read_until(&mut socket, COMMENT).await;
    let last = stand.worker.delta(&attempt, 0, " two", &[7], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 2).await;
    text += &read_until(&mut socket, "[DONE]").await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["delivery"], &run["tokens"]["delivered"]), (&"complete".into(), &2.into()));
    // Each comment is a line of its own between two events.
    let events = text.match_indices("data: ").count();
    assert!(text.contains("\"one\"") && text.contains("\" two\"") && events >= 5, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn comments_are_no_tokens() {
    let mut stand = talkative().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    read_until(&mut socket, COMMENT).await;
    Leave::Reset.now(socket);
    assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientReset);
    let run = stand.settled("r1").await;
    assert_eq!((&run["delivery"], &run["tokens"]["delivered"]), (&"none".into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_none_where_they_are_off_or_the_answer_is_one_object() {
    for (after, stream) in [(0, true), (15, false)] {
        let mut stand = stand(gateway::GatewayConfig { keepalive_comment: ms(after), ..Default::default() }).await;
        let mut socket = send(stand.addr, &chat_request("r1", &format!(r#","stream":{stream}"#))).await;
        let attempt = stand.worker.accept().await.attempt;
        // Not an assertion: this only gives a comment time to come.
        tokio::time::sleep(ms(100)).await;
        let last = stand.worker.delta(&attempt, 0, "all", &[7], Some(Cause::Stop));
        stand.worker.step(vec![last]).await;
        stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
        let end = if stream { "[DONE]" } else { "total_tokens" };
        let text = read_until(&mut socket, end).await;
        assert!(text.contains("\"all\"") && !text.contains(": keepalive"), "{text}");
    }
}
