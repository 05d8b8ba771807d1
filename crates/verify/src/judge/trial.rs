//! One try of a cell: a baseline, a request, its phase, the departure, and what becomes of the work.
//!
//! A phase is entered by what is seen: tokens that were read, the engine's counters, slots that fillers have taken. Where nothing can be seen
//! inside the stack, the pace of requests that nobody left says when it is there, and the try says so.
//!
//! Invariant: between the departure and the look at what is left nothing is asked of the stack but what the settings say.

use std::time::{Duration, Instant};

use bytes::Bytes;
use gpu::PERIOD;
use http::Method;
use tokio::sync::OnceCell;

use super::caller::{By, Caller, Left};
use super::cell::{Cell, Phase, Trigger};
use super::conclude::{AtRest, Before};
use super::cpu::{Sampler, WINDOW};
use super::device::Devices;
use super::fillers::Fillers;
use super::result::{Look, Try, Verdict};
use super::settings::Settings;
use super::stack::{Pace, Stack, words};
use super::watch::{Held, Load, client};

/// Tokens that are left at one near the end.
pub(super) const NEAR: u64 = 3;
/// Tokens whose events the buffers between two hops do not hold: 4 MiB at each side of a connection, 400 bytes an event.
const BUFFERED_TOKENS: u64 = 20_000;
/// How many times as long as what may be made unread an answer has to be, so that an engine that goes on is told from one that does not.
const UNREAD_TIMES: u64 = 2;
/// Looks in a row that must not count a request for it to be gone.
pub(super) const GONE_LOOKS: usize = 2;
/// Answers that a try may wait for, one after the other: fillers, and what they leave waiting.
const WHOLES: u32 = 8;

/// Why a try says nothing.
#[derive(Debug)]
pub(super) struct Missed {
    pub(super) why: String,
    /// Whether another try may say more.
    pub(super) again: bool,
}

impl Missed {
    /// Another would say the same.
    pub(super) fn for_good(why: String) -> Missed {
        Missed { why, again: false }
    }
}

impl From<String> for Missed {
    fn from(why: String) -> Missed {
        Missed { why, again: true }
    }
}

impl From<&str> for Missed {
    fn from(why: &str) -> Missed {
        why.to_owned().into()
    }
}

/// What tries are made with.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    /// The stack.
    pub stack: &'a Stack,
    /// How long what takes there.
    pub pace: &'a Pace,
    /// How it is judged.
    pub settings: &'a Settings,
    /// What the neighbour of requests that share a prefix says alone, once that was asked.
    pub alone: &'a OnceCell<String>,
}

impl Bench<'_> {
    /// Tries a cell once: what was seen, and whether another try may say more if this one says nothing. `again` is how often it was tried so
    /// already: then a prompt is longer, and a queue lasts longer.
    pub(super) async fn one(&self, cell: Cell, number: u64, again: u64) -> (Try, bool) {
        let id = format!("verify-{}-{}-{number}", cell.to_string().replace(['/', '='], "-"), self.settings.seed);
        let mut seen = Try { id: id.clone(), ..Try::default() };
        let patience = self.patience();
        let missed = match tokio::time::timeout(patience, self.tried(cell, &id, again, &mut seen)).await {
            Ok(Ok(())) => return (seen, false),
            Ok(Err(missed)) => missed,
            Err(_) => format!("it took longer than {patience:?}: patience_ms in --settings").into(),
        };
        let why = missed.why;
        seen.void = Some(if missed.again { why } else { format!("{why} (tried once: the answer would be the same)") });
        (seen, missed.again)
    }

    async fn tried(&self, cell: Cell, id: &str, again: u64, seen: &mut Try) -> Result<(), Missed> {
        if cell.shared {
            self.alone().await?;
        }
        let sampler = self.stack.processes.as_ref().map(Sampler::start);
        let on_devices = self.stack.devices.as_ref().map(Devices::sample);
        let resting = Instant::now();
        let before = self.rested().await?;
        if on_devices.is_some() {
            // Until then what was before is told.
            tokio::time::sleep(PERIOD + WINDOW * 3).await;
        } else if sampler.is_some() {
            tokio::time::sleep(WINDOW * 3).await;
        }
        let zero = Instant::now();
        let mut fillers = Fillers::new(cell.trigger == Trigger::EdgeIdle);
        if cell.shared {
            fillers.take_neighbour(self.neighbour(&format!("{id}-filler-0")).await?);
        }
        if cell.phase == Phase::Queued {
            // An engine that cannot be looked at meanwhile shows only what it did in the end.
            self.fill(&mut fillers, id, again > 0 || !self.polls()).await?;
        }
        let is_idle = cell.trigger == Trigger::EdgeIdle;
        let own = match cell.phase {
            Phase::Prefill if is_idle => words(self.settings.seed, id, self.silent_words()),
            Phase::Prefill => words(self.settings.seed, id, self.long_words(again)),
            _ => words(self.settings.seed, id, 16),
        };
        let prompt = if cell.shared { self.sharing(&own) } else { own };
        let lasts = is_idle && matches!(cell.phase, Phase::EarlyDecode | Phase::LateDecode);
        let tokens = if lasts { self.silent_tokens(cell) } else { self.settings.max_tokens };
        let mut ask = self.stack.ask(id, &prompt, cell.streaming, tokens);
        if cell.n > 1 {
            ask.body["n"] = cell.n.into();
        }
        ask.by = match cell.trigger {
            Trigger::StreamReset => By::Http2,
            Trigger::StopReading => By::Http1Narrow,
            Trigger::Kill => By::Process,
            Trigger::GrpcCancel | Trigger::GrpcDeadline => By::Grpc(self.deadline(cell)),
            _ => By::Http1,
        };
        let unleft = ask.clone();
        let deadline = self.deadline(cell);
        if let Some((left, field)) = deadline.zip(self.deadline_field(cell)) {
            ask.body[field] = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).into();
        }
        seen.asked_tokens = if lasts { tokens } else { self.pace.tokens } * u64::from(cell.n);
        if cell.trigger == Trigger::StopReading {
            seen.unread_tokens = self.unread_tokens();
            seen.unread_ms = self.pace.gap.as_secs_f64() * 1e3 * seen.unread_tokens as f64;
        }
        let mut caller = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("it could not be sent: {e}"))?;
        seen.entered = self.enter(cell, &mut caller, &fillers).await?;
        let beside = fillers.neighbour_read();
        let mut last = self.look_at(zero).await;
        let sent = caller.sent;
        if let Some(left) = deadline {
            // Whoever has a deadline reads until it is over.
            self.read_until(&mut caller, sent + left, zero, &mut last).await;
            tokio::time::sleep_until(tokio::time::Instant::from_std(sent + left)).await;
        }
        let given_up = if is_idle { Some(self.given_up(&mut caller, zero, &mut last).await?) } else { None };
        let (mut left, confirmed) = self.leave(cell, caller, id).await?;
        left.at = given_up.unwrap_or(left.at);
        if fillers.neighbour_is_over() {
            return Err("its neighbour, with which it shares a prefix, had ended before it was left".into());
        }
        (seen.cancel_confirmed, seen.client) = (confirmed, client(&left.read, sent, left.at));
        let read = (cell.trigger == Trigger::Cancel).then_some(seen.client.tokens as f64);
        let mut kept = left.kept;
        let held = before.as_ref().filter(|_| fillers.sent == 0).and_then(Held::of);
        let cpu = sampler.as_ref().map(|sampler| Load::of_processes(sampler, resting, sent, left.at));
        let gpu = on_devices.as_ref().map(|sampler| Load::of_devices(sampler, resting, sent, left.at));
        let (has_cpu, loads) = (cpu.is_some(), cpu.into_iter().chain(gpu).collect::<Vec<_>>());
        let engine = self.watch(cell, (left.at, self.natural(cell, seen.asked_tokens)), &mut kept, &fillers, held, &loads).await;
        let saw = |load: &Load<'_>| load.saw().filter(|_| fillers.sent == 0);
        seen.cpu = loads.first().filter(|_| has_cpu).and_then(saw);
        seen.gpu = loads.get(usize::from(has_cpu)).and_then(saw);
        if let Some(caller) = kept.as_mut().filter(|_| cell.trigger == Trigger::HalfClose) {
            // It still wants its answer: what is on its way comes, or an end does.
            let _ = tokio::time::timeout(self.natural(cell, seen.asked_tokens), caller.rest()).await;
        }
        if let Some(kept) = &kept {
            seen.client = client(&kept.read, sent, left.at);
        }
        let filled = self.finish(fillers).await?;
        let made = self.made(cell, left.at.saturating_duration_since(sent));
        seen.engine = self.conclude(cell, engine, Before { quiet: before, last, zero, made, read, beside }, seen, left.at, &filled).await?;
        for tap in &self.stack.taps {
            let saw = tap.saw(id, left.at).await.map_err(|e| format!("a tap does not answer: {e}"))?;
            seen.taps.push(saw);
        }
        if filled.others > 0.0 {
            self.given(id, seen, left.at).await;
        }
        self.turned_soon(seen.engine.as_ref())?;
        seen.record = self.record(id).await;
        if let Some(neighbour) = filled.neighbour {
            seen.neighbour = Some(self.beside(id, &unleft, neighbour).await?);
        }
        Ok(())
    }

    /// Words of a long prompt; twice as many each time that it is tried again.
    fn long_words(&self, again: u64) -> usize {
        let count = self.pace.long.map_or(16, |(count, _)| count);
        count.saturating_mul(1 << again.min(8)).min(self.settings.prompt_words_max.max(count))
    }

    /// How often the engine was given a request that waited, by the tap in front of it: sums have other work in them, such as what a gateway
    /// asks for itself. A tap that did not see those who took the slots, either, is blind here.
    async fn given(&self, id: &str, seen: &mut Try, left: Instant) {
        let (Some(tap), Some(saw), Some(engine)) = (self.stack.taps.last(), seen.taps.last(), seen.engine.as_mut()) else { return };
        if engine.asked.is_none() && self.stack.way.is_before_engine(&saw.name) {
            let filler = tap.saw(&format!("{id}-filler-0"), left).await;
            engine.asked = filler.ok().filter(|filler| filler.requests > 0).map(|_| saw.requests as f64);
        }
    }

    /// The verdict on what nobody can try here.
    pub fn untried(&self, cell: Cell) -> Option<Verdict> {
        let not_applicable = |why: &str| Some(Verdict::NotApplicable { why: why.to_owned() });
        let not_proven = |missing: &str| Some(Verdict::NotProven { missing: missing.to_owned() });
        if let Some(why) = cell.senseless() {
            return not_applicable(why);
        }
        let profile = self.stack.counters.as_ref().map(|counters| &counters.profile);
        match (cell.phase, cell.trigger) {
            (_, Trigger::HalfClose) if self.stack.target.is_secure() => {
                not_applicable("a server cannot tell half a close beneath TLS from a whole one")
            }
            // Before anything is said of its phase: where no timeout is known there is nothing to ask.
            (_, Trigger::EdgeIdle) if self.settings.idle_ms == 0 => self.never_idle(cell),
            (_, Trigger::Cancel) if profile.is_none_or(|profile| profile.cancel.is_none()) => {
                not_applicable("the stack has no cancel by name that its profile knows")
            }
            (Phase::Queued, _) if profile.is_none() => not_proven("without counters nobody sees that a request waits: --engine URL"),
            (Phase::Prefill, _) if self.pace.long.is_none() => {
                not_proven("no prompt takes long enough to be left in its computing (--prefill-ms, --prompt-words-max)")
            }
            (_, Trigger::ClientDeadline) if profile.is_none_or(|profile| profile.deadline.is_none()) => {
                not_applicable("the stack has no deadline of a request's own that its profile knows")
            }
            (_, Trigger::StopReading) if self.settings.max_tokens < self.unread_tokens() * UNREAD_TIMES => {
                let tokens = self.unread_tokens() * UNREAD_TIMES;
                not_proven(&format!("an answer of so few tokens fits into the buffers on the way: --max-tokens {tokens} would not"))
            }
            (_, Trigger::EdgeIdle) => self.never_idle(cell),
            (_, Trigger::GrpcCancel | Trigger::GrpcDeadline) if profile.is_none_or(|profile| profile.grpc.is_none()) => {
                not_applicable("the stack has no gRPC front door that its profile knows")
            }
            _ => None,
        }
    }

    /// Tokens that may be made for a caller that reads nothing: what the first hop's buffers hold, and those between it and the engine.
    fn unread_tokens(&self) -> u64 {
        let behind = self.stack.way.hops.len().saturating_sub(1).max(self.stack.taps.len());
        self.settings.unread_tokens + BUFFERED_TOKENS * behind as u64
    }

    /// The field of a request's own deadline.
    fn deadline_field(&self, cell: Cell) -> Option<&str> {
        self.stack.counters.as_ref()?.profile.deadline.as_deref().filter(|_| cell.trigger == Trigger::ClientDeadline)
    }

    /// The time of a request's own deadline, for a phase.
    fn deadline(&self, cell: Cell) -> Option<Duration> {
        if cell.trigger != Trigger::GrpcDeadline {
            self.deadline_field(cell)?;
        }
        let part = match cell.phase {
            Phase::Queued => Duration::from_millis(500),
            Phase::Prefill => self.pace.long.map_or(self.pace.first, |(_, took)| took / 2),
            Phase::Headers => self.pace.first,
            Phase::EarlyDecode => self.pace.first + self.pace.gap * 10,
            Phase::LateDecode => self.pace.first + self.pace.rest(self.pace.tokens * 2 / 10),
            Phase::NearEnd => self.pace.first + self.pace.rest(NEAR),
        };
        Some(part)
    }

    /// Waits until nothing is at work. What the engine's sums are then.
    async fn quiet(&self) -> Result<Option<Look>, String> {
        let Some(counters) = &self.stack.counters else { return Ok(None) };
        let zero = Instant::now();
        let mut at_rest = AtRest::new(self.stale());
        loop {
            let look = counters.look(zero).await.ok_or("the engine's counters cannot be read")?;
            if at_rest.take(&look) {
                return Ok(Some(look));
            }
            tokio::time::sleep(self.every()).await;
        }
    }

    /// The same, for as long as that may take.
    pub(super) async fn rested(&self) -> Result<Option<Look>, Missed> {
        let within = self.patience() / 2;
        tokio::time::timeout(within, self.quiet()).await.map(|quiet| quiet.map_err(Missed::from)).unwrap_or_else(|_| {
            let why = format!("the engine was not at rest within {within:?}: somebody else asks it, or a request is stuck in it");
            Err(Missed::for_good(why))
        })
    }

    /// How old what the engine's gauges show may be.
    pub(super) fn stale(&self) -> Duration {
        Duration::from_millis(self.stack.counters.as_ref().map_or(0, |counters| counters.profile.stale_ms))
    }

    pub(super) fn every(&self) -> Duration {
        let profile = self.stack.counters.as_ref().map(|counters| counters.profile.look_every_ms).unwrap_or_default();
        Duration::from_millis(self.settings.look_every_ms.max(profile))
    }

    pub(super) async fn look_at(&self, zero: Instant) -> Option<Look> {
        match (&self.stack.counters, self.polls()) {
            (Some(counters), true) => counters.look(zero).await,
            _ => None,
        }
    }

    /// Whether the engine is looked at between a departure and its end.
    pub fn polls(&self) -> bool {
        let disturbs = self.stack.counters.as_ref().is_some_and(|counters| counters.profile.disturbs);
        self.settings.poll.unwrap_or(!disturbs)
    }

    /// How long one try may take: what is set, or a few times what an answer takes that nobody leaves.
    pub fn patience(&self) -> Duration {
        let whole = self.pace.long.map_or(self.pace.first, |(_, took)| took) + self.pace.rest(0);
        self.settings.patience().max(whole * WHOLES).max(self.idle_patience())
    }

    /// The departure. Whether a cancel by name was confirmed, where it was one.
    async fn leave(&self, cell: Cell, caller: Caller, id: &str) -> Result<(Left, Option<bool>), Missed> {
        if cell.trigger != Trigger::Cancel {
            return caller.leave(cell.trigger).map(|left| (left, None)).map_err(|e| format!("it could not be left: {e}").into());
        }
        let counters = self.stack.counters.as_ref().ok_or("no counters")?;
        let by = counters.profile.cancel.as_ref().ok_or("no cancel by name")?;
        let body = by.body.replace("{id}", id);
        let left = caller.leave(cell.trigger).map_err(|e| format!("it could not be left: {e}"))?;
        // The engine's own way to cancel is at the engine; a gateway's is where the stack is.
        let asked = self.stack.target.ask(Method::POST, &by.path.replace("{id}", id), Bytes::from(body)).await;
        let status = asked.map_err(|e| format!("the cancel could not be sent: {e}"))?.0;
        if status != by.status {
            let why = format!("the cancel was answered with {status}: this stack has none, or it is not switched on");
            // Too early, too late or too many may be another time; what is refused otherwise is refused again.
            let passes = matches!(status, 408 | 409 | 425 | 429);
            return Err(if status == 501 || ((400..500).contains(&status) && !passes) { Missed::for_good(why) } else { why.into() });
        }
        Ok((left, by.proves.then_some(true)))
    }
}
