//! One case at a time: each promise of the engine, shown by counts of steps, tokens and blocks.

use lifecycle::{Cause, Outcome, OutcomeKind, Time};

use super::simulated::{BT, World, id, isolated};
use crate::device::{DeviceError, RowDone};
use crate::{EngineConfig, Input, Submission};

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

#[test]
fn a_run_completes_with_the_tokens_of_an_isolated_run() {
    let mut w = World::small(40);
    w.submit("a", &prompt(1, 21), 9);
    w.finish(100);
    w.assert_at_rest();
    assert_eq!(w.seen("a").answers[&0], isolated(&prompt(1, 21), 9, false));
    assert_eq!(w.seen("a").ended[0].kind(), OutcomeKind::Completed);
}

// contract: C-12  field: F-01, F-19, F-29
#[test]
fn a_cancel_in_decode_costs_at_most_one_token() {
    let mut w = World::small(40);
    let s = Submission { stop_tokens: vec![], max_tokens: Some(100), ..w.submission("a") };
    w.start(s, &prompt(1, 10));
    for _ in 0..12 {
        w.step();
    }
    w.fill(); // one step runs, one is queued
    let before = w.seen("a").answers[&0].len();
    w.cancel("a", Cause::ClientClosed);
    w.finish(10);
    w.assert_at_rest();
    let seen = w.seen("a");
    assert_eq!(seen.answers[&0].len(), before, "nothing is delivered after the cancel");
    assert!(seen.computed_after_cancel <= 1);
    assert_eq!(seen.ended[0].cause, Cause::ClientClosed);
    assert_eq!(seen.acknowledged, [Some(Cause::ClientClosed)]);
}

// contract: C-12  field: F-13, F-23
#[test]
fn a_cancel_in_prefill_stops_at_the_next_step() {
    let mut w = World::small(60);
    w.submit("long", &prompt(1, 150), 8);
    w.step();
    w.fill();
    w.cancel("long", Cause::ClientReset);
    let steps_left = (0..10).take_while(|_| w.step()).count();
    w.assert_at_rest();
    assert!(steps_left <= 2, "the step that runs and the one behind it, nothing more");
    assert_eq!(w.seen("long").answers.len(), 0);
}

// contract: C-13  field: F-34
#[test]
fn a_cancel_of_a_queued_run_and_of_one_being_tokenised_touches_no_block() {
    let mut w = World::small(10);
    w.submit("first", &prompt(1, 30), 8);
    w.step();
    w.submit("queued", &prompt(2, 20), 8);
    let s = w.submission("slow");
    w.apply(Input::Submit(Box::new(s)));
    w.cancel("queued", Cause::ClientClosed);
    w.cancel("slow", Cause::ClientClosed);
    assert_eq!(w.seen("queued").released[0].blocks_peak, 0);
    assert_eq!(w.seen("slow").released[0].blocks_peak, 0);
    w.apply(Input::Tokenised { attempt: id("slow"), tokens: prompt(3, 5) });
    w.finish(50);
    w.assert_at_rest();
}

// contract: C-4, C-8  field: F-31, F-47
#[test]
fn cancels_after_the_end_change_nothing_and_say_what_won() {
    let mut w = World::small(40);
    w.submit("a", &prompt(1, 9), 3);
    w.finish(50);
    let ended = w.seen("a").ended;
    w.cancel("a", Cause::CancelRequested);
    w.cancel("a", Cause::ClientClosed);
    w.assert_at_rest();
    assert_eq!(w.seen("a").ended, ended);
    assert_eq!(w.cut().tombstones, 0, "an old cancel leaves nothing behind");
    let told = w.seen("a").events.iter().any(|e| matches!(e, lifecycle::event::Event::Tombstoned { .. }));
    assert!(!told, "nor is it said to");

    w.submit("b", &prompt(2, 9), 100);
    w.step();
    w.fill();
    w.cancel("b", Cause::ClientClosed);
    w.cancel("b", Cause::CancelRequested);
    assert_eq!(w.seen("b").acknowledged, [Some(Cause::ClientClosed), Some(Cause::ClientClosed)]);
    w.finish(5);
    w.assert_at_rest();
}

// contract: C-2, C-11  field: F-22
#[test]
fn a_cancel_before_its_submit_computes_nothing() {
    let mut w = World::small(40);
    let s = w.submission("late");
    w.cancel("late", Cause::CancelRequested);
    assert_eq!(w.cut().tombstones, 1);
    w.start(s.clone(), &prompt(1, 9));
    assert_eq!(w.seen("late").ended[0].cause, Cause::CancelRequested);
    assert_eq!(w.seen("late").released[0].steps, 0);
    assert!(!w.step());
    // The same submit again, after all is forgotten: never executed twice.
    w.start(s, &prompt(1, 9));
    assert!(!w.step());
    assert_eq!(w.cut().tombstones, 0);
    w.assert_at_rest();
}

// contract: C-2
#[test]
fn forgotten_tombstones_raise_the_mark() {
    let mut w = World::new(40, EngineConfig { tombstones: 2, ..EngineConfig::default() });
    let early: Vec<Submission> = (0..3).map(|i| w.submission(&format!("t{i}"))).collect();
    for i in 0..3 {
        w.cancel(&format!("t{i}"), Cause::ClientClosed);
    }
    assert_eq!(w.cut().tombstones, 2);
    w.start(early[0].clone(), &prompt(1, 5));
    assert!(!w.step(), "forgotten, so refused");
}

// contract: C-14, C-18, C-19  field: F-43, F-60, F-61
#[test]
fn a_shared_prefix_is_computed_once_and_survives_its_first_owner() {
    let mut w = World::small(60);
    let p = prompt(4, 33);
    w.submit("leader", &p, 20);
    while w.seen("leader").answers.is_empty() {
        assert!(w.step(), "the leader gets its first token");
    }
    w.submit("follower", &p, 20);
    w.step();
    w.cancel("leader", Cause::ClientClosed);
    w.finish(100);
    w.assert_at_rest();
    assert_eq!(w.seen("follower").cached_tokens, 32);
    assert_eq!(w.seen("follower").answers[&0], isolated(&p, 20, false));
}

// contract: C-19
#[test]
fn a_follower_takes_over_when_the_leader_ends_in_prefill() {
    let mut w = World::small(60);
    let p = prompt(4, 90);
    w.submit("leader", &p, 8);
    w.step();
    w.submit("follower", &p, 8);
    w.step();
    w.cancel("leader", Cause::ClientClosed);
    w.finish(100);
    w.assert_at_rest();
    let seen = w.seen("follower");
    assert!(seen.cached_tokens >= 16, "what the leader finished is reused: {}", seen.cached_tokens);
    assert_eq!(seen.answers[&0], isolated(&p, 8, false));
}

// contract: C-31  field: F-68, F-69, F-70
#[test]
fn n_sequences_share_the_prompt_and_end_as_one() {
    let mut w = World::small(60);
    let p = prompt(6, 18);
    let s = Submission { n: 3, max_tokens: Some(30), stop_tokens: vec![], ..w.submission("n3") };
    w.start(s, &p);
    for _ in 0..9 {
        w.step();
    }
    w.fill();
    w.cancel("n3", Cause::ClientClosed);
    assert!(w.seen("n3").released.is_empty(), "a step still holds it");
    w.finish(5);
    w.assert_at_rest();
    let seen = w.seen("n3");
    assert_eq!(seen.answers.len(), 3);
    assert!(seen.answers.values().all(|a| isolated(&p, 30, true).starts_with(a)));
    assert!(seen.computed_after_cancel <= 3);
}

// contract: C-16  field: F-40, F-59
#[test]
fn preemption_makes_progress_and_changes_no_token() {
    let mut w = World::small(14);
    for i in 0..3 {
        let s = Submission { max_tokens: Some(24), stop_tokens: vec![], ..w.submission(&format!("p{i}")) };
        w.start(s, &prompt(i, 14));
    }
    w.finish(400);
    w.assert_at_rest();
    assert!((0..3).map(|i| w.seen(&format!("p{i}")).preempted).sum::<u32>() > 0, "the pool is too small for three");
    for i in 0..3 {
        assert_eq!(w.seen(&format!("p{i}")).answers[&0], isolated(&prompt(i, 14), 24, true));
    }
}

// contract: C-22  field: F-82
#[test]
fn deadlines_fire_in_queue_prefill_and_decode() {
    let mut w = World::small(60);
    let deadline = |w: &mut World, name: &str, at: u64, cause| {
        let s = Submission { deadlines: vec![(Time(at), cause)], max_tokens: Some(100), stop_tokens: vec![], ..w.submission(name) };
        w.start(s, &prompt(3, 40));
    };
    deadline(&mut w, "decode", 1000, Cause::ClientDeadline);
    for _ in 0..8 {
        w.step();
    }
    deadline(&mut w, "queue", 500, Cause::QueueDeadline);
    w.now = Time(600);
    w.apply(Input::Tick);
    assert_eq!(w.seen("queue").ended[0].cause, Cause::QueueDeadline);
    let s = Submission { deadlines: vec![(Time(800), Cause::GatewayDeadline)], ..w.submission("prefill") };
    w.start(s, &prompt(5, 150));
    for _ in 0..3 {
        w.step();
    }
    let prefilling = |w: &World| w.cut().attempts.iter().any(|a| a.attempt == id("prefill") && a.state == "prefilling");
    assert!(prefilling(&w), "150 tokens are more than three steps");
    w.now = Time(800);
    w.apply(Input::Tick);
    assert_eq!((w.seen("prefill").ended[0].cause, w.seen("prefill").answers.len()), (Cause::GatewayDeadline, 0));
    assert!(!prefilling(&w));
    assert_eq!(w.engine.next_deadline(), Some(Time(1000)));
    w.now = Time(1001);
    w.apply(Input::Tick);
    w.finish(5);
    assert_eq!(w.seen("decode").ended[0].kind(), OutcomeKind::Expired);
    w.assert_at_rest();
}

#[test]
fn a_queue_deadline_is_void_once_the_run_is_scheduled() {
    let mut w = World::small(60);
    let s = Submission { deadlines: vec![(Time(500), Cause::QueueDeadline)], ..w.submission("a") };
    w.start(s, &prompt(3, 10));
    w.step();
    assert_eq!(w.engine.next_deadline(), None);
    w.finish(50);
    assert_eq!(w.seen("a").ended[0].kind(), OutcomeKind::Completed);
}

#[test]
fn what_can_never_run_is_rejected_with_its_reason() {
    let mut w = World::small(10);
    w.submit("fit", &prompt(1, 30), 100);
    w.submit("over", &[1; 200], 1);
    w.submit("empty", &[], 1);
    w.submit("vocab", &[5000], 1);
    let s = Submission { n: 9, ..w.submission("wide") };
    w.start(s, &[1, 2]);
    let causes = ["fit", "over", "empty", "vocab", "wide"].map(|n| w.seen(n).ended[0].cause);
    assert_eq!(causes, [Cause::CannotFit, Cause::OverLimit, Cause::Invalid, Cause::Invalid, Cause::OverLimit]);
    w.assert_at_rest();
}

#[test]
fn a_full_queue_rejects_and_keeps_what_waits() {
    let mut w = World::new(40, EngineConfig { queue_limit: 2, max_running: 8, ..EngineConfig::default() });
    for i in 0..3 {
        w.submit(&format!("q{i}"), &prompt(i, 5), 4);
    }
    assert_eq!(w.seen("q2").ended[0].cause, Cause::QueueFull);
    w.finish(50);
    assert_eq!(w.seen("q1").ended[0].kind(), OutcomeKind::Completed);
    w.assert_at_rest();
}

// contract: C-16
#[test]
fn a_failed_step_ends_what_it_held_and_the_engine_goes_on() {
    let mut w = World::small(40);
    w.submit("a", &prompt(1, 10), 20);
    w.step();
    w.fill();
    let done = w.device.fail_step(DeviceError::Step("simulated".into())).expect("a step is queued");
    w.apply(Input::StepDone(done));
    w.submit("b", &prompt(2, 10), 5);
    w.finish(50);
    w.assert_at_rest();
    assert_eq!(w.seen("a").ended[0].cause, Cause::DeviceError);
    assert_eq!(w.seen("b").answers[&0], isolated(&prompt(2, 10), 5, false));
}

// contract: C-15, C-16  field: F-26, F-36
#[test]
fn a_hung_step_quarantines_its_blocks_and_a_late_fence_changes_nothing() {
    let mut w = World::small(40);
    let s = Submission { stop_tokens: vec![], max_tokens: Some(50), ..w.submission("a") };
    w.start(s, &prompt(1, 10));
    w.step();
    w.fill();
    let late = w.device.queue.front().map(|p| p.id).expect("a step is queued");
    let done = w.device.fail_step(DeviceError::Hung("simulated".into())).expect("a step is queued");
    w.device.queue.clear();
    w.apply(Input::StepDone(done));
    let s = w.cut();
    assert!(s.quarantined >= 3 && s.is_conserved());
    let quarantined = s.quarantined;
    w.apply(Input::StepDone(crate::StepDone { id: late, result: Ok(vec![RowDone::Computed { sampled: None, late: false }]) }));
    let s = w.cut();
    assert_eq!(s.quarantined, quarantined);
    assert!(s.late_completions >= 1);
    w.submit("b", &prompt(2, 10), 5);
    w.finish(50);
    w.assert_at_rest();
    assert_eq!(w.seen("b").answers[&0], isolated(&prompt(2, 10), 5, false));
}

#[test]
fn a_lost_device_ends_everything_and_refuses_more() {
    let mut w = World::small(40);
    w.submit("a", &prompt(1, 10), 20);
    w.step();
    w.fill();
    w.apply(Input::DeviceLost("simulated".into()));
    w.submit("b", &prompt(2, 10), 5);
    assert_eq!(w.seen("a").ended[0].cause, Cause::DeviceError);
    assert_eq!(w.seen("b").ended[0].cause, Cause::DeviceError);
    w.apply(Input::DeviceLost("again".into()));
    assert_eq!((w.engine.is_lost(), w.lost.as_slice()), (Some("simulated"), &["simulated".to_owned()][..]));
    assert_eq!(w.cut().device_lost.as_deref(), Some("simulated"));
    w.assert_at_rest();
}

// contract: C-19, C-21
#[test]
fn salts_keep_prefixes_apart() {
    let mut w = World::small(60);
    let p = prompt(4, 33);
    w.submit("a", &p, 4);
    w.finish(50);
    let s = Submission { cache_salt: "other".into(), ..w.submission("b") };
    w.start(s, &p);
    w.submit("c", &p, 4);
    w.finish(50);
    assert_eq!((w.seen("b").cached_tokens, w.seen("c").cached_tokens), (0, 33 / BT * BT));
    w.assert_at_rest();
}

// contract: C-4, C-8
#[test]
fn a_prompt_that_cannot_be_made_ends_its_attempt_and_acknowledges_no_cancel() {
    let mut w = World::small(10);
    let s = w.submission("bad");
    w.apply(Input::Submit(Box::new(s)));
    for _ in 0..2 {
        w.apply(Input::Refused { attempt: id("bad"), outcome: Outcome::of(Cause::Invalid) });
    }
    w.assert_at_rest();
    let seen = w.seen("bad");
    assert_eq!((seen.ended.len(), seen.ended[0].cause), (1, Cause::Invalid));
    assert_eq!((seen.released.len(), seen.acknowledged.len()), (1, 0));
}
