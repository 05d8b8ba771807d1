//! Whether a peer vanished, or is there and does not read: a judgement of what the kernel shows of its connection, taken at intervals.
//!
//! What can be seen of a peer: what its kernel acknowledges, whether its window is closed, when anything last came from it. What cannot: how
//! much of what its kernel acknowledged its program has read. So a caller that reads nothing is noticed when its kernel's receive buffer is
//! full, which the caller sizes and not the server; until then its bytes count as read.
//!
//! Invariant: pure; a peer that owes us no answer is never lost, and one with an empty send queue is never stalled.
// contract: C-28

use std::time::{Duration, Instant};

use lifecycle::Cause;

use crate::config::GatewayConfig;
use crate::socket::Look;

/// Judgements in the shorter of the two limits, and how far apart they are at most.
const LOOKS: u32 = 8;
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(5);
/// How many times the longest interval a look may be late before it is no look: the process was stopped, or starved.
const LATE: u32 = 2;

/// What is known at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) look: Look,
    /// Bytes that the kernel has taken from us so far.
    pub(crate) written: u64,
    /// How often bytes have come from the peer's program, where it must answer PINGs (HTTP/2).
    pub(crate) heard: Option<u64>,
}

/// The judge of one connection.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    lost_after: Duration,
    unread_max: Duration,
    /// Bytes acknowledged, and since when it has been that many while more were queued.
    acknowledged: u64,
    since: Option<Instant>,
    /// How often it was heard, and how long it has not been since then: time in which this process was awake to hear it.
    heard: u64,
    mute: Duration,
    looked: Option<Instant>,
}

impl Pulse {
    pub(crate) fn new(config: &GatewayConfig) -> Pulse {
        Pulse { lost_after: config.client_lost_after, unread_max: config.unread_max, ..Pulse::default() }
    }

    /// Time between two judgements.
    pub(crate) fn every(&self) -> Duration {
        (self.lost_after.min(self.unread_max) / LOOKS).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)
    }

    /// Why the caller is to be given up, if it is.
    // field: F-80
    pub(crate) fn judge(&mut self, sample: &Sample) -> Option<Cause> {
        let Look { queued, in_flight, probing, silent } = sample.look;
        let acknowledged = sample.written.saturating_sub(queued);
        let moved = std::mem::replace(&mut self.acknowledged, acknowledged) != acknowledged;
        self.since = if queued == 0 || moved { None } else { self.since }.or((queued > 0).then_some(sample.at));
        let slept = self.listen(sample);
        if slept {
            // What has come meanwhile, or would have been asked, is not known yet.
            return None;
        }
        if (in_flight || probing) && silent >= self.lost_after {
            return Some(Cause::ClientLost);
        }
        let stuck = self.since.map_or(Duration::ZERO, |since| sample.at.saturating_duration_since(since));
        // A peer that was heard since its queue stopped moving is there. One with a closed window that probes do not reach any more was
        // there when it closed it.
        let there = !in_flight || silent < stuck / 4 * 3;
        if !stuck.is_zero() && stuck >= self.unread_max && there {
            return Some(Cause::ClientStalled);
        }
        // Its kernel may be alive and its program gone. But one that takes what waits for it, however slowly, has its PING before it, and one
        // with a closed window is judged above.
        let takes = queued > 0 && (stuck < self.lost_after || (!in_flight && silent < self.lost_after / 4 * 3));
        (self.mute >= self.lost_after && !takes).then_some(Cause::ClientLost)
    }

    /// Counts how long the peer's program has been mute; whether this process was late to look.
    fn listen(&mut self, sample: &Sample) -> bool {
        let passed = self.looked.replace(sample.at).map_or(Duration::ZERO, |looked| sample.at.saturating_duration_since(looked));
        let longest = LATE * self.every().max(LOOK_EVERY_MAX);
        match sample.heard {
            Some(heard) if heard == self.heard => self.mute += passed.min(longest),
            Some(heard) => (self.heard, self.mute) = (heard, Duration::ZERO),
            None => {}
        }
        passed > longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn config(lost: u32, unread: u32) -> GatewayConfig {
        GatewayConfig { client_lost_after: S * lost, unread_max: S * unread, ..GatewayConfig::default() }
    }

    /// Looks once a second at what `peer` shows, for ten minutes; when which verdict fell.
    fn verdict(config: &GatewayConfig, peer: impl Fn(u32) -> (Look, u64)) -> Option<(u32, Cause)> {
        let start = Instant::now();
        let mut pulse = Pulse::new(config);
        (0..600).find_map(|t| {
            let (look, written) = peer(t);
            let sample = Sample { at: start + S * t, look, written, heard: None };
            pulse.judge(&sample).map(|cause| (t, cause))
        })
    }

    const QUIET: Look = Look { queued: 0, in_flight: false, probing: false, silent: Duration::ZERO };

    #[test]
    fn who_owes_no_answer_is_never_lost() {
        assert_eq!(verdict(&config(20, 60), |t| (Look { silent: S * t, ..QUIET }, 0)), None);
    }

    #[test]
    fn an_unanswered_probe_or_byte_is_a_loss_in_time_whatever_the_other_limit() {
        for unread in [5, 20, 60] {
            let idle = verdict(&config(20, unread), |t| (Look { silent: S * t, probing: t > 5, ..QUIET }, 0));
            assert_eq!(idle, Some((20, Cause::ClientLost)));
            let sending = |t| (Look { silent: S * t, in_flight: true, queued: 100, ..QUIET }, 100);
            assert_eq!(verdict(&config(20, unread), sending), Some((20, Cause::ClientLost)), "unread_max {unread}");
        }
    }

    #[test]
    fn a_closed_window_is_a_stall_while_probes_are_answered() {
        let closed = |t| (Look { queued: 5000, silent: S * (t % 5), ..QUIET }, 9000);
        assert_eq!(verdict(&config(20, 60), closed), Some((60, Cause::ClientStalled)));
        // One that shrank its window answers what is sent again with that it takes nothing.
        let shrunk = |t| (Look { queued: 5000, in_flight: true, silent: S * (t % 5), ..QUIET }, 9000);
        assert_eq!(verdict(&config(20, 60), shrunk), Some((60, Cause::ClientStalled)));
        // And one that vanishes behind it is lost when a probe is unanswered.
        let gone = |t: u32| (Look { queued: 5000, probing: t > 12, silent: S * t.saturating_sub(10), ..QUIET }, 9000);
        assert_eq!(verdict(&config(20, 60), gone), Some((30, Cause::ClientLost)));
    }

    #[test]
    fn whoever_reads_a_little_is_not_stalled_and_the_count_begins_anew() {
        let slow = |t: u32| (Look { queued: 5000, silent: S * (t % 5), ..QUIET }, 9000 + u64::from(t / 50));
        assert_eq!(verdict(&config(20, 60), slow), None);
        let then_not = |t: u32| (Look { queued: 5000, silent: S * (t % 5), ..QUIET }, 9000 + u64::from(t.min(100) / 50));
        assert_eq!(verdict(&config(20, 60), then_not), Some((160, Cause::ClientStalled)));
    }

    #[test]
    fn a_program_that_answers_no_ping_is_lost_unless_bytes_wait_that_it_takes_or_its_window_is_closed() {
        let config = config(20, 60);
        let start = Instant::now();
        let judge = |look: fn(u32) -> Look, taken: fn(u32) -> u64| {
            let mut pulse = Pulse::new(&config);
            (0..600).find_map(|t| {
                let look = Look { silent: S * (t % 5), ..look(t) };
                let sample = Sample { at: start + S * t, look, written: taken(t) + look.queued, heard: Some(0) };
                pulse.judge(&sample).map(|cause| (t, cause))
            })
        };
        assert_eq!(judge(|_| QUIET, |_| 0), Some((20, Cause::ClientLost)));
        let waiting = |_| Look { queued: 900, in_flight: true, ..QUIET };
        assert_eq!(judge(waiting, |t| u64::from(t / 15)), None, "a slow reader");
        assert_eq!(judge(waiting, |t| u64::from(t.min(100) / 15)), Some((110, Cause::ClientLost)));
        let closed = |_| Look { queued: 900, ..QUIET };
        assert_eq!(judge(closed, |_| 7), Some((60, Cause::ClientStalled)));
    }

    /// The server slept for an hour: what came in that time is read after the first look.
    #[test]
    fn whoever_could_not_be_heard_is_not_lost() {
        let start = Instant::now();
        let mut pulse = Pulse::new(&config(20, 60));
        let mut judge = |t: u32, heard, look| pulse.judge(&Sample { at: start + S * t, look, written: 0, heard: Some(heard) });
        assert_eq!(judge(0, 1, QUIET), None);
        assert_eq!(judge(3600, 1, Look { silent: S * 3600, in_flight: true, queued: 1, ..QUIET }), None);
        assert_eq!(judge(3601, 1, QUIET), None);
        assert!((3602..3617).all(|t| judge(t, 1, QUIET).is_none()));
        assert!((3617..3630).any(|t| judge(t, 1, QUIET) == Some(Cause::ClientLost)));
    }
}
