//! What becomes of the work behind a departure: looks, and how busy processors and GPUs are.
//!
//! Invariant: what is told here is a moment of a look or of a window; what was not seen stays unknown.

use std::time::{Duration, Instant};

use super::caller::{Caller, End, Read};
use super::cell::{Cell, Phase, Trigger};
use super::cpu::{Sampler, WINDOW};
use super::device::LATE_MS;
use super::fillers::Fillers;
use super::result::{ClientSaw, CpuSaw, EngineSaw, Look};
use super::trial::{Bench, GONE_LOOKS};

/// How long processes must have rested for their work to be over.
const RESTED: Duration = Duration::from_millis(500);

pub(super) fn ms(at: Instant, zero: Instant) -> f64 {
    at.saturating_duration_since(zero).as_secs_f64() * 1e3 - zero.saturating_duration_since(at).as_secs_f64() * 1e3
}

impl Bench<'_> {
    /// Watches the engine until the request is gone, or until it would have ended by itself.
    pub(super) async fn watch(
        &self,
        cell: Cell,
        (zero, natural): (Instant, Duration),
        kept: &mut Option<Caller>,
        fillers: &Fillers,
        held: Option<Held>,
        loads: &[Load<'_>],
    ) -> Option<EngineSaw> {
        let stale = self.stale();
        let until = zero + natural.max(Duration::from_secs_f64(self.settings.stop_ms / 1e3) * 2) + stale;
        let counters = self.stack.counters.as_ref();
        let stale_ms = stale.as_secs_f64() * 1e3;
        let mut saw = EngineSaw { polled: self.polls(), stale_ms, ..EngineSaw::default() };
        let mut gone = Gone { stale_ms, ..Gone::default() };
        // What a request held may come back behind the request; it has as long for that as its work has for its end.
        let mut back = None;
        let until_back = zero + Duration::from_secs_f64(self.settings.stop_ms / 1e3) + stale;
        while Instant::now() < until {
            let pause = tokio::time::sleep(self.every());
            match kept {
                // It goes on reading, and what it reads is not wasted.
                Some(caller) if cell.trigger != Trigger::StopReading && !caller.is_over() => {
                    tokio::pin!(pause);
                    loop {
                        tokio::select! {
                            () = &mut pause => break,
                            () = caller.next() => if caller.is_over() { break },
                        }
                    }
                }
                _ => pause.await,
            }
            if let Some(counters) = counters.filter(|_| self.polls())
                && let Some(look) = counters.look(zero).await
            {
                let is_gone = present(&look)
                    .is_some_and(|counted| (cell.phase == Phase::Queued && look.waiting == Some(0.0)) || counted <= fillers.live());
                let is_over = gone.take(&look, is_gone);
                if let Some(held) = held {
                    back = if held.is_back(&look) { back.or(Some(look.ended_ms)) } else { None };
                }
                saw.after.push(look);
                if is_over {
                    saw.gone_ms = saw.gone_ms.or(gone.first_ms);
                    if held.is_none() || back.is_some() || Instant::now() >= until_back {
                        break;
                    }
                }
            }
            // Without looks the processor's time is what ends the watch; half a second of rest is no pause between two tokens.
            let rests = |load: &Load<'_>| load.rests_since(zero).is_some_and(|rests| rests >= RESTED);
            if !self.polls() && fillers.sent == 0 && !loads.is_empty() && loads.iter().all(rests) {
                break;
            }
        }
        saw.capacity_ms = back.filter(|_| saw.gone_ms.is_some());
        counters.is_some().then_some(saw)
    }
}

/// Whether a request is counted no more: by several looks in a row, and by none that may show what was before it was left.
#[derive(Default)]
struct Gone {
    /// How old what a look shows may be.
    stale_ms: f64,
    looks: usize,
    /// The first of those in a row.
    first_ms: Option<f64>,
}

impl Gone {
    /// Takes a look that counts it, or does not: whether it is gone by now.
    fn take(&mut self, look: &Look, is_gone: bool) -> bool {
        if look.began_ms < self.stale_ms {
            return false;
        }
        (self.looks, self.first_ms) = if is_gone { (self.looks + 1, self.first_ms.or(Some(look.ended_ms))) } else { (0, None) };
        self.looks >= GONE_LOOKS
    }
}

/// Room that was taken with nothing at work.
#[derive(Clone, Copy)]
pub(super) struct Held {
    blocks: Option<f64>,
    part: Option<f64>,
}

impl Held {
    /// Of a look at rest, where it tells anything of that.
    pub(super) fn of(quiet: &Look) -> Option<Held> {
        let held = Held { blocks: quiet.kv_held, part: quiet.kv_used };
        (held.blocks.is_some() || held.part.is_some()).then_some(held)
    }

    /// Whether no more is taken now. A part of the memory is a number of blocks that nobody told: a thousandth of it is rounding.
    fn is_back(self, look: &Look) -> bool {
        match (self.blocks.zip(look.kv_held), self.part.zip(look.kv_used)) {
            (Some((before, now)), _) => now <= before,
            (None, Some((before, now))) => now <= before + 0.001,
            (None, None) => false,
        }
    }
}

/// What the load of a processor or of GPUs shows of one try.
pub(super) struct Load<'a> {
    pub(super) sampler: &'a Sampler,
    pub(super) resting: Instant,
    pub(super) sent: Instant,
    pub(super) left: Instant,
    /// How late what it tells may be.
    pub(super) late: Duration,
}

impl<'a> Load<'a> {
    /// Of the engine's processes.
    pub(super) fn of_processes(sampler: &'a Sampler, resting: Instant, sent: Instant, left: Instant) -> Load<'a> {
        Load { sampler, resting, sent, left, late: Duration::ZERO }
    }

    /// Of its GPUs.
    pub(super) fn of_devices(sampler: &'a Sampler, resting: Instant, sent: Instant, left: Instant) -> Load<'a> {
        Load { sampler, resting, sent, left, late: Duration::from_secs_f64(LATE_MS / 1e3) }
    }

    pub(super) fn saw(&self) -> Option<CpuSaw> {
        let loads = self.sampler.loads();
        // The window in which it was sent is neither.
        let idle = loads.mean(self.resting + self.late, self.sent)?;
        let busy = if self.late.is_zero() {
            loads.mean(self.sent + WINDOW, self.left)?
        } else {
            // A mean that is told late rises late: what it rose to is the load.
            loads.most(self.sent + WINDOW, self.left + self.late)?
        };
        loads.saw(idle, busy, self.left)
    }

    /// How long it has rested by now.
    fn rests_since(&self, left: Instant) -> Option<Duration> {
        let quiet = Duration::from_secs_f64(self.saw()?.quiet_ms?.max(0.0) / 1e3);
        Some(left.elapsed().saturating_sub(quiet))
    }
}

/// All requests that an engine has.
pub(super) fn present(look: &Look) -> Option<f64> {
    match (look.running, look.waiting) {
        (None, None) => None,
        (running, waiting) => Some(running.unwrap_or(0.0) + waiting.unwrap_or(0.0)),
    }
}

pub(super) fn client(read: &Read, sent: Instant, zero: Instant) -> ClientSaw {
    ClientSaw {
        sent_ms: Some(ms(sent, zero)),
        head_ms: read.head.map(|(at, _)| ms(at, zero)),
        status: read.head.map(|(_, status)| status),
        first_token_ms: read.tokens.first().map(|at| ms(*at, zero)),
        tokens: read.tokens.len() as u64,
        end_ms: read.end.map(|(at, _)| ms(at, zero)),
        end: read.end.map(|(_, how)| ended(how).to_owned()),
    }
}

/// How an answer ended, in a word.
pub(super) const fn ended(how: End) -> &'static str {
    match how {
        End::Complete => "complete",
        End::Error => "error",
        End::Broken => "closed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first request after a rest: gauges that are set now and then still count nothing when it is left.
    #[test]
    fn a_look_that_may_show_what_was_before_the_departure_says_nothing() {
        let over = |stale_ms, looks: &[(f64, bool)]| {
            let mut gone = Gone { stale_ms, ..Gone::default() };
            let look = |at: f64| Look { began_ms: at, ended_ms: at + 1.0, ..Look::default() };
            let over = looks.iter().map(|(at, is_gone)| gone.take(&look(*at), *is_gone)).collect::<Vec<_>>();
            (over, gone.first_ms)
        };
        let looks = [(10.0, true), (60.0, true), (110.0, false), (160.0, true), (210.0, true)];
        assert_eq!(over(0.0, &looks), (vec![false, true, false, false, true], Some(161.0)));
        assert_eq!(over(100.0, &looks), (vec![false, false, false, false, true], Some(161.0)));
        assert_eq!(over(200.0, &looks), (vec![false; 5], Some(211.0)));
    }
}
