//! What becomes of the work behind a departure: looks, the processor's time, and what is left when everything is over.
//!
//! Invariant: what is concluded here is a difference of two looks or a moment of one; what was not seen stays unknown.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::Value;

use super::caller::{Caller, End, Read};
use super::cell::{Cell, Phase, Trigger};
use super::cpu::{Sampler, WINDOW};
use super::result::{ClientSaw, CpuSaw, EngineSaw, Look, Try};
use super::trial::{Bench, Fillers, GONE_LOOKS};

/// How long processes must have rested for their work to be over.
const RESTED: Duration = Duration::from_millis(500);
/// Time for what is under way to be counted, where gauges are not older than that.
const SETTLE: Duration = Duration::from_millis(300);

fn ms(at: Instant, zero: Instant) -> f64 {
    at.saturating_duration_since(zero).as_secs_f64() * 1e3 - zero.saturating_duration_since(at).as_secs_f64() * 1e3
}

impl Bench<'_> {
    /// Watches the engine until the request is gone, or until it would have ended by itself.
    pub(super) async fn watch(
        &self,
        cell: Cell,
        zero: Instant,
        kept: &mut Option<Caller>,
        fillers: &Fillers,
        held: Option<Held>,
        cpu: &Cpu<'_>,
    ) -> Option<EngineSaw> {
        let first = self.pace.long.map_or(self.pace.first, |(_, took)| took);
        let natural = first + self.pace.rest(0) * 3 / 2 + Duration::from_secs(1);
        let until = zero + natural.max(Duration::from_secs_f64(self.settings.stop_ms / 1e3) * 2);
        let counters = self.stack.counters.as_ref();
        let mut saw = EngineSaw { polled: self.polls(), ..EngineSaw::default() };
        let mut gone = 0;
        let mut first_gone = None;
        // What a request held may come back behind the request; it has as long for that as its work has for its end.
        let mut back = None;
        let until_back = zero + Duration::from_secs_f64(self.settings.stop_ms / 1e3);
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
                let is_gone = present(&look).is_some_and(|counted| {
                    if cell.phase == Phase::Queued { look.waiting == Some(0.0) || counted <= fillers.live() } else { counted == 0.0 }
                });
                if is_gone {
                    first_gone = first_gone.or(Some(look.ended_ms));
                    gone += 1;
                } else {
                    (gone, first_gone) = (0, None);
                }
                if let Some(held) = held {
                    back = if held.is_back(&look) { back.or(Some(look.ended_ms)) } else { None };
                }
                saw.after.push(look);
                if gone >= GONE_LOOKS {
                    saw.gone_ms = saw.gone_ms.or(first_gone);
                    if held.is_none() || back.is_some() || Instant::now() >= until_back {
                        break;
                    }
                }
            }
            // Without looks the processor's time is what ends the watch; half a second of rest is no pause between two tokens.
            if !self.polls() && fillers.sent == 0 && cpu.rests_since(zero).is_some_and(|rests| rests >= RESTED) {
                break;
            }
        }
        saw.capacity_ms = back.filter(|_| saw.gone_ms.is_some());
        counters.is_some().then_some(saw)
    }

    /// Lets the fillers end. Tokens and prompt tokens that are theirs.
    pub(super) async fn finish(&self, mut fillers: Fillers) -> Result<(f64, f64), String> {
        let (mut tokens, mut prompts) = (0.0, 0.0);
        while let Some(ended) = fillers.tasks.join_next().await {
            let read = ended.ok().flatten().ok_or("a filler did not end well")?;
            let (prompt, generated) = read.usage.unwrap_or((0, read.tokens.len() as u64));
            tokens += generated as f64;
            prompts += prompt as f64;
        }
        Ok((tokens, prompts))
    }

    /// Tokens that an answer which comes whole has by that time after its request, where all that it waits for are its tokens.
    pub(super) fn made(&self, cell: Cell, after: Duration) -> f64 {
        let decodes = matches!(cell.phase, Phase::EarlyDecode | Phase::LateDecode | Phase::NearEnd);
        if cell.streaming || !decodes {
            return 0.0;
        }
        let tokens = (after.saturating_sub(self.pace.first).as_secs_f64() / self.pace.gap.as_secs_f64().max(1e-6)).floor();
        tokens.min(self.pace.tokens as f64) * f64::from(cell.n)
    }

    /// What is left when everything is over, and what that says of the time after the departure.
    pub(super) async fn conclude(
        &self,
        saw: Option<EngineSaw>,
        before: Before,
        seen: &Try,
        left: Instant,
        filled: Filled,
    ) -> Option<EngineSaw> {
        let (mut saw, counters) = (saw?, self.stack.counters.as_ref()?);
        let profile = &counters.profile;
        tokio::time::sleep(SETTLE.max(Duration::from_millis(profile.stale_ms))).await;
        // A queue that somebody kept is worked off only now.
        let rest = loop {
            let look = counters.look(left).await?;
            if present(&look).is_none_or(|counted| counted == 0.0) {
                break look;
            }
            tokio::time::sleep(self.every()).await;
        };
        let difference = |of: fn(&Look) -> Option<f64>, from: Option<&Look>| Some((of(&rest)? - of(from?)?).max(0.0));
        let generated = difference(|look| look.generated, before.quiet.as_ref());
        let read = seen.client.tokens as f64;
        saw.tokens_after = generated.map(|all| (all - filled.tokens - read).max(0.0));
        // Without a look from before the departure, what nobody read and was made before is known by the pace alone.
        if before.made > read && (before.last.is_none() || profile.sums_move_at_end) {
            saw.tokens_before = Some(before.made);
            saw.tokens_after = generated.map(|all| (all - filled.tokens - before.made).max(0.0));
        }
        // A judge that is late itself has read less than what was made by then: no more was made afterwards than since the last look before,
        // without what was made at its pace until the request was left.
        if filled.others == 0.0 && !profile.sums_move_at_end {
            let looked = before.last.as_ref().map_or(0.0, |look| (ms(left, before.zero) - look.began_ms).max(0.0));
            let meanwhile = (looked / (self.pace.gap.as_secs_f64() * 1e3).max(1e-3)).floor();
            let since = difference(|look| look.generated, before.last.as_ref()).map(|since| (since - meanwhile).max(0.0));
            let quiet = before.quiet.as_ref().and_then(|look| look.generated);
            saw.tokens_before =
                before.last.as_ref().and_then(|look| look.generated).zip(quiet).map(|(last, quiet)| (last - quiet).max(0.0));
            saw.tokens_after = saw.tokens_after.map(|tokens| since.map_or(tokens, |since| tokens.min(since)));
        }
        // What a prompt was computed of before the departure is known only where sums move at once.
        if filled.others > 0.0 && filled.prompts > 0.0 {
            saw.prompt_after = difference(|look| look.prompted, before.quiet.as_ref()).map(|all| (all - filled.prompts).max(0.0));
        } else if !profile.sums_move_at_end {
            saw.prompt_after = difference(|look| look.prompted, before.last.as_ref());
            saw.steps_after = difference(|look| look.steps, before.last.as_ref());
        }
        saw.asked = difference(|look| look.asked, before.quiet.as_ref()).map(|all| all - filled.others);
        let shift = ms(left, before.zero);
        saw.before = before.last.map(|look| Look { began_ms: look.began_ms - shift, ended_ms: look.ended_ms - shift, ..look });
        saw.rest = Some(rest);
        Some(saw)
    }

    /// What the stack's own record says, where it keeps one.
    pub(super) async fn record(&self, id: &str) -> Option<String> {
        let path = self.stack.counters.as_ref()?.profile.record.as_ref()?.replace("{id}", id);
        let (status, text) = self.stack.target.ask(Method::GET, &path, Bytes::new()).await.ok()?;
        let record: Value = serde_json::from_str(&text).ok().filter(|_| status == 200)?;
        let outcome = &record["outcome"];
        Some(format!("{}/{}", outcome["kind"].as_str()?, outcome["cause"].as_str()?))
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

/// What the processor's time shows of one try.
pub(super) struct Cpu<'a> {
    pub(super) sampler: Option<&'a Sampler>,
    pub(super) resting: Instant,
    pub(super) sent: Instant,
    pub(super) left: Instant,
}

impl Cpu<'_> {
    pub(super) fn saw(&self) -> Option<CpuSaw> {
        let loads = self.sampler?.loads();
        // The window in which it was sent is neither.
        let idle = loads.mean(self.resting, self.sent)?;
        let busy = loads.mean(self.sent + WINDOW, self.left)?;
        loads.saw(idle, busy, self.left)
    }

    /// How long it has rested by now.
    fn rests_since(&self, left: Instant) -> Option<Duration> {
        let quiet = Duration::from_secs_f64(self.saw()?.quiet_ms?.max(0.0) / 1e3);
        Some(left.elapsed().saturating_sub(quiet))
    }
}

/// What belongs to the requests that took the engine's slots.
pub(super) struct Filled {
    pub(super) others: f64,
    pub(super) tokens: f64,
    pub(super) prompts: f64,
}

/// Looks before the departure.
pub(super) struct Before {
    pub(super) quiet: Option<Look>,
    pub(super) last: Option<Look>,
    /// What `last` is timed by.
    pub(super) zero: Instant,
    /// Tokens that nobody has read and that were generated by then at the stack's pace.
    pub(super) made: f64,
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
        end: read.end.map(|(_, how)| match how {
            End::Complete => "complete".to_owned(),
            End::Error => "error".to_owned(),
            End::Broken => "closed".to_owned(),
        }),
    }
}
