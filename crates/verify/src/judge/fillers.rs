//! Requests that take the engine's slots, so that one more has to wait.
//!
//! Invariant: each is read to its end, and what was computed for it is known then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use super::caller::{Caller, End, Read};
use super::conclude::Filled;
use super::stack::words;
use super::trial::{Bench, GONE_LOOKS};
use super::watch::present;

/// Requests that take the engine's slots, and the neighbour of one that shares its prompt's beginning; each is read to its end in a task of its
/// own.
#[derive(Default)]
pub(super) struct Fillers {
    tasks: JoinSet<(bool, End, Read)>,
    pub(super) sent: usize,
    ended: Arc<AtomicUsize>,
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
        self.sent.saturating_sub(self.ended.load(Ordering::Relaxed)) as f64
    }

    /// Reads one to its end.
    fn take(&mut self, mut caller: Caller) {
        let ended = Arc::clone(&self.ended);
        self.tasks.spawn(async move {
            let how = caller.rest().await;
            ended.fetch_add(1, Ordering::Relaxed);
            (false, how, std::mem::take(&mut caller.read))
        });
        self.sent += 1;
    }

    /// Reads the neighbour to its end.
    pub(super) fn take_neighbour(&mut self, mut caller: Caller) {
        let (ended, read, live) = (Arc::clone(&self.ended), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
        self.neighbour = Some((Arc::clone(&read), Arc::clone(&live)));
        self.tasks.spawn(async move {
            while !caller.is_over() {
                read.store(caller.read.tokens.len(), Ordering::Relaxed);
                caller.next().await;
            }
            live.store(false, Ordering::Relaxed);
            ended.fetch_add(1, Ordering::Relaxed);
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
    /// Takes the engine's slots, until a request waits.
    pub(super) async fn fill(&self, fillers: &mut Fillers, id: &str) -> Result<(), String> {
        let Some(counters) = &self.stack.counters else { return Err("nobody sees that a request waits".to_owned()) };
        let zero = Instant::now();
        while fillers.sent < self.settings.fillers_max {
            let wave = fillers.sent.clamp(1, self.settings.fillers_max - fillers.sent);
            for _ in 0..wave {
                let name = format!("{id}-filler-{}", fillers.sent);
                let ask = self.stack.ask(&name, &words(self.settings.seed, &name, 8), true, self.settings.max_tokens);
                fillers.take(Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("a filler could not be sent: {e}"))?);
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
                    return Ok(());
                }
                same = if counted == last && waits == 0 && outside == 0 { same + 1 } else { 0 };
                last = counted;
            }
        }
        let sent = fillers.sent;
        Err(format!("{sent} requests at once did not fill the engine: give it fewer slots, or ask with --fillers-max"))
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
        Ok(filled)
    }
}
