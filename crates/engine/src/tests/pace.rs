//! Deadlines that cannot be met: who is turned away, who is not, and that nobody is who could have made it.
// contract: C-22

use std::cell::Cell;

use lifecycle::{Cause, Time};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::simulated::{BT, World};
use crate::device::{DeviceError, StepPlan};
use crate::pace::{MEASURED_MIN, UNTRIED_MAX};
use crate::{EngineConfig, Input, Submission};

/// Prompt tokens of a full step.
const FULL: u32 = 16;
/// What a full step takes here, where a test says nothing else: ten microseconds a token.
const STEP: u64 = 160;

fn world(percent: u32) -> World {
    sized(FULL, 2, percent)
}

fn sized(step_tokens: u32, in_flight: u32, percent: u32) -> World {
    let config = EngineConfig { step_tokens, in_flight, max_running: 8, deadline_check_percent: percent, ..EngineConfig::default() };
    World::new(200, config)
}

/// A prompt that shares nothing with another of another seed.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| if i < BT { (seed / 90u32.pow(i)) % 90 } else { (seed * 13 + i * 7) % 90 }).collect()
}

/// One step that takes so long, on the device and to the microsecond.
fn step(w: &mut World, micros: u64) -> bool {
    w.fill();
    let Some(done) = w.device.run_step(|| {}) else { return false };
    w.now = Time(w.now.0 + micros - 1); // the world's clock goes on by one with each input
    w.apply(Input::StepDone(done));
    true
}

fn finish(w: &mut World, micros: u64) {
    let steps = (0..200).take_while(|_| step(w, micros)).count();
    assert!(steps < 200 && w.engine.is_idle());
}

/// A run with a prompt and a deadline from when its prompt is known.
fn ask(w: &mut World, name: &str, prompt: &[u32], left: u64, cause: Cause) {
    let at = Time(w.now.0 + 2 + left); // submit and prompt are an input each
    let s = Submission { max_tokens: Some(2), stop_tokens: vec![], deadlines: vec![(at, cause)], ..w.submission(name) };
    w.start(s, prompt);
}

fn cause(w: &World, name: &str) -> Option<Cause> {
    w.seen(name).ended.first().map(|o| o.cause)
}

/// Has this many full steps measured, each from the beginning of a prompt of its own.
fn measure(w: &mut World, steps: u32, micros: u64) {
    for _ in 0..steps {
        let n = w.numbers.len() as u32;
        let s = Submission { max_tokens: Some(1), ..w.submission(&format!("measured-{n}")) };
        w.start(s, &prompt(1000 + n, FULL as usize));
        finish(w, micros);
    }
}

/// A world that knows its pace.
fn known(percent: u32) -> World {
    let mut w = world(percent);
    measure(&mut w, MEASURED_MIN, STEP);
    w
}

#[test]
fn who_cannot_make_it_is_turned_away_with_the_numbers_and_a_microsecond_more_is_enough() {
    let mut w = known(100);
    ask(&mut w, "late", &prompt(1, 64), 4 * STEP - 1, Cause::ClientDeadline);
    let seen = w.seen("late");
    let outcome = &seen.ended[0];
    assert_eq!((outcome.cause, outcome.kind()), (Cause::DeadlineUnreachable, lifecycle::OutcomeKind::Rejected));
    let why = "the prompt needs at least 4 steps, 0 ms at the fastest pace seen here; of its client_deadline at most 1 ms are left";
    assert_eq!(outcome.reason.as_deref(), Some(why));
    assert_eq!((seen.released.len(), seen.released[0].steps, seen.released[0].blocks_peak), (1, 0, 0));
    assert_eq!(w.engine.next_deadline(), None);
    ask(&mut w, "just", &prompt(2, 64), 4 * STEP, Cause::ClientDeadline);
    assert_eq!(cause(&w, "just"), None);
    finish(&mut w, STEP);
    assert_eq!(cause(&w, "just"), Some(Cause::Length));
    w.assert_at_rest();
}

#[test]
fn the_least_number_of_steps_is_told() {
    // A chunk ends with a block, but for the last one, which may have the whole budget.
    let mut w = sized(18, 2, 100);
    measure(&mut w, MEASURED_MIN, 1_000_000);
    for (i, (len, steps)) in [(16, 1), (18, 1), (19, 2), (34, 2), (35, 3)].into_iter().enumerate() {
        let name = format!("r{i}");
        ask(&mut w, &name, &prompt(i as u32, len), 9, Cause::GatewayDeadline);
        let why = w.seen(&name).ended[0].reason.clone().expect("it says why");
        assert!(why.starts_with(&format!("the prompt needs at least {steps} steps, {} ms", len * 1000 / 16)), "{len}: {why}");
    }
}

#[test]
fn nobody_is_turned_away_before_the_pace_is_known() {
    let mut w = world(100);
    measure(&mut w, MEASURED_MIN - 1, STEP);
    ask(&mut w, "early", &prompt(1, 64), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "early"), None);
    w.cancel("early", Cause::ClientClosed);
    measure(&mut w, 1, STEP);
    ask(&mut w, "late", &prompt(2, 64), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "late"), Some(Cause::DeadlineUnreachable));
    w.assert_at_rest();
}

#[test]
fn the_share_that_counts_is_the_operators_and_none_turns_nobody_away() {
    for (percent, left, rejected) in [(50, 2 * STEP - 1, true), (50, 2 * STEP, false), (0, 1, false)] {
        let mut w = known(percent);
        ask(&mut w, "run", &prompt(1, 64), left, Cause::ClientDeadline);
        assert_eq!(cause(&w, "run").is_some(), rejected, "{percent} % {left}");
    }
}

#[test]
fn every_deadline_counts_but_the_queues_and_the_earliest_is_named() {
    for cause in [Cause::ClientDeadline, Cause::GatewayDeadline, Cause::WorkerDeadline, Cause::QueueDeadline] {
        let mut w = known(100);
        ask(&mut w, "run", &prompt(1, 64), 9, cause);
        let binds = cause != Cause::QueueDeadline;
        assert_eq!(w.seen("run").ended.len(), usize::from(binds), "{cause}");
    }
    let mut w = known(100);
    let later = |micros: u64, w: &World| Time(w.now.0 + 2 + micros);
    let deadlines = vec![
        (later(1, &w), Cause::QueueDeadline),
        (later(5000, &w), Cause::WorkerDeadline),
        (later(30, &w), Cause::GatewayDeadline),
        (later(40, &w), Cause::ClientDeadline),
    ];
    let s = Submission { deadlines, ..w.submission("run") };
    w.start(s, &prompt(1, 64));
    assert!(w.seen("run").ended[0].reason.as_ref().is_some_and(|r| r.contains("of its gateway_deadline")));
}

#[test]
fn a_deadline_that_has_passed_expires() {
    let mut w = known(100);
    let s = Submission { deadlines: vec![(w.now, Cause::ClientDeadline)], ..w.submission("run") };
    w.start(s, &prompt(1, 64));
    assert_eq!(cause(&w, "run"), None);
    w.apply(Input::Tick);
    assert_eq!(cause(&w, "run"), Some(Cause::ClientDeadline));
    w.assert_at_rest();
}

#[test]
fn what_is_not_a_full_step_is_not_judged() {
    let mut w = known(100);
    ask(&mut w, "short", &prompt(1, FULL as usize - 1), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "short"), None);
    ask(&mut w, "full", &prompt(2, FULL as usize), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "full"), Some(Cause::DeadlineUnreachable));
}

// contract: C-19
#[test]
fn what_is_cached_or_being_computed_is_free() {
    let long = prompt(1, 80);
    let mut w = known(100);
    ask(&mut w, "cold", &long, STEP, Cause::ClientDeadline);
    assert_eq!(cause(&w, "cold"), Some(Cause::DeadlineUnreachable));
    // Three chunks are there or in a step when the next one asks, so two are left.
    w.submit("first", &long, 1);
    step(&mut w, STEP);
    w.fill();
    ask(&mut w, "follows", &long, 2 * STEP, Cause::ClientDeadline);
    assert_eq!(cause(&w, "follows"), None);
    ask(&mut w, "too-late", &long, 2 * STEP - 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "too-late"), Some(Cause::DeadlineUnreachable));
    let salted = Submission {
        cache_salt: "other".into(),
        deadlines: vec![(Time(w.now.0 + 2 + 2 * STEP), Cause::ClientDeadline)],
        ..w.submission("salted")
    };
    w.start(salted, &long);
    assert_eq!(cause(&w, "salted"), Some(Cause::DeadlineUnreachable), "nothing is shared with another salt");
    finish(&mut w, STEP);
    // All of it but the block with the last token: less than a full step.
    ask(&mut w, "again", &long, 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "again"), None);
    // Where a block is a full step, that one has to be computed.
    let mut w = sized(BT, 2, 100);
    for i in 0..MEASURED_MIN {
        w.submit(&format!("r{i}"), &prompt(i, 16), 1);
        finish(&mut w, STEP);
    }
    for (name, left, rejected) in [("late", STEP - 1, true), ("just", STEP, false)] {
        ask(&mut w, name, &prompt(1, 16), left, Cause::ClientDeadline);
        assert_eq!(cause(&w, name).is_some(), rejected, "{name}");
    }
}

#[test]
fn several_answers_need_their_prompt_once() {
    let mut w = known(100);
    for (name, left, rejected) in [("late", 4 * STEP - 1, true), ("just", 4 * STEP, false)] {
        let at = Time(w.now.0 + 2 + left);
        let s = Submission { n: 3, deadlines: vec![(at, Cause::ClientDeadline)], ..w.submission(name) };
        w.start(s, &prompt(left as u32, 64));
        assert_eq!(cause(&w, name).is_some(), rejected, "{name}");
    }
}

#[test]
fn the_fastest_counts_and_position_does() {
    let mut w = known(100);
    // Slower ones change nothing, a faster one does.
    measure(&mut w, 3, STEP * 9);
    ask(&mut w, "as-before", &prompt(1, 64), 4 * STEP, Cause::ClientDeadline);
    assert_eq!(cause(&w, "as-before"), None);
    w.cancel("as-before", Cause::ClientClosed);
    measure(&mut w, 1, STEP / 2);
    ask(&mut w, "half", &prompt(2, 64), 2 * STEP, Cause::ClientDeadline);
    ask(&mut w, "less", &prompt(3, 64), 2 * STEP - 1, Cause::ClientDeadline);
    assert_eq!((cause(&w, "half"), cause(&w, "less")), (None, Some(Cause::DeadlineUnreachable)));

    // What was seen of prompts that go on from a cached beginning tells nothing of one that begins at nothing.
    let mut w = world(100);
    let beginning = prompt(5, 16);
    w.submit("beginning", &[beginning.clone(), vec![1]].concat(), 1);
    finish(&mut w, STEP);
    for i in 0..MEASURED_MIN {
        w.submit(&format!("on-{i}"), &[beginning.clone(), prompt(i, 16)].concat(), 1);
        finish(&mut w, STEP * 5);
    }
    ask(&mut w, "fresh", &prompt(6, 64), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "fresh"), None);
    ask(&mut w, "goes-on", &[beginning, prompt(7, 48)].concat(), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "goes-on"), Some(Cause::DeadlineUnreachable));
}

/// Steps of which the pace cannot be told.
#[test]
fn only_a_full_step_that_found_the_device_idle_is_measured() {
    let untold = |w: &mut World| {
        ask(w, "run", &prompt(1, 64), 1, Cause::ClientDeadline);
        assert_eq!(cause(w, "run"), None);
    };
    // Less than full.
    let mut w = world(100);
    for i in 0..2 * MEASURED_MIN {
        w.submit(&format!("r{i}"), &prompt(9 + i, FULL as usize - 1), 1);
        finish(&mut w, STEP);
    }
    untold(&mut w);
    // Beside one that decodes, or queued behind another step.
    let mut w = world(100);
    let s = Submission { max_tokens: Some(100), stop_tokens: vec![], ..w.submission("decodes") };
    w.start(s, &prompt(8, 4));
    step(&mut w, STEP);
    for i in 0..2 * MEASURED_MIN {
        w.submit(&format!("r{i}"), &prompt(9 + i, 3 * FULL as usize), 1);
        for _ in 0..4 {
            step(&mut w, 1);
        }
    }
    w.cancel("decodes", Cause::ClientClosed);
    untold(&mut w);
    // The same on a device that is idle in between, with as many prompt tokens as a full step has.
    let mut w = sized(FULL + 2, 1, 100);
    let known = prompt(6, 60);
    w.submit("known", &known, 1);
    finish(&mut w, STEP);
    let s = Submission { max_tokens: Some(100), stop_tokens: vec![], ..w.submission("decodes") };
    w.start(s, &prompt(8, 4));
    for i in 0..2 * MEASURED_MIN {
        step(&mut w, 1);
        w.submit(&format!("r{i}"), &prompt(9 + i, FULL as usize), 1);
    }
    w.cancel("decodes", Cause::ClientClosed);
    ask(&mut w, "goes-on", &[known, prompt(7, 60)].concat(), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "goes-on"), None);
    // Behind another step of the same prompt.
    let mut w = world(100);
    let beginning = prompt(5, FULL as usize);
    w.submit("beginning", &[beginning.clone(), vec![1]].concat(), 1);
    finish(&mut w, STEP);
    for i in 0..MEASURED_MIN / 2 {
        w.submit(&format!("r{i}"), &[beginning.clone(), prompt(9 + i, 2 * FULL as usize)].concat(), 1);
        finish(&mut w, STEP);
    }
    ask(&mut w, "goes-on", &[beginning.clone(), prompt(9, 2 * FULL as usize), prompt(70, 32)].concat(), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "goes-on"), None);
    // Beside one that goes on from further ahead: it tells of such only.
    let mut w = sized(2 * FULL, 2, 100);
    w.submit("beginning", &[beginning.clone(), vec![1]].concat(), 1);
    finish(&mut w, STEP);
    for i in 0..MEASURED_MIN {
        w.submit(&format!("a{i}"), &prompt(9 + i, FULL as usize), 1);
        w.submit(&format!("b{i}"), &[beginning.clone(), prompt(70 + i, FULL as usize)].concat(), 1);
        w.fill();
        assert_eq!(w.device.queue[0].rows.iter().map(|r| (r.position, r.count())).collect::<Vec<_>>(), [(0, FULL), (FULL, FULL)]);
        finish(&mut w, STEP);
    }
    untold(&mut w);
    ask(&mut w, "goes-on", &[beginning, prompt(60, 48)].concat(), 1, Cause::ClientDeadline);
    assert_eq!(cause(&w, "goes-on"), Some(Cause::DeadlineUnreachable));
    // Dropped, or failed.
    let mut w = world(100);
    for i in 0..MEASURED_MIN {
        let name = format!("r{i}");
        w.submit(&name, &prompt(9 + i, FULL as usize), 1);
        w.fill();
        w.cancel(&name, Cause::ClientClosed);
        step(&mut w, STEP);
        w.submit(&format!("f{i}"), &prompt(90 + i, FULL as usize), 1);
        w.fill();
        let done = w.device.fail_step(DeviceError::Step("simulated".into())).expect("a step is queued");
        w.apply(Input::StepDone(done));
    }
    untold(&mut w);
}

#[test]
fn a_world_that_has_become_faster_is_found_to_be() {
    let mut w = world(100);
    measure(&mut w, MEASURED_MIN, STEP * 100);
    let try_one = |w: &mut World| {
        let n = w.numbers.len() as u32;
        let name = format!("r{n}");
        ask(w, &name, &prompt(n, 64), 10 * STEP, Cause::ClientDeadline);
        finish(w, STEP);
        cause(w, &name)
    };
    for _ in 0..UNTRIED_MAX {
        assert_eq!(try_one(&mut w), Some(Cause::DeadlineUnreachable));
    }
    assert_eq!(try_one(&mut w), Some(Cause::Length), "one is let in");
    assert_eq!(try_one(&mut w), Some(Cause::Length), "and all who come after it");
    // Where it was right, the count begins anew.
    let mut w = known(100);
    let refused = (0..2 * UNTRIED_MAX + 2).filter(|i| {
        let name = format!("h{i}");
        ask(&mut w, &name, &prompt(*i, 64), 1, Cause::ClientDeadline);
        w.apply(Input::Tick);
        cause(&w, &name) == Some(Cause::DeadlineUnreachable)
    });
    assert_eq!(refused.count(), 2 * UNTRIED_MAX as usize);
    // And with everything that is measured.
    let mut w = known(100);
    for i in 0..2 * UNTRIED_MAX {
        if i == UNTRIED_MAX {
            measure(&mut w, 1, STEP);
        }
        ask(&mut w, &format!("m{i}"), &prompt(i, 64), 1, Cause::ClientDeadline);
        assert_eq!(cause(&w, &format!("m{i}")), Some(Cause::DeadlineUnreachable), "{i}");
    }
}

/// One thing that a schedule does.
#[derive(Clone, Debug)]
enum Act {
    /// A run: which family of prompts, how long, how many tokens and answers, and how much time it has.
    Ask {
        family: u32,
        len: usize,
        cap: u32,
        n: u32,
        left: u64,
    },
    Cancel {
        k: usize,
    },
    /// A step that takes longer than it has to, by so many percent.
    Step {
        delay: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0u32..4, 1usize..150, 1u32..6, 1u32..3, 1u64..4000).prop_map(|(family, len, cap, n, left)| Act::Ask { family, len, cap, n, left }),
        1 => (0usize..20).prop_map(|k| Act::Cancel { k }),
        6 => (0u64..=100).prop_map(|delay| Act::Step { delay }),
    ]
}

/// What a step costs: something for itself, for each token, and for each position that a token looks at.
fn cost(plan: &StepPlan) -> u64 {
    let row = |r: &crate::Row| (0..r.count()).map(|i| 5 + u64::from(r.position + i) / 16).sum::<u64>();
    20 + plan.rows.iter().map(row).sum::<u64>()
}

fn costly_step(w: &mut World, delay: u64) -> bool {
    w.fill();
    let Some(micros) = w.device.queue.front().map(cost) else { return false };
    step(w, micros + micros * delay / 100)
}

/// Plays a schedule, after runs that make the pace known; `unbound` is one that gets no deadline. Stops behind the run after `until`.
fn play(acts: &[Act], until: Option<usize>, unbound: Option<usize>) -> (World, Vec<Time>) {
    let mut w = World::new(120, EngineConfig { step_tokens: FULL, max_running: 8, ..EngineConfig::default() });
    for i in 0..MEASURED_MIN {
        w.submit(&format!("first-{i}"), &prompt(7000 + i, 20), 1);
        while costly_step(&mut w, 100) {}
    }
    let mut deadlines = Vec::new();
    for act in acts {
        match act.clone() {
            Act::Ask { family, len, cap, n, left } => {
                let k = deadlines.len();
                let at = Time(w.now.0 + 2 + left);
                let bound = if unbound == Some(k) { vec![] } else { vec![(at, Cause::ClientDeadline)] };
                let s = Submission { n, max_tokens: Some(cap), deadlines: bound, ..w.submission(&format!("r{k}")) };
                w.start(s, &prompt(family, len));
                deadlines.push(at);
                if until == Some(k) {
                    return (w, deadlines);
                }
            }
            Act::Cancel { k } if k < deadlines.len() => w.cancel(&format!("r{k}"), Cause::ClientClosed),
            Act::Cancel { .. } => {}
            Act::Step { delay } => drop(costly_step(&mut w, delay)),
        }
        w.apply(Input::Tick);
    }
    (w, deadlines)
}

/// When the k-th run of a schedule has its first token if it is let in and nothing takes longer than it must; with everybody else there to
/// the end, or gone at once.
fn first_token(acts: &[Act], k: usize, alone: bool) -> Time {
    let (mut w, deadlines) = play(acts, Some(k), Some(k));
    let name = format!("r{k}");
    for other in (0..deadlines.len() - 1).filter(|_| alone) {
        w.cancel(&format!("r{other}"), Cause::ClientClosed);
    }
    while w.seen(&name).answers.is_empty() {
        assert!(costly_step(&mut w, 0), "{name} goes on: {:?}", w.seen(&name));
    }
    w.now
}

#[test]
fn whoever_is_turned_away_could_not_have_made_it() {
    let turned_away = Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: 200, ..Config::default() });
    let schedules = prop::collection::vec(act(), 1..60);
    let held = runner.run(&schedules, |acts| {
        let (mut w, deadlines) = play(&acts, None, None);
        for (k, at) in deadlines.iter().enumerate() {
            if cause(&w, &format!("r{k}")) != Some(Cause::DeadlineUnreachable) {
                continue;
            }
            turned_away.set(turned_away.get() + 1);
            for alone in [false, true] {
                let first = first_token(&acts, k, alone);
                prop_assert!(first > *at, "r{} has its first token at {:?} if let in, and time until {:?}", k, first, at);
            }
        }
        w.now = Time(w.now.0 + 10_000);
        w.apply(Input::Tick);
        w.finish(100);
        w.assert_at_rest();
        Ok(())
    });
    held.expect("nobody is turned away who could have made it");
    // About 130 in all, rarely less than 100.
    assert!(turned_away.get() > 30, "{} were turned away in all schedules", turned_away.get());
}
