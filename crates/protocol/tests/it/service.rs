//! The generated client and server speak with each other, without a network in between: names, codecs and statuses.

use std::pin::Pin;

use lifecycle::message::Up;
use protocol::worker_v1::worker_client::WorkerClient;
use protocol::worker_v1::worker_server::{Worker, WorkerServer};
use protocol::{Error, FromGateway, FromWorker, VERSIONS, down, snapshot_reply, up, version, worker_v1 as wire};
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::samples;

/// Answers every frame with a `Draining`, and knows one cut.
struct Scripted;

type Frames = Pin<Box<dyn Stream<Item = Result<wire::Up, Status>> + Send>>;

#[tonic::async_trait]
impl Worker for Scripted {
    type SessionStream = Frames;

    async fn session(&self, request: Request<Streaming<wire::Down>>) -> Result<Response<Frames>, Status> {
        let mut frames = request.into_inner();
        let first = frames.next().await.ok_or_else(|| Status::invalid_argument("no hello"))??;
        let FromGateway::Hello(opening) = FromGateway::try_from(first)? else { return Err(Status::invalid_argument("no hello")) };
        version::choose(&opening.versions, VERSIONS).map_err(Error::from)?;
        let welcome = tokio_stream::once(Ok(wire::Up::from(&samples::opened())));
        let answers = frames.map(|frame| match FromGateway::try_from(frame?)? {
            FromGateway::Frame(_) => Ok(up(&samples::frame(Some(Up::Draining)))?),
            FromGateway::Hello(_) => Err(Status::invalid_argument("a second hello")),
        });
        Ok(Response::new(Box::pin(welcome.chain(answers))))
    }

    async fn snapshot(&self, _: Request<wire::SnapshotRequest>) -> Result<Response<wire::SnapshotReply>, Status> {
        Ok(Response::new(snapshot_reply(samples::WORKER, &samples::snapshot())?))
    }

    async fn drain(&self, _: Request<wire::DrainRequest>) -> Result<Response<wire::DrainReply>, Status> {
        Ok(Response::new(wire::DrainReply::from(&samples::drained())))
    }
}

fn client() -> WorkerClient<WorkerServer<Scripted>> {
    WorkerClient::new(WorkerServer::new(Scripted))
}

#[tokio::test(flavor = "current_thread")]
async fn a_session_opens_and_carries_frames() {
    let first = wire::Down::from(&samples::opening());
    let all = samples::downs().into_iter().map(|(_, message)| down(&samples::frame(Some(message))).expect("it can be sent"));
    let sent: Vec<wire::Down> = std::iter::once(first).chain(all).collect();
    let frames = sent.len();
    let mut answers = client().session(tokio_stream::iter(sent)).await.expect("a session").into_inner();
    let welcome = answers.next().await.expect("an answer").expect("no error");
    assert!(matches!(FromWorker::try_from(welcome), Ok(FromWorker::Welcome(opened)) if opened == samples::opened()));
    let mut count = 1;
    while let Some(frame) = answers.next().await {
        let frame = FromWorker::try_from(frame.expect("no error")).expect("understood");
        assert!(matches!(frame, FromWorker::Frame(frame) if matches!(frame.message, Some(Up::Draining))));
        count += 1;
    }
    assert_eq!(count, frames);
}

#[tokio::test(flavor = "current_thread")]
async fn a_gateway_of_another_age_is_told_both_lists() {
    let mut opening = samples::opening();
    opening.versions = vec![8, 7];
    let error = client().session(tokio_stream::once(wire::Down::from(&opening))).await.expect_err("refused");
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(error.message(), "no common protocol version: the gateway speaks 7, 8; the worker speaks 1");
}

#[tokio::test(flavor = "current_thread")]
async fn the_two_calls_beside_it() {
    let cut = client().snapshot(wire::SnapshotRequest { blocks: true }).await.expect("an answer").into_inner();
    let cut = lifecycle::message::From::try_from(cut).expect("understood");
    assert_eq!((cut.incarnation, cut.message), (samples::WORKER, samples::snapshot()));
    let drained = client().drain(wire::DrainRequest { limit_us: 1 }).await.expect("an answer").into_inner();
    assert_eq!(protocol::Drained::try_from(drained), Ok(samples::drained()));
}
