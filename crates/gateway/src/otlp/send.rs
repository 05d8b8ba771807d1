//! One sending to a collector, by gRPC or by HTTP, and what became of it.
//!
//! HTTP goes over the blocking client that webhooks go over, on a thread of its own for as long as it takes; gRPC over the client that workers
//! are spoken to with.
//!
//! Invariant: it is over within its time, and whoever asks is told whether to try again.

use std::time::Duration;

use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Request, StatusCode, header};
use observe::otlp::wire::{EXPORT, ExportTraceServiceRequest, ExportTraceServiceResponse};
use prost::Message;
use tokio::sync::oneshot;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::config::{OtlpConfig, OtlpEndpoint, OtlpHeaders, OtlpProtocol};

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// What collectors send programs of this kind.
const PROTOBUF: &str = "application/x-protobuf";
const USER_AGENT: &str = concat!("kvit/", env!("CARGO_PKG_VERSION"));

/// What became of a sending.
#[derive(Debug)]
pub(super) enum Sent {
    /// It was taken, but for so many spans, and why.
    Taken { rejected: u64, why: String },
    /// It was refused, and would be again.
    Refused(String),
    /// It was not taken; another time it may be.
    NotNow(String),
}

/// The way to a collector.
pub(super) enum Sender {
    Grpc { channel: Channel, headers: MetadataMap, timeout: Duration },
    Http { agent: ureq::Agent, url: String, headers: OtlpHeaders },
}

impl Sender {
    /// Connects to nobody yet. To be called on a runtime.
    pub(super) fn new(config: &OtlpConfig, endpoint: &OtlpEndpoint) -> Result<Sender, String> {
        match config.protocol {
            OtlpProtocol::Grpc => {
                let channel = Endpoint::from_shared(endpoint.base().to_owned()).and_then(|to| to.user_agent(USER_AGENT));
                let channel = channel.map_err(|why| why.to_string())?.connect_timeout(config.timeout).connect_lazy();
                let headers: HeaderMap = config.headers.each().map(|(name, value)| (name.clone(), value.clone())).collect();
                Ok(Sender::Grpc { channel, headers: MetadataMap::from_headers(headers), timeout: config.timeout })
            }
            OtlpProtocol::Http => {
                let agent = ureq::Agent::config_builder()
                    .timeout_global(Some(config.timeout))
                    .max_redirects(0)
                    .max_redirects_will_error(false)
                    .http_status_as_error(false)
                    .proxy(None)
                    .user_agent(USER_AGENT)
                    .build();
                Ok(Sender::Http { agent: agent.into(), url: endpoint.traces(), headers: config.headers.clone() })
            }
        }
    }

    pub(super) async fn send(&self, request: &ExportTraceServiceRequest) -> Sent {
        match self {
            Sender::Grpc { channel, headers, timeout } => {
                let call = call(channel.clone(), headers.clone(), request.clone());
                match tokio::time::timeout(*timeout, call).await {
                    Ok(Ok(answer)) => taken(answer),
                    Ok(Err(status)) => refusal(&status),
                    Err(_) => Sent::NotNow("no answer in time".to_owned()),
                }
            }
            Sender::Http { agent, url, headers } => {
                let mut post = Request::post(url).header(header::CONTENT_TYPE, PROTOBUF);
                for (name, value) in headers.each() {
                    post = post.header(name, value);
                }
                let Ok(post) = post.body(request.encode_to_vec()) else { return Sent::Refused("the request cannot be sent".to_owned()) };
                let (agent, (tell, told)) = (agent.clone(), oneshot::channel());
                let spawned = std::thread::Builder::new().name("otlp".to_owned()).spawn(move || drop(tell.send(exchange(&agent, post))));
                match spawned {
                    Ok(_) => told.await.unwrap_or_else(|_| Sent::NotNow("the sending thread ended".to_owned())),
                    Err(why) => Sent::NotNow(format!("no thread could be started: {why}")),
                }
            }
        }
    }
}

async fn call(channel: Channel, headers: MetadataMap, message: ExportTraceServiceRequest) -> Result<ExportTraceServiceResponse, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|why| Status::unavailable(why.to_string()))?;
    let mut request = tonic::Request::new(message);
    *request.metadata_mut() = headers;
    let codec = tonic_prost::ProstCodec::<ExportTraceServiceRequest, ExportTraceServiceResponse>::default();
    Ok(client.unary(request, PathAndQuery::from_static(EXPORT), codec).await?.into_inner())
}

/// Which answers say that it may be taken another time, is the protocol's to say.
fn refusal(status: &Status) -> Sent {
    let why = format!("{}: {}", status.code().description(), status.message());
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::OutOfRange => Sent::NotNow(why),
        Code::Unavailable | Code::DataLoss | Code::ResourceExhausted => Sent::NotNow(why),
        _ => Sent::Refused(why),
    }
}

fn taken(answer: ExportTraceServiceResponse) -> Sent {
    let partial = answer.partial_success.unwrap_or_default();
    Sent::Taken { rejected: u64::try_from(partial.rejected_spans).unwrap_or(0), why: partial.error_message }
}

fn exchange(agent: &ureq::Agent, post: Request<Vec<u8>>) -> Sent {
    let mut response = match agent.run(post) {
        Ok(response) => response,
        Err(why) => return Sent::NotNow(why.to_string()),
    };
    let status = response.status();
    let mut body = Vec::new();
    let mut reader = std::io::Read::take(response.body_mut().as_reader(), ANSWER_BYTES_MAX);
    let read = std::io::Read::read_to_end(&mut reader, &mut body);
    match status {
        // One that answers with no message has taken all.
        status if status.is_success() && read.is_ok() => taken(ExportTraceServiceResponse::decode(&*body).unwrap_or_default()),
        status if status.is_success() => taken(ExportTraceServiceResponse::default()),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Sent::NotNow(format!("answered {status}"))
        }
        status => Sent::Refused(format!("answered {status}")),
    }
}
