//! Bringing a request into its phase, by what is seen: tokens that were read, the engine's counters, or the pace of requests that nobody left.
//!
//! Invariant: a phase that was not seen to be entered is told as missed, with why.

use std::time::{Duration, Instant};

use super::caller::{Caller, End};
use super::cell::{Cell, Phase, Trigger};
use super::fillers::Fillers;
use super::result::Source;
use super::stack::ended_badly;
use super::trial::{Bench, GONE_LOOKS, NEAR};
use super::watch::present;

/// Tokens that are read before an early departure.
const EARLY: usize = 3;
/// How much longer a request is looked for that an engine does not count yet: times of what it was waited for before, and looks at least.
const COUNTED_PARTS: u32 = 8;
/// See [`COUNTED_PARTS`].
const COUNTED_LOOKS: u32 = 10;

impl Bench<'_> {
    /// Brings a request into its phase. By what that was seen.
    pub(super) async fn enter(&self, cell: Cell, caller: &mut Caller, fillers: &Fillers) -> Result<Option<Source>, String> {
        let over = |what: &str| Err(format!("its answer {what} before it could be left"));
        match (cell.phase, cell.streaming) {
            (Phase::Queued, _) => {
                let Some(counters) = &self.stack.counters else { return Err("nobody sees that a request waits".to_owned()) };
                let zero = Instant::now();
                for _ in 0..GONE_LOOKS {
                    // What has a token waits no more, whatever waits beside it.
                    match tokio::time::timeout(self.every(), caller.tokens(1)).await {
                        Ok(true) => return Err("its turn came before it could be left".to_owned()),
                        Ok(false) => return over("ended"),
                        Err(_) => {}
                    }
                    let look = counters.look(zero).await.ok_or("the engine's counters cannot be read")?;
                    let waits = look.waiting.is_some_and(|waiting| waiting >= 1.0);
                    let is_outside = present(&look).is_some_and(|counted| counted < fillers.live() + 1.0);
                    if !(waits || is_outside) {
                        return Err("a slot was free for it".to_owned());
                    }
                }
                Ok(Some(Source::Counters))
            }
            (Phase::Headers, _) => {
                if !caller.head().await {
                    return over("broke off");
                }
                if caller.read.tokens.is_empty() { Ok(Some(Source::Client)) } else { Err("its head came with its first token".to_owned()) }
            }
            (Phase::Prefill, _) => {
                let took = self.pace.long.map_or(Duration::ZERO, |(_, took)| took);
                let part = if cell.trigger == Trigger::EdgeIdle { self.silent_part() } else { took / 3 };
                self.at_work(caller, part, fillers).await
            }
            (Phase::EarlyDecode, true) => {
                if caller.tokens(EARLY).await {
                    Ok(Some(Source::Client))
                } else {
                    over("ended")
                }
            }
            (Phase::LateDecode, true) => {
                let count = usize::try_from(self.pace.tokens * u64::from(cell.n) * 7 / 10).unwrap_or(usize::MAX);
                if caller.tokens(count).await { Ok(Some(Source::Client)) } else { over("ended") }
            }
            (Phase::NearEnd, _) => {
                let count = usize::try_from((self.pace.tokens * u64::from(cell.n)).saturating_sub(NEAR)).unwrap_or(usize::MAX);
                if caller.tokens(count).await { Ok(Some(Source::Client)) } else { over("ended") }
            }
            (_, false) if cell.trigger == Trigger::EdgeIdle => self.at_work(caller, self.silent_part(), fillers).await,
            (Phase::EarlyDecode, false) => self.at_work(caller, self.pace.first + self.pace.gap * 4, fillers).await,
            (Phase::LateDecode, false) => {
                let read = self.pace.tokens * 3 / 10;
                self.at_work(caller, self.pace.first + self.pace.rest(read), fillers).await
            }
        }
    }

    /// Waits for a part of what a request takes that nobody leaves. With counters it must be counted then, or by a later look before its first
    /// token: some engines set their gauges behind a step, which may be all of a prompt.
    async fn at_work(&self, caller: &mut Caller, part: Duration, fillers: &Fillers) -> Result<Option<Source>, String> {
        let until = tokio::time::Instant::from_std(caller.sent + part);
        if tokio::time::timeout_at(until, first_token(caller)).await.is_ok() {
            return Err(match caller.read.end {
                Some((_, how)) if how != End::Complete => ended_badly(&caller.read, how),
                _ => "its answer came sooner than those of requests that nobody left".to_owned(),
            });
        }
        let Some(counters) = self.stack.counters.as_ref().filter(|_| self.polls()) else { return Ok(Some(Source::Calibrated)) };
        let until = tokio::time::Instant::now() + (part * COUNTED_PARTS).max(self.every() * COUNTED_LOOKS);
        loop {
            let look = counters.look(Instant::now()).await.ok_or("the engine's counters cannot be read")?;
            match present(&look) {
                Some(counted) if counted >= fillers.live() + 1.0 => return Ok(Some(Source::Counters)),
                Some(_) => {}
                None => return Ok(Some(Source::Calibrated)),
            }
            if tokio::time::timeout(self.every(), first_token(caller)).await.is_ok() {
                return Err("the engine did not count it before its first token came".to_owned());
            }
            if tokio::time::Instant::now() >= until {
                return Err("the engine did not count it".to_owned());
            }
        }
    }
}

/// Reads until a token is there, or an end.
async fn first_token(caller: &mut Caller) {
    while caller.read.tokens.is_empty() && !caller.is_over() {
        caller.next().await;
    }
}
