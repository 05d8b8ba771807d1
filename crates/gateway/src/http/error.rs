//! Errors as OpenAI's clients expect them: `{"error":{"message","type","param","code"}}`, for everything, 404 and bad JSON included.
//!
//! Invariant: an error names what is wrong and where; it never repeats a prompt.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::{Cause, Outcome, OutcomeKind};
use observe::{Limits, Recall};
use serde_json::{Value, json};

/// Seconds that a caller is told to wait when there is no room.
const RETRY_AFTER_S: u32 = 1;

/// An answer that is an error.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
}

/// What HTTP has no number for and everybody knows as 499: the caller, or somebody for it, no longer wanted the answer.
fn client_closed() -> StatusCode {
    StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST)
}

impl ApiError {
    /// A 400 about the request as a whole.
    pub(crate) fn bad(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A 400 about one field.
    pub(crate) fn field(param: &str, message: impl std::fmt::Display) -> ApiError {
        let mut error = ApiError::bad(format!("{param}: {message}"));
        error.param = Some(param.to_owned());
        error
    }

    /// Any other status.
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), kind, param: None, code: None }
    }

    /// With OpenAI's or the contract's code word.
    pub(crate) fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// A 404 for a run that is not there, or not the asker's (C-30: the same answer).
    // contract: C-30
    pub(crate) fn no_run(id: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", format!("no run `{id}`")).code("run_not_found")
    }

    /// What is said of a run that cannot be shown: a 410 if it was evicted, else a 404 that claims no more than is known.
    // contract: C-29 C-30
    pub(crate) fn not_held(id: &str, recall: Recall, limits: Limits) -> ApiError {
        match recall {
            Recall::Held | Recall::Never => ApiError::no_run(id),
            Recall::Evicted => {
                let kept = limits.runs;
                let why = format!("run `{id}` was evicted from memory: newer runs have taken its place (option journal_runs, {kept})");
                ApiError::new(StatusCode::GONE, "invalid_request_error", why).code("run_evicted")
            }
            Recall::NeverOrForgotten => {
                let kept = limits.evicted;
                let why = format!("no run `{id}`: unknown here, or evicted longer ago than ids are kept (option journal_evicted, {kept})");
                ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", why).code("run_not_found")
            }
        }
    }

    /// A 503: this process cannot serve at the moment.
    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// How an outcome other than `completed` looks to the caller.
    pub(crate) fn of_outcome(outcome: &Outcome) -> ApiError {
        let (status, kind) = match (outcome.kind(), outcome.cause) {
            (_, Cause::QueueFull) => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
            (_, Cause::DeadlineUnreachable) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            (OutcomeKind::Rejected, _) => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            // The server's doing: a client or a proxy may try again elsewhere.
            (_, Cause::Shutdown) => (StatusCode::SERVICE_UNAVAILABLE, "server_error"),
            (OutcomeKind::Cancelled, _) => (client_closed(), "cancelled"),
            (OutcomeKind::Expired, _) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            (OutcomeKind::Failed | OutcomeKind::Completed, _) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
        };
        let message = match &outcome.reason {
            Some(reason) => reason.clone(),
            None => sentence(outcome.cause).to_owned(),
        };
        ApiError::new(status, kind, message).code(outcome.cause.as_str())
    }

    /// The body: also the last event of a stream that did not end well.
    pub(crate) fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

fn sentence(cause: Cause) -> &'static str {
    use Cause::*;
    match cause {
        CancelRequested => "the run was cancelled by name",
        Shutdown => "the server is shutting down; the run was cancelled",
        ClientDeadline => "the deadline that the request gave has passed",
        GatewayDeadline => "the server's deadline for a run has passed",
        WorkerDeadline => "the worker's deadline has passed",
        QueueDeadline => "the run waited too long to be scheduled",
        WorkerLost => "the worker is gone",
        DeviceError => "the device failed in a step that held the run",
        QueueFull => "too many runs are waiting; try again later",
        CannotFit => "the prompt and the tokens asked for can never fit into the KV pool",
        OverLimit => "the request exceeds a limit",
        DeadlineUnreachable => "the deadline cannot be met",
        Invalid => "the request is not valid",
        ClientClosed | ClientReset | ClientLost | ClientStalled | EdgeTimeout | Orphaned => "the run was cancelled: its caller is gone",
        WorkerError | UpstreamError => "the worker failed",
        Stop | Length => "the run is over",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], self.to_json().to_string()).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}
