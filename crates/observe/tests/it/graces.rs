//! A leaving that is taken back, and one that is not: in a run's view, in the metrics and in the timeline.

use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::{Cause, Delivery, OnDisconnect};
use observe::{Journal, RunView, render_timeline};

use crate::story::*;

const CLOSED: Cause = Cause::ClientClosed;

fn graced() -> Event {
    let on_disconnect = OnDisconnect::Grace(Duration::from_millis(2000));
    Event::Accepted { model: "m".into(), n: 1, stream: true, on_disconnect }
}

/// A run in decode whose reader left at 100, with two tokens and a prompt chunk of a preemption computed since.
fn left(journal: &Journal) {
    of_attempt(journal, &key("r"), 0, 0, graced());
    at(journal, &key("r"), 10, queued(8));
    at(journal, &key("r"), 20, Event::PrefillStart);
    at(journal, &key("r"), 50, computed(1, 8, 1, 0));
    at(journal, &key("r"), 50, Event::FirstToken);
    leave(journal, 100);
    at(journal, &key("r"), 110, computed(2, 0, 1, 0));
    at(journal, &key("r"), 120, computed(3, 9, 1, 0));
}

fn leave(journal: &Journal, us: u64) {
    at(journal, &key("r"), us, Event::AbandonmentObserved { cause: CLOSED });
    at(journal, &key("r"), us, Event::GraceBegun { grace: Duration::from_millis(2000) });
}

fn view(journal: &Journal) -> RunView {
    journal.run(&key("r")).expect("a known run")
}

/// Tokens, prompt positions and steps after abandonment.
fn waste(view: &RunView) -> (u64, u64, u64) {
    (view.tokens.after_disconnect, view.tokens.prompt_computed_after_disconnect, view.steps.after_disconnect)
}

fn sample(journal: &Journal, name: &str) -> u64 {
    let page = page(journal);
    let lines = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")).sum()
}

fn counts(journal: &Journal) -> [u64; 3] {
    ["kvit_graces_begun_total", "kvit_graces_resumed_total", "kvit_graces_run_out_total"].map(|name| sample(journal, name))
}

// contract: C-12 C-25
#[test]
fn what_is_computed_in_a_grace_is_no_waste_if_somebody_comes_back() {
    let journal = journal();
    left(&journal);
    let during = view(&journal);
    assert_eq!(waste(&during), (0, 0, 0), "nobody knows yet");
    assert_eq!((during.phase_at_disconnect, during.on_disconnect.as_deref()), (Some("decode"), Some("grace(2000)")));
    at(&journal, &key("r"), 130, Event::AbandonmentWithdrawn);
    // A step of the grace that is told late, by a worker elsewhere, and one after it.
    at(&journal, &key("r"), 125, computed(4, 0, 1, 0));
    at(&journal, &key("r"), 140, computed(5, 0, 1, 0));
    let back = view(&journal);
    assert_eq!((waste(&back), back.tokens.generated), ((0, 0, 0), 5));
    assert_eq!((back.graces.begun, back.graces.resumed), (1, 1));
    let json = serde_json::to_value(&back).unwrap();
    assert!(json["phase_at_disconnect"].is_null() && json["milestones"]["disconnect_observed"].is_null(), "{json}");
    assert!(json["boundaries"][0]["observed"].is_null());
    assert_eq!(sample(&journal, "kvit_tokens_after_disconnect_total") + sample(&journal, "kvit_steps_after_disconnect_total"), 0);
    assert_eq!(counts(&journal), [1, 1, 0]);
    let text = render_timeline(&json, 120, false);
    assert!(text.contains("policy  grace(2000) on a disconnect; its readers left once, somebody came back once"), "{text}");
    assert!(text.contains("nobody left"), "{text}");
}

// contract: C-12 C-25
#[test]
fn what_is_computed_in_a_grace_is_waste_if_nobody_comes_back() {
    let journal = journal();
    left(&journal);
    at(&journal, &key("r"), 2_100, Event::GraceRanOut);
    assert_eq!(waste(&view(&journal)), (2, 9, 2), "all since the leaving");
    at(&journal, &key("r"), 2_100, Event::CancelSent { cause: CLOSED, count: 1 });
    at(&journal, &key("r"), 2_105, computed(4, 0, 1, 0));
    at(&journal, &key("r"), 2_110, Event::CancelApplied { cause: CLOSED, phase: lifecycle::Phase::Decode });
    at(&journal, &key("r"), 2_110, outcome_set(CLOSED));
    at(&journal, &key("r"), 2_120, released());
    of_attempt(&journal, &key("r"), 1, 2_130, Event::DeliveryEnded { delivery: Delivery::Partial });
    at(&journal, &key("r"), 2_130, Event::Settled { proven: true });
    let run = view(&journal);
    assert_eq!((waste(&run), run.graces.begun, run.graces.resumed), ((3, 9, 3), 1, 0));
    assert_eq!(run.phase_at_disconnect, Some("decode"));
    assert_eq!(sample(&journal, "kvit_tokens_after_disconnect_total"), 3);
    assert_eq!(sample(&journal, "kvit_prompt_tokens_after_disconnect_total"), 9);
    assert_eq!(sample(&journal, "kvit_steps_after_disconnect_total"), 3);
    assert_eq!(counts(&journal), [1, 0, 1]);
    // How long a cancel takes counts from when somebody asked for it.
    let page = page(&journal);
    assert!(page.contains("kvit_disconnect_to_cancel_seconds_sum{cause=\"client_closed\"} 0.00001\n"), "{page}");
    assert!(page.contains("kvit_disconnect_to_released_seconds_sum{cause=\"client_closed\"} 0.00002\n"), "{page}");
    let text = render_timeline(&serde_json::to_value(&run).unwrap(), 120, false);
    assert!(text.contains("its readers left once, nobody came back"), "{text}");
    assert_eq!(journal.defects(), 0);
}

// contract: C-25
#[test]
fn each_leaving_is_judged_by_itself() {
    let journal = journal();
    left(&journal);
    at(&journal, &key("r"), 130, Event::AbandonmentWithdrawn);
    leave(&journal, 200);
    at(&journal, &key("r"), 210, computed(4, 0, 1, 0));
    at(&journal, &key("r"), 220, Event::GraceRanOut);
    at(&journal, &key("r"), 220, Event::AbandonmentObserved { cause: Cause::ClientDeadline });
    let run = view(&journal);
    assert_eq!((waste(&run), run.graces.begun, run.graces.resumed), ((1, 0, 1), 2, 1));
    assert_eq!(counts(&journal), [2, 1, 1]);
    assert_eq!(serde_json::to_value(&run).unwrap()["milestones"]["deadline_fired"], 0.22, "what ended it");
}

// contract: C-25
#[test]
fn a_worker_that_stops_in_a_grace_takes_no_part_in_the_judgement() {
    let journal = journal();
    left(&journal);
    at(&journal, &key("r"), 130, Event::CancelApplied { cause: Cause::Shutdown, phase: lifecycle::Phase::Decode });
    at(&journal, &key("r"), 140, Event::HandedBack);
    at(&journal, &key("r"), 150, released());
    of_attempt(&journal, &key("r"), 2, 160, queued(8));
    of_attempt(&journal, &key("r"), 2, 170, computed(1, 8, 1, 0));
    let mut nobody = view(&journal);
    assert_eq!(waste(&nobody), (0, 0, 0));
    at(&journal, &key("r"), 180, Event::GraceRanOut);
    nobody = view(&journal);
    assert_eq!(waste(&nobody), (3, 17, 3));
}

// contract: C-12 C-25
#[test]
fn a_run_that_goes_on_unread_wastes_nothing() {
    let journal = journal();
    let on_disconnect = OnDisconnect::Continue;
    of_attempt(&journal, &key("r"), 0, 0, Event::Accepted { model: "m".into(), n: 1, stream: true, on_disconnect });
    at(&journal, &key("r"), 10, queued(8));
    at(&journal, &key("r"), 20, Event::LeftRunning { cause: CLOSED });
    at(&journal, &key("r"), 50, computed(1, 8, 1, 0));
    at(&journal, &key("r"), 60, outcome_set(Cause::Stop));
    let run = view(&journal);
    assert_eq!((waste(&run), run.phase_at_disconnect, run.on_disconnect.as_deref()), ((0, 0, 0), None, Some("continue")));
    assert_eq!(sample(&journal, "kvit_left_running_total"), 1);
}
