//! A worker that is told to stop while one run computes and one waits: the waiting one goes to another worker, and the worker says which.
// contract: C-2, C-7, C-20

use std::time::Duration;

use protocol::worker_v1 as wire;
use serde_json::json;

use super::{Probe, SLOWLY, alone, ended, gateway, metric, text_of, until};
use crate::server::{Caller, Leave, chat_body, lasting_model};
use crate::worker::Process;

fn names(attempts: &[wire::Attempt]) -> Vec<&str> {
    attempts.iter().map(|attempt| attempt.run.as_str()).collect()
}

#[test]
fn a_worker_told_to_stop_hands_over_what_waits_and_says_which() {
    let texts = alone(&lasting_model(), &[("Hi there", 6)]);
    let start = |name: &str| {
        Process::named(name, "127.0.0.1:0", &lasting_model(), &[&SLOWLY[..], &["--max-running", "1", "--drain-ms", "600000"]].concat())
    };
    let workers = [start("w1"), start("w2")];
    let probes = [Probe::of(&workers[0]), Probe::of(&workers[1])];
    let gateway = gateway(&[&workers[0].address, &workers[1].address], &[]);
    let mut busy: Vec<Caller> = (0..2).map(|i| Caller::chat(&gateway, &format!("busy-{i}"), &chat_body("Hello", 12_000, true))).collect();
    busy.iter_mut().for_each(|caller| assert!(!caller.read_tokens(1).is_empty()));
    let waiting: Vec<Caller> = (0..2).map(|i| Caller::chat(&gateway, &format!("waits-{i}"), &chat_body("Hi there", 6, false))).collect();
    let [first, second] = probes.each_ref().map(|probe| probe.until("one runs and one waits", |cut| (cut.running, cut.queued) == (1, 1)));
    let run_that = |cut: &lifecycle::message::Snapshot, waits: bool| {
        let found = cut.attempts.iter().find(|a| (a.state == "queued") == waits).expect("there is one");
        found.attempt.key.run.as_str().to_owned()
    };
    let (runs, waits) = (run_that(&first, false), run_that(&first, true));
    workers[0].signal("TERM");
    // The one that waited is at the other worker, behind what that one has.
    probes[1].until("it is handed over", |cut| cut.attempts.iter().any(|a| a.attempt.key.run.as_str() == waits && a.attempt.attempt == 2));
    // Whoever asks joins the drain that is under way, and cuts it short.
    let drained = probes[0].drain(Duration::ZERO);
    assert_eq!(names(&drained.handed_back), [waits.as_str()]);
    assert_eq!((names(&drained.cancelled), names(&drained.finished), drained.left_out), (vec![runs.as_str()], vec![], 0));
    let [worker, other] = workers;
    let (code, said) = worker.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("0 finished, 1 handed back, 1 cancelled"), "{said}");
    assert_eq!(ended(&gateway.settled(&runs)), ("cancelled", "shutdown"));
    for caller in busy {
        caller.leave(Leave::Close);
    }
    for (i, mut caller) in waiting.into_iter().enumerate() {
        let (status, answer) = caller.answer();
        assert_eq!((status, text_of(&answer)), (200, texts[0].clone()));
        let id = format!("waits-{i}");
        let run = gateway.settled(&id);
        let attempt = if id == waits { 2 } else { 1 };
        assert_eq!((ended(&run), &run["attempt"], &run["guarantee"]), (("completed", "length"), &json!(attempt), &json!("confirmed")));
    }
    assert!(second.attempts.len() == 2);
    until("the other is at rest", || Some(probes[1].until_at_rest()));
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
    drop(other);
}
