//! Every entry is named for what it is for, and not for something else.

use std::collections::BTreeSet;

use super::super::result::{Source, TapSaw, Try};
use super::*;

fn hop(name: &str, kind: Option<&str>) -> Hop {
    Hop { name: name.to_owned(), kind: kind.map(str::to_owned), version: None, config_sha256: None }
}

/// Hops of these kinds, named as their kinds are.
fn hops(kinds: &str) -> Vec<Hop> {
    kinds.split(' ').map(|kind| hop(kind, Some(kind).filter(|kind| *kind != "unknown"))).collect()
}

/// A fault, lost at this boundary of a stack in which each hop but the first has a tap in front of it.
fn judged(cell: &str, fault: Fault, kinds: &str, lost_at: &str) -> Judged {
    let mut names = vec!["client"];
    names.extend(kinds.split(' '));
    let boundary =
        |pair: &[&str]| Boundary { name: format!("{} → {}", pair[0], pair[1]), crossed: None, crossed_ms: None, by: Some(Source::Tap) };
    Judged {
        cell: cell.parse().expect("a cell"),
        verdict: Verdict::Fail { fault, why: String::new() },
        by: Vec::new(),
        tries: 1,
        tokens_after: None,
        steps_after: None,
        stop_ms: None,
        capacity_ms: None,
        boundaries: names.windows(2).map(boundary).collect(),
        lost_at: Some(lost_at.to_owned()).filter(|lost| !lost.is_empty()),
        advice: Vec::new(),
        note: None,
        seen: Vec::new(),
    }
}

/// An entry; the cell, fault, hops and place that it is for; and those that it is not for.
type Case = (&'static str, [&'static str; 4], &'static [[&'static str; 4]]);

const CASES: &[Case] = &[
    (
        "haproxy-abortonclose",
        ["early/close/whole", "never-stops", "haproxy vllm", "haproxy → vllm"],
        &[
            ["early/close/whole", "never-stops", "nginx vllm", "nginx → vllm"],
            ["early/close/whole", "asked-again", "haproxy vllm", ""],
            ["early/close/whole", "never-stops", "haproxy litellm vllm", "litellm → vllm"],
        ],
    ),
    (
        "haproxy-no-delay",
        ["early/close/stream", "stops-late", "haproxy vllm", "haproxy → vllm"],
        &[
            ["early/close/whole", "stops-late", "haproxy vllm", "haproxy → vllm"],
            ["prefill/close/stream", "stops-late", "haproxy vllm", "haproxy → vllm"],
        ],
    ),
    (
        "haproxy-half-close",
        ["early/half-close/stream", "wanted-is-cancelled", "haproxy vllm", ""],
        &[["early/close/stream", "never-stops", "haproxy vllm", ""], ["early/half-close/stream", "wanted-is-cancelled", "nginx vllm", ""]],
    ),
    (
        "haproxy-retries",
        ["early/deadline/whole", "asked-again", "haproxy vllm", ""],
        &[["early/deadline/whole", "never-stops", "haproxy vllm", ""]],
    ),
    (
        "nginx-ignore-client-abort",
        ["early/close/whole", "never-stops", "nginx vllm", "nginx → vllm"],
        &[
            ["early/close/whole", "never-stops", "nginx haproxy vllm", "haproxy → vllm"],
            ["early/half-close/stream", "wanted-is-cancelled", "nginx vllm", ""],
        ],
    ),
    (
        "nginx-cache",
        ["early/close/stream", "never-stops", "nginx vllm", "nginx → vllm"],
        &[["early/close/stream", "asked-again", "nginx vllm", ""]],
    ),
    (
        "nginx-buffering",
        ["late/stop-reading/stream", "never-stops", "nginx vllm", "nginx → vllm"],
        &[["late/close/stream", "never-stops", "nginx vllm", "nginx → vllm"]],
    ),
    (
        "half-close-taken-for-close",
        ["prefill/half-close/stream", "wanted-is-cancelled", "nginx vllm", ""],
        &[["prefill/close/stream", "never-stops", "nginx vllm", ""]],
    ),
    (
        "nginx-next-upstream",
        ["prefill/edge-idle/whole", "asked-again", "nginx vllm", ""],
        &[["prefill/close/whole", "never-stops", "nginx vllm", ""]],
    ),
    (
        "nginx-timeout",
        ["prefill/edge-idle/whole", "never-stops", "nginx vllm", ""],
        &[["prefill/close/whole", "never-stops", "nginx vllm", ""]],
    ),
    (
        "envoy-timeout",
        ["prefill/edge-idle/whole", "never-stops", "envoy vllm", ""],
        &[["late/close/stream", "never-stops", "envoy vllm", ""], ["early/half-close/stream", "wanted-is-cancelled", "envoy vllm", ""]],
    ),
    ("envoy-retries", ["late/deadline/stream", "asked-again", "envoy vllm", ""], &[["late/close/stream", "never-stops", "envoy vllm", ""]]),
    (
        "envoy-buffers",
        ["early/close/whole", "never-stops", "envoy vllm", "envoy → vllm"],
        &[["early/close/whole", "never-stops", "envoy litellm vllm", "litellm → vllm"]],
    ),
    (
        "caddy-flush-interval",
        ["early/close/whole", "never-stops", "caddy vllm", "caddy → vllm"],
        &[["early/close/whole", "never-stops", "nginx vllm", "nginx → vllm"]],
    ),
    (
        "litellm-cancel-on-disconnect",
        ["early/close/whole", "never-stops", "nginx litellm vllm", "litellm → vllm"],
        &[
            ["early/close/stream", "never-stops", "nginx litellm vllm", "litellm → vllm"],
            ["early/close/whole", "never-stops", "nginx litellm vllm", "nginx → litellm"],
            ["early/close/whole", "asked-again", "nginx litellm vllm", ""],
        ],
    ),
    (
        "litellm-retries",
        ["early/deadline/whole", "asked-again", "litellm vllm", ""],
        &[["early/deadline/whole", "never-stops", "litellm vllm", ""]],
    ),
    (
        "asgi-is-disconnected",
        ["early/close/whole", "never-stops", "uvicorn vllm", "uvicorn → vllm"],
        &[
            ["early/close/stream", "never-stops", "uvicorn vllm", "uvicorn → vllm"],
            ["early/close/whole", "never-stops", "litellm vllm", "litellm → vllm"],
        ],
    ),
    (
        "asgi-handler-not-cancelled",
        ["early/close/whole", "never-stops", "fastapi vllm", "fastapi → vllm"],
        &[["early/close/stream", "never-stops", "fastapi vllm", "fastapi → vllm"]],
    ),
    (
        "asgi-before-the-head",
        ["prefill/close/stream", "never-stops", "starlette vllm", "starlette → vllm"],
        &[["early/close/stream", "never-stops", "starlette vllm", "starlette → vllm"]],
    ),
    (
        "httpx-stream-not-closed",
        ["early/close/stream", "never-stops", "asgi vllm", "asgi → vllm"],
        &[
            ["prefill/close/stream", "never-stops", "asgi vllm", "asgi → vllm"],
            ["early/close/whole", "never-stops", "asgi vllm", "asgi → vllm"],
        ],
    ),
    (
        "router-not-passed-on",
        ["early/close/whole", "never-stops", "vllm-router vllm", "vllm-router → vllm"],
        &[
            ["early/close/whole", "never-stops", "nginx vllm", "nginx → vllm"],
            ["early/close/whole", "never-stops", "vllm-router unknown", "unknown → unknown"],
        ],
    ),
    (
        "llamacpp-router",
        ["early/close/stream", "never-stops", "llamacpp-router llamacpp", "llamacpp-router → llamacpp"],
        &[["early/close/stream", "never-stops", "nginx llamacpp", ""]],
    ),
    (
        "llamacpp-prompt-batch",
        ["prefill/close/stream", "stops-late", "llamacpp", "client → llamacpp"],
        &[
            ["early/close/stream", "stops-late", "llamacpp", "client → llamacpp"],
            ["prefill/close/stream", "stops-late", "haproxy llamacpp extra", "haproxy → llamacpp"],
        ],
    ),
    (
        "llamacpp-looks-each-second",
        ["early/close/whole", "stops-late", "llamacpp", ""],
        &[["early/close/stream", "stops-late", "llamacpp", ""], ["early/close/whole", "stops-late", "vllm", ""]],
    ),
    (
        "llamacpp-looks-when-idle",
        ["queued/close/stream", "queued-is-begun", "llamacpp", ""],
        &[["queued/close/stream", "queued-is-begun", "vllm", ""], ["queued/close/stream", "asked-again", "llamacpp", ""]],
    ),
    (
        "vllm-middleware",
        ["early/close/whole", "never-stops", "vllm", "client → vllm"],
        &[
            ["early/cancel/whole", "cancel-does-nothing", "vllm", ""],
            ["early/close/whole", "never-stops", "haproxy litellm vllm", "haproxy → litellm"],
        ],
    ),
    (
        "vllm-abort-endpoint",
        ["early/cancel/stream", "cancel-does-nothing", "vllm", ""],
        &[["early/close/stream", "never-stops", "vllm", ""], ["early/cancel/stream", "cancel-does-nothing", "sglang", ""]],
    ),
    (
        "sglang-abort-prefix",
        ["early/cancel/stream", "wanted-is-cancelled", "sglang", ""],
        &[["early/cancel/stream", "wanted-is-cancelled", "vllm", ""], ["early/close/stream", "never-stops", "sglang", ""]],
    ),
    (
        "sglang-abort-in-prefill",
        ["prefill/cancel/stream", "never-stops", "sglang", ""],
        &[["early/cancel/stream", "never-stops", "sglang", ""]],
    ),
    (
        "cancel-lost-in-router",
        ["early/cancel/stream", "cancel-does-nothing", "vllm-router vllm", ""],
        &[["early/cancel/stream", "cancel-does-nothing", "nginx vllm", ""], ["early/close/stream", "never-stops", "vllm-router vllm", ""]],
    ),
    (
        "cancel-heard-only",
        ["early/cancel/stream", "cancel-does-nothing", "unknown", ""],
        &[["early/cancel/stream", "cancel-does-nothing", "vllm", ""], ["early/close/stream", "never-stops", "unknown", ""]],
    ),
    (
        "engine-writes-only",
        ["prefill/close/stream", "stops-at-next-write", "unknown", ""],
        &[["prefill/close/stream", "stops-at-next-write", "vllm", ""]],
    ),
    (
        "kvit-half-close",
        ["early/half-close/stream", "wanted-is-cancelled", "kvit", ""],
        &[["early/half-close/stream", "never-stops", "kvit", ""], ["early/half-close/stream", "wanted-is-cancelled", "kvit vllm", ""]],
    ),
    (
        "kvit-gateway-half-close",
        ["early/half-close/stream", "wanted-is-cancelled", "kvit vllm", ""],
        &[["early/half-close/stream", "wanted-is-cancelled", "kvit", ""]],
    ),
    (
        "engine-half-close",
        ["early/half-close/stream", "wanted-is-cancelled", "unknown", ""],
        &[["early/half-close/stream", "never-stops", "unknown", ""], ["early/cancel/stream", "wanted-is-cancelled", "unknown", ""]],
    ),
    ("kvit-on-disconnect", ["early/close/stream", "never-stops", "kvit", ""], &[["early/cancel/stream", "never-stops", "kvit", ""]]),
    (
        "kvit-gateway-on-disconnect",
        ["early/close/stream", "never-stops", "kvit vllm", "kvit → vllm"],
        &[["early/close/stream", "never-stops", "kvit", ""], ["early/deadline/stream", "never-stops", "kvit vllm", "kvit → vllm"]],
    ),
    ("sdk-retries", ["early/deadline/whole", "asked-again", "vllm", ""], &[["early/deadline/whole", "never-stops", "vllm", ""]]),
    (
        "caller-keeps-the-connection",
        ["early/close/stream", "never-stops", "nginx vllm", "client → nginx"],
        &[
            ["early/close/stream", "never-stops", "nginx vllm", "nginx → vllm"],
            ["early/close/stream", "never-stops", "nginx vllm", ""],
            ["early/close/stream", "never-stops", "vllm", "client → vllm"],
        ],
    ),
];

/// An entry; the check, fault (or none, where nothing was proven) and engine that it is for; and those that it is not for.
type CheckCase = (&'static str, [&'static str; 3], &'static [[&'static str; 3]]);

const CHECK_CASES: &[CheckCase] = &[
    ("llamacpp-looks-when-idle", ["observer", "", "llamacpp"], &[["observer", "", "vllm"], ["memory", "", "llamacpp"]]),
    ("llamacpp-prompt-cache", ["memory", "", "llamacpp"], &[["memory", "", "vllm"], ["per-request state", "state-leaks", "llamacpp"]]),
    ("vllm-state-of-aborted", ["memory", "", "vllm"], &[["capacity", "capacity-leaks", "vllm"], ["memory", "", "llamacpp"]]),
    ("sglang-state-of-queued", ["per-request state", "state-leaks", "sglang"], &[["per-request state", "state-leaks", "vllm"]]),
    (
        "engine-keeps-state",
        ["per-request state", "state-leaks", "unknown"],
        &[["per-request state", "", "unknown"], ["memory", "", "kvit"]],
    ),
    ("nginx-timeout", ["control", "control-fails", "vllm"], &[["capacity", "capacity-leaks", "vllm"]]),
    ("stack-breaks", ["control", "control-fails", "vllm"], &[["control", "", "vllm"], ["capacity", "capacity-leaks", "vllm"]]),
    ("engine-keeps-room", ["capacity", "capacity-leaks", "tgi"], &[["cache", "capacity-leaks", "tgi"], ["capacity", "", "tgi"]]),
    ("engine-loses-its-cache", ["cache", "capacity-leaks", "kvit"], &[["capacity", "capacity-leaks", "kvit"]]),
    ("departure-slows-others", ["neighbours", "neighbours-slowed", "kvit"], &[["neighbours", "neighbours-corrupted", "kvit"]]),
    ("departure-changes-others", ["neighbours", "neighbours-corrupted", "vllm"], &[["neighbours", "", "vllm"]]),
];

fn check_advice([name, fault, engine]: [&str; 3]) -> Vec<String> {
    let verdict = match fault {
        "" => Verdict::NotProven { missing: String::new() },
        fault => Verdict::Fail { fault: fault.parse().expect("a fault"), why: String::new() },
    };
    advise_check(&Check::new(name, verdict, Vec::new()), &hops(&format!("nginx {engine}")))
}

#[test]
fn checks_have_advice_as_cells_have() {
    for &(id, for_this, not_for) in CHECK_CASES {
        assert!(check_advice(for_this).iter().any(|named| named == id), "{id} is not named for {for_this:?}: {:?}", check_advice(for_this));
        for &other in not_for {
            assert!(!check_advice(other).iter().any(|named| named == id), "{id} is named for {other:?}");
        }
    }
    let passed = Check::new("memory", Verdict::Pass, Vec::new());
    let one_way = Check::new("observer", Verdict::NotProven { missing: String::new() }, Vec::new()).with("changed", 0.0);
    assert_eq!((advise_check(&passed, &hops("llamacpp")), advise_check(&one_way, &hops("llamacpp"))), (vec![], vec![]));
}

fn advice([cell, fault, kinds, lost_at]: [&str; 4]) -> Vec<String> {
    advise(&judged(cell, fault.parse().expect("a fault"), kinds, lost_at), &hops(kinds))
}

#[test]
fn each_entry_is_named_for_what_it_is_for_and_not_for_something_else() {
    for &(id, for_this, not_for) in CASES {
        assert!(advice(for_this).iter().any(|named| named == id), "{id} is not named for {for_this:?}: {:?}", advice(for_this));
        for &other in not_for {
            assert!(!advice(other).iter().any(|named| named == id), "{id} is named for {other:?}");
        }
        assert!(!not_for.is_empty(), "{id}");
    }
    let of_checks = CHECK_CASES.iter().map(|(id, _, _)| *id);
    let tested: BTreeSet<&str> = CASES.iter().map(|(id, _, _)| *id).chain(of_checks).collect();
    let known: BTreeSet<&str> = all().iter().map(|entry| entry.id.as_str()).collect();
    assert_eq!(tested, known);
    assert_eq!(known.len(), all().len(), "no two have one name");
}

#[test]
fn entries_say_all_that_a_reader_needs() {
    for entry in all() {
        assert!(!entry.when.is_empty() && !entry.evidence.is_empty(), "{}", entry.id);
        let is_of_checks = entry.when.iter().all(|when| !when.checks.is_empty());
        assert!(entry.hops.is_empty() == (entry.role == Role::Caller) || is_of_checks, "{}", entry.id);
        for text in [&entry.title, &entry.cause, &entry.fix].into_iter().chain(&entry.evidence) {
            assert!(!text.trim().is_empty() && text.trim() == text, "{}: {text}", entry.id);
        }
        assert!(entry.title.chars().count() <= 72, "{}", entry.id);
        assert_eq!(named(&entry.id), Some(entry));
    }
    assert_eq!(named("of-another-release"), None);
}

#[test]
fn what_passed_and_what_was_not_proven_has_no_advice() {
    let mut one = judged("early/close/whole", Fault::NeverStops, "haproxy vllm", "");
    assert!(!advise(&one, &hops("haproxy vllm")).is_empty());
    for verdict in [Verdict::Pass, Verdict::NotProven { missing: String::new() }, Verdict::NotApplicable { why: String::new() }] {
        one.verdict = verdict;
        assert_eq!(advise(&one, &hops("haproxy vllm")), [""; 0]);
    }
}

#[test]
fn the_hop_in_front_of_the_boundary_is_asked_about_first_and_alone() {
    let stack = "nginx haproxy litellm vllm";
    let ids = |lost_at| advice(["early/close/whole", "never-stops", stack, lost_at]);
    assert_eq!(ids("haproxy → litellm"), ["haproxy-abortonclose"]);
    assert_eq!(ids("litellm → vllm")[0], "litellm-cancel-on-disconnect");
    assert_eq!(ids("client → nginx"), ["caller-keeps-the-connection"]);
    // The taps stand in front of litellm and of vllm only: between the caller and the first of them are two hops.
    assert_eq!(ids("client → litellm"), ["haproxy-abortonclose", "nginx-ignore-client-abort", "nginx-cache"]);
    // Nobody looked: all are asked about, the engine, too.
    let all = ids("");
    assert!(
        ["haproxy-abortonclose", "litellm-cancel-on-disconnect", "vllm-middleware"].iter().all(|id| all.iter().any(|named| named == id))
    );
    // A tap with a name of its own bounds nothing.
    assert!(ids("nginx → t1").contains(&"vllm-middleware".to_owned()));
    // Nothing but the engine is known by name, and there are taps: an engine that was not told is not to blame.
    let mut one = judged("early/close/whole", Fault::NeverStops, "t1 vllm", "client → t1");
    assert_eq!(advise(&one, &hops("vllm")), ["caller-keeps-the-connection"]);
    one.lost_at = Some("t1 → vllm".to_owned());
    assert_eq!(advise(&one, &hops("vllm")), ["vllm-middleware"]);
    // Where the hops were named, their way ends at the work: a span up to the engine does not accuse it, and one up to the work does.
    let named = judged("early/close/whole", Fault::NeverStops, "nginx litellm vllm work", "");
    let of = |lost_at: &str| advise(&Judged { lost_at: Some(lost_at.to_owned()), ..named.clone() }, &hops("nginx litellm vllm"));
    let accused = |lost_at: &str| of(lost_at).contains(&"vllm-middleware".to_owned());
    assert_eq!(["vllm → work", "client → work", "nginx → vllm", "litellm → vllm"].map(accused), [true, true, false, false]);
    assert_eq!(of("vllm → work"), ["vllm-middleware"]);
    assert_eq!(advise(&judged("early/close/stream", Fault::NeverStops, "x", ""), &[]), ["caller-keeps-the-connection"]);
}

#[test]
fn who_asks_again_stands_in_front_of_the_first_tap_that_was_passed_twice() {
    let stack = "nginx litellm vllm";
    let mut one = judged("early/deadline/whole", Fault::AskedAgain, stack, "");
    let tap = |name: &str, requests| TapSaw { name: name.to_owned(), requests, ..TapSaw::default() };
    one.seen = vec![Try { taps: vec![tap("litellm", 1), tap("vllm", 3)], ..Try::default() }];
    assert_eq!(advise(&one, &hops(stack)), ["nginx-next-upstream", "litellm-retries", "sdk-retries"]);
    one.seen = vec![Try { taps: vec![tap("litellm", 3), tap("vllm", 3)], ..Try::default() }];
    assert_eq!(advise(&one, &hops(stack)), ["nginx-next-upstream", "sdk-retries"]);
}
