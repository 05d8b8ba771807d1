//! Each alert rule: it fires for its incident, goes when that is over, and is silent otherwise.
// contract: C-9 C-12 C-15 C-20 C-23

use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::message::{AttemptCut, Receipt, Snapshot};
use lifecycle::{AttemptId, Cause, Phase};
use observe::{Alert, AlertRules, AlertState, AlertsView, Journal, WorkerScrape};

use crate::hands;
use crate::story::{accepted, cancelled_run, computed, key, outcome_set, queued, released};

fn account() -> Snapshot {
    Snapshot { total: 10, free: 10, ..Snapshot::default() }
}

fn look(journal: &Journal, snapshot: Option<&Snapshot>) -> AlertsView {
    let worker = WorkerScrape { name: "w", snapshot, takes_runs: false, runs: 0, slots: None };
    journal.alerts(&AlertRules::default(), &[worker])
}

fn firing(journal: &Journal, snapshot: &Snapshot) -> Vec<&'static str> {
    let view = look(journal, Some(snapshot));
    let names: Vec<_> = view.data.iter().filter(|a| a.state == AlertState::Firing).map(|a| a.name).collect();
    assert_eq!(view.firing, names.len());
    names
}

/// Now, of attempt 1.
fn now(journal: &Journal, id: &str, event: Event) {
    crate::story::at(journal, &key(id), hands::us(), event);
}

/// A run that decodes a token each 10 ms and is left; the engine hears of it `cancel_us` later.
fn left(journal: &Journal, id: &str, cancel_us: u64) {
    let (key, start, cause) = (key(id), hands::us(), Cause::ClientClosed);
    let at = |us, event| crate::story::at(journal, &key, start + us, event);
    at(0, accepted());
    at(1, queued(8));
    at(2, Event::PrefillStart);
    for step in 1..=5 {
        at(10_000 * step, computed(step, 0, 1, 0));
    }
    at(50_001, Event::AbandonmentObserved { cause });
    at(50_002, Event::CancelSent { cause, count: 1 });
    at(50_003, Event::CancelReceived { cause });
    at(50_001 + cancel_us, Event::CancelApplied { cause, phase: Phase::Decode });
    at(50_002 + cancel_us, Event::CancelAcknowledged);
    at(50_003 + cancel_us, released());
    at(50_004 + cancel_us, outcome_set(cause));
    at(50_005 + cancel_us, Event::Settled { proven: true });
}

#[test]
fn twenty_healthy_runs_are_silent_whenever_one_looks() {
    let journal = hands::journal();
    for second in (0..1200).step_by(60) {
        hands::set(second);
        left(&journal, &format!("left-{second}"), 300);
        // One of its tokens was under way: that much a cancel may cost.
        cancelled_run(&journal, &key(&format!("fixture-{second}")));
        now(&journal, &format!("whole-{second}"), accepted());
        now(&journal, &format!("whole-{second}"), computed(1, 8, 200, 0));
        now(&journal, &format!("whole-{second}"), released());
        assert_eq!(firing(&journal, &account()), [""; 0], "at {second} s");
    }
}

#[test]
fn a_cancel_that_takes_more_than_two_cycles_fires_and_goes_with_its_window() {
    let journal = hands::journal();
    (0..5).for_each(|run| left(&journal, &format!("quick-{run}"), 40_000));
    assert_eq!(firing(&journal, &account()), [""; 0], "above two cycles of 10 ms, and below what may always be");
    (0..5).for_each(|run| left(&journal, &format!("slow-{run}"), 200_000));
    assert_eq!(firing(&journal, &account()), ["KvitSlowCancel"]);
    hands::set(700);
    assert_eq!(firing(&journal, &account()), [""; 0]);
}

/// With steps of a second a cancel may take nearly two.
#[test]
fn what_a_cancel_may_take_grows_with_the_scheduler_cycle() {
    let journal = hands::journal();
    for step in 1..40 {
        hands::set(step);
        now(&journal, "r", if step == 1 { accepted() } else { computed(step, 0, 1, 0) });
    }
    (0..3).for_each(|run| left(&journal, &format!("r{run}"), 400_000));
    assert_eq!(firing(&journal, &account()), [""; 0]);
}

/// Tokens after a disconnect, two of a hundred.
fn waste(journal: &Journal, id: &str) {
    now(journal, id, accepted());
    now(journal, id, queued(8));
    now(journal, id, computed(1, 8, 98, 0));
    now(journal, id, Event::AbandonmentObserved { cause: Cause::ClientLost });
    now(journal, id, computed(2, 0, 2, 0));
    now(journal, id, released());
    now(journal, id, outcome_set(Cause::ClientLost));
    now(journal, id, Event::Settled { proven: true });
}

#[test]
fn waste_fires_after_three_windows_in_a_row_and_goes_with_one_that_is_clean() {
    let journal = hands::journal();
    let mut fired = Vec::new();
    for second in (0..3000).step_by(15) {
        hands::set(second);
        if second < 1500 {
            waste(&journal, &format!("r{second}"));
        } else {
            now(&journal, &format!("r{second}"), accepted());
            now(&journal, &format!("r{second}"), computed(1, 8, 100, 0));
        }
        if firing(&journal, &account()) == ["KvitWaste"] {
            fired.push(second);
        }
    }
    assert_eq!(fired.first(), Some(&900), "three whole windows");
    // Of the newest window, 9 of 20 periods may be clean before its ratio is at 1 %: 2 % × 11/20.
    assert_eq!(fired.last(), Some(&1635));
    assert!(fired.windows(2).all(|pair| pair[1] - pair[0] == 15), "without a gap");
}

#[test]
fn a_window_without_work_is_no_waste() {
    let journal = hands::journal();
    waste(&journal, "r");
    hands::set(300);
    waste(&journal, "s");
    hands::set(5000);
    waste(&journal, "t");
    for second in (5000..7000).step_by(15) {
        hands::set(second);
        assert_eq!(firing(&journal, &account()), [""; 0], "at {second} s");
    }
}

#[test]
fn prompts_computed_for_nobody_are_waste_too() {
    let journal = hands::journal();
    for second in (0..1000).step_by(15) {
        hands::set(second);
        let id = format!("r{second}");
        now(&journal, &id, accepted());
        now(&journal, &id, computed(1, 90, 50, 0));
        let id = format!("s{second}");
        now(&journal, &id, accepted());
        now(&journal, &id, Event::AbandonmentObserved { cause: Cause::ClientLost });
        now(&journal, &id, computed(2, 10, 0, 0));
    }
    assert_eq!(firing(&journal, &account()), ["KvitWaste"]);
}

#[test]
fn a_cancel_that_nobody_confirms_fires_until_it_is_moot() {
    let journal = hands::journal();
    now(&journal, "r", accepted());
    now(&journal, "r", Event::CancelSent { cause: Cause::ClientLost, count: 1 });
    hands::set(5);
    assert_eq!(firing(&journal, &account()), [""; 0]);
    hands::set(6);
    now(&journal, "r", Event::CancelSent { cause: Cause::ClientLost, count: 5 });
    assert_eq!(firing(&journal, &account()), ["KvitUnacknowledgedCancels"]);
    now(&journal, "r", Event::CancelAcknowledged);
    assert_eq!(firing(&journal, &account()), [""; 0]);
}

#[test]
fn an_orphan_that_is_not_reaped_fires_by_the_journal_and_by_the_account() {
    let journal = hands::journal();
    now(&journal, "r", accepted());
    now(&journal, "r", Event::Orphaned);
    hands::set(31);
    assert_eq!(firing(&journal, &account()), ["KvitOrphansNotReaped"]);
    now(&journal, "r", released());
    assert_eq!(firing(&journal, &account()), [""; 0]);
    // Of a gateway that is lost, with its records.
    let cut = AttemptCut { attempt: AttemptId { key: key("elsewhere"), attempt: 1 }, state: "decoding", blocks: 2 };
    let orphaned = Snapshot { free: 8, active: 2, orphaned: 2, running: 1, attempts: vec![cut], ..account() };
    assert_eq!(firing(&journal, &orphaned), [""; 0], "for the first time");
    hands::set(62);
    assert_eq!(firing(&journal, &orphaned), ["KvitOrphansNotReaped"]);
    assert_eq!(firing(&journal, &account()), [""; 0]);
    assert_eq!(firing(&journal, &orphaned), [""; 0], "these are others");
}

#[test]
fn a_second_release_and_an_account_that_does_not_add_up_are_defects() {
    let journal = hands::journal();
    now(&journal, "r", accepted());
    now(&journal, "r", released());
    assert_eq!(firing(&journal, &account()), [""; 0]);
    now(&journal, "r", Event::Released { receipt: Receipt::default() });
    assert_eq!(firing(&journal, &account()), ["KvitDefect"]);
    hands::set(700);
    assert_eq!(firing(&journal, &account()), [""; 0], "it happened once, and is still counted");
    assert_eq!(firing(&journal, &Snapshot { free: 9, ..account() }), ["KvitDefect"]);
}

#[test]
fn blocks_that_no_attempt_holds_fire_while_they_are_gone() {
    let journal = hands::journal();
    let cut = |blocks| AttemptCut { attempt: AttemptId { key: key("r"), attempt: 1 }, state: "decoding", blocks };
    let busy = Snapshot { free: 5, active: 5, running: 1, attempts: vec![cut(5)], ..account() };
    assert_eq!(firing(&journal, &busy), [""; 0]);
    assert_eq!(firing(&journal, &Snapshot { attempts: vec![cut(4)], ..busy.clone() }), ["KvitBlocksWithoutOwner"]);
    assert_eq!(firing(&journal, &Snapshot { running: 0, attempts: vec![], ..busy }), ["KvitBlocksWithoutOwner"]);
    assert_eq!(firing(&journal, &account()), [""; 0]);
}

#[test]
fn a_worker_that_does_not_answer_is_not_said_to_be_well() {
    let journal = hands::journal();
    let view = look(&journal, None);
    let unknown: Vec<_> = view.data.iter().filter(|a| a.state == AlertState::Unknown).map(|a| a.name).collect();
    assert_eq!(unknown, ["KvitBlocksWithoutOwner"]);
}

#[test]
fn every_rule_is_in_the_file_with_its_expression_and_its_runbook() {
    let rules = AlertRules { waste_percent: 2.5, unacknowledged: Duration::from_millis(7500), ..AlertRules::default() };
    let file = rules.prometheus(Duration::from_secs(60));
    let document = include_str!("../../../../docs/metrics.md").to_lowercase();
    for alert in Alert::ALL {
        assert_eq!(file.matches(&format!("- alert: {}\n", alert.name())).count(), 1);
        for line in rules.expression(alert, Duration::from_secs(60)).lines() {
            assert!(file.contains(&format!("          {line}\n")), "{line}");
        }
        assert!(document.contains(&format!("\n### {}\n", alert.name().to_lowercase())), "{} has no section", alert.name());
    }
    assert!(file.contains("[60000ms] offset 120000ms") && file.contains(" > 2.5\n") && file.contains("oldest_seconds > 7.5\n"), "{file}");
}
