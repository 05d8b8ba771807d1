//! A run step by step, out of a ring that forgets.
// contract: C-24

use lifecycle::StepId;
use lifecycle::event::Event;
use observe::{Clock, Journal, Limits, RunState, StepRow};

use crate::story::*;

#[test]
fn each_step_is_a_row() {
    let journal = journal();
    cancelled_run(&journal, &key("r1"));
    cancelled_run(&journal, &key("r2"));
    let steps = journal.steps(&key("r1")).expect("a known run");
    assert_eq!((steps.id.as_str(), steps.complete, steps.rows.len()), ("r1", true, 19));
    assert_eq!(steps.rows[0], StepRow(21.5, 1, 1, 21, 1, 0, 0, 0));
    assert_eq!(steps.rows[18], StepRow(143.1, 1, 19, 0, 0, 1, 1, 0), "what was thrown away shows");
    let run = journal.run(&key("r1")).expect("a known run");
    assert_eq!(run.state, RunState::Ended);
    let generated: u32 = steps.rows.iter().map(|row| row.4 + row.5).sum();
    assert_eq!(
        (u64::from(generated), steps.rows.len() as u64),
        (run.tokens.generated, run.steps.total),
        "the same as the run's own counts"
    );
    let shown = serde_json::to_value(&steps).expect("JSON");
    assert_eq!(shown["columns"].as_array().map(Vec::len), shown["rows"][0].as_array().map(Vec::len));
    assert_eq!(journal.steps(&key("r3")), None);
}

#[test]
fn what_a_step_dropped_is_in_its_row() {
    let journal = journal();
    of_attempt(&journal, &key("r"), 0, 0, accepted());
    for (us, event) in [
        (100, queued(40)),
        (5000, computed(1, 40, 0, 0)),
        (9000, Event::RowsDropped { step: StepId(2), layers: 7 }),
        (9000, computed(2, 0, 1, 0)),
        (9500, Event::RowsDropped { step: StepId(3), layers: 0 }),
    ] {
        at(&journal, &key("r"), us, event);
    }
    let rows = journal.steps(&key("r")).expect("a known run").rows;
    assert_eq!(rows, [StepRow(5.0, 1, 1, 40, 0, 0, 0, 0), StepRow(9.0, 1, 2, 0, 1, 0, 0, 7)]);
}

#[test]
fn steps_that_the_ring_has_lost_are_missed() {
    let journal = Journal::new(Clock::start(), Limits { records: 12, ..Limits::default() });
    cancelled_run(&journal, &key("r"));
    let steps = journal.steps(&key("r")).expect("a known run");
    assert!(!steps.complete);
    assert_eq!(steps.rows.iter().map(|row| row.2).collect::<Vec<_>>(), [19], "the newest are there");
}
