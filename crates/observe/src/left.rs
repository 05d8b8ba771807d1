//! Runs that somebody wanted to end, by the engine that had them and by how well it is proven that they are gone from it.
//!
//! Whatever completes at an engine is `observed`, so a sum over all runs says nothing of cancels.
//!
//! Invariant: as many labels as the configuration names engines, and one for what no such engine had.
// contract: C-29

use std::collections::BTreeMap;
use std::sync::Arc;

use lifecycle::{Guarantee, Outcome, OutcomeKind};

use crate::exposition::Text;

/// Counts by engine and level.
#[derive(Clone, Default, Debug)]
pub(crate) struct Left {
    /// What kvit's own workers had, or nobody yet.
    elsewhere: [u64; Guarantee::ALL.len()],
    engines: BTreeMap<Arc<str>, [u64; Guarantee::ALL.len()]>,
}

impl Left {
    /// A run has settled.
    pub(crate) fn settled(&mut self, outcome: Option<&Outcome>, engine: Option<&Arc<str>>, level: Option<Guarantee>) {
        let was_left = outcome.is_some_and(|outcome| matches!(outcome.kind(), OutcomeKind::Cancelled | OutcomeKind::Expired));
        let Some(level) = level.filter(|_| was_left) else { return };
        let counts = match engine {
            None => &mut self.elsewhere,
            Some(engine) => self.engines.entry(engine.clone()).or_default(),
        };
        counts[level as usize] += 1;
    }

    /// Those of them of which nobody has shown that they stopped.
    pub(crate) fn unproven(&self) -> u64 {
        let counts = std::iter::once(&self.elsewhere).chain(self.engines.values());
        counts.map(|counts| counts[Guarantee::BestEffort as usize] + counts[Guarantee::Unsupported as usize]).sum()
    }

    pub(crate) fn expose(&self, text: &mut Text) {
        let help = "Settled runs that were cancelled or expired, by how well it is proven that nothing of them is left, and by the engine of \
                    another make that had them last (no name: none had).";
        let mut f = text.counter("kvit_cancel_guarantees_total", help);
        let engines = self.engines.iter().map(|(name, counts)| (&**name, counts));
        for (upstream, counts) in std::iter::once(("", &self.elsewhere)).chain(engines) {
            for level in Guarantee::ALL {
                f.sample(&[("upstream", upstream), ("guarantee", level.as_str())], counts[*level as usize]);
            }
        }
    }
}
