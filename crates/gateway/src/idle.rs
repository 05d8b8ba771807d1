//! When a connection has been kept for long enough without a request: how long the next one may take to begin, and its head to come.
//!
//! hyper has one time for both. It is judged here instead, from what is looked at anyway: whether a request is in hand, and whether bytes came
//! or went. HTTP/2 is not judged once a request has come: its PINGs show that somebody is there.
//!
//! Invariant: pure; a connection with a request in hand is never idle.
// contract: C-28

use std::time::{Duration, Instant};

use crate::config::GatewayConfig;

/// Judgements in the shorter of the two times.
const LOOKS: u32 = 8;

/// What is known at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    /// A request is in hand, or its answer pending.
    pub(crate) busy: bool,
    /// Requests so far.
    pub(crate) requests: u64,
    /// How often bytes came, and how many were written.
    pub(crate) heard: u64,
    pub(crate) written: u64,
}

/// The judge of one connection.
#[derive(Debug)]
pub(crate) struct Idle {
    head: Duration,
    idle: Duration,
    last: Option<Seen>,
    /// Since when it waits for what comes next, and whether that is the rest of a head. The first one is due from the beginning.
    since: Instant,
    in_head: bool,
}

impl Idle {
    pub(crate) fn new(config: &GatewayConfig, now: Instant) -> Idle {
        Idle { head: config.header_timeout, idle: config.keep_alive_idle, last: None, since: now, in_head: true }
    }

    /// Time between two judgements.
    pub(crate) fn every(&self) -> Duration {
        self.head.min(self.idle) / LOOKS
    }

    /// Whether the connection is to be closed.
    pub(crate) fn is_over(&mut self, seen: Seen) -> bool {
        let last = self.last.replace(seen).unwrap_or(Seen { heard: 0, written: 0, requests: 0, ..seen });
        if seen.busy || seen.requests != last.requests {
            (self.since, self.in_head) = (seen.at, false);
        } else if !self.in_head && seen.heard != last.heard {
            (self.since, self.in_head) = (seen.at, true);
        } else if !self.in_head && seen.written != last.written {
            // The last answer is still on its way.
            self.since = seen.at;
        }
        seen.at.saturating_duration_since(self.since) >= if self.in_head { self.head } else { self.idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// Looks once a second at `(busy, requests, heard, written)`; when it was over.
    fn over(look: impl Fn(u32) -> (bool, u64, u64, u64)) -> Option<u32> {
        let config = GatewayConfig { header_timeout: S * 10, keep_alive_idle: S * 75, ..GatewayConfig::default() };
        let start = Instant::now();
        let mut idle = Idle::new(&config, start);
        (0..600).find(|t| {
            let (busy, requests, heard, written) = look(*t);
            idle.is_over(Seen { at: start + S * *t, busy, requests, heard, written })
        })
    }

    #[test]
    fn the_first_head_is_due_from_the_beginning_however_it_trickles() {
        assert_eq!(over(|_| (false, 0, 0, 0)), Some(10));
        assert_eq!(over(|t| (false, 0, u64::from(t), 0)), Some(10));
    }

    #[test]
    fn a_request_in_hand_is_never_idle() {
        assert_eq!(over(|_| (true, 1, 1, 0)), None);
    }

    #[test]
    fn between_requests_it_is_kept_for_longer_and_a_head_that_has_begun_is_due() {
        assert_eq!(over(|t| (t == 0, 1, 1, 5)), Some(75));
        assert_eq!(over(|t| (t == 0, 1, if t < 50 { 1 } else { u64::from(t) }, 5)), Some(60));
        // One that begins and ends between two looks counts as well.
        assert_eq!(over(|t| (t == 0, 1 + u64::from(t >= 70), 1 + u64::from(t >= 70), 5)), Some(145));
        assert_eq!(over(|t| (t == 0, 1, 1, u64::from(t.min(20)))), Some(95), "an answer that is read slowly");
    }
}
