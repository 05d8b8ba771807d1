//! One guard at a time: each test is the only thing that stands between a condition of the engine and its opposite.
//!
//! Found by changing every condition in turn (docs/mutants.md).

use lifecycle::Cause;

use super::simulated::{World, isolated};
use crate::device::{DeviceError, StepDone};
use crate::{Input, Submission};

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

fn endless(w: &mut World, name: &str) {
    let s = Submission { stop_tokens: vec![], max_tokens: Some(100), ..w.submission(name) };
    w.start(s, &prompt(1, 10));
}

// contract: C-16
#[test]
fn a_fence_that_overtakes_another_gives_both_steps_up() {
    let mut w = World::small(40);
    endless(&mut w, "a");
    w.step();
    w.fill();
    assert_eq!(w.engine.steps_in_flight(), 2);
    let first = w.device.run_step(|| {}).expect("a step is queued");
    let second = w.device.run_step(|| {}).expect("another is queued");
    w.apply(Input::StepDone(second));
    assert_eq!(w.seen("a").ended[0].cause, Cause::DeviceError);
    assert!(w.seen("a").ended[0].reason.as_ref().is_some_and(|r| r.contains("overtaken")), "{:?}", w.seen("a").ended);
    let s = w.engine.snapshot(false);
    assert!(s.quarantined >= 3 && s.is_conserved(), "{s:?}");
    assert_eq!((w.engine.steps_in_flight(), s.late_completions), (0, 0));
    w.apply(Input::StepDone(first));
    assert_eq!(w.engine.snapshot(false).late_completions, 1);
    w.submit("b", &prompt(2, 10), 5);
    w.finish(50);
    w.assert_at_rest();
    assert_eq!(w.seen("b").answers[&0], isolated(&prompt(2, 10), 5, false));
}

// contract: C-16
#[test]
fn a_fence_that_does_not_match_its_plan_fails_the_step() {
    let mut w = World::small(40);
    endless(&mut w, "a");
    w.step();
    w.fill();
    let step = w.device.fail_step(DeviceError::Step("unused".into())).expect("a step is queued").id;
    w.apply(Input::StepDone(StepDone { id: step, result: Ok(Vec::new()) }));
    let ended = &w.seen("a").ended;
    assert_eq!(ended[0].cause, Cause::DeviceError);
    assert!(ended[0].reason.as_ref().is_some_and(|r| r.contains("does not match")), "{ended:?}");
    // It is over all the same: nothing is taken along.
    w.finish(5);
    w.assert_at_rest();
    assert_eq!(w.engine.snapshot(false).quarantined, 0);
}
