//! Requests that take the engine's slots, so that one more has to wait.
//!
//! Invariant: each is read to its end, and what was computed for it is known then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::task::JoinSet;

use super::caller::{Caller, End, Read};
use super::stack::words;
use super::trial::{Bench, GONE_LOOKS};
use super::watch::present;

/// Requests that take the engine's slots, each read to its end in a task of its own.
#[derive(Default)]
pub(super) struct Fillers {
    pub(super) tasks: JoinSet<Option<Read>>,
    pub(super) sent: usize,
    ended: Arc<AtomicUsize>,
    /// Whether they may end badly: a hop that gives up what is silent gives up those that wait, too.
    may_break: bool,
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
                let mut caller = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("a filler could not be sent: {e}"))?;
                let (ended, may_break) = (Arc::clone(&fillers.ended), fillers.may_break);
                fillers.tasks.spawn(async move {
                    let how = caller.rest().await;
                    ended.fetch_add(1, Ordering::Relaxed);
                    (how == End::Complete || may_break).then_some(caller.read)
                });
                fillers.sent += 1;
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
}
