//! A caller that speaks HTTP/2 without TLS, over a socket that the test made.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, RecvStream, SendStream};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::server::PATIENCE;

/// A connection, and the thread that drives it.
pub struct Http2 {
    runtime: Runtime,
    send: SendRequest<Bytes>,
    driver: JoinHandle<()>,
    ping: PingPong,
    /// A second handle on its socket.
    socket: TcpStream,
}

/// A request in progress.
pub struct Stream {
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    /// What resets the stream.
    pub request: SendStream<Bytes>,
}

impl Http2 {
    pub fn over(stream: TcpStream) -> Http2 {
        Http2::with_window(stream, 65_535)
    }

    /// With a window of this many bytes a stream.
    pub fn with_window(stream: TcpStream, window: u32) -> Http2 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let socket = stream.try_clone().expect("a second handle");
        stream.set_nonblocking(true).expect("a socket can be non-blocking");
        let (send, driver, ping) = runtime.block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            let (send, mut connection) =
                h2::client::Builder::new().initial_window_size(window).handshake(stream).await.expect("the server speaks HTTP/2");
            let ping = connection.ping_pong().expect("nobody has taken it");
            let driver = tokio::spawn(async { drop(connection.await) });
            (send, driver, ping)
        });
        Http2 { runtime, send, driver, ping, socket }
    }

    /// Closes in good order: whatever still comes is read, for unread bytes would make a reset of it.
    pub fn close(self) -> Option<Http2> {
        self.socket.shutdown(Shutdown::Write).expect("a FIN");
        let ended = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.driver).await });
        ended.expect("the server closes too").expect("the driver ends");
        None
    }

    /// Resets the connection.
    pub fn reset(self) -> Option<Http2> {
        socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)).expect("linger can be set");
        None
    }

    /// Says that the connection will end, which the library's clients never say, and waits until the server has taken that in: it answers
    /// the PING that follows.
    pub fn goaway(&mut self, reason: h2::Reason) {
        // Length 8, type 7, no flags, stream 0; the last stream of the server's that was seen, and why. One write is one frame: whatever
        // the driver writes lies before it or behind it.
        let frame = [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &0_u32.to_be_bytes(), &u32::from(reason).to_be_bytes()].concat();
        assert_eq!(self.socket.write(&frame).expect("it can be written"), frame.len());
        let pong = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, self.ping.ping(Ping::opaque())).await });
        pong.expect("a PONG comes").expect("the connection lives");
    }

    pub fn chat(&mut self, id: &str, body: &Value) -> Stream {
        self.chat_with(id, &[], body)
    }

    /// With further headers.
    pub fn chat_with(&mut self, id: &str, headers: &[(&str, &str)], body: &Value) -> Stream {
        let request = http::Request::post("http://t/v1/chat/completions").header("x-request-id", id);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).expect("a request");
        self.runtime.block_on(async {
            self.send = self.send.clone().ready().await.expect("the connection takes a request");
            let (response, mut request) = self.send.send_request(request, false).expect("the request can be sent");
            request.send_data(body.to_string().into(), true).expect("its body can be sent");
            Stream { response: Some(response), body: None, request }
        })
    }

    /// Waits for the answer's head.
    pub fn headers(&self, stream: &mut Stream) {
        if let Some(response) = stream.response.take() {
            let response = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, response).await });
            stream.body = Some(response.expect("a head comes").expect("an answer").into_body());
        }
    }

    /// Reads until what came contains `wanted`.
    pub fn read_until(&self, stream: &mut Stream, wanted: &str) -> String {
        self.headers(stream);
        let read = async {
            let body = stream.body.as_mut().expect("an answer has a body");
            let mut text = String::new();
            while !text.contains(wanted) {
                let data = body.data().await.unwrap_or_else(|| panic!("it ended before {wanted:?}: {text}")).expect("data");
                body.flow_control().release_capacity(data.len()).expect("the window can be opened");
                text += &String::from_utf8_lossy(&data);
            }
            text
        };
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, read).await }).unwrap_or_else(|_| panic!("no {wanted:?} came"))
    }
}
