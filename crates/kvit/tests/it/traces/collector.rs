//! A collector of spans that keeps what it is sent, by gRPC or by HTTP, read with OpenTelemetry's own crate; and one that takes nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};

use crate::server::PATIENCE;

/// What came in one sending.
#[derive(Clone, Debug)]
pub struct Got {
    /// The value of `authorization`.
    pub key: Option<String>,
    pub request: ExportTraceServiceRequest,
}

type Kept = Arc<Mutex<Vec<Got>>>;

/// A collector that listens until the test ends.
pub struct Collector {
    pub url: String,
    kept: Kept,
    _runtime: Option<Runtime>,
}

struct Taking(Kept);

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let key = request.metadata().get("authorization").and_then(|key| key.to_str().ok()).map(str::to_owned);
        self.0.lock().expect("no panic").push(Got { key, request: request.into_inner() });
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// One that speaks `grpc` or `http/protobuf`.
    pub fn speaking(protocol: &str) -> Collector {
        if protocol == "grpc" { Collector::grpc() } else { Collector::http() }
    }

    fn grpc() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = url(&listener);
        listener.set_nonblocking(true).expect("a socket can be non-blocking");
        let kept = Kept::default();
        let service = TraceServiceServer::new(Taking(kept.clone()));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.expect("it serves");
        });
        Collector { url, kept, _runtime: Some(runtime) }
    }

    fn http() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (url, kept) = (url(&listener), Kept::default());
        let keeps = kept.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let kept = keeps.clone();
                std::thread::spawn(move || while take(&stream, &kept) {});
            }
        });
        Collector { url, kept, _runtime: None }
    }

    /// All that came so far.
    pub fn got(&self) -> Vec<Got> {
        self.kept.lock().expect("no panic").clone()
    }

    /// All spans that came so far, each with its process's life.
    pub fn spans(&self) -> Vec<(String, Span)> {
        let mut all = Vec::new();
        for resource in self.got().into_iter().flat_map(|got| got.request.resource_spans) {
            let life = text(&resource.resource.expect("a resource").attributes, "service.instance.id").expect("a life");
            all.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans).map(|span| (life.clone(), span)));
        }
        all
    }

    /// The spans of a run, once they are there: its own first.
    pub fn run(&self, id: &str) -> Vec<Span> {
        let of = |span: &Span| text(&span.attributes, "kvit.run.id").as_deref() == Some(id);
        let since = Instant::now();
        loop {
            let spans: Vec<Span> = self.spans().into_iter().map(|(_, span)| span).filter(of).collect();
            if !spans.is_empty() {
                return spans;
            }
            assert!(since.elapsed() < PATIENCE, "no spans of {id}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A place at which nobody listens.
pub fn nobody() -> String {
    url(&TcpListener::bind("127.0.0.1:0").expect("a port"))
}

fn url(listener: &TcpListener) -> String {
    let address: SocketAddr = listener.local_addr().expect("an address");
    format!("http://{address}")
}

/// Takes one request. Whether another may follow on the connection.
fn take(stream: &TcpStream, kept: &Kept) -> bool {
    let mut reader = BufReader::new(stream);
    let head: Vec<String> = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let Some(first) = head.first() else { return false };
    assert_eq!(first, "POST /v1/traces HTTP/1.1");
    let header =
        |name: &str| head.iter().filter_map(|line| line.split_once(": ")).find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
    assert_eq!(header("content-type"), Some("application/x-protobuf"));
    let length = header("content-length").and_then(|n| n.parse().ok()).expect("a length");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the whole request");
    let request = ExportTraceServiceRequest::decode(&*body).expect("OTLP");
    kept.lock().expect("no panic").push(Got { key: header("authorization").map(str::to_owned), request });
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n").is_ok()
}

/// An attribute that is a text.
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    match attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        other => panic!("{key}: {other:?}"),
    }
}

/// An attribute that is a number.
pub fn count(span: &Span, key: &str) -> Option<i64> {
    match span.attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value? {
        Value::IntValue(count) => Some(count),
        other => panic!("{key}: {other:?}"),
    }
}
