//! Cells that no exploration meets, each with its reason. An empty list of states or events stands for all of them.
//!
//! Invariant: first match counts; a cell that is met must not be in here.

/// A reason, and the cells that it is for.
pub struct Excuse {
    /// `attempt` or `call`.
    pub machine: &'static str,
    states: &'static [&'static str],
    events: &'static [&'static str],
    /// The reason.
    pub why: &'static str,
}

impl Excuse {
    /// Whether it is for this cell.
    pub fn holds(&self, state: &str, event: &str) -> bool {
        let is_in = |list: &[&str], word| list.is_empty() || list.contains(&word);
        is_in(self.states, state) && is_in(self.events, event)
    }
}

/// All of them.
pub const EXCUSES: &[Excuse] = &[];
