//! The guards of sharing, allocation and preemption, one at a time (docs/mutants.md).

use lifecycle::Cause;
use lifecycle::event::Event;

use super::simulated::{World, id, isolated};
use crate::device::Flag;
use crate::{EngineConfig, Input, Submission};

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

fn capped(w: &mut World, name: &str, prompt: &[u32], cap: u32) {
    let s = Submission { stop_tokens: vec![], max_tokens: Some(cap), ..w.submission(name) };
    w.start(s, prompt);
}

/// What was journalled of a run's blocks: (held, cached tokens, shared).
fn allocations(w: &World, name: &str) -> Vec<(u32, u32, u32)> {
    let of = |e: &Event| match e {
        Event::BlocksAllocated { held, cached_tokens, shared } => Some((*held, *cached_tokens, *shared)),
        _ => None,
    };
    w.seen(name).events.iter().filter_map(of).collect()
}

// contract: C-24
#[test]
fn blocks_are_journalled_when_a_run_gets_some_and_not_otherwise() {
    let mut w = World::small(40);
    capped(&mut w, "first", &prompt(1, 40), 4);
    w.finish(20);
    assert_eq!(allocations(&w, "first"), [(4, 0, 0), (8, 0, 0), (10, 0, 0), (11, 0, 0)], "three chunks and an answer");
    capped(&mut w, "second", &prompt(1, 40), 4);
    w.finish(20);
    assert_eq!(allocations(&w, "second"), [(9, 36, 9), (10, 0, 0), (11, 0, 0)], "nine blocks were there; the last token is computed");
    w.assert_at_rest();
}

// contract: C-31
#[test]
fn what_a_run_s_answers_share_among_themselves_is_not_called_cached() {
    let mut w = World::small(40);
    let s = Submission { n: 2, stop_tokens: vec![], max_tokens: Some(3), ..w.submission("two") };
    w.start(s, &prompt(1, 10));
    w.finish(20);
    let seen = w.seen("two");
    assert_eq!((seen.cached_tokens, seen.released[0].blocks_shared), (0, 2));
    w.assert_at_rest();
}

/// Three runs that fill a pool of twelve blocks; the next step needs three more. One step is in flight.
fn full_pool() -> World {
    let mut w = World::new(12, EngineConfig { step_tokens: 64, max_running: 8, ..EngineConfig::default() });
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        capped(&mut w, name, &prompt(i as u32, 10), 12);
    }
    for _ in 0..6 {
        w.step();
    }
    assert_eq!((w.cut().active, w.engine.steps_in_flight()), (12, 1));
    w
}

// contract: C-16
#[test]
fn nobody_is_preempted_while_blocks_come_back_by_themselves() {
    let mut w = full_pool();
    w.cancel("c", Cause::ClientClosed);
    w.fill();
    let s = w.cut();
    assert_eq!((s.draining, s.active, w.engine.steps_in_flight()), (4, 8, 1), "a and b wait for what c leaves");
    assert_eq!((w.seen("a").preempted, w.seen("b").preempted), (0, 0));
    w.finish(30);
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        assert_eq!((w.seen(name).preempted, &w.seen(name).answers[&0]), (0, &isolated(&prompt(i as u32, 10), 12, true)));
    }
    w.assert_at_rest();
}

// contract: C-16
#[test]
fn the_youngest_alone_is_preempted_as_soon_as_a_block_is_missing() {
    let mut w = full_pool();
    w.fill();
    let preempted = ["a", "b", "c"].map(|name| w.seen(name).preempted);
    assert_eq!((preempted, w.engine.steps_in_flight()), ([0, 0, 1], 1), "before the step in flight is over");
    w.finish(60);
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(w.seen(name).answers[&0], isolated(&prompt(i as u32, 10), 12, true), "{name}");
    }
    w.assert_at_rest();
}

// contract: C-18
#[test]
fn a_chain_is_known_as_far_as_it_was_computed_and_no_farther() {
    let mut w = World::small(40);
    capped(&mut w, "a", &prompt(1, 12), 8);
    w.step();
    let key = w.engine.by_id[&id("a")];
    let known: Vec<bool> = (0..6).map(|b| w.engine.parent_node(key, 0, b).is_some()).collect();
    assert_eq!(known, [true, true, true, true, false, false]);
    w.finish(20);
}

// contract: C-16
#[test]
fn a_sequence_has_a_fence_while_a_step_holds_it_and_none_otherwise() {
    let mut w = World::small(40);
    capped(&mut w, "a", &prompt(1, 10), 8);
    let key = w.engine.by_id[&id("a")];
    let fence = |w: &World| w.engine.attempts[&key].sequences[0].fence();
    assert_eq!(fence(&w), None, "it waits");
    w.fill();
    assert_eq!(fence(&w), w.device.queue.back().map(|step| step.id), "the newest of the two");
    while let Some(done) = w.device.run_step(|| {}) {
        w.apply(Input::StepDone(done));
    }
    assert_eq!(fence(&w), None, "both are over");
    w.finish(20);
}

/// A run of twelve tokens of prompt and twenty of an answer; when it has `known` of them, another runs whose prompt is its first twenty
/// tokens. How many tokens of the whole are then cached.
fn cached_after_another_ran_when_it_knew(known: usize) -> u32 {
    let p = prompt(1, 12);
    let whole: Vec<u32> = p.iter().copied().chain(isolated(&p, 20, true)).collect();
    let mut w = World::new(60, EngineConfig { step_tokens: 64, in_flight: 1, ..EngineConfig::default() });
    capped(&mut w, "a", &p, 20);
    while w.seen("a").answers.get(&0).is_none_or(|answer| answer.len() < known) {
        assert!(w.step());
    }
    capped(&mut w, "b", &whole[..20], 1);
    w.step();
    assert_eq!(w.seen("b").ended.len(), 1);
    w.finish(40);
    assert_eq!(w.seen("a").answers[&0], whole[12..]);
    capped(&mut w, "c", &whole, 1);
    w.finish(10);
    w.assert_at_rest();
    w.seen("c").cached_tokens
}

// contract: C-18, C-19
#[test]
fn where_a_chain_broke_the_later_blocks_stay_private() {
    // With four tokens, the answer's first block is full with the next step, in which the other computes the same block.
    assert_eq!(cached_after_another_ran_when_it_knew(4), 20, "what the other computed, and nothing of what came after it");
}

// contract: C-18, C-19
#[test]
fn a_chain_goes_on_over_a_block_that_another_has_computed() {
    assert_eq!(cached_after_another_ran_when_it_knew(2), 28, "all but the block with the last token");
}

// contract: C-18
#[test]
fn an_answer_s_blocks_are_shared_as_a_prompt_s_are() {
    let p = prompt(1, 12);
    let whole: Vec<u32> = p.iter().copied().chain(isolated(&p, 20, true)).collect();
    let mut w = World::small(60);
    capped(&mut w, "a", &p, 20);
    w.finish(40);
    capped(&mut w, "b", &whole, 1);
    w.finish(10);
    assert_eq!(w.seen("b").cached_tokens, 28, "all but the block with the last token");
    w.assert_at_rest();
}

// contract: C-18, C-19
#[test]
fn what_could_not_be_claimed_is_shared_when_it_is_computed() {
    let mut w = World::new(60, EngineConfig { step_tokens: 64, ..EngineConfig::default() });
    let (p, stranger) = (prompt(1, 24), kv::Owner(u64::MAX));
    let root = w.engine.pool.root("somebody", "model", "");
    for i in 0..60 {
        w.engine.pool.begin(root, &[i; 4], stranger).expect("as many claims as the pool has blocks");
    }
    capped(&mut w, "a", &p, 1);
    w.fill();
    let key = w.engine.by_id[&id("a")];
    assert!(w.engine.attempts[&key].sequences[0].nodes.is_empty(), "it computes without a claim");
    w.engine.pool.abandon(stranger);
    w.finish(5);
    capped(&mut w, "b", &p, 1);
    w.finish(5);
    assert_eq!(w.seen("b").cached_tokens, 20, "all but the block with the last token");
    w.assert_at_rest();
}

// contract: C-24
#[test]
fn an_engine_knows_whom_it_has_not_released_and_is_idle_without_them() {
    let mut w = World::small(40);
    assert!(w.engine.is_idle() && !w.engine.knows(&id("a")));
    capped(&mut w, "a", &prompt(1, 10), 20);
    assert!(!w.engine.is_idle() && w.engine.knows(&id("a")) && !w.engine.knows(&id("b")));
    w.step();
    w.fill();
    w.cancel("a", Cause::ClientClosed);
    assert!(!w.engine.is_idle() && w.engine.knows(&id("a")), "its rows are in flight");
    w.step();
    w.step();
    assert!(w.engine.is_idle() && !w.engine.knows(&id("a")));
}

// contract: C-12
#[test]
fn a_flag_is_the_same_as_its_copies_and_as_no_other() {
    let (one, other) = (Flag::default(), Flag::default());
    let copy = one.clone();
    copy.set();
    assert!(one.is_same(&copy) && !one.is_same(&other));
    assert!(one.is_set() && !other.is_set());
}
