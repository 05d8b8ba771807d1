//! A run's view through its life, against the API's shape.

use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::{Cause, Delivery, Incarnation, Milestone, Outcome, Phase, StepId};
use observe::{Clock, Journal, Limits, RunState, RunView};
use serde_json::Value;

use crate::story::*;

fn view(journal: &Journal, id: &str) -> RunView {
    journal.run(&key(id)).expect("a known run")
}

/// Every path in a JSON value, arrays by their first element.
fn paths(value: &Value, at: &str, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| paths(v, &format!("{at}/{k}"), into)),
        Value::Array(list) => list.first().into_iter().for_each(|v| paths(v, &format!("{at}/0"), into)),
        _ => into.push(at.to_owned()),
    }
}

// contract: C-24 C-29
#[test]
fn a_cancelled_run_reads_as_the_api_says() {
    // A clock that began with the calendar.
    let journal = Journal::new(Clock::over(|| Duration::ZERO), Limits::default());
    cancelled_run(&journal, &key("0199-run"));
    let shown = serde_json::to_value(view(&journal, "0199-run")).unwrap();
    let wanted: Value = serde_json::from_str(include_str!("../fixtures/run.json")).unwrap();
    assert_eq!(shown, wanted);
    let (mut have, mut want) = (Vec::new(), Vec::new());
    paths(&shown, "", &mut have);
    paths(&wanted, "", &mut want);
    assert_eq!(have, want, "names and their order");
    assert_eq!(journal.defects(), 0);
}

#[test]
fn what_has_not_happened_is_null() {
    let journal = journal();
    of_attempt(&journal, &key("r"), 0, 5, accepted());
    let shown = serde_json::to_value(view(&journal, "r")).unwrap();
    for null in
        ["/outcome", "/guarantee", "/waste_bound_tokens", "/phase_at_disconnect", "/milestones/queued", "/boundaries/0/acknowledged"]
    {
        assert_eq!(shown.pointer(null), Some(&Value::Null), "{null}");
    }
    assert_eq!(shown.pointer("/milestones/accepted"), Some(&Value::from(0.0)));
    assert_eq!((shown["state"].as_str(), shown["delivery"].as_str()), (Some("queued"), Some("none")));
}

#[test]
fn the_state_follows_the_records() {
    let (journal, key) = (journal(), key("r"));
    let steps: Vec<(Event, RunState)> = vec![
        (accepted(), RunState::Queued),
        (queued(40), RunState::Queued),
        (Event::PrefillStart, RunState::Prefilling),
        (computed(1, 20, 0, 0), RunState::Prefilling),
        (computed(2, 20, 1, 0), RunState::Decoding),
        (Event::FirstToken, RunState::Decoding),
        (Event::Preempted, RunState::Preempted),
        (computed(3, 41, 0, 0), RunState::Prefilling),
        (computed(4, 0, 1, 0), RunState::Decoding),
        (Event::CancelSent { cause: Cause::CancelRequested, count: 1 }, RunState::Stopping),
        (released(), RunState::Stopping),
        (outcome_set(Cause::CancelRequested), RunState::Ended),
        (Event::Settled { proven: true }, RunState::Ended),
    ];
    for (us, (event, state)) in steps.into_iter().enumerate() {
        let what = format!("{event:?}");
        at(&journal, &key, us as u64, event);
        assert_eq!(view(&journal, "r").state, state, "after {what}");
    }
}

// contract: C-6
#[test]
fn an_ended_run_that_still_owns_blocks_is_stopping() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, accepted());
    at(&journal, &key, 1, queued(4));
    at(&journal, &key, 2, Event::BlocksAllocated { held: 2, cached_tokens: 0, shared: 0 });
    at(&journal, &key, 3, outcome_set(Cause::ClientReset));
    let run = view(&journal, "r");
    assert_eq!((run.state, run.released, run.blocks.held, run.guarantee), (RunState::Stopping, false, 2, None));
    at(&journal, &key, 4, released());
    let run = view(&journal, "r");
    assert_eq!((run.state, run.released, run.blocks.held, run.guarantee), (RunState::Ended, true, 0, Some("confirmed")));
}

// contract: C-12
#[test]
fn a_stop_found_late_is_overrun_and_no_waste() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, queued(4));
    at(&journal, &key, 1, computed(1, 4, 1, 0));
    at(&journal, &key, 2, Event::AttemptEnded { outcome: Outcome::of(Cause::Stop) });
    // The caller leaves after the answer's end: what is thrown away was under way because of the stop.
    at(&journal, &key, 3, Event::AbandonmentObserved { cause: Cause::ClientClosed });
    at(&journal, &key, 4, computed(2, 0, 0, 1));
    let run = view(&journal, "r");
    assert_eq!((run.tokens.generated, run.tokens.overrun, run.tokens.after_disconnect), (2, 1, 0));
    assert_eq!((run.steps.total, run.steps.after_disconnect), (2, 1), "the step was done after the caller had left");
}

// contract: C-12
#[test]
fn what_is_computed_after_the_first_observation_is_waste() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, queued(64));
    at(&journal, &key, 1, Event::PrefillStart);
    at(&journal, &key, 2, computed(1, 16, 0, 0));
    at(&journal, &key, 3, Event::AbandonmentObserved { cause: Cause::ClientLost });
    at(&journal, &key, 4, Event::AbandonmentObserved { cause: Cause::ClientDeadline });
    at(&journal, &key, 5, computed(2, 16, 0, 0));
    at(&journal, &key, 6, Event::RowsDropped { step: StepId(3), layers: 5 });
    at(&journal, &key, 7, Event::RowsDropped { step: StepId(4), layers: 0 });
    at(&journal, &key, 8, Event::FenceCompleted { step: StepId(4) });
    let run = view(&journal, "r");
    assert_eq!(run.tokens.prompt_computed_after_disconnect, 16);
    assert_eq!((run.steps.total, run.steps.after_disconnect), (3, 2), "a step without a layer computed nothing");
    assert_eq!(run.phase_at_disconnect, Some("prefill"));
    assert_eq!(run.milestones.ms(Milestone::DeadlineFired), Some(0.004));
    assert_eq!(run.milestones.ms(Milestone::LastCompute), Some(0.006));
}

// contract: C-31
#[test]
fn a_step_that_computed_some_sequences_and_dropped_others_is_one_step() {
    let (journal, key) = (journal(), key("r"));
    let dropped = |step| Event::RowsDropped { step: StepId(step), layers: 2 };
    at(&journal, &key, 0, queued(4));
    for event in
        [dropped(1), computed(1, 0, 1, 0), computed(2, 0, 1, 0), dropped(2), dropped(3), dropped(3), computed(4, 0, 1, 0), dropped(5)]
    {
        at(&journal, &key, 1, event);
    }
    at(&journal, &key, 2, released());
    assert_eq!(view(&journal, "r").steps.total, 5);
}

// contract: C-22
#[test]
fn a_deadline_that_the_worker_found_is_told_without_the_gateway() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, accepted());
    at(&journal, &key, 1, queued(64));
    at(&journal, &key, 9, Event::CancelApplied { cause: Cause::QueueDeadline, phase: Phase::Queued });
    let run = view(&journal, "r");
    assert_eq!((run.milestones.ms(Milestone::DeadlineFired), run.milestones.ms(Milestone::DisconnectObserved)), (Some(0.009), None));
    assert_eq!((run.phase_at_disconnect, run.boundaries[1].observed), (Some("queued"), None));
}

/// Loses the worker of a run with these records; what it may still waste.
fn bound_of_a_lost_run(events: Vec<Event>) -> Option<u64> {
    let (journal, key) = (journal(), key("r"));
    of_attempt(&journal, &key, 0, 0, accepted());
    for (us, event) in events.into_iter().enumerate() {
        at(&journal, &key, us as u64 + 1, event);
        assert_eq!(view(&journal, "r").waste_bound_tokens, None, "while it is live there is nothing to bound");
    }
    at(&journal, &key, 100, Event::Void { worker: Incarnation(1) });
    at(&journal, &key, 101, outcome_set(Cause::WorkerLost));
    let before = view(&journal, "r").waste_bound_tokens;
    at(&journal, &key, 102, Event::Settled { proven: false });
    let run = view(&journal, "r");
    assert_eq!((run.state, run.released, run.guarantee), (RunState::Ended, false, Some("best_effort")));
    assert_eq!(run.waste_bound_tokens, before, "settling changes nothing about it");
    assert_eq!(journal.defects(), 0);
    run.waste_bound_tokens
}

// contract: C-20 C-28
#[test]
fn a_lost_worker_is_never_called_released_and_its_run_says_what_it_can_still_waste() {
    let allocated = |cached_tokens| Event::BlocksAllocated { held: 3, cached_tokens, shared: 1 };
    // The prompt is not tokenised: only the context is known.
    assert_eq!(bound_of_a_lost_run(vec![dispatched()]), Some(8192));
    // 37 of the prompt and a cap of 200.
    let mut events = vec![dispatched(), queued(37)];
    assert_eq!(bound_of_a_lost_run(events.clone()), Some(237));
    events.extend([allocated(16), Event::PrefillStart]);
    assert_eq!(bound_of_a_lost_run(events.clone()), Some(221));
    // A chunk of 11, then the last one with the first token, then three more and one that was thrown away.
    events.push(computed(1, 11, 0, 0));
    assert_eq!(bound_of_a_lost_run(events.clone()), Some(210));
    events.push(computed(2, 10, 1, 0));
    assert_eq!(bound_of_a_lost_run(events.clone()), Some(199));
    events.extend([computed(3, 0, 3, 0), computed(4, 0, 0, 1)]);
    assert_eq!(bound_of_a_lost_run(events.clone()), Some(196), "what was thrown away is no part of the answer");
    // Preempted: the prompt and four tokens are to be computed again, of which the prefix index has 16.
    events.push(Event::Preempted);
    assert_eq!(bound_of_a_lost_run(events.clone()), Some(196 + 37 + 4));
    events.extend([allocated(16), computed(5, 25, 1, 0)]);
    assert_eq!(bound_of_a_lost_run(events), Some(195));
}

// contract: C-28 C-31
#[test]
fn every_sequence_of_a_lost_run_counts_its_prompt_and_its_cap() {
    let queued = Event::Queued { prompt_tokens: 37, n: 3, max_tokens: 50 };
    let cached = |cached_tokens| Event::BlocksAllocated { held: 3, cached_tokens, shared: 1 };
    let events = vec![Event::Dispatched { tokens_max: 3 * 8192 }, queued, cached(0), computed(1, 37, 1, 0), cached(32), cached(32)];
    assert_eq!(bound_of_a_lost_run(events), Some(3 * (37 + 50) - 38 - 64));
}

// contract: C-28
#[test]
fn a_run_of_which_nobody_said_what_was_asked_for_has_no_bound() {
    assert_eq!(bound_of_a_lost_run(vec![Event::PrefillStart]), None);
}

#[test]
fn a_run_refused_at_the_door_has_nothing_to_prove() {
    let (journal, key) = (journal(), key("r"));
    of_attempt(&journal, &key, 0, 0, accepted());
    of_attempt(&journal, &key, 0, 1, outcome_set(Cause::QueueFull));
    of_attempt(&journal, &key, 0, 1, Event::DeliveryEnded { delivery: Delivery::None });
    of_attempt(&journal, &key, 0, 1, Event::Settled { proven: true });
    let run = view(&journal, "r");
    assert_eq!((run.state, run.attempt, run.released, run.guarantee), (RunState::Ended, 0, true, Some("confirmed")));
    assert_eq!(run.outcome.map(|o| (o.kind, o.cause)), Some(("rejected", "queue_full")));
}

#[test]
fn a_second_attempt_starts_unreleased() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, accepted());
    at(&journal, &key, 1, released());
    of_attempt(&journal, &key, 2, 2, dispatched());
    let run = view(&journal, "r");
    assert_eq!((run.attempt, run.released, run.milestones.ms(Milestone::Released)), (2, false, None));
    of_attempt(&journal, &key, 2, 3, released());
    assert!(view(&journal, "r").released);
    assert_eq!(journal.defects(), 0, "one release an attempt is right");
}

#[test]
fn cached_prompt_is_neither_the_runs_own_work_nor_counted_once_a_sequence() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, queued(20));
    for us in 1..3 {
        at(&journal, &key, us, Event::BlocksAllocated { held: 2, cached_tokens: 16, shared: 1 });
    }
    assert_eq!(view(&journal, "r").tokens.cached_prompt, 20);
    at(&journal, &key, 4, Event::Preempted);
    at(&journal, &key, 5, Event::BlocksAllocated { held: 2, cached_tokens: 16, shared: 0 });
    assert_eq!(view(&journal, "r").tokens.cached_prompt, 20);
}

// contract: C-7 C-20 C-24 C-29
#[test]
fn a_run_that_is_dispatched_again_waits_anew_and_is_never_called_released() {
    let (journal, key) = (journal(), key("r"));
    of_attempt(&journal, &key, 0, 0, accepted());
    for (us, event) in [dispatched(), queued(37), Event::PrefillStart, Event::FirstToken].into_iter().enumerate() {
        of_attempt(&journal, &key, 1, us as u64 + 1, event);
    }
    assert_eq!(view(&journal, "r").state, RunState::Decoding);
    of_attempt(&journal, &key, 1, 10, Event::Void { worker: Incarnation(1) });
    let waits = view(&journal, "r");
    assert_eq!((waits.state, waits.attempt, waits.guarantee, waits.waste_bound_tokens), (RunState::Queued, 1, None, None));
    of_attempt(&journal, &key, 2, 11, dispatched());
    of_attempt(&journal, &key, 2, 12, queued(37));
    let again = view(&journal, "r");
    assert_eq!((again.state, again.attempt, again.guarantee), (RunState::Queued, 2, None));
    of_attempt(&journal, &key, 2, 13, Event::AbandonmentObserved { cause: Cause::ClientClosed });
    assert_eq!(view(&journal, "r").phase_at_disconnect, Some("queued"), "of the second attempt");
    of_attempt(&journal, &key, 2, 14, Event::AttemptEnded { outcome: Outcome::of(Cause::ClientClosed) });
    of_attempt(&journal, &key, 2, 15, Event::Released { receipt: Default::default() });
    of_attempt(&journal, &key, 2, 16, outcome_set(Cause::ClientClosed));
    let ended = view(&journal, "r");
    assert_eq!((ended.state, ended.released, ended.guarantee), (RunState::Ended, false, Some("best_effort")));
    // What the first attempt had left, its prompt and its cap: the second is released.
    assert_eq!(ended.waste_bound_tokens, Some(237));
    of_attempt(&journal, &key, 2, 17, Event::Settled { proven: false });
    assert_eq!((view(&journal, "r").waste_bound_tokens, journal.defects()), (Some(237), 0));
}
