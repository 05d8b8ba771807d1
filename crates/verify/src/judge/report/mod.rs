//! What a report looks like: a table for a person, JSON, JUnit for CI, a page, and how it differs from an older one.
//!
//! All of it comes from [`Report`](super::result::Report) alone, so that a report that was kept can be shown again in every form.
//!
//! Invariant: pure; whatever text a stack put into a report (names, records, logs) cannot leave the place in which it is shown.
// contract: C-29

use super::result::Report;

pub mod compare;
pub mod html;
pub mod json;
pub mod junit;
pub mod table;

mod matrix;
mod text;
mod timeline;

#[cfg(test)]
mod example;

/// A hop's name as it may be shown: a report may have come from anywhere.
pub fn clean_name(hop: &super::result::Hop) -> String {
    text::clean(&hop.name)
}

impl Report {
    /// How many cells and checks have a verdict of this word.
    pub fn count(&self, word: &str) -> usize {
        let cells = self.cells.iter().map(|cell| &cell.verdict);
        cells.chain(self.checks.iter().map(|check| &check.verdict)).filter(|verdict| verdict.word() == word).count()
    }

    /// 1 if anything fails, 2 if nothing could be judged, else 0.
    pub fn exit_code(&self) -> u8 {
        match (self.count("FAIL"), self.count("pass")) {
            (0, 0) => 2,
            (0, _) => 0,
            _ => 1,
        }
    }
}
