//! What a probe of reuse brought: a few new runs that ask for blocks which the account calls free.
//!
//! A gauge that stands still says that nothing changes, and not that what it calls free is really given to whoever asks.
//!
//! Invariant: a probe that was not let in, or was in nobody's way to fail, proves nothing either way and says so.

use serde::{Deserialize, Serialize};

/// What became of a probe.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Probe {
    /// Runs that were sent.
    pub runs: u32,
    /// Of them, those that were answered whole.
    pub answered: u32,
    /// Of them, those that got no blocks in their time, though the account called enough of them free.
    pub starved: u32,
    /// Blocks that the account called free or cached before.
    pub available: u64,
    /// Blocks that the runs asked for together.
    pub blocks: u64,
    /// Blocks that they held together, each at its most, by their records. `None` where nobody says.
    pub held: Option<u64>,
    /// Whether what they held is free or cached again. `None` where nobody says.
    pub back: Option<bool>,
    /// How long they were given, in milliseconds.
    pub patience_ms: u64,
    /// Why nothing was sent, or nothing follows from it.
    pub unsaid: Option<String>,
}

impl Probe {
    /// A probe that proves nothing.
    pub fn unsaid(why: impl Into<String>) -> Probe {
        Probe { unsaid: Some(why.into()), ..Probe::default() }
    }

    /// Whether new runs got what the account calls free, and gave it back.
    pub fn shows_reuse(&self) -> bool {
        self.unsaid.is_none() && self.runs > 0 && self.answered == self.runs && self.back != Some(false)
    }

    /// In a sentence.
    pub(crate) fn told(&self) -> String {
        if let Some(why) = &self.unsaid {
            return format!("The probe of reuse proves nothing: {why}.");
        }
        let held = self.held.map_or_else(String::new, |held| format!(", which held {held} blocks at their most"));
        let back = match self.back {
            Some(true) => "; all of them are free or cached again",
            Some(false) => "; not all of them came back",
            None => "",
        };
        let Probe { runs, answered, available, blocks, .. } = self;
        let of = if *available > 0 { format!(" of the {available} that are called free or cached") } else { String::new() };
        format!("The probe of reuse asked for {blocks} blocks{of}, in {runs} runs: {answered} were answered{held}{back}.")
    }
}
