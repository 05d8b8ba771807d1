//! `GET /v1/runs/{id}/events?after=N`: a run's events as they are said, from any number on, on any gateway.
//!
//! To read a live run is to be one of its readers, here or on another gateway than its own: whoever comes back within a run's grace keeps it
//! going. A background run and one that has ended are read from the store, and whoever reads them holds nothing of them.
//!
//! Invariant: `id:` is the event's number; a reader that asks again with the last one it has gets every later event once, in the same order.
// contract: C-25 C-26

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderName};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use http_body::Frame;
use http_body_util::StreamBody;
use lifecycle::message::Piece;
use lifecycle::{RunKey, Said};
use serde_json::{Value, json};

use super::error::ApiError;
use super::openai::finish_reason;
use super::runs::{Params, key, params};
use super::{Requested, Segment, name};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::feed::Reader;
use crate::keeping::Follow;
use crate::keys::Caller;

/// What a browser's EventSource sends when it comes back.
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Where the events come from.
enum Source {
    /// The run is live here, and this is one of its readers: it gets every event, and `after` is the number of the last that its caller has.
    Reader {
        reader: Reader,
        next: u64,
        after: u64,
    },
    Store(Follow),
}

impl Source {
    async fn next(&mut self) -> Option<(u64, Said)> {
        match self {
            Source::Store(follow) => follow.next().await,
            Source::Reader { reader, next, after } => loop {
                let said = reader.next().await;
                if matches!(said, Said::End { .. }) && reader.has_parted() {
                    hand_over(reader, &said);
                    return None;
                }
                let number = *next;
                *next += 1;
                if number > *after {
                    return Some((number, said));
                }
                hand_over(reader, &said);
                // Its caller has the end already, or says so: behind it comes nothing.
                if matches!(said, Said::End { .. }) {
                    return None;
                }
            },
        }
    }

    /// What has been handed to the connection.
    fn taken(&mut self, said: &Said) {
        if let Source::Reader { reader, .. } = self {
            hand_over(reader, said);
        }
    }
}

/// The connection has it, or its caller had it before.
fn hand_over(reader: &mut Reader, said: &Said) {
    match said {
        Said::Accepted => {}
        Said::Delta(delta) => reader.taken(delta.count()),
        Said::End { outcome, .. } => reader.finish(outcome.kind() == lifecycle::OutcomeKind::Completed),
    }
}

/// `GET /v1/runs/{id}/events?after=N`
pub(crate) async fn events(
    State(calls): State<Arc<Calls>>,
    Extension(conn): Extension<Arc<ConnState>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    headers: HeaderMap,
    query: Params,
) -> Result<Response, ApiError> {
    let key = key(&caller, id)?;
    let after = after(&headers, query)?;
    let source = source(&calls, &conn, &key, after).await?;
    let mut response = super::generate::sse(Body::new(StreamBody::new(frames(source, calls.config.keepalive_comment))));
    name(response.headers_mut(), &key.run, requested.0.as_ref());
    Ok(response)
}

/// The number of the last event that the caller has: the query's, else the header's, else 0.
fn after(headers: &HeaderMap, query: Params) -> Result<u64, ApiError> {
    let map = params(query, &["after"])?;
    let number = |name, text: &str| text.parse().map_err(|_| ApiError::field(name, "must be an event's number: a whole number from 0"));
    match (map.get("after"), headers.get(LAST_EVENT_ID)) {
        (Some(text), _) => number("after", text),
        (None, Some(value)) => number("Last-Event-ID", value.to_str().unwrap_or_default()),
        (None, None) => Ok(0),
    }
}

async fn source(calls: &Arc<Calls>, conn: &Arc<ConnState>, key: &RunKey, after: u64) -> Result<Source, ApiError> {
    match calls.come_back(key, conn) {
        Some(Ok(reader)) => return Ok(Source::Reader { reader, next: 1, after }),
        Some(Err(error)) => return Err(error),
        None => {}
    }
    let not_held = || ApiError::not_held(key.run.as_str(), calls.journal.recall(key), calls.journal.limits());
    let known = calls.known(key).await.map_err(ApiError::store)?;
    // Before anything is waited for: a grace may be about to run out.
    let attendance = known.as_ref().filter(|run| !run.erased).and_then(|run| calls.attend(run));
    let keeps = match &known {
        Some(run) if run.erased => false,
        // Another gateway has it and keeps none of them unless somebody asks.
        Some(run) if !run.keeps && run.outcome.is_none() => calls.ask_for_events(key).await.map_err(ApiError::store)?,
        Some(run) => run.keeps,
        None => false,
    };
    match known {
        Some(_) if keeps => {
            let follow = calls.follow(key, after).await.map_err(ApiError::store)?;
            follow.map(|follow| Source::Store(follow.attending(attendance))).ok_or_else(not_held)
        }
        Some(_) => Err(ApiError::events_not_kept(key.run.as_str())),
        None if calls.journal.run(key).is_some() => Err(ApiError::events_not_kept(key.run.as_str())),
        None => Err(not_held()),
    }
}

/// The frames of the stream. Dropping it drops the source, and with it the reader, wherever it waits.
fn frames(source: Source, silence: Duration) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let state = Some((source, None::<Said>));
    unfold(state, move |state| async move {
        let (mut source, last) = state?;
        // hyper asks for a next frame when it has taken the one before.
        if let Some(said) = last {
            source.taken(&said);
            if matches!(said, Said::End { .. }) {
                return None;
            }
        }
        let next = if silence.is_zero() { Ok(source.next().await) } else { tokio::time::timeout(silence, source.next()).await };
        match next {
            Ok(Some((number, said))) => {
                let frame = Frame::data(event(number, &said));
                Some((Ok(frame), Some((source, Some(said)))))
            }
            Ok(None) => None,
            Err(_) => Some((Ok(Frame::data(super::stream::COMMENT)), Some((source, None)))),
        }
    })
}

/// One event on the wire.
fn event(number: u64, said: &Said) -> Bytes {
    let (kind, data): (_, Value) = match said {
        Said::Accepted => ("accepted", json!({})),
        Said::Delta(delta) => {
            let finish = delta.finish.map(finish_reason);
            let mut data = json!({"index": delta.sequence, "text": delta.text, "tokens": delta.tokens, "finish_reason": finish});
            // What an engine that others wrote said itself.
            match delta.passed.as_ref().map(|passed| &passed.piece) {
                Some(Piece::Head { status, .. }) => data["status"] = json!(status),
                Some(Piece::Body(bytes) | Piece::Tail(bytes)) => data["raw"] = json!(String::from_utf8_lossy(bytes)),
                Some(Piece::Called(called)) => {
                    data["call"] = json!({"index": called.place, "id": called.id, "name": called.name, "arguments": called.arguments});
                }
                Some(Piece::Said) | None => {}
            }
            ("delta", data)
        }
        Said::End { outcome, usage } => {
            let outcome = json!({"kind": outcome.kind().as_str(), "cause": outcome.cause.as_str(), "reason": outcome.reason});
            ("end", json!({"outcome": outcome, "usage": super::openai::usage_object(usage)}))
        }
    };
    format!("id: {number}\nevent: {kind}\ndata: {data}\n\n").into()
}
