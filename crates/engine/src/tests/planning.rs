//! The guards of what a step holds, one at a time (docs/mutants.md).

use lifecycle::Cause;
use lifecycle::event::Event;

use super::simulated::{World, id, isolated};
use crate::device::{DeviceError, RowTokens};
use crate::{EngineConfig, Input, Submission};

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

fn capped(w: &mut World, name: &str, prompt: &[u32], cap: u32) {
    let s = Submission { stop_tokens: vec![], max_tokens: Some(cap), ..w.submission(name) };
    w.start(s, prompt);
}

fn world(blocks: u32, step_tokens: u32, in_flight: u32) -> World {
    World::new(blocks, EngineConfig { step_tokens, in_flight, max_running: 8, ..EngineConfig::default() })
}

fn blocks(w: &World, name: &str) -> u32 {
    w.cut().attempts.iter().find(|a| a.attempt == id(name)).map_or(0, |a| a.blocks)
}

/// Rows of the queued steps: (position, tokens, whether one is chosen), step by step.
fn rows(w: &World) -> Vec<Vec<(u32, u32, bool)>> {
    w.device.queue.iter().map(|p| p.rows.iter().map(|r| (r.position, r.count(), r.sample)).collect()).collect()
}

// contract: C-16
#[test]
fn a_run_that_is_left_alone_with_too_few_blocks_ends_and_says_so() {
    let mut w = world(12, 16, 2);
    capped(&mut w, "b", &prompt(1, 28), 8);
    w.step();
    w.fill();
    capped(&mut w, "a", &prompt(2, 10), 30);
    let done = w.device.fail_step(DeviceError::Hung("simulated".into())).expect("a step is queued");
    w.device.queue.clear();
    w.apply(Input::StepDone(done));
    let left = 12 - w.cut().quarantined;
    assert!((3..10).contains(&left), "room for the prompt of a and not for its answer: {left}");
    w.finish(60);
    let ended = &w.seen("a").ended[0];
    assert_eq!(ended.cause, Cause::WorkerError);
    assert!(ended.reason.as_ref().is_some_and(|r| r.contains("too few usable blocks")), "{ended:?}");
    let answer = &w.seen("a").answers[&0];
    assert_eq!(answer.len() as u32, left * 4 - 10 + 1, "as far as the blocks reach");
    assert_eq!(answer[..], isolated(&prompt(2, 10), answer.len(), true));
    assert_eq!(w.seen("a").preempted, 0);
    w.assert_at_rest();
}

// contract: C-12
#[test]
fn no_row_is_planned_beyond_the_last_token() {
    let mut w = world(40, 16, 2);
    capped(&mut w, "a", &prompt(1, 10), 3);
    w.finish(20);
    let seen = w.seen("a");
    assert_eq!((seen.released[0].steps, seen.answers[&0].len(), seen.discarded), (3, 3, 0));
    assert!(!seen.events.iter().any(|e| matches!(e, Event::RowsDropped { .. })));
    w.assert_at_rest();
}

// contract: C-16
#[test]
fn who_has_no_part_in_the_step_takes_no_blocks_for_it() {
    let mut w = world(40, 16, 1);
    capped(&mut w, "before", &prompt(1, 12), 1);
    w.finish(5);
    capped(&mut w, "a", &prompt(2, 16), 1);
    capped(&mut w, "b", &prompt(1, 12), 1);
    w.fill();
    assert_eq!(rows(&w), [vec![(0, 16, true)]], "the budget is one run's prompt");
    assert_eq!((blocks(&w, "a"), blocks(&w, "b")), (4, 0));
    w.finish(10);
    assert_eq!(w.seen("b").cached_tokens, 8);
    w.assert_at_rest();
}

#[test]
fn a_prompt_is_cut_at_whole_blocks_and_its_last_chunk_chooses() {
    let mut w = world(40, 15, 2);
    capped(&mut w, "a", &prompt(1, 30), 2);
    let mut seen = Vec::new();
    for _ in 0..4 {
        w.fill();
        seen.extend(w.device.queue.front().map(|p| (p.rows[0].position, p.rows[0].count(), p.rows[0].sample)));
        w.step();
    }
    assert_eq!(seen, [(0, 12, false), (12, 12, false), (24, 6, true), (30, 1, true)]);
    assert!(w.engine.is_idle());
    // What fits to the token is not cut.
    capped(&mut w, "b", &prompt(2, 15), 1);
    w.fill();
    assert_eq!(rows(&w), [vec![(0, 15, true)]]);
    assert!(matches!(w.device.queue[0].rows[0].tokens, RowTokens::Known { count: 15 }));
    w.finish(5);
    w.assert_at_rest();
}

// contract: C-24
#[test]
fn a_prefill_begins_once_and_a_step_counts_once() {
    let mut w = world(40, 64, 2);
    let s = Submission { n: 2, stop_tokens: vec![], max_tokens: Some(3), ..w.submission("two") };
    w.start(s, &prompt(1, 3));
    w.finish(20);
    let seen = w.seen("two");
    assert_eq!(seen.events.iter().filter(|e| matches!(e, Event::PrefillStart)).count(), 1);
    assert_eq!(seen.released[0].steps, 3, "both answers are in each");
    w.assert_at_rest();
}

// contract: C-18, C-19
#[test]
fn who_has_the_same_beginning_follows_and_computes_only_the_rest() {
    let (p, q) = (prompt(1, 16), prompt(1, 24));
    let mut w = world(60, 64, 2);
    capped(&mut w, "a", &p, 1);
    capped(&mut w, "b", &q, 1);
    w.fill();
    assert_eq!(rows(&w)[0], [(0, 16, true)], "b follows a from the first block on");
    w.step();
    w.fill();
    assert_eq!(rows(&w).concat(), [(16, 8, true)], "and takes what a has computed");
    w.finish(10);
    assert_eq!((w.seen("b").cached_tokens, &w.seen("b").answers[&0]), (16, &isolated(&q, 1, true)));
    w.assert_at_rest();
}

// contract: C-16
#[test]
fn a_prefill_that_gets_no_block_waits_and_plans_no_row() {
    let mut w = world(8, 5, 1);
    capped(&mut w, "a", &prompt(1, 10), 20);
    for _ in 0..3 {
        w.step();
    }
    assert_eq!(blocks(&w, "a"), 3);
    capped(&mut w, "b", &prompt(2, 20), 1);
    let mut waited = 0;
    for _ in 0..60 {
        w.fill();
        let planned = rows(&w).concat();
        assert!(planned.iter().all(|(_, count, _)| *count > 0), "{planned:?}");
        // A part of its prompt is computed, and the pool is full.
        waited += u32::from(planned.len() == 1 && blocks(&w, "b") == 4);
        w.step();
    }
    assert!(waited > 0, "a took the block that b's last chunk needs");
    assert_eq!(w.seen("a").preempted, 0);
    assert_eq!(w.seen("b").answers[&0], isolated(&prompt(2, 20), 1, true));
    assert!(w.engine.is_idle());
    w.assert_at_rest();
}
