//! Who comes back at once, and who leaves between looking a prefix up and owning a block of it.

use lifecycle::{AttemptId, Cause};

use super::simulated::{World, id, isolated};
use crate::{Input, Submission};

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

// contract: C-18, C-19  field: F-37
#[test]
fn a_follower_that_leaves_before_it_owns_a_block_leaves_nothing_locked() {
    let mut w = World::small(60);
    let p = prompt(4, 90);
    w.submit("leader", &p, 8);
    w.fill();
    w.submit("follower", &p, 8);
    w.step();
    w.fill();
    // It has looked the prefix up and waits for what the leader computes.
    w.cancel("follower", Cause::ClientClosed);
    assert_eq!(w.seen("follower").released[0].steps, 0, "it never was in a step");
    w.finish(100);
    w.assert_at_rest();
    assert_eq!(w.seen("leader").answers[&0], isolated(&p, 8, false));
    // What the leader left behind can be evicted to the last block: nobody holds it.
    let filler = prompt(9, 190);
    for i in 0..6 {
        w.submit(&format!("filler{i}"), &prompt(20 + i, 190), 4);
    }
    w.submit("all", &filler, 8);
    w.finish(400);
    w.assert_at_rest();
    assert_eq!(w.seen("all").answers[&0], isolated(&filler, 8, false));
}

// contract: C-4, C-17  field: F-67
#[test]
fn a_run_that_comes_back_into_a_recycled_slot_gets_nothing_of_its_earlier_life() {
    let mut w = World::small(60);
    let (old, new) = (prompt(1, 40), prompt(2, 23));
    let s = Submission { stop_tokens: vec![], max_tokens: Some(60), ..w.submission("a") };
    w.start(s, &old);
    for _ in 0..8 {
        w.step();
    }
    w.fill(); // one step runs, one is queued
    w.cancel("a", Cause::ClientClosed);
    // The same run again, as its second attempt, while both steps of the first are still in flight.
    let again = AttemptId { attempt: 2, ..id("a") };
    let s = Submission { attempt: again.clone(), max_tokens: Some(12), ..w.submission("a") };
    w.apply(Input::Submit(Box::new(s)));
    w.apply(Input::Tokenised { attempt: again.clone(), tokens: new.clone() });
    w.finish(60);
    w.assert_at_rest();
    let seen = w.seen.get(&again).cloned().unwrap_or_default();
    assert_eq!(seen.answers[&0], isolated(&new, 12, false));
    assert_eq!(seen.ended.len(), 1);
}
