//! One guard at a time: each test is the only thing that stands between a condition of the engine and its opposite.
//!
//! Found by changing every condition in turn (docs/mutants.md).

use lifecycle::event::Event;
use lifecycle::{Cause, Phase, Time};

use super::simulated::{World, id, isolated};
use crate::device::{DeviceError, RowDone, StepDone};
use crate::{Input, Submission};

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

fn endless(w: &mut World, name: &str) {
    capped(w, name, 100);
}

/// Ten tokens of prompt, three blocks, and so many of an answer.
fn capped(w: &mut World, name: &str, cap: u32) {
    let s = Submission { stop_tokens: vec![], max_tokens: Some(cap), ..w.submission(name) };
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
    let s = w.cut();
    assert!(s.quarantined >= 3 && s.is_conserved(), "{s:?}");
    assert_eq!((w.engine.steps_in_flight(), s.late_completions), (0, 0));
    assert_eq!(w.failures, [s.quarantined, 0], "the run's blocks are in both steps and taken along once");
    w.apply(Input::StepDone(first));
    assert_eq!(w.cut().late_completions, 1);
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
    assert_eq!((w.cut().quarantined, w.failures), (0, vec![0]));
}

/// What was journalled of a run's steps: layers of dropped rows, and counts of computed ones as (prompt, generated, discarded, late).
type Steps = (Vec<u32>, Vec<(u32, u32, u32, u32)>);

fn steps(w: &World, name: &str) -> Steps {
    let (mut dropped, mut computed) = (Vec::new(), Vec::new());
    for event in &w.seen(name).events {
        match event {
            Event::RowsDropped { layers, .. } => dropped.push(*layers),
            Event::Computed { prompt_tokens, generated, discarded, late, .. } => {
                computed.push((*prompt_tokens, *generated, *discarded, *late));
            }
            _ => {}
        }
    }
    (dropped, computed)
}

/// Runs the oldest step as if every row's flag had been set when it was done.
fn step_late(w: &mut World) {
    let mut done = w.device.run_step(|| {}).expect("a step is queued");
    for row in done.result.iter_mut().flatten() {
        if let RowDone::Computed { late, .. } = row {
            *late = true;
        }
    }
    w.apply(Input::StepDone(done));
}

// contract: C-12
#[test]
fn a_step_is_journalled_by_what_it_computed_and_what_it_dropped() {
    let mut w = World::small(40);
    endless(&mut w, "a");
    w.step();
    assert_eq!(steps(&w, "a"), (vec![], vec![(10, 1, 0, 0)]), "computed, and nothing dropped");
    w.fill();
    w.cancel("a", Cause::ClientClosed);
    w.step();
    w.step();
    assert_eq!(steps(&w, "a"), (vec![0, 0], vec![(10, 1, 0, 0)]), "dropped before its first layer, and nothing computed");
    endless(&mut w, "b");
    w.step();
    w.fill();
    let flag = w.device.queue[0].rows[0].flag.clone();
    let done = w.device.run_step(|| flag.set()).expect("a step is queued");
    w.cancel("b", Cause::ClientClosed);
    w.apply(Input::StepDone(done));
    w.finish(5);
    assert_eq!(steps(&w, "b").0, [3, 0], "dropped in its third layer; the one behind it before its first");
    w.assert_at_rest();
}

// contract: C-12, C-31
#[test]
fn a_step_with_one_answer_dropped_and_one_computed_is_journalled_as_both() {
    let mut w = World::small(60);
    let s = Submission { n: 2, stop_tokens: vec![], max_tokens: Some(50), ..w.submission("two") };
    w.start(s, &prompt(1, 10));
    for _ in 0..6 {
        w.step();
    }
    w.fill();
    let (dropped, computed) = steps(&w, "two");
    assert_eq!(dropped, []);
    w.apply(Input::Stop { attempt: id("two"), sequence: 0 });
    w.step();
    let (dropped, after) = steps(&w, "two");
    assert_eq!((dropped, after.len()), (vec![0], computed.len() + 1));
    assert_eq!(after.last(), Some(&(0, 1, 0, 0)));
    w.cancel("two", Cause::ClientClosed);
    w.finish(10);
    w.assert_at_rest();
}

// contract: C-12
#[test]
fn only_a_token_that_came_late_counts_as_late() {
    let mut w = World::small(40);
    let s = Submission { stop_tokens: vec![], max_tokens: Some(50), ..w.submission("a") };
    w.start(s, &prompt(1, 40));
    w.fill();
    step_late(&mut w);
    assert_eq!(steps(&w, "a").1, [(16, 0, 0, 0)], "a chunk of a prompt is no token");
    w.step();
    w.fill();
    step_late(&mut w);
    assert_eq!(steps(&w, "a").1.last(), Some(&(8, 1, 0, 1)), "the first token");
    w.cancel("a", Cause::ClientClosed);
    w.finish(5);
    w.assert_at_rest();
}

// contract: C-4, C-12
#[test]
fn a_token_that_was_computed_when_the_end_came_is_thrown_away() {
    let mut w = World::small(60);
    endless(&mut w, "a");
    w.step();
    w.fill();
    let done = w.device.run_step(|| {}).expect("a step is queued");
    w.cancel("a", Cause::ClientClosed);
    w.apply(Input::StepDone(done));
    w.finish(5);
    assert_eq!((w.seen("a").answers[&0].len(), w.seen("a").discarded, w.seen("a").delivered_after_end), (1, 1, 0));
    // The same for one answer of two that has found its stop string.
    let s = Submission { n: 2, stop_tokens: vec![], max_tokens: Some(50), ..w.submission("two") };
    w.start(s, &prompt(2, 10));
    for _ in 0..6 {
        w.step();
    }
    w.fill();
    let before = w.seen("two").answers[&0].len();
    let done = w.device.run_step(|| {}).expect("a step is queued");
    w.apply(Input::Stop { attempt: id("two"), sequence: 0 });
    w.apply(Input::StepDone(done));
    w.step();
    assert_eq!((w.seen("two").answers[&0].len(), w.seen("two").discarded), (before, 1));
    w.cancel("two", Cause::ClientClosed);
    w.finish(5);
    w.assert_at_rest();
}

#[test]
fn the_first_token_is_journalled_once() {
    let mut w = World::small(40);
    let s = Submission { n: 2, stop_tokens: vec![], max_tokens: Some(5), ..w.submission("a") };
    w.start(s, &prompt(1, 10));
    w.finish(30);
    assert_eq!(w.seen("a").events.iter().filter(|e| matches!(e, Event::FirstToken)).count(), 1);
}

// contract: C-22
#[test]
fn a_deadline_fires_at_its_moment_and_not_before() {
    let mut w = World::small(40);
    let s = Submission { deadlines: vec![(Time(500), Cause::ClientDeadline)], ..w.submission("a") };
    w.start(s, &prompt(1, 10));
    w.now = Time(498);
    w.apply(Input::Tick);
    assert!(w.seen("a").ended.is_empty(), "one microsecond is left");
    w.apply(Input::Tick);
    assert_eq!((w.now, w.seen("a").ended.len()), (Time(500), 1));
    w.finish(5);
}

fn applied(w: &World, name: &str) -> Option<Phase> {
    w.seen(name).events.iter().find_map(|e| match e {
        Event::CancelApplied { phase, .. } => Some(*phase),
        _ => None,
    })
}

// contract: C-24
#[test]
fn a_cancel_is_journalled_with_the_phase_in_which_it_was_applied() {
    let mut w = World::small(80);
    w.submit("queued", &prompt(1, 40), 8);
    w.cancel("queued", Cause::ClientClosed);
    w.submit("prefill", &prompt(2, 60), 8);
    w.step();
    w.cancel("prefill", Cause::ClientClosed);
    w.finish(5);
    w.submit("first", &prompt(3, 10), 8);
    w.fill();
    w.cancel("first", Cause::ClientClosed);
    w.finish(5);
    endless(&mut w, "decode");
    w.step();
    w.cancel("decode", Cause::ClientClosed);
    w.finish(5);
    let phases = ["queued", "prefill", "first", "decode"].map(|name| applied(&w, name));
    assert_eq!(phases, [Phase::Queued, Phase::Prefill, Phase::BeforeFirstToken, Phase::Decode].map(Some));
    // Preempted with tokens: to its caller it is decoding, also while it is recomputed.
    let mut w = World::small(14);
    for i in 0..3 {
        let s = Submission { max_tokens: Some(24), stop_tokens: vec![], ..w.submission(&format!("p{i}")) };
        w.start(s, &prompt(i, 14));
    }
    while w.seen("p2").preempted == 0 {
        assert!(w.step(), "the pool is too small for three");
    }
    assert!(!w.seen("p2").answers.is_empty());
    w.cancel("p2", Cause::ClientClosed);
    assert_eq!(applied(&w, "p2"), Some(Phase::Decode));
    w.finish(200);
    w.assert_at_rest();
}

// contract: C-24
#[test]
fn a_fence_is_journalled_of_a_run_that_was_in_a_step_and_of_no_other() {
    let mut w = World::small(60);
    w.submit("waits", &prompt(1, 10), 8);
    w.cancel("waits", Cause::ClientClosed);
    endless(&mut w, "steps");
    w.step();
    w.fill();
    w.cancel("steps", Cause::ClientClosed);
    w.finish(5);
    let fences = |name: &str| w.seen(name).events.iter().filter(|e| matches!(e, Event::FenceCompleted { .. })).count();
    assert_eq!((fences("waits"), fences("steps")), (0, 1));
    w.assert_at_rest();
}

#[test]
fn a_run_that_needs_the_whole_pool_runs_and_one_block_more_is_refused() {
    let mut w = World::small(10);
    let submit = |w: &mut World, name: &str, cap| {
        let s = Submission { stop_tokens: vec![], max_tokens: Some(cap), ..w.submission(name) };
        w.start(s, &prompt(1, 30));
    };
    submit(&mut w, "more", 12);
    assert_eq!(w.seen("more").ended[0].cause, Cause::CannotFit);
    submit(&mut w, "whole", 11);
    w.finish(50);
    assert_eq!((w.seen("whole").answers[&0].len(), w.seen("whole").ended[0].cause), (11, Cause::Length));
    w.assert_at_rest();
}

fn state(w: &World, name: &str) -> Option<&'static str> {
    w.cut().attempts.iter().find(|a| a.attempt == id(name)).map(|a| a.state)
}

#[test]
fn as_many_answers_as_there_are_slots_run_and_one_more_is_refused() {
    let mut w = World::small(80);
    for (name, n) in [("more", 9), ("all", 8)] {
        let s = Submission { n, stop_tokens: vec![], max_tokens: Some(3), ..w.submission(name) };
        w.start(s, &prompt(1, 6));
    }
    assert_eq!(w.seen("more").ended[0].cause, Cause::OverLimit);
    w.finish(30);
    assert_eq!((w.seen("all").answers.len(), w.seen("all").ended[0].cause), (8, Cause::Length));
    w.assert_at_rest();
}

#[test]
fn a_prompt_that_fills_the_pool_alone_is_let_in() {
    let mut w = World::small(10);
    w.submit("a", &prompt(1, 40), 1);
    w.finish(20);
    assert_eq!(w.seen("a").answers[&0].len(), 1);
    w.assert_at_rest();
}

// contract: C-16
#[test]
fn who_fits_beside_another_to_the_block_is_let_in_and_who_does_not_waits() {
    for (len, expected) in [(28, "prefilling"), (29, "queued")] {
        let mut w = World::small(10);
        capped(&mut w, "a", 20);
        w.step();
        assert_eq!(w.cut().active, 3);
        w.submit("b", &prompt(2, len), 1);
        w.fill();
        assert_eq!(state(&w, "b"), Some(expected), "{len} tokens, seven blocks are left");
        w.cancel("a", Cause::ClientClosed);
        w.finish(20);
        assert_eq!(w.seen("b").answers[&0].len(), 1);
        w.assert_at_rest();
    }
}

#[test]
fn who_waits_for_a_slot_waits_though_there_is_room() {
    let mut w = World::small(80);
    let s = Submission { n: 8, stop_tokens: vec![], max_tokens: Some(30), ..w.submission("all") };
    w.start(s, &prompt(1, 6));
    w.step();
    w.submit("b", &prompt(2, 6), 1);
    w.fill();
    assert_eq!(state(&w, "b"), Some("queued"));
    w.cancel("all", Cause::ClientClosed);
    w.finish(20);
    assert_eq!(w.seen("b").answers[&0].len(), 1);
    w.assert_at_rest();
}

// contract: C-16
#[test]
fn who_waits_for_blocks_that_a_device_took_along_is_refused() {
    let mut w = World::small(10);
    capped(&mut w, "a", 20);
    w.step();
    w.submit("b", &prompt(2, 32), 1);
    w.fill();
    assert_eq!(state(&w, "b"), Some("queued"));
    let done = w.device.fail_step(DeviceError::Hung("simulated".into())).expect("a step is queued");
    w.device.queue.clear();
    w.apply(Input::StepDone(done));
    w.fill();
    assert_eq!(w.seen("b").ended[0].cause, Cause::CannotFit);
    w.assert_at_rest();
}
