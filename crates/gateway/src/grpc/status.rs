//! How an end, or a refusal, looks to a gRPC caller: the status, and beside it the contract's word in `x-kvit-code`.
//!
//! gRPC's clients and proxies ask again after UNAVAILABLE, if they are told to ask again at all; so that is the status of what a retry can
//! mend, and of nothing else. `grpc-retry-pushback-ms` says when.
//!
//! Invariant: docs/grpc.md has the same table; a test compares them. No status repeats a prompt.
// contract: C-6 C-22

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use lifecycle::{Cause, Outcome};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::http::error::ApiError;

/// The contract's word, or that of the error in the HTTP API.
const WORD: HeaderName = HeaderName::from_static("x-kvit-code");
/// How long a client that may ask again is to wait, in milliseconds.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const PUSHBACK_MS: &str = "1000";

/// The status of a cause. `Ok` only for what completed.
pub(super) const fn code(cause: Cause) -> Code {
    use Cause::*;
    match cause {
        Stop | Length => Code::Ok,
        ClientClosed | ClientReset | ClientLost | ClientStalled | CancelRequested | EdgeTimeout | Orphaned => Code::Cancelled,
        // A deadline that cannot be met ends as it would have ended, only earlier.
        ClientDeadline | GatewayDeadline | WorkerDeadline | DeadlineUnreachable => Code::DeadlineExceeded,
        // Nothing of it was computed, or its place was lost: another try, later or elsewhere, may well be served.
        QueueDeadline | QueueFull | Shutdown | WorkerLost => Code::Unavailable,
        WorkerError | DeviceError | UpstreamError => Code::Internal,
        Invalid | OverLimit | CannotFit => Code::InvalidArgument,
    }
}

/// The status of a run that did not complete.
pub(super) fn of_outcome(outcome: &Outcome) -> Status {
    let error = ApiError::of_outcome(outcome);
    if error.status == StatusCode::NOT_FOUND {
        return of_error(&error);
    }
    make(code(outcome.cause), error.message(), Some(outcome.cause.as_str()))
}

/// The status of a request for which no run was made, or that asked for a run that is not there.
pub(crate) fn of_error(error: &ApiError) -> Status {
    let code = match error.status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Code::NotFound,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::CONFLICT => Code::Aborted,
        // As other gRPC servers do with a message that is too long.
        StatusCode::PAYLOAD_TOO_LARGE => Code::ResourceExhausted,
        StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Code::Unavailable,
        status if status.is_server_error() => Code::Internal,
        _ => Code::InvalidArgument,
    };
    make(code, error.message(), error.word())
}

fn make(code: Code, message: &str, word: Option<&'static str>) -> Status {
    let mut headers = HeaderMap::new();
    if let Some(word) = word {
        headers.insert(WORD, HeaderValue::from_static(word));
    }
    if code == Code::Unavailable {
        headers.insert(PUSHBACK, HeaderValue::from_static(PUSHBACK_MS));
    }
    Status::with_metadata(code, message, MetadataMap::from_headers(headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's rows: a word in backquotes, and the status beside it.
    fn rows() -> Vec<(&'static str, &'static str)> {
        let page = include_str!("../../../../docs/grpc.md");
        let row = |line: &'static str| {
            let [_, word, code, _, _, _] = line.split('|').map(str::trim).collect::<Vec<_>>().try_into().ok()?;
            Some((word.strip_prefix('`')?.strip_suffix('`')?, code))
        };
        page.lines().filter_map(row).collect()
    }

    fn name(code: Code) -> String {
        // `InvalidArgument` is INVALID_ARGUMENT on the page.
        format!("{code:?}").chars().fold(String::new(), |mut name, c| {
            if c.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(c.to_ascii_uppercase());
            name
        })
    }

    #[test]
    fn statuses_of_causes_are_what_the_page_says() {
        let rows = rows();
        for &cause in Cause::ALL {
            let expected = (cause.as_str(), name(code(cause)));
            assert!(rows.iter().any(|row| (row.0, row.1.to_owned()) == expected), "{expected:?} is not on the page");
        }
    }

    #[test]
    fn what_a_retry_can_mend_is_unavailable_and_says_when() {
        for &cause in Cause::ALL {
            let status = of_outcome(&Outcome::of(cause));
            let says_when = status.metadata().get(PUSHBACK.as_str()).is_some();
            assert_eq!(says_when, status.code() == Code::Unavailable, "{cause}");
            assert_eq!(status.metadata().get(WORD.as_str()).and_then(|v| v.to_str().ok()), Some(cause.as_str()));
        }
    }

    #[test]
    fn refusals_are_what_the_page_says() {
        let rows = rows();
        let at = |status| ApiError::new(status, "t", "m");
        let known = [
            (ApiError::shutting_down(), "shutting_down"),
            (ApiError::no_run("r"), "run_not_found"),
            (at(StatusCode::GONE).code("run_evicted"), "run_evicted"),
            (at(StatusCode::PAYLOAD_TOO_LARGE).code("body_too_large"), "body_too_large"),
            (at(StatusCode::REQUEST_TIMEOUT).code("body_timeout"), "body_timeout"),
            (at(StatusCode::CONFLICT).code("idempotency_key_in_use"), "idempotency_key_in_use"),
            (at(StatusCode::UNPROCESSABLE_ENTITY).code("idempotency_key_reused"), "idempotency_key_reused"),
            (ApiError::unauthenticated("m"), "invalid_api_key"),
            (at(StatusCode::BAD_REQUEST).code("invalid_request_id"), "invalid_request_id"),
            (at(StatusCode::NOT_FOUND).code("model_not_found"), "model_not_found"),
        ];
        for (error, word) in known {
            let expected = (word, name(of_error(&error).code()));
            assert!(rows.iter().any(|row| (row.0, row.1.to_owned()) == expected), "{expected:?} is not on the page");
        }
    }
}
