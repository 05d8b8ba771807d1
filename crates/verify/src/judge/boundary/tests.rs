//! Where a wish is lost, by taps, logs and the work itself.

use super::super::result::{ClientSaw, EngineSaw, Fault, Judged, LogSaw, Look, TapSaw, Verdict};
use super::super::verdict::judge;
use super::*;

const CELL: Cell = Cell::new(Phase::EarlyDecode, Trigger::Close);

fn way(names: &str) -> Way {
    let hop = |name: &str| Hop { name: name.to_owned(), kind: None, version: None, config_sha256: None };
    Way { hops: names.split(' ').map(hop).collect(), named: true }
}

fn tap(name: &str, down_closed_ms: Option<f64>) -> TapSaw {
    TapSaw { name: name.to_owned(), requests: 1, down_closed_ms, ..TapSaw::default() }
}

fn log(hop: &str, means: &str) -> LogSaw {
    LogSaw { hop: hop.to_owned(), said: String::new(), means: means.to_owned() }
}

/// A try whose work stopped in time, or never.
fn tried(stops: bool, taps: &[TapSaw], logs: &[LogSaw]) -> Try {
    let look = Look { running: Some(1.0), ..Look::default() };
    let engine = EngineSaw {
        after: vec![look],
        gone_ms: stops.then_some(9.0),
        tokens_after: Some(if stops { 1.0 } else { 97.0 }),
        polled: true,
        ..EngineSaw::default()
    };
    Try {
        entered: Some(Source::Client),
        asked_tokens: 100,
        client: ClientSaw { tokens: 3, ..ClientSaw::default() },
        engine: Some(engine),
        taps: taps.to_vec(),
        logs: logs.to_vec(),
        ..Try::default()
    }
}

fn judged(names: &str, tries: Vec<Try>) -> Judged {
    judge(CELL, tries, &Tolerance::default(), &way(names))
}

const LEFT: &str = "client left before an answer";
const DONE: &str = "completed";

#[test]
fn a_wish_is_lost_between_the_last_point_that_it_reached_and_the_first_that_it_did_not() {
    let names = "nginx litellm vllm";
    for (taps, logs, lost) in [
        (vec![], vec![], "client → work"),
        (vec![], vec![log("nginx", LEFT)], "nginx → work"),
        (vec![], vec![log("nginx", DONE)], "nginx → litellm"),
        (vec![], vec![log("nginx", LEFT), log("litellm", DONE)], "nginx → vllm"),
        (vec![], vec![log("litellm", DONE)], "client → vllm"),
        (vec![], vec![log("nginx", "answered, in part or whole")], "client → work"),
        (vec![tap("litellm", Some(1.0))], vec![], "litellm → work"),
        (vec![tap("litellm", None)], vec![], "client → litellm"),
        (vec![tap("litellm", None)], vec![log("nginx", LEFT)], "nginx → litellm"),
        (vec![tap("litellm", Some(1.0)), tap("vllm", None)], vec![], "litellm → vllm"),
        (vec![tap("litellm", Some(1.0)), tap("vllm", Some(2.0))], vec![log("nginx", LEFT)], "vllm → work"),
        (vec![tap("litellm", Some(1.0)), tap("vllm", Some(2500.0))], vec![], "litellm → vllm"),
        (vec![tap("nginx", None)], vec![], "client → nginx"),
        (vec![tap("nginx", Some(0.1))], vec![log("nginx", DONE)], "nginx → litellm"),
        (vec![tap("litellm", Some(1.0))], vec![log("litellm", DONE)], "litellm → vllm"),
    ] {
        let judged = judged(names, vec![tried(true, &[], &[]), tried(false, &taps, &logs)]);
        assert!(matches!(judged.verdict, Verdict::Fail { fault: Fault::NeverStops, .. }));
        assert_eq!(judged.lost_at.as_deref(), Some(lost), "{taps:?} {logs:?}");
        assert_eq!(judged.boundaries.len(), 4);
    }
}

#[test]
fn proxies_that_give_a_request_up_have_told_the_next_hop() {
    let mut way = way("nginx haproxy llamacpp");
    way.hops.iter_mut().for_each(|hop| hop.kind = Some(hop.name.clone()));
    let judged = |cell: Cell, taps: &[TapSaw], logs: &[LogSaw]| judge(cell, vec![tried(false, taps, logs)], &Tolerance::default(), &way);
    for (taps, logs, lost) in [
        (vec![], vec![log("nginx", LEFT), log("haproxy", DONE)], "haproxy → llamacpp"),
        (vec![], vec![log("nginx", LEFT)], "haproxy → work"),
        (vec![], vec![log("nginx", LEFT), log("haproxy", LEFT)], "llamacpp → work"),
        // What a tap sees is so, whatever a log says.
        (vec![tap("haproxy", None)], vec![log("nginx", LEFT)], "nginx → haproxy"),
    ] {
        assert_eq!(judged(CELL.whole(), &taps, &logs).lost_at.as_deref(), Some(lost), "{taps:?} {logs:?}");
    }
    let of = judged(CELL.whole(), &[], &[log("nginx", LEFT), log("haproxy", DONE)]);
    let said: Vec<_> = of.boundaries.iter().map(|of| (of.is_crossed(), of.by)).collect();
    let log_says = Some(Source::Log);
    assert_eq!(said, [(Some(true), log_says), (Some(true), log_says), (Some(false), log_says), (Some(false), Some(Source::Counters))]);
    // A stream that waited: who left was noticed before there was an answer, or with its first piece, when all was computed.
    let queued = Cell::new(Phase::Queued, Trigger::Close);
    let late = [log("nginx", LEFT), log("haproxy", "client left")];
    assert_eq!(judged(queued, &[], &late).lost_at.as_deref(), Some("haproxy → work"));
}

#[test]
fn a_log_says_where_and_never_whether() {
    let passed = judged("nginx vllm", vec![tried(true, &[], &[log("nginx", LEFT)])]);
    let said: Vec<_> = passed.boundaries.iter().map(|of| (of.name.as_str(), of.is_crossed(), of.crossed_ms, of.by)).collect();
    assert_eq!(
        said,
        [
            ("client → nginx", Some(true), None, Some(Source::Log)),
            ("nginx → vllm", None, None, None),
            ("vllm → work", Some(true), Some(9.0), Some(Source::Counters)),
        ]
    );
    assert_eq!((passed.verdict, passed.by), (Verdict::Pass, vec![Source::Counters]));
    // It served all of it, and yet the work stopped in time: the end was near anyway.
    let near = judged("nginx vllm", vec![tried(true, &[], &[log("nginx", DONE)])]);
    assert_eq!((near.boundaries[0].is_crossed(), near.boundaries[1].is_crossed()), (None, None));
    // Without anything else a log proves nothing.
    let alone = Try { engine: None, ..tried(true, &[], &[log("nginx", LEFT)]) };
    assert!(matches!(judged("nginx vllm", vec![alone]).verdict, Verdict::NotProven { .. }));
}

#[test]
fn a_tap_that_is_not_the_engines_own_convicts_and_acquits_of_nothing() {
    let seen =
        |complete| TapSaw { complete, last_byte_ms: Some(900.0), up_closed_ms: Some(1.0), events_after: 2, ..tap("litellm", Some(1.0)) };
    let of = |complete| Try { engine: None, ..tried(true, &[seen(complete)], &[]) };
    assert!(matches!(judged("litellm vllm", vec![of(false)]).verdict, Verdict::NotProven { .. }));
    assert!(matches!(judged("litellm vllm", vec![of(true)]).verdict, Verdict::Fail { fault: Fault::NeverStops, .. }));
}

#[test]
fn a_cancel_by_name_takes_a_way_of_its_own() {
    let cell = Cell { trigger: Trigger::Cancel, ..CELL };
    let judged =
        judge(cell, vec![tried(false, &[tap("litellm", None)], &[log("litellm", DONE)])], &Tolerance::default(), &way("litellm vllm"));
    assert_eq!(judged.lost_at.as_deref(), Some("client → work"));
}

#[test]
fn a_report_of_an_older_release_says_it_by_its_times() {
    let of = |crossed_ms, by| Boundary { name: String::new(), crossed: None, crossed_ms, by }.is_crossed();
    assert_eq!((of(Some(1.0), Some(Source::Tap)), of(None, Some(Source::Tap)), of(None, None)), (Some(true), Some(false), None));
}
