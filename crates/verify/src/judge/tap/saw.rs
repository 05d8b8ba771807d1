//! What a tap saw of a request, as a judge takes it: in milliseconds since the trigger, like all of a try.
//!
//! Invariant: a close that came after an answer's own end is no close of that exchange, and is left out; what may have passed before the trigger
//! is not counted as after it.

use std::time::Instant;

use super::super::result::TapSaw;
use super::client::Clock;
use super::{Closed, End, Exchange, Page};

/// The exchanges of one id as a judge takes them: of several, which are one request that was asked again, closes and status are the last
/// one's.
pub(super) fn saw(page: &Page, clock: &Clock, trigger: Instant) -> TapSaw {
    let ms = |ns: u64| clock.ms_after(ns, trigger);
    let mut saw = TapSaw { name: page.name.clone(), requests: page.exchanges.len() as u64, ..TapSaw::default() };
    saw.clock_error_ms = Some(clock.error.as_secs_f64() * 1e3);
    saw.request_ms = page.exchanges.iter().map(|exchange| ms(exchange.request_ns)).reduce(f64::min);
    // Who is accused of what passed after the trigger shall not be accused of what may have passed before it.
    let surely_after = clock.ns_of(trigger) + i128::try_from(clock.error.as_nanos()).unwrap_or(i128::MAX);
    for exchange in &page.exchanges {
        let (bytes, events) = exchange.after(surely_after);
        saw.bytes += exchange.response_bytes;
        saw.events += exchange.events;
        saw.bytes_after += bytes;
        saw.events_after += events;
        saw.bytes_after_close += exchange.bytes_after_close;
        saw.events_after_close += exchange.events_after_close;
        saw.last_byte_ms = exchange.last_byte_ns.map(ms).into_iter().chain(saw.last_byte_ms).reduce(f64::max);
    }
    if let Some(last) = page.exchanges.last() {
        (saw.status, saw.head_ms) = (last.status, last.head_ns.map(ms));
        saw.complete = last.end == Some(End::Complete);
        let of = |closed: Option<Closed>| closed.filter(|closed| !is_late(last, *closed));
        let (down, up) = (of(last.down_closed), of(last.up_closed));
        (saw.down_closed_ms, saw.down_how) = (down.map(|closed| ms(closed.at_ns)), down.map(|closed| closed.how.to_string()));
        (saw.up_closed_ms, saw.up_how) = (up.map(|closed| ms(closed.at_ns)), up.map(|closed| closed.how.to_string()));
    }
    saw
}

/// Whether a close came when the answer was over already: then it is the connection's.
fn is_late(exchange: &Exchange, closed: Closed) -> bool {
    exchange.end == Some(End::Complete) && exchange.last_byte_ns.is_some_and(|last| closed.at_ns >= last)
}
