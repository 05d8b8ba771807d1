//! The workers that a gateway knows: who is chosen, and what becomes of one that goes and comes back.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::ModelInfo;
use lifecycle::session::ClockSample;
use lifecycle::{Affinity, Incarnation, Load, Need, Offer, Presence, Time, WorkerIndex, Workers};

const CLOCK: ClockSample = ClockSample { offset_us: 5, error: Duration::from_micros(2), at: Time(3) };

fn model(id: &str) -> ModelInfo {
    ModelInfo { id: id.into(), context: 100, default_max_tokens: 50, created: 0 }
}

fn name(text: &str) -> Arc<str> {
    text.into()
}

/// So many workers, all here, with the model `m`.
fn here(count: u32) -> Workers {
    let mut workers = Workers::default();
    for index in 0..count {
        let worker = workers.add(name("?"));
        assert_eq!(worker, WorkerIndex(index));
        assert_eq!(workers.here(worker, Incarnation(u128::from(index)), model("m").into(), format!("w{index}").into()), None);
    }
    workers
}

fn loads(given: &[(u64, u32)]) -> impl Fn(WorkerIndex) -> Load {
    move |worker| given.get(worker.0 as usize).map_or(Load::default(), |(tokens, runs)| Load { tokens: *tokens, runs: *runs, newest: 0 })
}

#[test]
fn the_one_with_the_least_to_do_is_chosen_and_of_equals_the_first() {
    let workers = here(3);
    for (given, chosen) in [
        (vec![(0, 0), (0, 0), (0, 0)], 0),
        (vec![(9, 1), (5, 4), (9, 1)], 1),
        (vec![(5, 2), (5, 1), (5, 1)], 1),
        (vec![(5, 1), (5, 1), (4, 9)], 2),
    ] {
        assert_eq!(workers.choose(&Need::of("m"), 125, loads(&given)), Some(WorkerIndex(chosen)), "{given:?}");
    }
    assert_eq!(workers.choose(&Need::of("other"), 125, loads(&[])), None);
}

// contract: C-10
#[test]
fn who_is_not_here_or_drains_gets_nothing_and_a_lost_device_is_the_last_choice() {
    let mut workers = here(4);
    workers.heard(WorkerIndex(0), false);
    workers.drains(WorkerIndex(1));
    workers.device_lost(WorkerIndex(2), "it broke".into());
    workers.device_lost(WorkerIndex(2), "another reason".into());
    let busy = [(0, 0), (0, 0), (0, 0), (1000, 9)];
    assert_eq!(workers.choose(&Need::of("m"), 125, loads(&busy)), Some(WorkerIndex(3)));
    assert!(workers.all_devices_lost().is_none());
    assert!(workers.lost(WorkerIndex(3), Incarnation(3)));
    assert_eq!(workers.choose(&Need::of("m"), 125, loads(&busy)), Some(WorkerIndex(2)), "it fails there, and has a record");
    assert_eq!(workers.all_devices_lost(), Some("it broke"));
    let words: Vec<_> = workers.iter().map(|(_, known)| known.word()).collect();
    assert_eq!(words, ["silent", "draining", "here", "lost"]);
    assert!(workers.is_any_here() && !workers.are_gone(), "one is, whatever its device can do");
    workers.heard(WorkerIndex(0), true);
    assert_eq!(workers.choose(&Need::of("m"), 125, loads(&busy)), Some(WorkerIndex(0)));
    assert!(workers.lost(WorkerIndex(0), Incarnation(0)) && workers.lost(WorkerIndex(2), Incarnation(2)));
    assert_eq!((workers.choose(&Need::of("m"), 125, loads(&busy)), workers.is_any_here(), workers.are_gone()), (None, false, false));
}

// contract: C-3 C-9
#[test]
fn who_is_refused_gets_nothing_and_is_not_over() {
    let mut workers = here(2);
    let worker = WorkerIndex(0);
    assert!(!workers.refused(worker, Incarnation(7)), "another life");
    assert!(workers.refused(worker, Incarnation(0)) && !workers.refused(worker, Incarnation(0)), "news once");
    assert_eq!(workers.choose(&Need::of("m"), 125, loads(&[(0, 0), (9, 9)])), Some(WorkerIndex(1)));
    workers.heard(worker, false);
    assert_eq!(workers.get(worker).map(lifecycle::WorkerState::word), Some("refused"), "silence says less");
    assert!(workers.is_current(worker, Incarnation(0)), "its words count when it is heard");
    assert!(workers.lost(WorkerIndex(1), Incarnation(1)) && !workers.is_any_here() && !workers.are_gone());
    workers.heard(worker, true);
    assert_eq!(workers.choose(&Need::of("m"), 125, loads(&[])), Some(worker));
    assert!(workers.refused(worker, Incarnation(0)));
    assert_eq!(workers.here(worker, Incarnation(5), model("m").into(), name("w0")), Some(Incarnation(0)), "fenced by a newer one");
    assert!(workers.refused(worker, Incarnation(5)) && workers.lost(worker, Incarnation(5)));
    assert!(!workers.refused(worker, Incarnation(5)), "it is over");
    let _ = workers.here(worker, Incarnation(6), model("m").into(), name("w0"));
    assert!(workers.refused(worker, Incarnation(6)));
    assert_eq!(workers.gone(worker), Some(Incarnation(6)));
}

// contract: C-3
#[test]
fn a_life_that_is_over_speaks_no_more_and_another_may_come() {
    let mut workers = here(1);
    let worker = WorkerIndex(0);
    assert!(workers.is_current(worker, Incarnation(0)) && !workers.is_current(worker, Incarnation(1)));
    workers.heard(worker, false);
    assert!(workers.is_current(worker, Incarnation(0)), "silence ends nothing");
    assert!(!workers.lost(worker, Incarnation(7)), "another life's end is not this one's");
    assert!(workers.lost(worker, Incarnation(0)) && !workers.lost(worker, Incarnation(0)));
    workers.heard(worker, true);
    assert_eq!(workers.get(worker).map(|known| known.presence), Some(Presence::Lost), "to be heard again is not to be back");
    assert!(!workers.is_current(worker, Incarnation(0)));
    assert_eq!(workers.here(worker, Incarnation(1), model("m").into(), name("w0")), None, "the former one was over already");
    workers.drains(worker);
    workers.device_lost(worker, "it broke".into());
    workers.clock(worker, CLOCK);
    assert_eq!(workers.here(worker, Incarnation(1), model("m").into(), name("w0")), None);
    assert!(workers.get(worker).is_some_and(|known| known.draining && known.device_lost.is_some()), "the same life, the same state");
    assert_eq!(workers.get(worker).and_then(|known| known.clock), Some(CLOCK), "and the same clock");
    assert_eq!(workers.here(worker, Incarnation(2), model("m").into(), name("w0")), Some(Incarnation(1)), "fenced by a newer one");
    assert!(workers.get(worker).is_some_and(|known| !known.draining && known.device_lost.is_none() && known.clock.is_none()));
    assert_eq!(workers.gone(worker), Some(Incarnation(2)));
    assert_eq!((workers.gone(worker), workers.here(worker, Incarnation(3), model("m").into(), name("w0"))), (None, None));
    assert!(workers.are_gone() && !workers.is_current(worker, Incarnation(3)));
}

#[test]
fn models_are_known_once_and_names_are_told_apart() {
    let mut workers = here(2);
    let third = workers.add(name("?"));
    assert_eq!(workers.models().len(), 1);
    let _ = workers.here(third, Incarnation(9), model("other").into(), name("w1"));
    let models: Vec<_> = workers.models().iter().map(|known| known.id.to_string()).collect();
    assert_eq!(models, ["m", "other"]);
    assert_eq!(workers.choose(&Need::of("other"), 125, loads(&[])), Some(third));
    assert_eq!(workers.get(third).map(|known| &*known.name), Some("w1~2"));
    // Whoever has its name alone keeps it, and so does one that comes again.
    let _ = workers.here(WorkerIndex(1), Incarnation(10), model("m").into(), name("w1"));
    let names: Vec<_> = workers.iter().map(|(_, known)| known.name.to_string()).collect();
    assert_eq!(names, ["w0", "w1", "w1~2"]);
    assert_eq!((workers.len(), workers.is_empty()), (3, false));
    assert_eq!((Workers::default().len(), Workers::default().is_empty()), (0, true));
}

/// So many engines with so many slots each, all here, with the model `m`.
fn engines(slots: &[u32]) -> Workers {
    let mut workers = Workers::default();
    for (index, slots) in (0..).zip(slots) {
        let offer = Offer { models: vec![model("m"), model("n")], slots: Some(*slots), forwards: true, make: None };
        let worker = workers.add(name("?"));
        assert_eq!(workers.here(worker, Incarnation(index), offer, format!("10.0.0.{index}:8000").into()), None);
    }
    workers
}

fn liking(number: u32) -> Need<'static> {
    Need { forwarded: true, affinity: Some(Affinity::of([number.to_le_bytes().as_slice()])), ..Need::of("m") }
}

#[test]
fn one_beginning_stays_at_one_worker_and_many_are_spread() {
    let workers = engines(&[64, 64, 64]);
    let mut chosen = [0_u32; 3];
    for number in 0..300 {
        let worker = workers.choose(&liking(number), 125, |_| Load::default()).expect("one is here");
        assert_eq!(
            workers.choose(&liking(number), 125, |_| Load { tokens: 9, runs: 9, newest: 0 }),
            Some(worker),
            "all have as much to do"
        );
        chosen[worker.0 as usize] += 1;
    }
    assert!(chosen.iter().all(|count| (60..150).contains(count)), "{chosen:?}");
}

#[test]
fn a_worker_that_goes_moves_only_what_was_its_own() {
    let (all, mut fewer) = (engines(&[64, 64, 64]), engines(&[64, 64, 64]));
    fewer.heard(WorkerIndex(1), false);
    for number in 0..100 {
        let before = all.choose(&liking(number), 125, |_| Load::default());
        let after = fewer.choose(&liking(number), 125, |_| Load::default());
        assert!(before == after || before == Some(WorkerIndex(1)), "{number}: {before:?} {after:?}");
        assert_ne!(after, Some(WorkerIndex(1)));
    }
}

/// However alike all runs begin, no worker has more than its share of them times the factor.
#[test]
fn one_beginning_for_all_loads_no_worker_above_its_bound() {
    for slots in [vec![64, 64, 64], vec![64, 16]] {
        let workers = engines(&slots);
        let mut runs = vec![0_u32; slots.len()];
        for placed in 1..=60_u32 {
            let load = |worker: WorkerIndex| Load { tokens: 0, runs: runs[worker.0 as usize], newest: 0 };
            let worker = workers.choose(&liking(1), 125, load).expect("one has room").0 as usize;
            runs[worker] += 1;
            let share = f64::from(placed) * f64::from(slots[worker]) / f64::from(slots.iter().sum::<u32>());
            assert!(f64::from(runs[worker]) <= (share * 1.25).ceil(), "{slots:?}: {runs:?} of {placed}");
        }
        assert!(runs.iter().all(|runs| *runs > 0), "{runs:?}");
    }
}

#[test]
fn an_affinity_goes_past_who_has_no_room_or_no_device() {
    let mut workers = engines(&[1, 1]);
    let liked = workers.choose(&liking(7), 125, |_| Load::default()).expect("one is here");
    let other = WorkerIndex(1 - liked.0);
    let full = |worker| Load { tokens: 1, runs: u32::from(worker == liked), newest: 0 };
    assert_eq!(workers.choose(&liking(7), 125, full), Some(other));
    assert_eq!(workers.choose(&liking(7), 125, |_| Load { tokens: 1, runs: 1, newest: 0 }), None);
    workers.device_lost(liked, "it broke".into());
    assert_eq!(workers.choose(&liking(7), 125, |_| Load::default()), Some(other));
}

// contract: C-10
#[test]
fn one_that_is_tried_gets_one_run_at_a_time() {
    let mut workers = engines(&[8]);
    let worker = WorkerIndex(0);
    workers.heard(worker, false);
    assert_eq!(workers.choose(&Need::of("m"), 125, |_| Load::default()), None);
    workers.tried(worker, 5);
    assert_eq!(workers.get(worker).map(|known| known.word()), Some("trial"));
    assert_eq!(workers.choose(&Need::of("m"), 125, |_| Load::default()), Some(worker));
    // Those that it was sent before are not the trial, but have their slots.
    for (runs, newest, chosen) in [(1, 6, None), (3, 5, Some(worker)), (3, 6, None), (8, 5, None)] {
        let load = Load { tokens: 0, runs, newest };
        assert_eq!(workers.choose(&Need::of("m"), 125, |_| load), chosen, "{load:?}");
    }
    workers.heard(worker, true);
    assert_eq!(workers.choose(&Need::of("m"), 125, |_| Load { tokens: 0, runs: 7, newest: 6 }), Some(worker));
}

#[test]
fn every_model_of_an_engine_is_its_own_and_its_slots_are_for_all_of_them() {
    let workers = engines(&[2]);
    assert_eq!(workers.models().iter().map(|model| &*model.id).collect::<Vec<_>>(), ["m", "n"]);
    assert!(workers.forwards("n") && !workers.forwards("other"));
    assert_eq!(workers.choose(&Need::of("n"), 125, |_| Load { tokens: 0, runs: 1, newest: 0 }), Some(WorkerIndex(0)));
    assert_eq!(workers.choose(&Need::of("n"), 125, |_| Load { tokens: 0, runs: 2, newest: 0 }), None);
}

/// Of a worker whose slots are not known nobody can say that it has room for a second.
#[test]
fn two_alike_are_not_put_together_where_slots_are_not_known() {
    let workers = here(2);
    let need = Need { affinity: Some(Affinity::of([b"x".as_slice()])), ..Need::of("m") };
    let first = workers.choose(&need, 125, |_| Load::default()).expect("one is here");
    let has_one = |worker| Load { tokens: 0, runs: u32::from(worker == first), newest: 0 };
    assert_eq!(workers.choose(&need, 125, has_one), Some(WorkerIndex(1 - first.0)));
    let many = |_| Load { tokens: 0, runs: 4, newest: 0 };
    assert_eq!(workers.choose(&need, 125, many), Some(first), "a quarter more than its share");
}

/// Whoever may still come may have anything, unless it is said what that is; what has gone has nothing.
#[test]
fn a_model_that_nobody_has_is_known_as_that_when_all_are_known() {
    let mut workers = here(2);
    let never = |workers: &Workers, model: &str| workers.never_serve(&Need::of(model));
    assert!(!never(&workers, "m") && never(&workers, "other"));
    // They take prompts, and nothing that goes on as it came.
    assert!(workers.never_serve(&Need { forwarded: true, ..Need::of("m") }));
    let third = workers.add(name("?"));
    assert!(!never(&workers, "other"));
    workers.expects(third, model("third").into());
    assert!(never(&workers, "other") && !never(&workers, "third"));
    workers.heard(WorkerIndex(0), false);
    assert!(never(&workers, "other"), "it is the same that is not heard");
    assert!(workers.lost(WorkerIndex(0), Incarnation(0)));
    assert!(!never(&workers, "other"), "another life of it may have anything");
    let _ = workers.gone(WorkerIndex(0));
    assert!(never(&workers, "other"));
}
