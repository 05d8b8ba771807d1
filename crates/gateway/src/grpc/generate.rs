//! `Generate`: from a call to a run, and the run's answer as events. The counterpart of `http::generate` and `http::stream`.
//!
//! As there, everything before `open` leaves no trace, and after it this only reads: the call's future and its stream may be dropped
//! anywhere, and the `Reader` in them tells the table.
//!
//! Invariant: no event is sent before the worker took the run on, so a run that is turned away is a status alone, which clients may retry; a
//! token counts as delivered when hyper took the event that shows it, and an answer as complete only when its last event was taken.
// contract: C-6 C-13 C-22
// field: F-03 F-05 F-17

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::{HeaderMap, HeaderValue};
use lifecycle::message::{Prompt, Usage};
use lifecycle::{Cause, Delivery, Outcome, OutcomeKind, Time};
use protocol::{GenerateAsk, runs_v1 as wire};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::deadline::{impatient_after, timeout};
use super::{Arrived, status};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Opened, Order};
use crate::feed::{Item, Reader};
use crate::http::error::ApiError;
use crate::http::fields::{LOGIT_BIAS_MAX, SALT_MAX_LEN, STOP_TOKENS_MAX, model_named};
use crate::http::generate::{JOINED, closed, first, joining};
use crate::http::leaving::{Route, stated};
use crate::http::{name, serving};
use crate::keys::Caller;
use crate::otlp;

/// Makes a run, or joins one, and gives its events.
pub(super) async fn generate(calls: &Arc<Calls>, request: Request<wire::GenerateRequest>) -> Result<Response<Events>, Status> {
    let refused = |error: ApiError| status::of_error(&error);
    serving(calls).map_err(refused)?;
    let Some(conn) = request.extensions().get::<Arc<ConnState>>().cloned() else { return Err(Status::internal("no connection")) };
    let arrived = request.extensions().get::<Arrived>().map_or_else(|| calls.now(), |arrived| arrived.0);
    let (caller, asked) = (super::runs::caller(request.extensions())?, super::runs::requested(request.extensions()));
    let (metadata, _, message) = request.into_parts();
    let mut order = order(calls, caller, metadata.as_ref(), message, arrived)?;
    order.requested = match (asked, order.requested) {
        (Some(one), Some(other)) if one != other => {
            return Err(refused(ApiError::field("GenerateRequest.run", "is another id than that in x-request-id")));
        }
        (one, other) => one.or(other),
    };
    if order.timeout.is_some_and(|left| left.is_zero()) {
        return Err(status::of_outcome(&Outcome::of(Cause::ClientDeadline)));
    }
    let (wish, impatient) = (order.requested.clone(), order.timeout.map(|left| arrived.after(impatient_after(left))));
    let Opened { mut reader, joined, .. } = calls.accept(order, &conn).await.map_err(|why| refused(closed(why)))?;
    if let Some(at) = impatient {
        reader.impatient_from(at);
    }
    let run = reader.key.run.clone();
    let said = |headers: &mut HeaderMap| {
        name(headers, &run, wish.as_ref());
        if joined {
            headers.insert(JOINED, HeaderValue::from_static("true"));
        }
    };
    match first(&mut reader).await {
        Ok(()) => {
            let mut response = Response::new(Events::new(reader));
            said(response.metadata_mut().as_mut());
            Ok(response)
        }
        Err(outcome) => {
            let mut status = status::of_outcome(&outcome);
            said(status.metadata_mut().as_mut());
            Err(status)
        }
    }
}

/// What is asked for, checked as over HTTP.
fn order(calls: &Calls, caller: Caller, headers: &HeaderMap, message: wire::GenerateRequest, arrived: Time) -> Result<Order, Status> {
    let refused = |error: ApiError| status::of_error(&error);
    let joining = joining("grpc", headers, &message.canonical()).map_err(refused)?;
    let timeout = timeout(headers, calls.config.client_deadline_max).map_err(refused)?;
    let GenerateAsk { model, prompt, mut params, seed, run, on_disconnect } = message.try_into()?;
    let stated = stated(headers, on_disconnect).map_err(refused)?;
    let on_disconnect = calls.config.policy(Route::Grpc, stated, joining.is_some());
    let model = model_named(Some(model), &calls.named()).map_err(refused)?;
    within(calls, &prompt, &params, run.as_ref()).map_err(refused)?;
    params.sampling.seed = match seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|e| refused(ApiError::unavailable(format!("no randomness for a seed: {e}"))))?,
    };
    Ok(Order {
        caller,
        requested: run,
        model,
        prompt,
        params,
        arrived,
        timeout,
        stream: true,
        joining,
        door: "grpc",
        on_disconnect,
        stored: false,
        request: None,
        expires: None,
        tools: Vec::new(),
        trace: otlp::incoming(headers),
    })
}

/// The limits that the HTTP API has for these fields, and `protocol` has not.
fn within(calls: &Calls, prompt: &Prompt, params: &lifecycle::params::Params, run: Option<&lifecycle::RunId>) -> Result<(), ApiError> {
    let at_most = |field: &str, what: &str, len: usize, max: usize| {
        if len > max { Err(ApiError::field(field, format!("has {len} {what}, at most {max} are allowed"))) } else { Ok(()) }
    };
    if matches!(prompt, Prompt::Chat(turns) if turns.is_empty()) {
        return Err(ApiError::field("Chat.turns", "must not be empty"));
    }
    at_most("Params.logit_bias", "entries", params.sampling.logit_bias.len(), LOGIT_BIAS_MAX)?;
    at_most("Params.stop_token_ids", "tokens", params.stop_token_ids.len(), STOP_TOKENS_MAX)?;
    at_most("Params.cache_salt", "bytes", params.cache_salt.len(), SALT_MAX_LEN)?;
    at_most("GenerateRequest.run", "bytes", run.map_or(0, |run| run.as_str().len()), calls.config.run_id_bytes_max)
}

/// An answer as events.
pub(super) struct Events {
    reader: Reader,
    begun: bool,
    /// Something was shown.
    shown: bool,
    /// The event before went out, and nothing may be put beside it.
    flush: bool,
    over: Option<Outcome>,
}

impl Events {
    fn new(reader: Reader) -> Events {
        Events { reader, begun: false, shown: false, flush: false, over: None }
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<wire::GenerateEvent> {
        if !std::mem::replace(&mut self.begun, true) {
            return Poll::Ready(wire::GenerateEvent::accepted(&self.reader.key.run));
        }
        loop {
            match ready!(self.reader.poll(cx)) {
                Item::Accepted => {}
                Item::Delta(delta) => {
                    self.reader.taken(delta.count());
                    self.shown = true;
                    return Poll::Ready(wire::GenerateEvent::delta(&delta));
                }
                Item::End { outcome, usage } => return Poll::Ready(self.end(outcome, usage)),
            }
        }
    }

    fn end(&mut self, outcome: Outcome, usage: Usage) -> wire::GenerateEvent {
        let delivery = match (outcome.kind(), self.shown) {
            (OutcomeKind::Completed, _) => Delivery::Complete,
            (_, true) => Delivery::Partial,
            (_, false) => Delivery::None,
        };
        let event = wire::GenerateEvent::ended(&outcome, usage, delivery);
        self.over = Some(outcome);
        event
    }
}

impl Stream for Events {
    type Item = Result<wire::GenerateEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // tonic asks on until there is nothing and puts all of that into one frame, which hyper takes as a whole whatever the caller's
        // window is. One event a frame: what the caller has no room for stays in the queue, where it is seen to wait.
        // field: F-80
        if std::mem::take(&mut self.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(cause) = self.reader.gone() {
            self.reader.finish(false);
            // A caller that closed its sending side only may still read; what it has is no whole answer.
            return Poll::Ready(Some(Err(status::of_outcome(&Outcome::of(cause)))));
        }
        if let Some(outcome) = self.over.take() {
            let completed = outcome.kind() == OutcomeKind::Completed;
            self.reader.finish(completed);
            return Poll::Ready((!completed).then(|| Err(status::of_outcome(&outcome))));
        }
        let event = ready!(self.next(cx));
        self.flush = true;
        Poll::Ready(Some(Ok(event)))
    }
}
