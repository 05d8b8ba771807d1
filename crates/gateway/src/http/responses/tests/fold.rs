//! Every shape that a response can have, as a file to be read as a diff; `tests/sdk` holds the same file against OpenAI's own models and
//! the published schema. `UPDATE_SNAPSHOTS=1 cargo nextest run -p gateway shapes` writes it anew.

use std::sync::Arc;

use lifecycle::message::{Delta, TokenLogprob};
use lifecycle::{Cause, Said};
use serde_json::{Value, json};

use super::super::asked::{Asked, Call, Item, Output, Role};
use super::super::fold::{Event, Fold};
use super::super::object::{Head, Status};
use super::super::runs::Runs;
use super::super::stored::{Found, Page, input_items};
use super::script::Script;
use super::{answer, asked, called, calls, delta, end, head, head_with_tools, run};

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

fn events_of(background: bool, said: &[Said]) -> (Fold, Vec<Event>) {
    folded(head(background), said)
}

fn folded(head: Arc<Head>, said: &[Said]) -> (Fold, Vec<Event>) {
    let mut fold = Fold::new(head);
    let mut events = fold.begin();
    events.extend(said.iter().flat_map(|said| fold.take(said)));
    (fold, events)
}

/// A token whose text is held back for a moment, and one that comes with it.
fn with_logprobs() -> Vec<Said> {
    let entry = |token: u32, text: &str| TokenLogprob {
        token,
        bytes: text.as_bytes().to_vec(),
        logprob: -0.5,
        top: vec![(token, text.as_bytes().to_vec(), -0.5)],
    };
    let said = |text: &str, entry, finish| match delta(text, 1, finish) {
        Said::Delta(delta) => Said::Delta(Delta { logprobs: vec![entry], ..delta }),
        other => other,
    };
    let rhine = said("The Rhine", entry(2, " Rhine"), Some(Cause::Stop));
    vec![Said::Accepted, said("", entry(1, "The"), None), rhine, end(Cause::Stop, 2)]
}

// contract: C-6
#[tokio::test]
async fn shapes_are_those_of_the_snapshot() {
    let mut lines = Vec::new();
    let mut add = |case: &str, what: &str, body: &Value| lines.push(json!({"case": case, "what": what, "body": body}).to_string());
    for (case, background, said) in cases() {
        let (fold, events) = events_of(background, &said);
        events.iter().for_each(|event| add(case, "event", &event.body));
        add(case, "response", &fold.object(Some(1_700_000_003)));
    }
    for (case, finish, ends) in [
        ("with calls", Some(Cause::Stop), end(Cause::Stop, 6)),
        ("with calls, cut off", None, end(Cause::CancelRequested, 6)),
        ("with calls, at its cap", Some(Cause::Length), end(Cause::Length, 6)),
    ] {
        let (fold, events) = folded(head_with_tools(), &[calls(finish), vec![ends]].concat());
        events.iter().for_each(|event| add(case, "event", &event.body));
        add(case, "response", &fold.object(Some(1_700_000_003)));
    }
    let (fold, events) = events_of(false, &with_logprobs());
    events.iter().for_each(|event| add("with log-probabilities", "event", &event.body));
    add("with log-probabilities", "response", &fold.object(Some(1_700_000_003)));
    let (fold, _) = events_of(true, &[]);
    add("queued", "response", &fold.object(None));
    let (fold, _) = events_of(true, &[Said::Accepted, delta("The ", 1, None)]);
    add("in progress", "response", &fold.object(None));
    let script = Script::new();
    script.add(&run("r1"), &asked(false), &answer(Cause::Stop));
    let run = script.known(&run("r1")).await.expect("an answer").expect("a run");
    let found = Found { run, head: head(false) };
    let page = Page { limit: 20, ascending: true, after: None };
    add("its input", "items", &input_items(&found, &page).expect("a page"));
    let (call_id, name) = ("c0".to_owned(), "depth".to_owned());
    let input = vec![
        Item::message(Role::User, "How deep?".into()),
        Item::Call(Call { id: None, call_id: call_id.clone(), name, arguments: "{}".into() }),
        Item::Output(Output { id: None, call_id, output: vec!["12 m".into()] }),
    ];
    let asked = Asked { input, ..asked(false) };
    let (on_disconnect, model) = (found.head.on_disconnect, found.head.model.clone());
    let found = Found { head: Arc::new(Head { run: found.run.key.run.clone(), model, on_disconnect, asked }), run: found.run };
    add("its input, with a call", "items", &input_items(&found, &page).expect("a page"));
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
        let (fold, events) = events_of(background, &said);
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
        assert_eq!(events_of(background, &said).1, events_of(background, &said).1, "{case}");
    }
}

#[test]
fn what_follows_the_end_or_comes_twice_changes_nothing() {
    let (mut fold, events) = events_of(true, &answer(Cause::Stop));
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
    assert_eq!(count(events_of(false, &answer(Cause::Stop)).1), 3);
    assert_eq!(count(events_of(true, &answer(Cause::Length)).1), 3);
    let unseen = [Said::Accepted, delta("a", 1, None), delta("", 2, None), end(Cause::ClientDeadline, 3)];
    assert_eq!(count(events_of(false, &unseen).1), 1);
}

// contract: C-6
#[test]
fn every_cause_has_a_status_and_none_but_a_whole_answer_is_completed() {
    for &cause in Cause::ALL {
        let (fold, events) = events_of(true, &[Said::Accepted, delta("a", 1, None), end(cause, 1)]);
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

/// Whoever reads a call as done makes it: so none is told as done that may have been cut off.
// contract: C-6
#[test]
fn a_call_that_may_be_cut_off_is_never_told_as_done() {
    let done = |events: &[Event]| {
        let is_call = |event: &&Event| event.body["item"]["type"] == "function_call" || event.kind.contains("function_call");
        events.iter().filter(is_call).filter(|event| event.kind.ends_with(".done")).count()
    };
    for (finish, ends, told, status) in [
        (Some(Cause::Stop), Cause::Stop, 4, "completed"),
        (None, Cause::ClientClosed, 0, "incomplete"),
        (None, Cause::UpstreamError, 0, "incomplete"),
        (Some(Cause::Length), Cause::Length, 0, "incomplete"),
    ] {
        let (fold, events) = folded(head_with_tools(), &[calls(finish), vec![end(ends, 6)]].concat());
        assert_eq!(done(&events), told, "{ends}");
        let output = fold.object(None)["output"].clone();
        let kinds: Vec<_> = output.as_array().expect("a list").iter().map(|item| (&item["type"], &item["status"])).collect();
        let (text, call) = ((&json!("message"), &json!("completed")), (&json!("function_call"), &json!(status)));
        assert_eq!(kinds, [text, call, call], "{ends}");
        assert_eq!(fold.answer().len(), if status == "completed" { 3 } else { 1 }, "{ends}");
        assert_eq!(events.iter().map(|event| event.tokens).sum::<u32>(), 5, "{ends}");
    }
}

/// Engines differ in what they call the parts of a call.
#[test]
fn parts_belong_to_the_call_that_they_are_of() {
    let ends = [delta("", 0, Some(Cause::Stop)), end(Cause::Stop, 4)];
    let arguments = |said: &[Said]| {
        let (fold, _) = folded(head_with_tools(), &[said, &ends].concat());
        let output = fold.object(None)["output"].clone();
        let call = |item: &Value| [&item["call_id"], &item["arguments"]].map(|text| text.as_str().expect("a text").to_owned());
        output.as_array().expect("a list").iter().map(call).collect::<Vec<_>>()
    };
    let two = |first: &str, second: &str| vec![[first.to_owned(), "1".to_owned()], [second.to_owned(), "2".to_owned()]];
    // Two at once, one place for both, and no name at all.
    let (a, b) = (called(0, Some("a"), Some("f"), ""), called(1, Some("b"), Some("f"), "2"));
    assert_eq!(arguments(&[a.clone(), b, called(0, None, None, "1")]), two("a", "b"));
    assert_eq!(arguments(&[called(0, Some("a"), Some("f"), "1"), called(0, Some("b"), Some("f"), "2")]), two("a", "b"));
    assert_eq!(arguments(&[called(0, None, Some("f"), "1"), called(1, None, Some("f"), "2")]), two("call_r1_0", "call_r1_1"));
    // Text behind a call is a message of its own.
    let (fold, events) = folded(head_with_tools(), &[vec![a, delta("x", 1, None)], ends.to_vec()].concat());
    let output = fold.object(None)["output"].clone();
    assert_eq!((&output[0]["id"], &output[1]["id"]), (&json!("fc_r1_0"), &json!("msg_r1_1")), "{output}");
    assert!(events.iter().any(|event| event.kind == "response.output_text.delta" && event.body["output_index"] == 1));
}
