//! Stacks whose hops are named: real nginx and haproxy before a scripted engine. Their logs are joined by id, the place where a departure was lost
//! is told, with a tap and without, and each hop has its fingerprint.
// contract: C-29

use std::sync::atomic::{AtomicU64, Ordering};

use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Trigger};
use verify::judge::fingerprint::sha256;
use verify::judge::profile::Profile;
use verify::judge::report::compare::Staleness;
use verify::judge::result::{Fault, Report, Source, Verdict};
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::Stack;
use verify::judge::tap::{Options, Tap};

use crate::hop_logs::{Running, haproxy_before, nginx_before};
use crate::scripted::{PROFILE, Scripted, Wrong};

const WHOLE: Cell = Cell::new(Phase::EarlyDecode, Trigger::Close).whole();
const STREAM: Cell = Cell::new(Phase::EarlyDecode, Trigger::Close);

fn settings() -> Settings {
    Settings {
        tries: 2,
        // Through proxies on a busy machine a departure takes a while: an answer is long beside that.
        max_tokens: 400,
        tokens: 120.0,
        prefill_ms: 300,
        look_every_ms: 5,
        neighbours: 0,
        departures: 0,
        log_wait_ms: 20_000,
        ..Settings::default()
    }
}

/// The stack whose edge is asked at this port, and its hops as a command line names them.
async fn met(port: u16, engine: &Scripted, hops: &[String]) -> Stack {
    let at = |port: u16| Target::parse(&format!("http://127.0.0.1:{port}")).expect("a URL");
    let (target, counters) = (at(port), at(engine.addr.port()));
    let profile = Profile::parse(PROFILE).expect("a profile");
    let mut stack = Stack::meet(target, None, Some(counters.clone()), Some(profile), true).await.expect("it is there");
    let named: Vec<_> = hops.iter().map(|text| text.parse().expect("a hop")).collect();
    stack.name_hops(&named, Some(&counters)).await.expect("its hops can be looked at");
    stack
}

async fn judged(port: u16, engine: &Scripted, hops: &[String], cells: &[Cell]) -> Report {
    // A tap remembers the ids of runs before this one.
    static RUNS: AtomicU64 = AtomicU64::new(1);
    let settings = Settings { seed: RUNS.fetch_add(1, Ordering::Relaxed), ..settings() };
    run(met(port, engine, hops).await, &settings, cells, |_| {}).await.expect("it can be judged")
}

/// The word of each hop's line, cell by cell.
fn said(report: &Report) -> Vec<Vec<String>> {
    report
        .cells
        .iter()
        .map(|of| of.seen.iter().flat_map(|seen| &seen.logs).map(|log| format!("{} {}", log.hop, log.said)).collect())
        .collect()
}

fn named(proxy: &Running, kind: &str) -> String {
    format!("edge,kind={kind},log={},config={}", proxy.log.display(), proxy.config.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_passes_a_departure_on_and_its_log_says_so() {
    let engine = Scripted::start(Wrong::Nothing).await;
    let Some(nginx) = nginx_before(engine.addr.port(), "", "proxy_buffering off;") else { return };
    let hops = [named(&nginx, "nginx"), "scripted".to_owned()];
    let report = judged(nginx.port, &engine, &hops, &[WHOLE, STREAM]).await;
    assert_eq!(said(&report), [vec!["edge 499, not complete"; 2], vec!["edge 200, not complete"; 2]]);
    for of in &report.cells {
        assert_eq!((&of.verdict, &of.lost_at), (&Verdict::Pass, &None));
        let said: Vec<_> = of.boundaries.iter().map(|of| (of.name.as_str(), of.is_crossed(), of.by)).collect();
        let (log, counters) = (Some(Source::Log), Some(Source::Counters));
        assert_eq!(
            said,
            [("client → edge", Some(true), log), ("edge → scripted", Some(true), log), ("scripted → work", Some(true), counters)]
        );
    }
    assert!(report.hints.is_empty(), "{:?}", report.hints);
    // Its release is what the very program prints, and its configuration is what it was started with.
    let edge = &report.hops[0];
    let config = std::fs::read(&nginx.config).expect("a configuration");
    assert_eq!(edge.config_sha256.as_deref(), Some(sha256(&config).as_str()));
    assert!(edge.version.as_deref().is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())), "{edge:?}");
    // A second run reads its own lines only, and finds the hops as they were.
    let again = judged(nginx.port, &engine, &hops, &[WHOLE]).await;
    assert_eq!(said(&again), [["edge 499, not complete"; 2]]);
    assert!(!Staleness::of(&report, &again.hops).stale);
    std::fs::write(&nginx.config, "another one").expect("it is written");
    let now = met(nginx.port, &engine, &hops).await.way.hops;
    let stale = Staleness::of(&report, &now);
    assert_eq!((stale.stale, stale.exit_code(), stale.hops[0].what.as_str()), (true, 1, "configuration"));
    assert!(stale.text(100).contains("stale      edge: configuration was"), "{}", stale.text(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_keeps_a_departure_to_itself_and_is_found_by_its_log_or_by_a_tap() {
    let engine = Scripted::start(Wrong::Nothing).await;
    let tap = Tap::start("127.0.0.1:0", &engine.addr.to_string(), Options { name: "t".to_owned(), ..Options::default() }).expect("a tap");
    let Some(haproxy) = haproxy_before(tap.listening().port(), "", "") else { return };
    let behind = format!("scripted,tap={}", tap.reporting());
    for (edge, engine_hop) in [
        (named(&haproxy, "haproxy"), "scripted".to_owned()),
        ("edge,kind=haproxy".to_owned(), behind.clone()),
        (named(&haproxy, "haproxy"), behind.clone()),
    ] {
        let hops = [edge, engine_hop];
        let report = judged(haproxy.port, &engine, &hops, &[WHOLE]).await;
        let of = &report.cells[0];
        assert!(matches!(of.verdict, Verdict::Fail { fault: Fault::NeverStops, .. }), "{hops:?} {:?}", of.verdict);
        let logged = hops[0].contains("log=");
        assert_eq!(said(&report)[0], if logged { vec!["edge ----"; 2] } else { vec![] });
        // With a tap alone nobody says whether haproxy was told; all the same it is the only one in between.
        assert_eq!(of.lost_at.as_deref(), Some(if logged { "edge → scripted" } else { "client → scripted" }), "{hops:?}");
        assert!(of.advice.contains(&"haproxy-abortonclose".to_owned()), "{hops:?} {:?}", of.advice);
        assert!(!of.advice.iter().any(|id| id.starts_with("engine") || id.starts_with("caller")), "{hops:?} {:?}", of.advice);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_told_is_found_behind_a_proxy_that_told_it() {
    let engine = Scripted::start(Wrong::NeverNotices).await;
    let tap = Tap::start("127.0.0.1:0", &engine.addr.to_string(), Options { name: "t".to_owned(), ..Options::default() }).expect("a tap");
    let Some(haproxy) = haproxy_before(tap.listening().port(), "option abortonclose", "") else { return };
    let hops = [named(&haproxy, "haproxy"), format!("scripted,tap={}", tap.reporting())];
    let report = judged(haproxy.port, &engine, &hops, &[WHOLE]).await;
    assert_eq!((said(&report), report.cells[0].lost_at.as_deref()), (vec![vec!["edge CH--".to_owned(); 2]], Some("scripted → work")));
    assert_eq!(report.cells[0].advice, ["engine-writes-only"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_ids_is_told_with_the_format_that_has_them() {
    let engine = Scripted::start(Wrong::Nothing).await;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    std::fs::write(&log, "").expect("a log");
    let stack = met(engine.addr.port(), &engine, &[format!("nginx,log={}", log.display()), "scripted".to_owned()]).await;
    let report = run(stack, &Settings { log_wait_ms: 0, ..settings() }, &[WHOLE], |_| {}).await.expect("it can be judged");
    assert_eq!(report.cells[0].verdict, Verdict::Pass);
    assert!(report.hints.iter().any(|hint| hint.contains("no line of 2 of 2") && hint.contains("log_format")), "{:?}", report.hints);
}
