//! An edge that gives up a silent request: the caller stays, and the hop in front of it closes its side when its own idle timeout is over.
//!
//! Nobody can make an edge do that but by a request that is silent for longer: one whose prompt is long, that waits behind others, or whose
//! answer comes whole at its end. How long is long enough is reckoned from the pace of requests that nobody gave up.
//!
//! Invariant: the trigger is what the caller saw of it, an error or a close in place of an answer, and not before the time is up.
// contract: C-29

use std::time::{Duration, Instant};

use super::caller::{Caller, End};
use super::cell::{Cell, Phase};
use super::result::{Look, Verdict};
use super::trial::{Bench, Missed};

/// A proxy whose timers are coarse may be early by so much of its timeout.
const EARLY_PERCENT: u32 = 80;
/// How long it is waited for beyond twice its timeout.
const GRACE: Duration = Duration::from_secs(2);

impl Bench<'_> {
    fn idle(&self) -> Duration {
        Duration::from_millis(self.settings.idle_ms)
    }

    /// The verdict where no request can be silent for so long.
    pub(super) fn never_idle(&self, cell: Cell) -> Option<Verdict> {
        let ms = self.settings.idle_ms;
        let missing = |missing: String| Some(Verdict::NotProven { missing });
        if ms == 0 {
            let why = "no hop's idle timeout is known: --idle-ms MILLISECONDS says it";
            return Some(Verdict::NotApplicable { why: why.to_owned() });
        }
        match cell.phase {
            Phase::Prefill if self.silent_words() > self.settings.prompt_words_max => {
                missing(format!("no prompt of prompt_words_max words is computed for longer than the {ms} ms of the idle timeout"))
            }
            Phase::EarlyDecode | Phase::LateDecode if self.pace.first + self.pace.gap * 4 >= self.idle() => {
                missing(format!("no token is there before the {ms} ms of the idle timeout are over"))
            }
            Phase::EarlyDecode | Phase::LateDecode if self.silent_tokens(cell) > self.settings.max_tokens => {
                let tokens = self.silent_tokens(cell);
                missing(format!("an answer is whole before the {ms} ms of the idle timeout are over: --max-tokens {tokens} would not be"))
            }
            _ => None,
        }
    }

    /// Words of a prompt that is computed for longer than that by half.
    pub(super) fn silent_words(&self) -> usize {
        let Some((count, took)) = self.pace.long else { return 0 };
        let times = self.idle().as_secs_f64() * 1.5 / took.as_secs_f64().max(1e-6);
        (count as f64 * times.max(1.0)).ceil() as usize
    }

    /// Tokens of an answer that is in this phase when the time is up, and not over for long.
    pub(super) fn silent_tokens(&self, cell: Cell) -> u64 {
        let times = if cell.phase == Phase::LateDecode { 10.0 / 7.0 } else { 3.0 };
        let rest = self.idle().as_secs_f64() * times - self.pace.first.as_secs_f64();
        (rest.max(0.0) / self.pace.gap.as_secs_f64().max(1e-6)).ceil() as u64
    }

    /// When a request was sent, and still not given up, it is in its phase.
    pub(super) fn silent_part(&self) -> Duration {
        self.idle() * 3 / 4
    }

    /// Longest that a question of this kind may take.
    pub(super) fn idle_patience(&self) -> Duration {
        if self.settings.idle_ms == 0 { Duration::ZERO } else { self.idle() * 6 + GRACE * 10 }
    }

    /// Reads until it is given up: when that was seen. `last` is the last look at the engine before.
    pub(super) async fn given_up(&self, caller: &mut Caller, zero: Instant, last: &mut Option<Look>) -> Result<Instant, Missed> {
        let (idle, sent) = (self.idle(), caller.sent);
        self.read_until(caller, sent + idle * 2 + GRACE, zero, last).await;
        let status = caller.read.head.map_or_else(|| "no status".to_owned(), |(_, status)| format!("status {status}"));
        let Some((at, how)) = caller.read.end else {
            return Err(Missed::for_good(format!(
                "no hop gave it up within {:?}: the idle timeout is another than --idle-ms, or something keeps silent requests alive",
                idle * 2 + GRACE
            )));
        };
        let after = at.duration_since(sent);
        match how {
            End::Complete => {
                let why = format!("it was answered after {after:?}, and no hop gave it up before");
                // It was silent for longer than that: the next will not be given up, either.
                Err(if after > idle { Missed::for_good(why) } else { why.into() })
            }
            _ if after < idle * EARLY_PERCENT / 100 => {
                Err(format!("it was ended after {after:?} ({status}), which is before the idle timeout of {idle:?}").into())
            }
            End::Error | End::Broken => Ok(at),
        }
    }

    /// Reads on until a moment, or to the end, and looks at the engine meanwhile where that is done: `last` is the last look that began before.
    pub(super) async fn read_until(&self, caller: &mut Caller, until: Instant, zero: Instant, last: &mut Option<Look>) {
        let until = tokio::time::Instant::from_std(until);
        while !caller.is_over() {
            let pause = tokio::time::sleep(self.every());
            tokio::pin!(pause);
            let paused = loop {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => return,
                    () = &mut pause => break true,
                    () = caller.next() => if caller.is_over() { break false },
                }
            };
            if paused && let Some(look) = self.look_at(zero).await {
                *last = Some(look);
            }
        }
    }
}
