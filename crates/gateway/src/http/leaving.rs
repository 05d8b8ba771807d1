//! What a request says a disconnect means for its run: a header, a field of its body, else the route's policy from the configuration.
//!
//! Invariant: a run's policy is settled here once, before the run is opened, and no grace is longer than `grace_max`.
// contract: C-25

use axum::http::{HeaderMap, HeaderName};
use lifecycle::OnDisconnect;

use super::error::ApiError;
use crate::config::GatewayConfig;

/// The header that says what a disconnect means.
pub(crate) const ON_DISCONNECT: HeaderName = HeaderName::from_static("x-on-disconnect");
/// The field of a body that does.
pub(crate) const FIELD: &str = "on_disconnect";

/// Which way a run came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/responses`.
    Responses,
    /// `kvit.v1.Runs/Generate`.
    Grpc,
}

/// Reads a policy; `field` is what the caller wrote it into.
pub(crate) fn parse(text: &str, field: &str) -> Result<OnDisconnect, ApiError> {
    text.parse().map_err(|why| ApiError::field(field, why))
}

/// What the request says: in its header, in its body, or in both and the same.
pub(crate) fn stated(headers: &HeaderMap, body: Option<OnDisconnect>) -> Result<Option<OnDisconnect>, ApiError> {
    let mut given = headers.get_all(ON_DISCONNECT).iter();
    let Some(value) = given.next() else { return Ok(body) };
    let text = value.to_str().ok().filter(|_| given.next().is_none()).unwrap_or_default();
    let header = parse(text.trim(), "X-On-Disconnect")?;
    match body {
        Some(body) if body != header => Err(ApiError::field(FIELD, format!("is {body}, and the header X-On-Disconnect says {header}"))),
        _ => Ok(Some(header)),
    }
}

impl GatewayConfig {
    /// A run's policy. A request with an `Idempotency-Key` that says nothing has a short grace where it would have none: SDKs close the first
    /// connection before they ask again.
    pub(crate) fn policy(&self, route: Route, stated: Option<OnDisconnect>, is_keyed: bool) -> OnDisconnect {
        let of_route = match route {
            Route::Chat => self.on_disconnect_chat,
            Route::Completions => self.on_disconnect_completions,
            Route::Responses => self.on_disconnect_responses,
            Route::Grpc => None,
        };
        let policy = stated.unwrap_or_else(|| match of_route.unwrap_or(self.on_disconnect) {
            OnDisconnect::Cancel if is_keyed => OnDisconnect::Grace(self.idempotency_grace),
            other => other,
        });
        policy.within(self.grace_max)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    // contract: C-25
    #[test]
    fn the_request_the_route_and_the_key_decide_in_this_order() {
        let grace = |ms| OnDisconnect::Grace(Duration::from_millis(ms));
        let (cancel, goes_on) = (OnDisconnect::Cancel, OnDisconnect::Continue);
        let config = GatewayConfig { on_disconnect_completions: Some(goes_on), ..GatewayConfig::default() };
        assert_eq!(config.policy(Route::Chat, None, false), cancel);
        assert_eq!(config.policy(Route::Chat, None, true), grace(5000));
        assert_eq!(config.policy(Route::Chat, Some(cancel), true), cancel, "what is said holds");
        assert_eq!(config.policy(Route::Chat, Some(grace(90_000)), true), grace(60_000), "no longer than any");
        assert_eq!(config.policy(Route::Completions, None, true), goes_on);
        let config = GatewayConfig { on_disconnect: grace(100), idempotency_grace: Duration::ZERO, ..config };
        assert_eq!([Route::Chat, Route::Grpc].map(|route| config.policy(route, None, true)), [grace(100); 2]);
    }

    // contract: C-25
    #[test]
    fn header_and_body_say_the_same_or_are_refused() {
        let with = |values: &[&str]| values.iter().map(|v| (ON_DISCONNECT, v.parse().expect("a value"))).collect::<HeaderMap>();
        let (cancel, two) = (OnDisconnect::Cancel, OnDisconnect::Grace(Duration::from_secs(2)));
        let said = |values: &[&str], body| stated(&with(values), body).map_err(|why| why.message().to_owned());
        assert_eq!(said(&[], None), Ok(None));
        assert_eq!((said(&[], Some(two)), said(&["grace(2000)"], None)), (Ok(Some(two)), Ok(Some(two))));
        assert_eq!(said(&["grace(02000)"], Some(two)), Ok(Some(two)), "the same in another way");
        let refused = said(&["cancel"], Some(two)).expect_err("two policies");
        assert!(refused.starts_with("on_disconnect: is grace(2000)"), "{refused}");
        for bad in [&["grace"][..], &[""], &["cancel", "cancel"], &["caf\u{e9}"]] {
            let refused = said(bad, Some(cancel)).expect_err("no policy");
            assert!(refused.starts_with("X-On-Disconnect: must be `cancel`"), "{refused}");
        }
    }
}
