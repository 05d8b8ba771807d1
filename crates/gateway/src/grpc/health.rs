//! `grpc.health.v1`: what `/health` says, as balancers and probes ask for it over gRPC.
//!
//! Invariant: asked for at the moment of the question; it cannot lag behind `/health`.

use std::sync::Arc;

use protocol::runs_v1::runs_server::SERVICE_NAME as RUNS;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::watch::{Changes, Look, Watches};
use crate::calls::Calls;
use crate::http::readiness;

pub(super) struct Service {
    pub(super) calls: Arc<Calls>,
    pub(super) watches: Watches,
}

/// How a service is; `None` if there is none of this name. The empty name is the server as a whole.
fn state(calls: &Calls, service: &str) -> Option<ServingStatus> {
    let is_known = service.is_empty() || service == RUNS;
    is_known.then(|| if readiness(calls).is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing })
}

#[async_trait]
impl Health for Service {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match state(&self.calls, &request.into_inner().service) {
            Some(state) => Ok(Response::new(HealthCheckResponse { status: state.into() })),
            None => Err(Status::not_found("there is no service of this name here")),
        }
    }

    type WatchStream = Changes<HealthCheckResponse>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (calls, service) = (self.calls.clone(), request.into_inner().service);
        let changes = self.watches.open(move || {
            let state = state(&calls, &service).unwrap_or(ServingStatus::ServiceUnknown);
            Look::Now(HealthCheckResponse { status: state.into() })
        })?;
        Ok(Response::new(changes))
    }
}
