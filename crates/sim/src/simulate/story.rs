//! What happened, in the contract's words: kept only when somebody is going to read it.
//!
//! Invariant: nothing is formatted while no story is told.

/// A line a happening, if it is told.
#[derive(Debug)]
pub(super) struct Story(Option<Vec<String>>);

impl Story {
    pub fn new(told: bool) -> Story {
        Story(told.then(Vec::new))
    }

    pub fn add(&mut self, now: u64, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            lines.push(format!("{:>10.3} ms  {}", now as f64 / 1000.0, what()));
        }
    }

    pub fn into_lines(self) -> Vec<String> {
        self.0.unwrap_or_default()
    }
}
