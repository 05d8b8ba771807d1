//! A caller that speaks gRPC, with tonic's client, over a socket that the test holds or that a process of its own holds.

use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use protocol::runs_v1::generate_event::Event;
use protocol::runs_v1::generate_request::Prompt;
use protocol::runs_v1::runs_client::RunsClient;
use protocol::runs_v1::{self as wire, GenerateEvent, GenerateRequest};
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::metadata::{MetadataKey, MetadataMap};
use tonic::{Request, Status, Streaming};
use tower::util::BoxCloneSyncService;

use crate::server::{PATIENCE, Server};

/// Holds a connection for its parent, which speaks to it over its standard input: a client's process that can end at any moment.
const HOLDER: &str = "import socket, sys, threading
near = socket.socket(fileno=0)
far = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
def copy(a, b):
    while data := a.recv(65536):
        b.sendall(data)
threading.Thread(target=copy, args=(far, near), daemon=True).start()
copy(near, far)
";

/// One connection, without tonic's own transport: that counts a call's deadline itself, and whoever is to hear the server's word must not.
pub type Channel = BoxCloneSyncService<http::Request<Body>, http::Response<Incoming>, hyper::Error>;

/// A connection, and the thread that drives it.
pub struct Grpc {
    pub client: RunsClient<Channel>,
    pub channel: Channel,
    socket: Option<TcpStream>,
    holder: Option<Child>,
    runtime: Runtime,
}

/// A stream of a run's events.
pub struct Call {
    events: Streaming<GenerateEvent>,
    pub metadata: MetadataMap,
    /// Tokens and text that came.
    pub tokens: usize,
    pub text: String,
    /// The last event.
    pub ended: Option<wire::Ended>,
}

impl Grpc {
    pub fn to(server: &Server) -> Grpc {
        Grpc::over(server.connect(), None)
    }

    /// Over a socket; with a window of this many bytes a stream, if given.
    pub fn over(stream: TcpStream, window: Option<u32>) -> Grpc {
        let socket = stream.try_clone().expect("a second handle");
        stream.set_nonblocking(true).expect("a socket can be non-blocking");
        let mut made = Grpc::through(|| TokioIo::new(tokio::net::TcpStream::from_std(stream).expect("a socket")), window);
        made.socket = Some(socket);
        made
    }

    /// Over a socket that another process holds.
    pub fn held_by_a_process(server: &Server) -> Grpc {
        let (near, far) = UnixStream::pair().expect("a pair");
        let far = Stdio::from(std::os::fd::OwnedFd::from(far));
        let holder = Command::new("python3").args(["-c", HOLDER, &server.port.to_string()]).stdin(far).spawn();
        let holder = holder.expect("python3 is installed, as CONTRIBUTING.md says");
        near.set_nonblocking(true).expect("a socket can be non-blocking");
        let mut made = Grpc::through(|| TokioIo::new(tokio::net::UnixStream::from_std(near).expect("a socket")), None);
        made.holder = Some(holder);
        made
    }

    fn through<S>(make: impl FnOnce() -> S, window: Option<u32>) -> Grpc
    where
        S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let send = runtime.block_on(async {
            let mut http2 = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            let (send, driver) = http2.initial_stream_window_size(window).handshake(make()).await.expect("the server speaks HTTP/2");
            tokio::spawn(driver);
            send
        });
        let channel = BoxCloneSyncService::new(tower::service_fn(move |mut request: http::Request<Body>| {
            let path = request.uri().path_and_query().cloned().expect("a call has a path");
            let uri = http::Uri::builder().scheme("http").authority("t").path_and_query(path).build();
            *request.uri_mut() = uri.expect("a URI");
            let mut send = send.clone();
            async move { send.send_request(request).await }
        }));
        let client = RunsClient::new(channel.clone()).max_decoding_message_size(16 << 20);
        Grpc { client, channel, socket: None, holder: None, runtime }
    }

    /// Waits for something, at most for as long as a test has patience.
    pub fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, what).await }).expect("an answer comes")
    }

    /// Asks for a run and waits until it was taken on, or turned away.
    pub fn generate(&self, metadata: &[(&str, &str)], message: GenerateRequest) -> Result<Call, Status> {
        let mut client = self.client.clone();
        let answer = self.wait(client.generate(with(metadata, message)))?;
        let (metadata, events, _) = answer.into_parts();
        Ok(Call { events, metadata, tokens: 0, text: String::new(), ended: None })
    }

    /// The next event.
    pub fn event(&self, call: &mut Call) -> Result<Option<Event>, Status> {
        let event = self.wait(call.events.message())?.map(|event| event.event.expect("an event of a known kind"));
        match &event {
            Some(Event::Delta(delta)) => {
                call.tokens += delta.tokens.len();
                call.text += &delta.text;
            }
            Some(Event::Ended(ended)) => call.ended = Some(ended.clone()),
            _ => {}
        }
        Ok(event)
    }

    /// Reads until so many tokens have come.
    pub fn read_tokens(&self, call: &mut Call, n: usize) {
        while call.tokens < n {
            let event = self.event(call).expect("the stream goes on");
            assert!(matches!(event, Some(Event::Accepted(_) | Event::Delta(_))), "it ended after {} tokens: {event:?}", call.tokens);
        }
    }

    /// Reads to the end; the status.
    pub fn read_to_the_end(&self, call: &mut Call) -> Result<(), Status> {
        while self.event(call)?.is_some() {}
        Ok(())
    }

    /// Closes in good order: a FIN, and whatever still comes is read, for unread bytes would make a reset of it.
    pub fn close(self) {
        let socket = self.socket.as_ref().expect("a socket of the test's own");
        socket.shutdown(Shutdown::Write).expect("a FIN");
        let mut client = self.client.clone();
        // The driver reads on until the server has closed, and then the channel says so.
        self.wait(async {
            while client.get(wire::GetRequest { run: "none".into() }).await.is_err_and(|status| status.code() == tonic::Code::NotFound) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// Resets the connection.
    pub fn reset(self) {
        let socket = self.socket.as_ref().expect("a socket of the test's own");
        socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).expect("linger can be set");
    }

    /// Ends the process that holds the connection.
    pub fn kill(mut self) {
        self.end_holder();
    }

    fn end_holder(&mut self) {
        if let Some(holder) = &mut self.holder {
            holder.kill().expect("it can be ended");
            holder.wait().expect("it can be waited for");
        }
        self.holder = None;
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        self.end_holder();
    }
}

/// A message with metadata.
pub fn with<T>(metadata: &[(&str, &str)], message: T) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in metadata {
        let name: MetadataKey<_> = name.parse().expect("a name");
        request.metadata_mut().insert(name, value.parse().expect("a value"));
    }
    request
}

/// The name of the server's model.
pub fn model(server: &Server) -> String {
    server.json("GET", "/v1/models").1["data"][0]["id"].as_str().expect("a model has a name").to_owned()
}

/// A chat of one turn, as `server::chat_body` asks for it over HTTP.
pub fn chat(model: &str, content: &str, max_tokens: u32) -> GenerateRequest {
    let turn = wire::Turn { role: "user".into(), content: content.into() };
    let params = wire::Params { temperature: Some(0.0), max_tokens: Some(max_tokens), ignore_eos: true, ..Default::default() };
    let prompt = Prompt::Chat(wire::Chat { turns: vec![turn] });
    GenerateRequest { model: model.into(), prompt: Some(prompt), params: Some(params), ..Default::default() }
}

/// The contract's word beside a status.
pub fn word(status: &Status) -> &str {
    status.metadata().get("x-kvit-code").and_then(|word| word.to_str().ok()).unwrap_or("none")
}
