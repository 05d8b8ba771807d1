//! A lost session, in every state: the attempt is not scheduled, keeps what it has, and goes on where it was, or is ended where it is.
// contract: C-10, C-13

use lifecycle::event::Event;
use lifecycle::{Cause, OutcomeKind, Time};

use super::simulated::{World, id, isolated};
use crate::device::{RowDone, StepDone};
use crate::{EngineConfig, Input, Submission};

const CAP: u32 = 24;
const DEADLINE: Time = Time(100_000);

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (seed * 17 + i * 5) % 90).collect()
}

fn capped(w: &mut World, name: &str, prompt: &[u32], cap: u32) {
    let s = Submission { stop_tokens: vec![], max_tokens: Some(cap), ..w.submission(name) };
    w.start(s, prompt);
}

fn suspend(w: &mut World, name: &str) {
    w.apply(Input::Suspend { attempt: id(name) });
}

fn attach(w: &mut World, name: &str) {
    w.apply(Input::Attach { attempt: id(name) });
}

fn state(w: &World, name: &str) -> Option<&'static str> {
    w.cut().attempts.iter().find(|a| a.attempt == id(name)).map(|a| a.state)
}

fn blocks(w: &World, name: &str) -> u32 {
    w.cut().attempts.iter().find(|a| a.attempt == id(name)).map_or(0, |a| a.blocks)
}

fn tokens(w: &World, name: &str) -> usize {
    w.seen(name).answers.values().map(Vec::len).sum()
}

/// Runs what the device has, and plans nothing new before it.
fn drain(w: &mut World) {
    while let Some(done) = w.device.run_step(|| {}) {
        w.apply(Input::StepDone(done));
    }
}

/// Where the run `x` is when its session is lost.
#[derive(Clone, Copy, PartialEq, Debug)]
enum At {
    Tokenising,
    Queued,
    Prefill,
    BeforeFirstToken,
    Decode,
    PreemptedWithRows,
    Preempted,
}

const EVERYWHERE: [At; 7] =
    [At::Tokenising, At::Queued, At::Prefill, At::BeforeFirstToken, At::Decode, At::PreemptedWithRows, At::Preempted];

fn prompt_of_x(at: At) -> Vec<u32> {
    prompt(5, if at == At::Prefill { 60 } else { 14 })
}

/// A world with the run `x` there, with `n` answers, and others beside it. Steps may be in flight.
fn world(at: At, n: u32) -> World {
    let crowded = matches!(at, At::Queued | At::Preempted | At::PreemptedWithRows);
    let pools = if crowded { 8 + 5 * n..20 + 7 * n } else { 60..61 };
    pools.into_iter().find_map(|blocks| reach(at, n, blocks)).unwrap_or_else(|| panic!("x with {n} answers never came to {at:?}"))
}

fn reach(at: At, n: u32, blocks: u32) -> Option<World> {
    let crowded = blocks < 60;
    let mut w = World::small(blocks);
    capped(&mut w, "other", &prompt(1, 14), CAP);
    if crowded {
        w.step();
    }
    let s = Submission {
        n,
        stop_tokens: vec![],
        max_tokens: Some(CAP),
        deadlines: vec![(DEADLINE, Cause::ClientDeadline)],
        ..w.submission("x")
    };
    w.apply(Input::Submit(Box::new(s)));
    if at != At::Tokenising {
        w.apply(Input::Tokenised { attempt: id("x"), tokens: prompt_of_x(at) });
    }
    let rows = |w: &World| w.engine.attempts[&w.engine.by_id[&id("x")]].rows_in_flight;
    let is_there = |w: &World| match at {
        At::Tokenising | At::Queued => true,
        At::Prefill => state(w, "x") == Some("prefilling"),
        At::BeforeFirstToken => w.engine.attempts[&w.engine.by_id[&id("x")]].sequences.iter().all(|s| s.sampled),
        At::Decode => tokens(w, "x") >= 2 * n as usize,
        At::PreemptedWithRows => state(w, "x") == Some("preempted") && rows(w) > 0,
        At::Preempted => state(w, "x") == Some("preempted") && rows(w) == 0,
    };
    for _ in 0..200 {
        if !w.engine.knows(&id("x")) {
            return None;
        }
        if is_there(&w) {
            return Some(w);
        }
        w.fill();
        if is_there(&w) {
            return Some(w);
        }
        let done = w.device.run_step(|| {})?;
        w.apply(Input::StepDone(done));
    }
    None
}

/// The prompt's text comes, should it still be missing.
fn tokenise(w: &mut World, at: At) {
    if at == At::Tokenising {
        w.apply(Input::Tokenised { attempt: id("x"), tokens: prompt_of_x(at) });
    }
}

fn finish_alike(mut w: World, at: At, n: u32) {
    w.finish(400);
    w.assert_at_rest();
    assert_eq!(w.seen("other").answers[&0], isolated(&prompt(1, 14), CAP as usize, true), "{at:?}");
    let seen = w.seen("x");
    assert_eq!((seen.ended[0].cause, seen.answers.len() as u32), (Cause::Length, n), "{at:?}");
    let expected = isolated(&prompt_of_x(at), CAP as usize, true);
    assert!(seen.answers.values().all(|a| *a == expected), "{at:?}: it lost no token and got none twice");
}

// contract: C-10, C-13, C-14
#[test]
fn from_every_state_a_run_goes_on_where_it_was() {
    for (at, n) in EVERYWHERE.into_iter().flat_map(|at| [(at, 1), (at, 2)]) {
        let mut w = world(at, n);
        let (before, held) = (state(&w, "x"), blocks(&w, "x"));
        suspend(&mut w, "x");
        assert_eq!((state(&w, "x"), blocks(&w, "x")), (Some("suspended"), held), "{at:?}");
        attach(&mut w, "x");
        assert_eq!((state(&w, "x"), blocks(&w, "x")), (before, held), "{at:?}");
        tokenise(&mut w, at);
        finish_alike(w, at, n);
    }
}

// contract: C-10, C-14
#[test]
fn a_run_that_is_suspended_for_long_is_in_no_new_step_and_keeps_its_blocks() {
    for (at, n) in EVERYWHERE.into_iter().flat_map(|at| [(at, 1), (at, 2)]) {
        let mut w = world(at, n);
        suspend(&mut w, "x");
        drain(&mut w);
        // What was in flight counts. From here on nothing moves.
        tokenise(&mut w, at);
        let (held, known, steps) = (blocks(&w, "x"), tokens(&w, "x"), w.engine.attempts[&w.engine.by_id[&id("x")]].steps);
        let waiting = matches!(at, At::Tokenising | At::Queued | At::Preempted | At::PreemptedWithRows);
        assert_eq!(held == 0, waiting, "{at:?}");
        while w.seen("other").ended.is_empty() {
            assert!(w.step(), "{at:?}: the other goes on");
        }
        drain(&mut w);
        assert!(!w.step(), "{at:?}: there is nothing else to compute");
        let x = &w.engine.attempts[&w.engine.by_id[&id("x")]];
        assert_eq!((blocks(&w, "x"), tokens(&w, "x"), x.steps), (held, known, steps), "{at:?}");
        assert_eq!((state(&w, "x"), w.seen("x").ended.len()), (Some("suspended"), 0), "{at:?}");
        attach(&mut w, "x");
        finish_alike(w, at, n);
    }
}

// contract: C-10, C-12, C-13, C-20, C-31
#[test]
fn a_cancel_of_a_suspended_run_works_in_every_state() {
    for (at, n) in EVERYWHERE.into_iter().flat_map(|at| [(at, 1), (at, 2)]) {
        for drained in [false, true] {
            let mut w = world(at, n);
            suspend(&mut w, "x");
            if drained {
                drain(&mut w);
            }
            let before = w.seen("x").answers;
            let in_flight = w.engine.attempts[&w.engine.by_id[&id("x")]].rows_in_flight > 0;
            w.cancel("x", Cause::Orphaned);
            let seen = w.seen("x");
            assert_eq!((seen.ended[0].cause, &seen.acknowledged[..]), (Cause::Orphaned, &[Some(Cause::Orphaned)][..]), "{at:?}");
            assert_eq!(seen.released.is_empty(), in_flight, "{at:?}: released behind its fence, and at once where there is none");
            // What comes for it now finds nothing to do.
            suspend(&mut w, "x");
            attach(&mut w, "x");
            tokenise(&mut w, at);
            w.finish(200);
            w.assert_at_rest();
            let seen = w.seen("x");
            assert_eq!((seen.answers, seen.released.len(), seen.ended.len()), (before, 1, 1), "{at:?}");
            assert!(seen.computed_after_cancel <= n, "{at:?}");
            assert_eq!(w.seen("other").answers[&0], isolated(&prompt(1, 14), CAP as usize, true), "{at:?}");
        }
    }
}

// contract: C-22
#[test]
fn a_deadline_of_a_suspended_run_fires_in_every_state() {
    for at in EVERYWHERE {
        let mut w = world(at, 1);
        suspend(&mut w, "x");
        w.now = DEADLINE;
        w.apply(Input::Tick);
        assert_eq!(w.seen("x").ended[0].cause, Cause::ClientDeadline, "{at:?}");
        w.finish(200);
        w.assert_at_rest();
    }
}

// contract: C-10, C-22
#[test]
fn the_time_in_the_queue_counts_on_while_a_run_is_suspended() {
    let mut w = World::small(10);
    capped(&mut w, "first", &prompt(1, 30), 8);
    w.step();
    let s = Submission { deadlines: vec![(Time(500), Cause::QueueDeadline)], ..w.submission("x") };
    w.start(s, &prompt(2, 20));
    suspend(&mut w, "x");
    w.now = Time(600);
    w.apply(Input::Tick);
    assert_eq!(w.seen("x").ended[0].cause, Cause::QueueDeadline);
    w.finish(50);
    w.assert_at_rest();
}

// contract: C-8, C-10
#[test]
fn suspended_twice_is_suspended_once_and_so_is_attached() {
    for at in EVERYWHERE {
        let mut w = world(at, 1);
        attach(&mut w, "x");
        let before = state(&w, "x");
        suspend(&mut w, "x");
        suspend(&mut w, "x");
        attach(&mut w, "x");
        assert_eq!(state(&w, "x"), before, "{at:?}: one attach takes any number of suspends back");
        attach(&mut w, "x");
        assert_eq!(state(&w, "x"), before, "{at:?}");
        tokenise(&mut w, at);
        finish_alike(w, at, 1);
    }
    // Nobody of that name is here.
    let mut w = World::small(10);
    suspend(&mut w, "nobody");
    attach(&mut w, "nobody");
    w.assert_at_rest();
}

// contract: C-10
#[test]
fn tokens_of_a_step_in_flight_arrive_while_a_run_is_suspended() {
    // Its first.
    let mut w = world(At::BeforeFirstToken, 1);
    suspend(&mut w, "x");
    drain(&mut w);
    assert!(tokens(&w, "x") > 0);
    assert_eq!(w.seen("x").events.iter().filter(|e| matches!(e, Event::FirstToken)).count(), 1);
    attach(&mut w, "x");
    assert_eq!(state(&w, "x"), Some("decoding"), "the machine has seen its first token");
    finish_alike(w, At::BeforeFirstToken, 1);
    // Its last: it comes to its own end.
    let mut w = World::small(40);
    capped(&mut w, "x", &prompt(5, 14), 3);
    w.step();
    w.fill();
    suspend(&mut w, "x");
    drain(&mut w);
    assert_eq!((w.seen("x").ended[0].cause, w.seen("x").released.len()), (Cause::Length, 1));
    assert_eq!(w.seen("x").answers[&0], isolated(&prompt(5, 14), 3, true));
    w.assert_at_rest();
    // A stop string found in them.
    let mut w = world(At::Decode, 1);
    suspend(&mut w, "x");
    w.apply(Input::Stop { attempt: id("x"), sequence: 0 });
    assert_eq!(w.seen("x").ended[0].cause, Cause::Stop);
    w.finish(100);
    w.assert_at_rest();
}

/// Tokens of prompts computed for a run.
fn computed(w: &World, name: &str) -> u32 {
    let of = |e: &Event| match e {
        Event::Computed { prompt_tokens, .. } => *prompt_tokens,
        _ => 0,
    };
    w.seen(name).events.iter().map(of).sum()
}

// contract: C-10, C-14, C-19
#[test]
fn who_follows_a_suspended_run_takes_over_at_once_and_is_followed_in_turn() {
    let p = prompt(4, 100);
    let steps_to_first_token = |lost: Option<(usize, bool)>| {
        let mut w = World::small(120);
        capped(&mut w, "leader", &p, 8);
        capped(&mut w, "follower", &p, 8);
        let mut steps = 0;
        while tokens(&w, "follower") == 0 {
            if let Some((_, planned)) = lost.filter(|(after, _)| *after == steps) {
                if planned {
                    w.fill();
                }
                suspend(&mut w, "leader");
            }
            assert!(w.step(), "{lost:?}: the follower goes on");
            steps += 1;
        }
        let leader = tokens(&w, "leader");
        attach(&mut w, "leader");
        w.finish(100);
        w.assert_at_rest();
        for name in ["leader", "follower"] {
            assert_eq!(w.seen(name).answers[&0], isolated(&p, 8, true), "{lost:?}: {name}");
        }
        (steps, leader, computed(&w, "leader") + computed(&w, "follower"))
    };
    let (beside, _, _) = steps_to_first_token(None);
    for lost in (0..6).flat_map(|after| [(after, false), (after, true)]) {
        let (steps, leader, computed) = steps_to_first_token(Some(lost));
        assert!(steps <= beside, "{lost:?}: {steps} steps, {beside} where nobody is lost");
        assert!(leader <= 1, "{lost:?}: at most the token of a step in flight");
        // The prompt once, and for each of them the tokens of the last block, whose logits it needs.
        assert!(computed <= 100 + 4, "{lost:?}: {computed} tokens; what one has, the other takes");
    }
}

/// A suspended run that keeps ten blocks of a pool of twelve, and one that has the other two.
fn held_up() -> World {
    let mut w = World::small(12);
    capped(&mut w, "kept", &prompt(1, 37), CAP.min(8));
    for _ in 0..4 {
        w.step();
    }
    drain(&mut w);
    assert_eq!(blocks(&w, "kept"), 10);
    suspend(&mut w, "kept");
    capped(&mut w, "alone", &prompt(2, 6), 8);
    for _ in 0..20 {
        w.step();
    }
    w
}

// contract: C-10, C-16
#[test]
fn a_run_that_lacks_blocks_which_a_suspended_one_keeps_waits_and_is_not_ended() {
    for ends in [false, true] {
        let mut w = held_up();
        let seen = w.seen("alone");
        assert_eq!((state(&w, "alone"), blocks(&w, "alone"), seen.ended.len(), seen.preempted), (Some("decoding"), 2, 0, 0));
        assert_eq!((w.engine.steps_in_flight(), seen.answers[&0].len()), (0, 3), "as far as its two blocks reach");
        assert_eq!((blocks(&w, "kept"), w.seen("kept").preempted), (10, 0));
        match ends {
            true => w.cancel("kept", Cause::Orphaned),
            false => attach(&mut w, "kept"),
        }
        w.finish(100);
        w.assert_at_rest();
        assert_eq!(w.seen("alone").answers[&0], isolated(&prompt(2, 6), 8, true));
        let kept = w.seen("kept");
        match ends {
            true => assert_eq!(kept.ended[0].cause, Cause::Orphaned),
            false => assert_eq!((kept.preempted, &kept.answers[&0]), (0, &isolated(&prompt(1, 37), 8, true)), "it is older"),
        }
    }
}

// contract: C-10, C-16
#[test]
fn of_several_that_lack_blocks_the_oldest_goes_on_with_those_of_the_youngest() {
    let mut w = World::small(14);
    capped(&mut w, "kept", &prompt(1, 37), 8);
    for _ in 0..4 {
        w.step();
    }
    suspend(&mut w, "kept");
    drain(&mut w);
    for (i, name) in ["a", "b"].into_iter().enumerate() {
        capped(&mut w, name, &prompt(2 + i as u32, 6), 6);
    }
    while w.step() {}
    let preempted = ["kept", "a", "b"].map(|name| w.seen(name).preempted);
    assert!(preempted[..2] == [0, 0] && w.seen("b").preempted > 0, "{preempted:?}");
    assert_eq!(w.seen("a").answers[&0], isolated(&prompt(2, 6), 6, true));
    assert_eq!(w.seen("b").answers[&0], isolated(&prompt(3, 6), 6, true));
    attach(&mut w, "kept");
    w.finish(50);
    w.assert_at_rest();
}

// contract: C-10, C-16
#[test]
fn who_does_not_fit_beside_a_suspended_run_waits_until_it_ends() {
    let mut w = held_up();
    w.cancel("alone", Cause::ClientClosed);
    capped(&mut w, "large", &prompt(3, 20), 2);
    assert!(!w.step());
    assert_eq!((state(&w, "large"), w.seen("large").ended.len()), (Some("queued"), 0));
    w.cancel("kept", Cause::Orphaned);
    w.finish(20);
    w.assert_at_rest();
    assert_eq!(w.seen("large").answers[&0], isolated(&prompt(3, 20), 2, true));
}

// contract: C-10
#[test]
fn a_suspended_run_that_waits_is_passed_over_and_keeps_its_turn() {
    let config = EngineConfig { step_tokens: 16, max_running: 1, queue_limit: 3, ..EngineConfig::default() };
    let mut w = World::new(40, config);
    for (i, name) in ["first", "second", "third"].into_iter().enumerate() {
        capped(&mut w, name, &prompt(i as u32, 10), 2);
    }
    suspend(&mut w, "first");
    // It still counts as one that waits.
    let s = w.submission("fourth");
    w.start(s, &prompt(9, 10));
    assert_eq!(w.seen("fourth").ended[0].cause, Cause::QueueFull);
    w.step();
    assert_eq!(["first", "second", "third"].map(|name| state(&w, name)), [Some("suspended"), Some("decoding"), Some("queued")]);
    attach(&mut w, "first");
    while w.seen("second").ended.is_empty() {
        w.step();
    }
    w.fill();
    assert_eq!(["first", "third"].map(|name| state(&w, name)), [Some("prefilling"), Some("queued")], "in the order of arrival");
    w.finish(30);
    w.assert_at_rest();
}

// contract: C-10
#[test]
fn a_suspended_run_keeps_its_slot_and_is_in_the_tables() {
    let config = EngineConfig { step_tokens: 16, max_running: 1, ..EngineConfig::default() };
    let mut w = World::new(40, config);
    capped(&mut w, "kept", &prompt(1, 10), 8);
    w.step();
    suspend(&mut w, "kept");
    drain(&mut w);
    let (held, cut) = (w.cut().held, w.cut());
    assert_eq!((held.running, held.slots, held.waiting), (1, 1, 0));
    assert_eq!((cut.queued, cut.running, cut.stopping), (1, 0, 0), "it waits for its gateway");
    capped(&mut w, "next", &prompt(2, 10), 2);
    assert!(!w.step(), "the only slot is taken");
    attach(&mut w, "kept");
    w.finish(30);
    w.assert_at_rest();
    assert_eq!(w.seen("kept").answers[&0], isolated(&prompt(1, 10), 8, true));
}

/// The device drops a row of the suspended run `x` that nobody has flagged.
fn broken() -> World {
    let mut w = world(At::Decode, 1);
    w.fill();
    suspend(&mut w, "x");
    let plan = w.device.queue.pop_front().expect("a step is in flight");
    let rows = plan.rows.iter().map(|_| RowDone::Dropped { layers: 1 }).collect();
    w.device.queue.clear();
    w.apply(Input::StepDone(StepDone { id: plan.id, result: Ok(rows) }));
    w.defects = 0;
    w
}

// contract: C-10, C-14
#[test]
fn a_suspended_run_whose_row_the_device_broke_is_recomputed_when_it_goes_on() {
    for cancelled in [false, true] {
        let mut w = broken();
        assert_eq!((state(&w, "x"), blocks(&w, "x"), w.seen("x").preempted), (Some("suspended"), 0, 0));
        assert_eq!(w.cut().held.waiting, 2, "both wait to be recomputed");
        let step = w.engine.in_flight.front().map(|f| f.id);
        if let Some(id) = step {
            let rows = w.engine.in_flight[0].rows.iter().map(|_| RowDone::Dropped { layers: 0 }).collect();
            w.apply(Input::StepDone(StepDone { id, result: Ok(rows) }));
        }
        match cancelled {
            true => w.cancel("x", Cause::Orphaned),
            false => attach(&mut w, "x"),
        }
        if cancelled {
            w.finish(200);
            assert_eq!((w.seen("x").ended[0].cause, w.seen("x").released.len()), (Cause::Orphaned, 1));
        } else {
            assert_eq!((state(&w, "x"), w.seen("x").preempted), (Some("preempted"), 1));
            finish_alike(w, At::Decode, 1);
        }
    }
}

// contract: C-10, C-15
#[test]
fn a_lost_device_ends_suspended_runs_too() {
    let mut w = world(At::Decode, 2);
    suspend(&mut w, "x");
    w.apply(Input::DeviceLost("simulated".into()));
    assert_eq!((w.seen("x").ended[0].cause, w.seen("x").released.len()), (Cause::DeviceError, 1));
    w.assert_at_rest();
}

// contract: C-15, C-23
#[test]
fn the_blocks_that_only_unclaimed_runs_own_are_counted_as_orphaned() {
    let mut w = World::small(40);
    capped(&mut w, "a", &prompt(1, 21), 4);
    w.step();
    w.step();
    capped(&mut w, "b", &prompt(1, 21), 4);
    capped(&mut w, "c", &prompt(2, 9), 4);
    w.step();
    w.step();
    let cut = |names: &[&str]| w.engine.snapshot(false, &|attempt| names.iter().any(|name| id(name) == *attempt));
    assert!(cut(&[]).is_conserved());
    let (a, b, c) = (blocks(&w, "a"), blocks(&w, "b"), blocks(&w, "c"));
    assert_eq!((a, b, c), (6, 6, 3));
    assert_eq!(cut(&[]).orphaned, 0);
    assert_eq!((cut(&["a"]).orphaned, cut(&["b"]).orphaned), (1, 1), "five are shared with somebody who is claimed");
    assert_eq!((cut(&["c"]).orphaned, cut(&["a", "c"]).orphaned), (3, 4));
    assert_eq!(cut(&["a", "b"]).orphaned, 7, "the shared ones count once");
    assert_eq!(cut(&["a", "b", "c", "nobody"]).orphaned, cut(&[]).active);
    w.fill();
    w.cancel("c", Cause::Orphaned);
    let cut = w.engine.snapshot(false, &|_| true);
    assert_eq!((cut.orphaned, cut.draining), (7, 3), "what drains has no owner");
    w.finish(20);
    assert!(w.seen("a").ended[0].kind() == OutcomeKind::Completed);
    w.assert_at_rest();
}
