//! Shutdown: live runs may end, the rest is cancelled, everything settles.
// contract: C-28

use gateway::GatewayError;
use lifecycle::{Cause, Outcome};

use crate::simulated::{soon, stand};
use crate::wire::{chat, chat_request, ms, read_reply, read_until, request_text, send};

#[tokio::test(flavor = "multi_thread")]
async fn live_runs_end_and_new_ones_are_refused() {
    let mut stand = stand(gateway::GatewayConfig::default()).await;
    let mut idle = send(stand.addr, &request_text("GET", "/health/ready", "", "")).await;
    assert_eq!(read_reply(&mut idle).await.status, 200);
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.stop.take().expect("once").send(()).expect("it serves");
    // No further connections, but those that are open are answered.
    soon("the port is closed", async { while tokio::net::TcpStream::connect(stand.addr).await.is_ok() {} }).await;
    use tokio::io::AsyncWriteExt;
    for text in [request_text("GET", "/health/ready", "", ""), request_text("POST", "/v1/chat/completions", "", &chat(""))] {
        idle.write_all(text.as_bytes()).await.expect("sent");
        assert_eq!(read_reply(&mut idle).await.error().0, 503);
    }
    let last = stand.worker.delta(&attempt, 0, "to the end", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert!(read_until(&mut socket, "[DONE]").await.contains("to the end"));
    drop((socket, idle));
    assert!(soon("serve returns", stand.served).await.expect("joined").is_ok());
    assert_eq!(serde_json::to_value(stand.journal.run(&crate::simulated::key("r1"))).expect("JSON")["delivery"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_cancelled_and_told() {
    let mut stand = stand(gateway::GatewayConfig { drain: ms(10), ..Default::default() }).await;
    let mut streamed = send(stand.addr, &chat_request("s", r#","stream":true"#)).await;
    let one = stand.worker.accept().await.attempt;
    let mut whole = send(stand.addr, &chat_request("w", "")).await;
    let two = stand.worker.accept().await.attempt;
    read_until(&mut streamed, "assistant").await;
    stand.stop.take().expect("once").send(()).expect("it serves");
    for _ in [&one, &two] {
        let lifecycle::message::Down::Cancel { attempt, cause, .. } = stand.worker.next().await else { panic!("a cancel was expected") };
        assert_eq!(cause, Cause::Shutdown);
        stand.worker.end(&attempt, Outcome::of(cause), 0).await;
    }
    let rest = read_until(&mut streamed, "\r\n0\r\n\r\n").await;
    assert!(rest.contains(r#""code":"shutdown""#) && !rest.contains("[DONE]"));
    assert_eq!(read_reply(&mut whole).await.error().3, "shutdown");
    for id in ["s", "w"] {
        assert_eq!(stand.settled(id).await["outcome"]["cause"], "shutdown");
    }
    drop((streamed, whole));
    assert!(soon("serve returns", stand.served).await.expect("joined").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_settle_is_said() {
    let config = gateway::GatewayConfig { drain: ms(5), settle: ms(30), answer_grace: ms(5), ..Default::default() };
    let mut stand = stand(config).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    stand.worker.accept().await;
    stand.stop.take().expect("once").send(()).expect("it serves");
    assert_eq!(read_reply(&mut socket).await.error().3, "shutdown");
    drop(socket);
    let result = soon("serve returns", stand.served).await.expect("joined");
    assert!(matches!(result, Err(GatewayError::Unsettled { runs: 1 })), "{result:?}");
}
