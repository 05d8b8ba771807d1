//! An edge that gives up silent requests: a real nginx with a short timeout before a scripted engine. What it gave up stops, or does not.
// contract: C-29

use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Trigger};
use verify::judge::profile::Profile;
use verify::judge::result::{Fault, Report, Verdict};
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::Stack;

use crate::convicted::told;
use crate::hop_logs::nginx_before;
use crate::scripted::{PROFILE, Scripted, Wrong};

/// Its timeout, in milliseconds.
const IDLE: u64 = 700;
const PREFILL: Cell = Cell::new(Phase::Prefill, Trigger::EdgeIdle);
const QUEUED: Cell = Cell::new(Phase::Queued, Trigger::EdgeIdle);
const EARLY: Cell = Cell::new(Phase::EarlyDecode, Trigger::EdgeIdle).whole();
const LATE: Cell = Cell::new(Phase::LateDecode, Trigger::EdgeIdle).whole();

fn settings() -> Settings {
    Settings {
        tries: 1,
        // Long enough for the answers that are to be silent until the edge gives them up, three times over.
        max_tokens: 1500,
        prefill_ms: 200,
        look_every_ms: 5,
        neighbours: 0,
        departures: 0,
        idle_ms: IDLE,
        seed: 1,
        ..Settings::default()
    }
}

/// Judges the engine behind an nginx that waits for so long, if there is nginx here.
async fn judged(wrong: Wrong, cells: &[Cell], timeout_ms: u64, settings: &Settings) -> Option<Report> {
    let engine = Scripted::start(wrong).await;
    let nginx = nginx_before(engine.addr.port(), "", &format!("proxy_buffering off; proxy_read_timeout {timeout_ms}ms;"))?;
    let at = |port: u16| Target::parse(&format!("http://127.0.0.1:{port}")).expect("a URL");
    let (target, counters) = (at(nginx.port), at(engine.addr.port()));
    let profile = Profile::parse(PROFILE).expect("a profile");
    let mut stack = Stack::meet(target, None, Some(counters.clone()), Some(profile), true).await.expect("it is there");
    let hops = ["edge,kind=nginx", "scripted"].map(|text| text.parse().expect("a hop"));
    stack.name_hops(&hops, Some(&counters)).await.expect("its hops can be looked at");
    Some(run(stack, settings, cells, |_| {}).await.expect("it can be judged"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_edge_gave_up_stops_in_a_correct_engine() {
    let cells = [PREFILL, QUEUED, EARLY, LATE];
    let Some(report) = judged(Wrong::Nothing, &cells, IDLE, &settings()).await else { return };
    for of in &report.cells {
        assert_eq!(of.verdict, Verdict::Pass, "{}", told(&report));
        let client = &of.seen[0].client;
        // The caller stayed, and was told by the edge; that is the trigger.
        assert_eq!((client.status, client.end.as_deref()), (Some(504), Some("error")), "{}", of.cell);
        assert!(client.sent_ms.is_some_and(|ms| ms <= -(IDLE as f64) * 0.8), "{:?}", client.sent_ms);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_edge_gave_up_goes_on_in_one_that_never_notices() {
    let Some(report) = judged(Wrong::NeverNotices, &[PREFILL, EARLY], IDLE, &settings()).await else { return };
    for of in &report.cells {
        assert!(matches!(of.verdict, Verdict::Fail { fault: Fault::NeverStops, .. }), "{}", told(&report));
        assert_eq!(of.lost_at.as_deref(), Some("edge → work"));
    }
    let Some(report) = judged(Wrong::KeepsQueued, &[QUEUED], IDLE, &settings()).await else { return };
    assert!(matches!(report.cells[0].verdict, Verdict::Fail { fault: Fault::QueuedIsBegun, .. }), "{}", told(&report));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_hop_gives_it_up_or_nobody_knows_when_nothing_is_claimed() {
    let Some(report) = judged(Wrong::NeverNotices, &[EARLY], 60_000, &settings()).await else { return };
    let missing = "no hop gave it up before";
    assert!(matches!(&report.cells[0].verdict, Verdict::NotProven { missing: told } if told.contains(missing)), "{}", told(&report));
    let unknown = Settings { idle_ms: 0, max_tokens: 64, ..settings() };
    let Some(report) = judged(Wrong::Nothing, &[PREFILL], 60_000, &unknown).await else { return };
    assert!(matches!(&report.cells[0].verdict, Verdict::NotApplicable { why } if why.contains("--idle-ms")), "{}", told(&report));
    let short = Settings { max_tokens: 64, ..settings() };
    let Some(report) = judged(Wrong::Nothing, &[EARLY], 60_000, &short).await else { return };
    assert!(matches!(&report.cells[0].verdict, Verdict::NotProven { missing } if missing.contains("--max-tokens")), "{}", told(&report));
}
