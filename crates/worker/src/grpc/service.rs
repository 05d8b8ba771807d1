//! The three calls of `kvit.worker.v1.Worker`.
//!
//! Invariant: a session is opened only by a hello that was read whole and whose version both sides speak.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::ModelInfo;
use lifecycle::session::SessionConfig;
use protocol::worker_v1::{self as wire, worker_server};
use protocol::{Error, FromGateway, Limits, Opened, Opening, VERSIONS, snapshot_reply, version};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tonic::{Request, Response, Status, Streaming};

use super::GrpcConfig;
use super::session::Frames;
use crate::door::Door;
use crate::start::Closed;

/// The service over an engine thread.
pub(super) struct Service {
    door: Door,
    config: GrpcConfig,
    limits: Limits,
    model: ModelInfo,
    sessions: Arc<Semaphore>,
    questions: Semaphore,
}

impl Service {
    pub(super) fn new(door: Door, config: GrpcConfig, session: SessionConfig, model: ModelInfo) -> Service {
        let (sessions, questions) = (Arc::new(Semaphore::new(config.sessions_max)), Semaphore::new(config.questions_max));
        Service { door, config, limits: Limits::of(&session), model, sessions, questions }
    }

    async fn hello(&self, down: &mut Streaming<wire::Down>) -> Result<Opening, Status> {
        let first = tokio::time::timeout(self.config.hello_timeout, down.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello came in time (hello_timeout_ms)"))??;
        let first = first.ok_or_else(|| Status::invalid_argument("the stream ended before its Hello"))?;
        match FromGateway::try_from(first)? {
            FromGateway::Hello(opening) => Ok(opening),
            FromGateway::Frame(_) => Err(Status::invalid_argument("the first message is no Hello")),
        }
    }

    fn question(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.questions.try_acquire().map_err(|_| Status::resource_exhausted("too many questions at once"))
    }
}

/// What a worker that is gone says.
pub(super) fn gone(_: Closed) -> Status {
    Status::unavailable("the worker has ended")
}

#[tonic::async_trait]
impl worker_server::Worker for Service {
    type SessionStream = Frames;

    async fn session(&self, request: Request<Streaming<wire::Down>>) -> Result<Response<Frames>, Status> {
        let place = self.sessions.clone().try_acquire_owned().map_err(|_| Status::resource_exhausted("too many sessions at once"))?;
        let mut down = request.into_inner();
        let Opening { versions, hello } = self.hello(&mut down).await?;
        let version = version::choose(&versions, VERSIONS).map_err(Error::Versions)?;
        let (outlet, frames) = mpsc::channel(self.config.outlet_max.max(1));
        let (welcome, session) = self.door.hello(hello, outlet).await.map_err(gone)?.map_err(Error::Refused)?;
        let opened = Opened { version, welcome, model: self.model.clone(), limits: self.limits };
        Ok(Response::new(Frames::new(self.door.clone(), session, place, down, (wire::Up::from(&opened), frames), self.config.inbox_max)))
    }

    async fn snapshot(&self, request: Request<wire::SnapshotRequest>) -> Result<Response<wire::SnapshotReply>, Status> {
        let _place = self.question()?;
        let cut = self.door.snapshot(request.get_ref().blocks).await.map_err(gone)?;
        Ok(Response::new(snapshot_reply(self.door.incarnation(), &cut)?))
    }

    async fn drain(&self, request: Request<wire::DrainRequest>) -> Result<Response<wire::DrainReply>, Status> {
        let _place = self.question()?;
        let drained = self.door.drain(Duration::from_micros(request.get_ref().limit_us)).await.map_err(gone)?;
        Ok(Response::new(wire::DrainReply::from(&drained)))
    }
}
