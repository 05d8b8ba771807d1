//! Errors as OpenAI's clients expect them: `{"error":{"message","type","param","code"}}`, for everything, 404 and bad JSON included.
//!
//! Invariant: an error names what is wrong and where; it never repeats a prompt.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::ext::ReasonPhrase;
use lifecycle::{Cause, Outcome, OutcomeKind};
use observe::{Limits, Recall};
use serde_json::{Value, json};

use super::fields::no_model;
use crate::reason::Reason;

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
    /// Set where asking again by itself would be wrong: the caller no longer wanted the answer, or it would cost all of it once more.
    is_final: bool,
}

/// Tells OpenAI's SDKs whether to ask again by themselves. Where it is absent they do so after 408, 409, 429 and every 5xx.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

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
        ApiError::field_with(StatusCode::BAD_REQUEST, param, message)
    }

    /// Another status about one field.
    pub(crate) fn field_with(status: StatusCode, param: &str, message: impl std::fmt::Display) -> ApiError {
        let mut error = ApiError::new(status, "invalid_request_error", format!("{param}: {message}"));
        error.param = Some(param.to_owned());
        error
    }

    /// Any other status.
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), kind, param: None, code: None, is_final: false }
    }

    /// With OpenAI's or the contract's code word.
    pub(crate) fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// Asking again by itself would not help.
    pub(crate) const fn finally(mut self) -> ApiError {
        self.is_final = true;
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

    /// A 401: nobody knows whose request this is. What was sent is not repeated.
    // contract: C-30
    pub(crate) fn unauthenticated(message: &'static str) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message).code("invalid_api_key")
    }

    /// A 403: it is about runs of every tenant, and the key is not an operator's.
    // contract: C-30
    pub(crate) fn operators_only() -> ApiError {
        let why = "this is for operators: it names runs of every tenant; the key's table needs `operator = true`";
        ApiError::new(StatusCode::FORBIDDEN, "invalid_request_error", why).code("operators_only")
    }

    /// Why the run store's answer is none.
    pub(crate) fn store(why: store::StoreError) -> ApiError {
        match why {
            store::StoreError::Unavailable(_) => ApiError::store_down(),
            store::StoreError::Unreadable(_) | store::StoreError::Open(_) => {
                tracing::error!(%why, "the run store");
                let text = "the run store's content cannot be read";
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", text).code("store_unreadable")
            }
        }
    }

    /// A 503: what is asked for needs the run store.
    pub(crate) fn store_down() -> ApiError {
        ApiError::unavailable("the run store is not available; try again later").code("store_unavailable")
    }

    /// A 410: the run is known, and nothing of its answer is.
    pub(crate) fn events_not_kept(id: &str) -> ApiError {
        let why = format!("the events of run `{id}` are not kept: they were for whoever read them, or were deleted");
        ApiError::new(StatusCode::GONE, "invalid_request_error", why).code("events_not_kept")
    }

    /// A 409: a run that everybody reads.
    pub(crate) fn too_many_readers(max: usize) -> ApiError {
        let why = format!("the run has {max} readers; wait until one leaves");
        ApiError::new(StatusCode::CONFLICT, "invalid_request_error", why).code("too_many_readers")
    }

    /// A 503: this process cannot serve at the moment.
    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// A 503: a shutdown has begun, so this was not taken on and cost nothing. Another word than that of a run that was cancelled.
    pub(crate) fn shutting_down() -> ApiError {
        ApiError::unavailable("the server is shutting down and takes no more runs").code("shutting_down")
    }

    /// A 503: no worker is here, one may come.
    pub(crate) fn no_worker() -> ApiError {
        ApiError::unavailable("no worker is here at the moment").code("no_worker")
    }

    /// How an outcome other than `completed` looks to the caller.
    ///
    /// A status that SDKs and proxies retry is for what a retry can mend: no room, a wait that was too long, this process going away, a
    /// failure. A caller's own deadline is none of these (it would silently run again and again while nobody waits), so it gets the status of
    /// a caller that no longer wants the answer; a 408 or 504 would be retried.
    pub(crate) fn of_outcome(outcome: &Outcome) -> ApiError {
        if let (Cause::Invalid, Some(Reason::NoModel(name))) = (outcome.cause, Reason::of(outcome)) {
            return no_model(&name);
        }
        let (status, kind) = match (outcome.kind(), outcome.cause) {
            (_, Cause::QueueFull) => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
            (_, Cause::QueueDeadline) => (StatusCode::SERVICE_UNAVAILABLE, "timeout"),
            (_, Cause::ClientDeadline) => (client_closed(), "timeout"),
            (OutcomeKind::Rejected, _) => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            // The server's doing: a client or a proxy may try again elsewhere.
            (_, Cause::Shutdown) => (StatusCode::SERVICE_UNAVAILABLE, "server_error"),
            // This process was not heard by its worker for a lease. Its caller is there, and did nothing.
            (_, Cause::Orphaned) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
            (OutcomeKind::Cancelled, _) => (client_closed(), "cancelled"),
            (OutcomeKind::Expired, _) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            (_, Cause::WorkerLost) if is_unreached(outcome) => (StatusCode::BAD_GATEWAY, "server_error"),
            (_, Cause::UpstreamError) if is_late(outcome) => (StatusCode::GATEWAY_TIMEOUT, "server_error"),
            (_, Cause::UpstreamError) => (StatusCode::BAD_GATEWAY, "server_error"),
            (OutcomeKind::Failed | OutcomeKind::Completed, _) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
        };
        let message = match &outcome.reason {
            Some(reason) => reason.clone(),
            None => sentence(outcome.cause).to_owned(),
        };
        let code = match outcome.cause {
            _ if is_late(outcome) => "upstream_timeout",
            Cause::WorkerLost if is_unreached(outcome) => Cause::UpstreamError.as_str(),
            cause => cause.as_str(),
        };
        let mut error = ApiError::new(status, kind, message).code(code);
        // The server's deadlines are a 504 by its meaning, but the same request would use up the same time once more; and a deadline that
        // cannot be met now cannot be met in a second.
        let is_again = matches!(outcome.cause, Cause::GatewayDeadline | Cause::WorkerDeadline | Cause::DeadlineUnreachable);
        error.is_final = status == client_closed() || is_again || is_late(outcome);
        error
    }

    /// The sentence for a person.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// OpenAI's or the contract's word for it.
    pub(crate) const fn word(&self) -> Option<&'static str> {
        self.code
    }

    /// The body: also the last event of a stream that did not end well.
    pub(crate) fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

/// Whether an engine was waited for in vain.
fn is_late(outcome: &Outcome) -> bool {
    outcome.cause == Cause::UpstreamError && matches!(Reason::of(outcome), Some(Reason::Late(_)))
}

/// Whether there was no way to an engine.
fn is_unreached(outcome: &Outcome) -> bool {
    matches!(Reason::of(outcome), Some(Reason::Unreached(_)))
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
        Orphaned => "the worker heard nothing of this server for too long and ended the run",
        DeviceError => "the device failed in a step that held the run",
        QueueFull => "too many runs are waiting; try again later",
        CannotFit => "the prompt and the tokens asked for can never fit into the KV pool",
        OverLimit => "the request exceeds a limit",
        DeadlineUnreachable => "not even the first token can come before the deadline",
        Invalid => "the request is not valid",
        ClientClosed | ClientReset | ClientLost | ClientStalled | EdgeTimeout => "the run was cancelled: its caller is gone",
        WorkerError => "the worker failed",
        UpstreamError => "the engine behind this server failed",
        Stop | Length => "the run is over",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], self.to_json().to_string()).into_response();
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.is_final {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if self.status == client_closed() {
            response.extensions_mut().insert(ReasonPhrase::from_static(b"Client Closed Request"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether OpenAI's SDKs ask again by themselves.
    fn is_retried(response: &Response) -> bool {
        let told_not_to = response.headers().get(SHOULD_RETRY).is_some_and(|v| v == "false");
        !told_not_to && (matches!(response.status().as_u16(), 408 | 409 | 429) || response.status().is_server_error())
    }

    // contract: C-22
    #[test]
    fn statuses_are_what_the_page_says() {
        let page = include_str!("../../../../docs/http.md");
        let rows = page.lines().filter_map(|line| {
            let [_, cause, status, retried, _] = line.split('|').map(str::trim).collect::<Vec<_>>().try_into().ok()?;
            Some((Cause::parse(cause.trim_matches('`'))?, status.parse::<u16>().ok()?, retried == "yes"))
        });
        let rows: Vec<_> = rows.collect();
        for &cause in Cause::ALL {
            // Nobody is there to be told of a caller's leaving, and what completed is no error.
            let told = !cause.is_disconnect() && cause.outcome() != OutcomeKind::Completed;
            let response = ApiError::of_outcome(&Outcome::of(cause)).into_response();
            let row = (cause, response.status().as_u16(), is_retried(&response));
            assert_eq!(rows.contains(&row), told, "{row:?}");
        }
    }
}
