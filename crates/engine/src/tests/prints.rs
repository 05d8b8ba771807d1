//! Facts of an engine that its further effects may depend on: two engines that differ in just one of them have two fingerprints.

use lifecycle::{StepId, Time};

use super::states::{Act, State};
use crate::Engine;
use crate::attempt::Sequence;

fn print(engine: &Engine, now: Time) -> u128 {
    engine.fingerprint(now)
}

/// An attempt of one sequence, whose prompt went into one step; that step is over, or it is in flight.
fn prefilled(is_over: bool) -> State {
    let mut s = State::new(6);
    let acts = [Act::Submit(0), Act::Tokenised(0), Act::Plan, Act::Done];
    acts.iter().take(if is_over { 4 } else { 3 }).for_each(|act| drop(s.act(*act)));
    s
}

fn sequence(engine: &mut Engine) -> &mut Sequence {
    &mut engine.attempts.values_mut().next().expect("one attempt").sequences[0]
}

#[test]
fn every_fact_of_an_attempt_that_is_in_no_step_tells_engines_apart() {
    type Change = fn(&mut Engine);
    let changes: [Change; 10] = [
        |_| {},
        |e| e.attempts.values_mut().for_each(|attempt| attempt.last_step = StepId(0)),
        |e| e.attempts.values_mut().for_each(|attempt| attempt.steps += 1),
        |e| sequence(e).last_step = StepId(0),
        |e| sequence(e).epoch = 1,
        |e| sequence(e).started = false,
        |e| sequence(e).chain_broken = true,
        |e| sequence(e).flag.set(),
        |e| e.newest_done = StepId(0),
        |e| e.lost = Some("gone".into()),
    ];
    let s = prefilled(true);
    assert_eq!((s.engine.newest_done, s.engine.in_flight.len()), (StepId(1), 0));
    let prints = changes.map(|change| {
        let mut other = s.fork();
        change(&mut other.engine);
        print(&other.engine, s.now)
    });
    for (i, one) in prints.iter().enumerate() {
        assert_eq!(prints.iter().position(|other| other == one), Some(i), "{i} is told from those before it");
    }
}

#[test]
fn how_often_and_in_which_step_long_ago_are_not_told() {
    let s = prefilled(true);
    let restarted = |times: u64, last: u64| {
        let mut other = s.fork();
        other.engine.next_step = 9;
        other.engine.newest_done = StepId(8);
        other.engine.pool.fence_completed(StepId(8));
        let sequence = sequence(&mut other.engine);
        (sequence.epoch, sequence.last_step) = (times, StepId(last));
        print(&other.engine, s.now)
    };
    assert_eq!(restarted(1, 1), restarted(2, 1), "no row of an older start is in flight");
    assert_eq!(restarted(1, 1), restarted(1, 2), "both are over");
}

/// Where an engine turns attempts away by its pace, what it has seen of the pace counts; elsewhere nobody asks.
#[test]
fn the_pace_is_told_where_it_is_asked_for() {
    let prints = |percent: u32, is_over: bool, change: fn(&mut Engine)| {
        let mut s = prefilled(is_over);
        s.engine.config.deadline_check_percent = percent;
        let before = print(&s.engine, s.now);
        change(&mut s.engine);
        (before, print(&s.engine, s.now))
    };
    for is_over in [false, true] {
        let (before, after) = prints(50, is_over, |e| e.pace.now = Time(0));
        assert_ne!(before, after, "how long ago the newest input was");
        let (before, after) = prints(0, is_over, |e| e.pace.now = Time(0));
        assert_eq!(before, after, "nobody is turned away here");
    }
    // When the step began that the device was idle for: while it may still be measured.
    let (before, after) = prints(50, false, |e| e.pace.alone = Some((StepId(1), Time(0))));
    assert_ne!(before, after);
    let (before, after) = prints(50, true, |e| e.pace.alone = Some((StepId(1), Time(0))));
    assert_eq!(before, after, "it is over");
}
