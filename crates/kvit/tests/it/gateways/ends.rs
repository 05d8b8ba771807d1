//! A gateway that is gone or stands still: its background runs go on at another, its interactive ones end, and what it says too late changes
//! nothing.
// contract: C-2, C-5, C-7, C-25

use super::*;
use crate::faults::{alone, finish};
use crate::server::chat_body;

#[test]
fn a_gateway_that_is_gone_leaves_its_background_runs_to_another() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let expected = alone(&lasting_model(), &[("Hello there", 250)]).remove(0);
    let _gone = background(&a, "bg", &chat_body("Hello there", 250, true), 3);
    let mut reader = Caller::chat(&a, "fg", &chat_body("Hello", 12_000, true));
    assert!(!reader.read_tokens(2).is_empty());
    let mut follower = Follower::of(&b, "bg", 0);
    let mut told = follower.some(10);
    a.signal("KILL");
    // The same stream goes on.
    told.extend(follower.all());
    assert_eq!(whole_text(&told), expected);
    assert_eq!(outcome(&b, "bg"), is("completed", "length"));
    assert!(b.run("bg")["attempt"].as_u64() > Some(1));
    assert_eq!(outcome(&b, "fg"), is("failed", "worker_lost"));
    assert_eq!(finish(&mut reader).1, None, "its connection broke off");
    let kv = until("every block is back", || Some(b.kv()).filter(|kv| kv["active"] == 0 && kv["draining"] == 0));
    assert_eq!(kv["quarantined"], 0, "{kv}");
}

#[test]
fn a_gateway_that_stood_still_changes_nothing_of_what_was_decided_without_it() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let expected = alone(&lasting_model(), &[("Hello there", 250)]).remove(0);
    let _bg = background(&a, "bg", &chat_body("Hello there", 250, true), 3);
    let mut reader = Caller::chat(&a, "fg", &chat_body("Hello", 12_000, true));
    assert!(!reader.read_tokens(2).is_empty());
    a.signal("STOP");
    assert_eq!(outcome(&b, "fg"), is("failed", "worker_lost"));
    b.wait_run("bg", "go on", |run| run["attempt"].as_u64() > Some(1));
    a.signal("CONT");
    assert_eq!(finish(&mut reader).1.as_deref(), Some("worker_lost"));
    let told = Follower::of(&b, "bg", 0).all();
    assert_eq!(whole_text(&told), expected);
    for server in [&a, &b] {
        assert_eq!(outcome(server, "bg"), is("completed", "length"));
        assert_eq!(outcome(server, "fg"), is("failed", "worker_lost"));
    }
    assert_eq!(Follower::of(&a, "bg", 0).all(), told);
    // It is a gateway as before.
    assert_eq!(a.request("POST", "/v1/chat/completions", Some("new"), Some(&chat_body("Hi", 4, false))).0, 200);
    assert_eq!(outcome(&b, "new"), is("completed", "length"));
}

#[test]
fn of_two_that_would_take_a_run_over_one_does() {
    const RUNS: usize = 6;
    let Some(stand) = Stand::lasting(2) else { return };
    let (a, b, c) = (stand.gateway("a"), stand.gateway("b"), stand.gateway("c"));
    let expected = alone(&lasting_model(), &[("Hello there", 80)]).remove(0);
    let ids: Vec<String> = (0..RUNS).map(|i| format!("r{i}")).collect();
    let callers: Vec<Caller> = ids.iter().map(|id| background(&a, id, &chat_body("Hello there", 80, true), 1)).collect();
    a.signal("KILL");
    drop(callers);
    for id in &ids {
        let told = Follower::of(&b, id, 0).all();
        assert_eq!(whole_text(&told), expected);
        assert_eq!(Follower::of(&c, id, 0).all(), told);
        for server in [&b, &c] {
            assert_eq!(outcome(server, id), is("completed", "length"));
        }
    }
    // Each went on at one of them, and both list them all.
    let had = [&b, &c].map(|server| crate::faults::metric(server, "kvit_run_outcomes_total{"));
    assert!(had[0] + had[1] <= RUNS as u64, "{had:?}");
    let listed = [&b, &c].map(|server| server.json("GET", "/v1/runs").1["data"].as_array().map_or(0, Vec::len));
    assert_eq!(listed, [RUNS, RUNS]);
}
