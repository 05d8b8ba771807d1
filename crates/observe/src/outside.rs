//! What a gateway did outside for runs, as `GET /metrics` shows it: webhooks by what came of a try, declared tools by what became of them.
//!
//! Invariant: totals since the process began; no label names a run, a tenant or a place.

use crate::exposition::Text;

/// The totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outside {
    /// Webhooks that were accepted.
    pub hooks_delivered: u64,
    /// Tries of webhooks that failed and are repeated.
    pub hooks_failed: u64,
    /// Webhooks that are tried no more.
    pub hooks_given_up: u64,
    /// Calls of declared tools that the other side did.
    pub effects_committed: u64,
    /// Calls of declared tools that were not done.
    pub effects_failed: u64,
    /// Calls of declared tools of which nobody can say.
    pub effects_unknown: u64,
}

pub(crate) fn expose(text: &mut Text, outside: &Outside) {
    let hooks = [("delivered", outside.hooks_delivered), ("failed", outside.hooks_failed), ("given_up", outside.hooks_given_up)];
    let mut f = text.counter("kvit_webhook_tries_total", "Tries of webhooks by what came of them; one that failed is repeated.");
    for (result, count) in hooks {
        f.sample(&[("result", result)], count);
    }
    let effects = [("committed", outside.effects_committed), ("failed", outside.effects_failed), ("unknown", outside.effects_unknown)];
    let mut f = text.counter("kvit_tool_calls_total", "Declared tools that were called, by what became of them.");
    for (state, count) in effects {
        f.sample(&[("state", state)], count);
    }
}
