//! Every shape that a response can have, as a file to be read as a diff; `tests/sdk` holds the same file against OpenAI's own models and
//! the published schema. `UPDATE_SNAPSHOTS=1 cargo nextest run -p gateway shapes` writes it anew.

use lifecycle::{Cause, Said};
use serde_json::{Value, json};

use super::super::fold::{Event, Fold};
use super::super::object::Status;
use super::super::runs::Runs;
use super::super::stored::{Found, Page, input_items};
use super::script::Script;
use super::{answer, asked, delta, end, head, run};

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots/responses.jsonl");

fn cases() -> Vec<(&'static str, bool, Vec<Said>)> {
    vec![
        ("completed", false, answer(Cause::Stop)),
        ("at its cap", false, answer(Cause::Length)),
        ("completed in the background", true, answer(Cause::Stop)),
        ("nothing said", false, vec![Said::Accepted, delta("", 1, Some(Cause::Stop)), end(Cause::Stop, 1)]),
        ("cancelled in the queue", true, vec![end(Cause::CancelRequested, 0)]),
        ("cancelled half way", true, vec![Said::Accepted, delta("The ", 1, None), end(Cause::CancelRequested, 1)]),
        ("failed half way", false, vec![Said::Accepted, delta("The ", 1, None), end(Cause::WorkerLost, 1)]),
        ("expired", true, vec![Said::Accepted, end(Cause::GatewayDeadline, 0)]),
        ("rejected", true, vec![end(Cause::CannotFit, 0)]),
        ("no room", false, vec![end(Cause::QueueFull, 0)]),
    ]
}

fn events(background: bool, said: &[Said]) -> (Fold, Vec<Event>) {
    let mut fold = Fold::new(head(background));
    let mut events = fold.begin();
    events.extend(said.iter().flat_map(|said| fold.take(said)));
    (fold, events)
}

// contract: C-6
#[tokio::test]
async fn shapes_are_those_of_the_snapshot() {
    let mut lines = Vec::new();
    let mut add = |case: &str, what: &str, body: &Value| lines.push(json!({"case": case, "what": what, "body": body}).to_string());
    for (case, background, said) in cases() {
        let (fold, events) = events(background, &said);
        events.iter().for_each(|event| add(case, "event", &event.body));
        add(case, "response", &fold.object(Some(1_700_000_003)));
    }
    let (fold, _) = events(true, &[]);
    add("queued", "response", &fold.object(None));
    let (fold, _) = events(true, &[Said::Accepted, delta("The ", 1, None)]);
    add("in progress", "response", &fold.object(None));
    let script = Script::new();
    script.add(&run("r1"), &asked(false), &answer(Cause::Stop));
    let run = script.known(&run("r1")).await.expect("an answer").expect("a run");
    let found = Found { run, head: head(false) };
    let page = Page { limit: 20, ascending: true, after: None };
    add("its input", "items", &input_items(&found, &page).expect("a page"));
    let text = lines.join("\n") + "\n";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(SNAPSHOT, &text).expect("the snapshot can be written");
    }
    let kept = std::fs::read_to_string(SNAPSHOT).expect("there is a snapshot");
    for (now, then) in text.lines().zip(kept.lines()) {
        assert_eq!(now, then);
    }
    assert_eq!(text.lines().count(), kept.lines().count());
}

// contract: C-26
#[test]
fn events_are_numbered_from_0_and_only_the_last_one_is_terminal() {
    for (case, background, said) in cases() {
        let (fold, events) = events(background, &said);
        assert!(fold.is_over(), "{case}");
        for (i, event) in events.iter().enumerate() {
            assert_eq!((event.number, &event.body["sequence_number"]), (i as u64, &json!(i)), "{case}");
            assert_eq!(event.body["type"], event.kind, "{case}");
            let is_terminal = matches!(event.kind, "response.completed" | "response.failed" | "response.incomplete");
            assert_eq!(is_terminal, i + 1 == events.len(), "{case}: {}", event.kind);
        }
        assert_eq!(events[0].kind, "response.created", "{case}");
    }
}

/// Whoever comes back with any number gets exactly what it lacks, for the fold is the same from the beginning.
// contract: C-26
#[test]
fn the_same_items_are_the_same_events() {
    for (case, background, said) in cases() {
        assert_eq!(events(background, &said).1, events(background, &said).1, "{case}");
    }
}

#[test]
fn what_follows_the_end_or_comes_twice_changes_nothing() {
    let (mut fold, events) = events(true, &answer(Cause::Stop));
    let before = fold.object(None);
    for said in [Said::Accepted, delta("more", 1, None), end(Cause::WorkerLost, 9)] {
        assert_eq!(fold.take(&said), []);
    }
    assert_eq!((fold.object(None), fold.begin()), (before, Vec::new()));
    assert_eq!(events.iter().filter(|e| e.kind == "response.in_progress").count(), 1);
    let mut again = Fold::new(head(false));
    assert_eq!(again.take(&Said::Accepted).len(), 2);
    assert_eq!(again.take(&Said::Accepted), []);
}

/// Each token is counted once: with the event that shows it, or with the end of a whole answer; and what was never shown is not delivered.
// contract: C-6
#[test]
fn every_token_of_a_whole_answer_is_counted_once() {
    let count = |events: Vec<Event>| events.iter().map(|e| e.tokens).sum::<u32>();
    assert_eq!(count(events(false, &answer(Cause::Stop)).1), 3);
    assert_eq!(count(events(true, &answer(Cause::Length)).1), 3);
    let unseen = [Said::Accepted, delta("a", 1, None), delta("", 2, None), end(Cause::ClientDeadline, 3)];
    assert_eq!(count(events(false, &unseen).1), 1);
}

// contract: C-6
#[test]
fn every_cause_has_a_status_and_none_but_a_whole_answer_is_completed() {
    for &cause in Cause::ALL {
        let (fold, events) = events(true, &[Said::Accepted, delta("a", 1, None), end(cause, 1)]);
        let last = events.last().expect("an event");
        let expected = match cause {
            Cause::Stop => (Status::Completed, "response.completed"),
            Cause::Length => (Status::Incomplete, "response.incomplete"),
            _ if cause.outcome() == lifecycle::OutcomeKind::Cancelled => (Status::Cancelled, "response.failed"),
            _ => (Status::Failed, "response.failed"),
        };
        assert_eq!((fold.status(), last.kind), expected, "{cause}");
        let object = fold.object(Some(5));
        assert_eq!(last.body["response"]["kvit"]["cause"], cause.as_str());
        assert_eq!(object["error"].is_object(), expected.0 == Status::Failed, "{cause}");
        assert_eq!(object["completed_at"], if cause == Cause::Stop { json!(5) } else { Value::Null }, "{cause}");
        let item = if cause == Cause::Stop { "completed" } else { "incomplete" };
        assert_eq!(object["output"][0]["status"], item, "{cause}");
    }
}
