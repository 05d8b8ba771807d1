//! A run step by step, as `GET /v1/runs/{id}/steps` shows it: what each step computed for it, as long as the journal's ring has the records.
//!
//! Invariant: read off the ring and kept nowhere; the ring's lock is held for `SCAN` records at a time, however many it has.
// contract: C-24

use lifecycle::event::{Event, Record};
use lifecycle::{RunKey, Time};
use serde::Serialize;

use crate::journal::Journal;

/// Records that are looked at without letting go of the lock.
pub(crate) const SCAN: usize = 4096;
/// Most steps that are shown of a run: its newest ones.
pub const STEPS_MAX: usize = 8192;

/// What the numbers of a row are, in their order.
const COLUMNS: [&str; 8] = ["ms", "attempt", "step", "prompt_tokens", "generated", "discarded", "late", "layers_dropped"];

/// The steps of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StepsView {
    /// Always `run_steps`.
    pub object: &'static str,
    /// The run's id.
    pub id: String,
    /// Whether these are all its steps: the ring has not lost one of them, and they are not too many.
    pub complete: bool,
    /// What the numbers of a row are.
    pub columns: [&'static str; 8],
    /// One a step and attempt, in order of time: when it was over in milliseconds since `accepted`, and what it computed.
    pub rows: Vec<StepRow>,
}

/// A step's row; serialises as a list, in the order of `columns`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct StepRow(pub f64, pub u32, pub u64, pub u32, pub u32, pub u32, pub u32, pub u32);

impl Journal {
    /// What each step computed for a run. `None` if the run is not known here.
    pub fn steps(&self, key: &RunKey) -> Option<StepsView> {
        let (base, total) = self.base_and_steps(key)?;
        let mut rows: Vec<StepRow> = Vec::new();
        self.scan(|record| {
            if record.run.as_ref() == Some(key) {
                take(&mut rows, record, base);
            }
        });
        let complete = rows.len() as u64 >= total && rows.len() <= STEPS_MAX;
        rows.drain(..rows.len().saturating_sub(STEPS_MAX));
        Some(StepsView { object: "run_steps", id: key.run.as_str().to_owned(), complete, columns: COLUMNS, rows })
    }
}

/// Takes a record in. What one step computed to the end and what it dropped come as two records, and are one row.
fn take(rows: &mut Vec<StepRow>, record: &Record, base: Time) {
    let (ms, attempt) = (record.at.ms_since(base), record.attempt);
    let row = match &record.event {
        Event::Computed { step, prompt_tokens, generated, discarded, late } => {
            StepRow(ms, attempt, step.0, *prompt_tokens, *generated, *discarded, *late, 0)
        }
        Event::RowsDropped { step, layers } if *layers > 0 => StepRow(ms, attempt, step.0, 0, 0, 0, 0, *layers),
        _ => return,
    };
    match rows.last_mut() {
        Some(last) if (last.1, last.2) == (row.1, row.2) => {
            *last = StepRow(row.0, row.1, row.2, last.3 + row.3, last.4 + row.4, last.5 + row.5, last.6 + row.6, last.7 + row.7);
        }
        _ => rows.push(row),
    }
}
