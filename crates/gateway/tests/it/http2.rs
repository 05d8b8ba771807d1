//! Callers that speak HTTP/2 and leave: by resetting a stream, by closing or resetting the connection, by no longer answering; in every
//! phase, streaming or not. And those that stay and do not open their window.
//!
//! RST_STREAM is `client_reset`, whatever code it carries (hyper keeps the code to itself). GOAWAY alone ends nothing: streams that are open
//! go on, as RFC 9113 has it; the close that follows it does.
// contract: C-6 C-8 C-13 C-28
// field: F-78

use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use lifecycle::message::Down;
use lifecycle::{AttemptId, Cause, Outcome};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::simulated::{Stand, default_stand, soon, stand};
use crate::wire::{chat, get, ms};

/// The wire's bytes, as the client's library has them.
type Data = bytes::Bytes;

struct Client {
    send: SendRequest<Data>,
    connection: JoinHandle<()>,
    /// A second handle on its socket.
    socket: socket2::Socket,
}

struct Open {
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    request: SendStream<Data>,
}

/// A client with windows of this many bytes a stream.
async fn client(stand: &Stand, window: u32) -> Client {
    let tcp = soon("a connection", TcpStream::connect(stand.addr)).await.expect("connect");
    let socket = socket2::SockRef::from(&tcp).try_clone().expect("a second handle");
    let shake = h2::client::Builder::new().initial_window_size(window).handshake(tcp);
    let (send, connection): (_, Connection<_, Data>) = soon("a handshake", shake).await.expect("HTTP/2");
    Client { send, connection: tokio::spawn(async { drop(connection.await) }), socket }
}

impl Client {
    /// Sends a request, the end of its body or not.
    async fn post(&mut self, id: &str, body: String, end: bool) -> Open {
        let request = http::Request::post("http://test/v1/chat/completions").header("x-request-id", id).body(()).expect("a request");
        self.send = soon("room for a request", self.send.clone().ready()).await.expect("ready");
        let (response, mut request) = self.send.send_request(request, false).expect("sent");
        request.send_data(body.into(), end).expect("sent");
        Open { response: Some(response), body: None, request }
    }

    async fn ask(&mut self, id: &str, stream: bool) -> Open {
        self.post(id, chat(&format!(r#","stream":{stream}"#)), true).await
    }

    /// A FIN, and whatever still comes is read: a close with something unread would be a reset.
    async fn close(self) {
        self.socket.shutdown(std::net::Shutdown::Write).expect("a FIN");
        soon("the server's end", self.connection).await.expect("it ended");
    }

    /// A RST.
    async fn reset(self) {
        self.socket.set_linger(Some(ms(0))).expect("SO_LINGER");
        self.connection.abort();
        let _ = self.connection.await;
    }
}

impl Open {
    async fn headers(&mut self) {
        if let Some(response) = self.response.take() {
            self.body = Some(soon("headers", response).await.expect("an answer").into_body());
        }
    }

    /// Reads until `wanted` has come, and lets more come.
    async fn read_until(&mut self, wanted: &str) -> String {
        self.headers().await;
        let body = self.body.as_mut().expect("a body");
        let mut text = String::new();
        while !text.contains(wanted) {
            let data = soon(wanted, body.data()).await.unwrap_or_else(|| panic!("it ended before {wanted:?}: {text}")).expect("data");
            body.flow_control().release_capacity(data.len()).expect("released");
            text += &String::from_utf8_lossy(&data);
        }
        text
    }
}

/// How far a run is when its caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Sent to the worker, which has said nothing yet: no headers.
    Sent,
    /// The worker has taken it on: queued there, or in prefill.
    TakenOn,
    /// Tokens come.
    Decode,
}

const EVERYWHERE: [(At, bool); 6] =
    [(At::Sent, true), (At::Sent, false), (At::TakenOn, true), (At::TakenOn, false), (At::Decode, true), (At::Decode, false)];

/// Brings a run there.
async fn reach(stand: &mut Stand, client: &mut Client, id: &str, at: At, stream: bool) -> (Open, AttemptId) {
    let mut open = client.ask(id, stream).await;
    if at == At::Sent {
        return (open, stand.worker.submit().await.attempt);
    }
    let attempt = stand.worker.accept().await.attempt;
    if at == At::Decode {
        stand.worker.token(&attempt, "first").await;
    }
    match (at, stream) {
        (At::Decode, true) => drop(open.read_until("first").await),
        (_, true) => open.headers().await,
        _ => {}
    }
    (open, attempt)
}

async fn ended(stand: &Stand, id: &str, cause: &str, at: (At, bool)) {
    let run = stand.settled(id).await;
    let delivery = if at == (At::Decode, true) { "partial" } else { "none" };
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &cause.into()), "{at:?}");
    assert_eq!(
        (&run["delivery"], &run["released"], &run["superseded"]),
        (&delivery.into(), &true.into(), &serde_json::json!([])),
        "{at:?}"
    );
    assert!(run["milestones"]["disconnect_observed"].is_number(), "{at:?}");
}

/// One connection throughout: what happens to one stream is nothing to the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_reset_in_every_phase() {
    let mut stand = default_stand().await;
    let mut client = client(&stand, 65_535).await;
    for (n, reason) in [Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR].into_iter().enumerate() {
        for (at, stream) in EVERYWHERE {
            let id = format!("r-{n}-{at:?}-{stream}");
            let (mut open, attempt) = reach(&mut stand, &mut client, &id, at, stream).await;
            open.request.send_reset(reason);
            assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientReset, "{id}");
            ended(&stand, &id, "client_reset", (at, stream)).await;
        }
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_is_closed_in_every_phase() {
    for (at, stream) in EVERYWHERE {
        let mut stand = default_stand().await;
        let mut client = client(&stand, 65_535).await;
        let (_open, attempt) = reach(&mut stand, &mut client, "r", at, stream).await;
        client.close().await;
        assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientClosed, "{at:?} {stream}");
        ended(&stand, "r", "client_closed", (at, stream)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_is_reset_in_every_phase() {
    for (at, stream) in EVERYWHERE {
        let mut stand = default_stand().await;
        let mut client = client(&stand, 65_535).await;
        let (_open, attempt) = reach(&mut stand, &mut client, "r", at, stream).await;
        client.reset().await;
        assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientReset, "{at:?} {stream}");
        ended(&stand, "r", "client_reset", (at, stream)).await;
    }
}

/// A frame by hand: length, kind, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Header fields as HPACK literals without indexing: nothing is shared with other requests.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

const HEAD: [(&str, &str); 5] =
    [(":method", "POST"), (":scheme", "http"), (":path", "/v1/chat/completions"), (":authority", "test"), ("x-request-id", "r")];

/// A connection whose frames the test writes itself, with one request on it.
async fn by_hand(stand: &Stand, body: &[u8], end: bool) -> TcpStream {
    use tokio::io::AsyncWriteExt;
    let mut tcp = soon("a connection", TcpStream::connect(stand.addr)).await.expect("connect");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    bytes.extend(frame(1, 4, 1, &fields(&HEAD)));
    bytes.extend(frame(0, u8::from(end), 1, body));
    soon("sending", tcp.write_all(&bytes)).await.expect("sent");
    tcp
}

async fn write(tcp: &mut TcpStream, bytes: &[u8]) {
    soon("sending", tokio::io::AsyncWriteExt::write_all(tcp, bytes)).await.expect("sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn goaway_ends_nothing_and_the_close_after_it_does() {
    for code in [Reason::NO_ERROR, Reason::INTERNAL_ERROR] {
        let mut stand = default_stand().await;
        let mut tcp = by_hand(&stand, chat(r#","stream":true"#).as_bytes(), true).await;
        let attempt = stand.worker.accept().await.attempt;
        let payload = [0_u32.to_be_bytes(), u32::from(code).to_be_bytes()].concat();
        write(&mut tcp, &frame(7, 0, 0, &payload)).await;
        // A PING behind it: its answer shows that the GOAWAY was taken in.
        write(&mut tcp, &frame(6, 0, 0, b"12345678")).await;
        let mut seen = Vec::new();
        while !seen.windows(17).any(|w| w == frame(6, 1, 0, b"12345678")) {
            let mut buffer = [0; 4096];
            let n = soon("the PING's answer", tokio::io::AsyncReadExt::read(&mut tcp, &mut buffer)).await.expect("read");
            assert!(n > 0, "closed by {code:?}");
            seen.extend_from_slice(&buffer[..n]);
        }
        stand.worker.token(&attempt, "goes on").await;
        stand.until("r", "being delivered", |run| run["tokens"]["delivered"] == 1).await;
        // All of it is read: a close would be a reset otherwise.
        tokio::io::AsyncWriteExt::shutdown(&mut tcp).await.expect("shutdown");
        assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientClosed, "{code:?}");
        assert_eq!(stand.settled("r").await["delivery"], "partial");
    }
}

/// A reset in the middle of the request's body: whatever has come of it, it is no run that anybody waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_reset_before_its_request_is_whole() {
    let body = chat("");
    for reason in [Reason::CANCEL, Reason::NO_ERROR] {
        for sent in [body.len() - 5, body.len()] {
            let Stand { addr, journal, worker, stop: _stop, served: _served, .. } = {
                let stand = default_stand().await;
                let mut tcp = by_hand(&stand, &body.as_bytes()[..sent], false).await;
                write(&mut tcp, &frame(3, 0, 1, &u32::from(reason).to_be_bytes())).await;
                // Answered after everything before it was taken in.
                write(&mut tcp, &frame(6, 0, 0, b"12345678")).await;
                let mut seen = Vec::new();
                while !seen.windows(17).any(|w| w == frame(6, 1, 0, b"12345678")) {
                    let mut buffer = [0; 4096];
                    let n = soon("the PING's answer", tokio::io::AsyncReadExt::read(&mut tcp, &mut buffer)).await.expect("read");
                    assert!(n > 0, "closed");
                    seen.extend_from_slice(&buffer[..n]);
                }
                stand
            };
            let worker = tokio::spawn(worker.obey_everything());
            assert_eq!(get(addr, "/v1/models").await.status, 200);
            // hyper ends such a body as if it were whole if the code is NO_ERROR: that may make a run, and then it is cancelled.
            soon("nothing is left", async {
                while journal.run(&crate::simulated::key("r")).is_some_and(|run| !run.settled) {
                    tokio::time::sleep(ms(2)).await;
                }
            })
            .await;
            if let Some(run) = journal.run(&crate::simulated::key("r")) {
                let outcome = run.outcome.expect("it has ended");
                assert_eq!((outcome.kind, sent, reason), ("cancelled", body.len(), Reason::NO_ERROR));
            }
            assert_eq!(journal.defects(), 0);
            worker.abort();
        }
    }
}

/// The client's kernel is there, its program is not: it answers no PING. That is vanishing too.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_answers_no_ping_is_lost() {
    for (at, stream) in EVERYWHERE {
        let mut stand = stand(gateway::GatewayConfig { client_lost_after: ms(400), ..Default::default() }).await;
        // Nobody reads this socket and nobody answers for it.
        let tcp = by_hand(&stand, chat(&format!(r#","stream":{stream}"#)).as_bytes(), true).await;
        let submit = if at == At::Sent { stand.worker.submit().await } else { stand.worker.accept().await };
        if at == At::Decode {
            stand.worker.token(&submit.attempt, "first").await;
        }
        assert_eq!(stand.worker.obey(&submit.attempt).await, Cause::ClientLost, "{at:?} {stream}");
        ended(&stand, "r", "client_lost", (at, stream)).await;
        drop(tcp);
    }
}

/// A caller that answers PINGs is there, however long nothing is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_caller_that_answers_pings_is_not_lost() {
    let mut stand = stand(gateway::GatewayConfig { client_lost_after: ms(2000), unread_max: ms(200), ..Default::default() }).await;
    let mut client = client(&stand, 65_535).await;
    let (mut open, attempt) = reach(&mut stand, &mut client, "r", At::TakenOn, true).await;
    // Not an assertion: this only lets more than the limits go by, and gives a busy machine a second for each PING.
    tokio::time::sleep(ms(4500)).await;
    let last = stand.worker.delta(&attempt, 0, "still here", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert!(open.read_until("[DONE]").await.contains("still here"));
    assert_eq!(stand.settled("r").await["delivery"], "complete");
    client.close().await;
}

/// A window that stays shut: the stream's run is ended, the other stream's is not, and the connection goes when that is done.
// contract: C-14
// field: F-80
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_is_not_opened_is_a_stall() {
    let mut stand = stand(gateway::GatewayConfig { unread_max: ms(200), ..Default::default() }).await;
    let mut client = client(&stand, 4096).await;
    let mut open = client.ask("shut", true).await;
    let shut = stand.worker.accept().await.attempt;
    open.headers().await;
    let mut other = client.ask("read", true).await;
    let read = stand.worker.accept().await.attempt;
    let text = "x".repeat(1000);
    let mut cancelled = None;
    for n in 0..10_000 {
        assert!(n < 9_999, "nobody minds that nothing is read");
        stand.worker.token(&shut, &text).await;
        stand.worker.token(&read, &format!("part {n}.")).await;
        other.read_until(&format!("part {n}.")).await;
        if let Some(Down::Cancel { cause, attempt, .. }) = stand.worker.try_next() {
            assert_eq!(attempt, shut);
            cancelled = Some(cause);
            break;
        }
    }
    assert_eq!(cancelled, Some(Cause::ClientStalled));
    stand.worker.end(&shut, Outcome::of(Cause::ClientStalled), 9).await;
    assert_eq!(stand.settled("shut").await["outcome"]["cause"], "client_stalled");
    // The neighbour goes on to its end; then there is no reason to keep the connection.
    let last = stand.worker.delta(&read, 0, "last", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&read, Outcome::of(Cause::Stop), 1).await;
    other.read_until("[DONE]").await;
    assert_eq!(stand.settled("read").await["delivery"], "complete");
    soon("the connection is closed", client.connection).await.expect("it ended");
}

/// A whole answer that does not fit into the window: what hyper could not take is not delivered, and not kept for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_is_not_read_is_not_complete() {
    let mut stand = stand(gateway::GatewayConfig { unread_max: ms(200), ..Default::default() }).await;
    let mut client = client(&stand, 4096).await;
    let mut open = client.ask("r", false).await;
    let attempt = stand.worker.accept().await.attempt;
    let last = stand.worker.delta(&attempt, 0, &"x".repeat(256 << 10), &[1], Some(Cause::Length));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Length), 1).await;
    open.headers().await;
    let run = stand.settled("r").await;
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&"completed".into(), &"partial".into()));
    assert_eq!((&run["tokens"]["delivered"], &run["superseded"]), (&0.into(), &serde_json::json!(["client_stalled"])));
    soon("the connection is closed", client.connection).await.expect("it ended");
}
