//! Requests that take the engine's slots, so that one more has to wait.
//!
//! Invariant: each is read to its end, and what was computed for it is known then.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::JoinSet;

use super::caller::{Caller, End, Read};
use super::conclude::Filled;
use super::result::EngineSaw;
use super::stack::words;
use super::trial::{Bench, GONE_LOOKS};
use super::watch::present;

/// How much longer than a request may be at work behind its departure a queue has to last that was too short, in percent.
const LASTS_PERCENT: f64 = 150.0;

fn held(ends: &Mutex<Vec<Instant>>) -> MutexGuard<'_, Vec<Instant>> {
    ends.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests that take the engine's slots, and the neighbour of one that shares its prompt's beginning; each is read to its end in a task of its
/// own.
#[derive(Default)]
pub(super) struct Fillers {
    tasks: JoinSet<(bool, End, Read)>,
    pub(super) sent: usize,
    /// When each ended.
    ends: Arc<Mutex<Vec<Instant>>>,
    /// Slots that they have taken, once that is known.
    slots: Option<usize>,
    /// Whether they may end badly: a hop that gives up what is silent gives up those that wait, too.
    may_break: bool,
    /// Tokens that the neighbour has read, and whether it is still there.
    neighbour: Option<(Arc<AtomicUsize>, Arc<AtomicBool>)>,
}

impl Fillers {
    /// None yet.
    pub(super) fn new(may_break: bool) -> Fillers {
        Fillers { may_break, ..Fillers::default() }
    }

    /// Those that have not ended: asked behind a look, it is never more than what was there at the look.
    pub(super) fn live(&self) -> f64 {
        self.sent.saturating_sub(held(&self.ends).len()) as f64
    }

    /// When there were fewer of them than slots, so that what waits behind them had its turn.
    fn turn(&self) -> Option<Instant> {
        let mut ends = held(&self.ends).clone();
        ends.sort_unstable();
        ends.get(self.sent.checked_sub(self.slots?)?).copied()
    }

    /// Reads one to its end.
    fn take(&mut self, mut caller: Caller) {
        let ends = Arc::clone(&self.ends);
        self.tasks.spawn(async move {
            let how = caller.rest().await;
            held(&ends).push(Instant::now());
            (false, how, std::mem::take(&mut caller.read))
        });
        self.sent += 1;
    }

    /// Reads the neighbour to its end.
    pub(super) fn take_neighbour(&mut self, mut caller: Caller) {
        let (ends, read, live) = (Arc::clone(&self.ends), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        self.neighbour = Some((Arc::clone(&read), Arc::clone(&live)));
        self.tasks.spawn(async move {
            while !caller.is_over() {
                read.store(caller.read.tokens.len(), Ordering::Relaxed);
                caller.next().await;
            }
            live.store(false, Ordering::Relaxed);
            held(&ends).push(Instant::now());
            (true, caller.rest().await, std::mem::take(&mut caller.read))
        });
        self.sent += 1;
    }

    /// Tokens that the neighbour has read, if there is one.
    pub(super) fn neighbour_read(&self) -> f64 {
        self.neighbour.as_ref().map_or(0.0, |(read, _)| read.load(Ordering::Relaxed) as f64)
    }

    /// Whether the neighbour has ended.
    pub(super) fn neighbour_is_over(&self) -> bool {
        self.neighbour.as_ref().is_some_and(|(_, live)| !live.load(Ordering::Relaxed))
    }
}

impl Bench<'_> {
    /// Takes the engine's slots, until a request waits. A queue that `lasts` is one in which nobody has a turn for as long as a request may be
    /// at work behind its departure.
    pub(super) async fn fill(&self, fillers: &mut Fillers, id: &str, lasts: bool) -> Result<(), String> {
        let Some(counters) = &self.stack.counters else { return Err("nobody sees that a request waits".to_owned()) };
        let zero = Instant::now();
        while fillers.sent < self.settings.fillers_max {
            let wave = fillers.sent.clamp(1, self.settings.fillers_max - fillers.sent);
            for _ in 0..wave {
                self.filler(fillers, id, self.settings.max_tokens).await?;
            }
            // Each of them is counted somewhere before the next wave is sent, or waits where nobody counts.
            let (mut same, mut waits, mut outside, mut last) = (0, 0, 0, None);
            while same < GONE_LOOKS {
                tokio::time::sleep(self.every()).await;
                let look = counters.look(zero).await.ok_or("the engine's counters cannot be read")?;
                let counted = present(&look);
                // One that has just come waits for a moment, too.
                waits = if look.waiting.is_some_and(|waiting| waiting >= 1.0) { waits + 1 } else { 0 };
                // Some may wait before the engine.
                outside = if counted.is_some_and(|counted| counted < fillers.live()) { outside + 1 } else { 0 };
                if waits > GONE_LOOKS || outside > GONE_LOOKS {
                    let running = look.running.or_else(|| Some(counted? - look.waiting?)).or(counted);
                    fillers.slots = running.filter(|running| *running >= 1.0).map(|running| running as usize);
                    return if lasts { self.lengthen(fillers, id).await } else { Ok(()) };
                }
                same = if counted == last && waits == 0 && outside == 0 { same + 1 } else { 0 };
                last = counted;
            }
        }
        let sent = fillers.sent;
        Err(format!("{sent} requests at once did not fill the engine: give it fewer slots, or ask with --fillers-max"))
    }

    /// Sends one.
    async fn filler(&self, fillers: &mut Fillers, id: &str, tokens: u64) -> Result<(), String> {
        let name = format!("{id}-filler-{}", fillers.sent);
        let ask = self.stack.ask(&name, &words(self.settings.seed, &name, 8), true, tokens);
        fillers.take(Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("a filler could not be sent: {e}"))?);
        Ok(())
    }

    /// Sends as many more as there are slots, each of which is long: whoever comes behind them waits for one of them at least.
    async fn lengthen(&self, fillers: &mut Fillers, id: &str) -> Result<(), String> {
        let lasts = self.settings.stop_ms * LASTS_PERCENT / 100.0 + self.every().as_secs_f64() * 1e3 * (GONE_LOOKS + 2) as f64;
        let tokens = (lasts / (self.pace.gap.as_secs_f64() * 1e3).max(1e-3)).ceil() as u64;
        for _ in 0..fillers.slots.unwrap_or(1) {
            self.filler(fillers, id, tokens.max(self.settings.max_tokens)).await?;
        }
        Ok(())
    }

    /// A request that waits may take as long to be dropped as one that runs. One whose turn came sooner, and of which no more was computed than
    /// is allowed, says nothing: it depends on when its turn came.
    pub(super) fn turned_soon(&self, saw: Option<&EngineSaw>) -> Result<(), String> {
        let Some((saw, turn_ms)) = saw.and_then(|saw| Some((saw, saw.turn_ms?))) else { return Ok(()) };
        let (tokens, prompt) = (saw.tokens_after.unwrap_or(0.0), saw.prompt_after.unwrap_or(0.0));
        let is_begun = tokens.max(prompt) >= 1.0 && saw.asked != Some(0.0);
        let is_little = tokens <= self.settings.tokens && prompt <= self.settings.prompt_tokens;
        if is_begun && is_little && turn_ms < self.settings.stop_ms {
            let stop_ms = self.settings.stop_ms;
            return Err(format!("its turn came {turn_ms:.0} ms after it was left, and that it was may be noticed within {stop_ms} ms"));
        }
        Ok(())
    }

    /// Lets the fillers end. What is theirs.
    pub(super) async fn finish(&self, mut fillers: Fillers) -> Result<Filled, String> {
        let mut filled = Filled { others: fillers.sent as f64, ..Filled::default() };
        while let Some(ended) = fillers.tasks.join_next().await {
            let (is_neighbour, how, read) = ended.map_err(|e| format!("a filler did not end: {e}"))?;
            if how != End::Complete && !is_neighbour && !fillers.may_break {
                return Err("a filler did not end well".to_owned());
            }
            let (prompt, generated) = read.usage.unwrap_or((0, read.tokens.len() as u64));
            filled.tokens += generated as f64;
            filled.prompts += prompt as f64;
            if is_neighbour {
                filled.neighbour = Some((how, read));
            }
        }
        filled.turn = fillers.turn();
        Ok(filled)
    }
}
