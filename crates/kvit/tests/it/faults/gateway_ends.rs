//! A gateway that is ended with SIGKILL: nobody steps for its runs any more, they end as orphans, and its neighbour notices nothing.
// contract: C-9, C-10, C-14, C-15, C-23

use std::time::Duration;

use lifecycle::Time;
use lifecycle::event::{Event, Record};
use serde_json::json;

use super::tap::Tap;
use super::{Probe, alone, ended, finish, gateway, metric, slow_worker};
use crate::server::{Caller, Server, chat_body, lasting_model};

const LEASE: Duration = Duration::from_millis(2000);
/// The default of `suspend_after_ms`.
const SUSPEND: Duration = Duration::from_millis(250);
/// What a starved machine may take to look, on top of a bound; the bound itself is counted in steps.
const SLACK: Duration = Duration::from_millis(1500);

fn kill(gateway: Server) {
    gateway.signal("KILL");
    assert_eq!(gateway.ended(), None, "by a signal");
}

fn at(records: &[Record], what: impl Fn(&Event) -> bool) -> Vec<Time> {
    records.iter().filter(|record| what(&record.event)).map(|record| record.at).collect()
}

#[test]
fn a_killed_gateways_runs_stop_within_a_step_and_end_with_its_lease() {
    let texts = alone(&lasting_model(), &[("Hi there", 150)]);
    let lease = LEASE.as_millis().to_string();
    let worker = slow_worker(&lasting_model(), &["--lease-ms", &lease]);
    let (probe, tap) = (Probe::of(&worker), Tap::to(&worker.address));
    // What the worker says is still read when nobody is there for it any more.
    tap.linger();
    let doomed = gateway(&[&tap.address], &["--name", "doomed", "--lease-ms", &lease]);
    let neighbour = gateway(&[&worker.address], &["--name", "neighbour", "--lease-ms", &lease]);
    let mut theirs: Vec<Caller> = ["one", "two"].map(|id| Caller::chat(&doomed, id, &chat_body("Hello", 12_000, true))).into();
    theirs.iter_mut().for_each(|caller| assert!(!caller.read_tokens(2).is_empty()));
    let mut mine = Caller::chat(&neighbour, "mine", &chat_body("Hi there", 150, true));
    let mut text = mine.read_tokens(1);
    let said = tap.downs().len();
    kill(doomed);
    probe.until("both are ended as orphans", |cut| {
        cut.orphaned_attempts == 2 && cut.attempts.iter().all(|a| a.attempt.key.run.as_str() == "mine")
    });
    for id in ["one", "two"] {
        let is_over = || at(&tap.records(id), |e| matches!(e, Event::Released { .. })).first().copied();
        let released = super::until("its release is told", is_over);
        // When the worker last heard the gateway, by its own clock: it says so in each frame.
        let last = tap.ups().into_iter().rev().find_map(|frame| Some((frame.stamp, frame.echo?))).expect("an echo");
        let heard = Time(last.0.0 - u64::try_from(last.1.held.as_micros()).expect("a short time"));
        let records = tap.records(id);
        let suspended = at(&records, |e| matches!(e, Event::Suspended));
        // A starved machine may have suspended it before, and attached it again.
        let suspended = *suspended.last().expect("it was suspended");
        assert!(suspended >= heard.after(SUSPEND), "not before its time");
        // contract: C-10. One step was in flight; no other was begun after that silence.
        let steps = at(&records, |e| matches!(e, Event::Computed { .. }));
        let late = steps.iter().filter(|at| **at > heard.after(SUSPEND)).count();
        assert!(late <= 1, "{late} steps were done after a silence of {SUSPEND:?}");
        assert!(steps.len() > 2);
        // contract: C-9, C-23
        let orphaned = at(&records, |e| matches!(e, Event::Orphaned));
        assert_eq!(orphaned.len(), 1);
        assert!(orphaned[0] > suspended && released >= orphaned[0]);
        assert!(released <= heard.after(LEASE + SLACK), "heard {heard:?}, released {released:?}");
        println!("{id}: silent from {heard:?}, suspended {suspended:?}, released {released:?}; {late} steps after the silence");
    }
    assert!(tap.downs().len() >= said);
    // contract: C-14
    let (rest, error) = finish(&mut mine);
    text.push_str(&rest);
    assert_eq!((text, error), (texts[0].clone(), None));
    let run = neighbour.settled("mine");
    assert_eq!((ended(&run), &run["attempt"]), (("completed", "length"), &json!(1)));
    let cut = probe.until_at_rest();
    assert!(cut.orphaned_attempts == 2 && cut.suspensions >= 2, "{cut:?}");
    // Whoever asks the neighbour sees it too.
    assert_eq!(metric(&neighbour, "kvit_worker_orphaned_total"), 2);
    assert_eq!(metric(&neighbour, "kvit_kv_orphaned_blocks"), 0);
    assert_eq!(metric(&neighbour, "kvit_defects_total"), 0);
}

#[test]
fn the_next_life_of_a_killed_gateway_disclaims_its_runs_long_before_the_lease() {
    let texts = alone(&lasting_model(), &[("Hi there", 8)]);
    let ten_minutes = ["--lease-ms", "600000", "--name", "g"];
    let worker = slow_worker(&lasting_model(), &["--lease-ms", "600000"]);
    let probe = Probe::of(&worker);
    let first = gateway(&[&worker.address], &ten_minutes);
    let mut callers: Vec<Caller> = ["one", "two"].map(|id| Caller::chat(&first, id, &chat_body("Hello", 12_000, true))).into();
    callers.iter_mut().for_each(|caller| assert!(!caller.read_tokens(2).is_empty()));
    kill(first);
    probe.until_run("one", "suspended");
    probe.until_run("two", "suspended");
    let second = gateway(&[&worker.address], &ten_minutes);
    let cut = probe.until_at_rest();
    assert!(cut.orphaned_attempts == 2 && cut.suspensions >= 2, "{cut:?}");
    // It knows nothing of them, and the name is free again.
    assert_eq!(second.json("GET", "/v1/runs/one").0, 404);
    let (status, answer) = Caller::chat(&second, "one", &chat_body("Hi there", 8, false)).answer();
    assert_eq!((status, super::text_of(&answer)), (200, texts[0].clone()));
    assert_eq!(second.settled("one")["guarantee"], "confirmed");
    assert_eq!(metric(&second, "kvit_defects_total"), 0);
    probe.until_at_rest();
}
