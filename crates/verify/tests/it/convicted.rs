//! Each fault is found, and nothing else; a correct engine passes.

use std::time::Duration;

use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Set, Trigger};
use verify::judge::profile::Profile;
use verify::judge::result::{Fault, NeighbourText, Report, Source, Verdict};
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::Stack;

use crate::scripted::{PROFILE, Scripted, Wrong};

pub fn settings() -> Settings {
    Settings {
        tries: 1,
        max_tokens: 100,
        tokens: 8.0,
        prompt_tokens: 200.0,
        stop_ms: 150.0,
        prefill_ms: 300,
        look_every_ms: 5,
        ..Settings::default()
    }
}

async fn judged(engine: &Scripted, cells: &[Cell]) -> Report {
    judged_by(engine, cells, &settings()).await
}

pub async fn judged_by(engine: &Scripted, cells: &[Cell], settings: &Settings) -> Report {
    judged_as(engine, cells, settings, PROFILE).await
}

async fn judged_as(engine: &Scripted, cells: &[Cell], settings: &Settings, profile: &str) -> Report {
    let target = Target::parse(&format!("http://{}", engine.addr)).expect("a URL");
    let profile = Profile::parse(profile).expect("a profile");
    let stack = Stack::meet(target, None, None, Some(profile), true).await.expect("it is there");
    let report = run(stack, settings, cells, |_| {}).await.expect("it can be judged");
    assert_eq!(report.cells.len(), cells.len());
    report
}

/// Everything that it is convicted of, each with the cell or the check.
pub fn convictions(report: &Report) -> Vec<(String, Fault)> {
    let cells = report.cells.iter().map(|of| (of.cell.to_string(), &of.verdict));
    let checks = report.checks.iter().map(|of| (of.name.clone(), &of.verdict));
    let fault = |(name, verdict): (String, &Verdict)| match verdict {
        Verdict::Fail { fault, .. } => Some((name, *fault)),
        _ => None,
    };
    cells.chain(checks).filter_map(fault).collect()
}

pub fn told(report: &Report) -> String {
    let cells = report.cells.iter().map(|of| format!("{}: {:?}, {:?} tokens, {:?} ms", of.cell, of.verdict, of.tokens_after, of.stop_ms));
    let checks = report.checks.iter().map(|of| format!("{}: {:?} {:?}", of.name, of.verdict, of.measured));
    cells.chain(checks).collect::<Vec<_>>().join("\n")
}

async fn is_convicted(wrong: Wrong, cells: &[Cell], of: &[(&str, Fault)]) {
    let engine = Scripted::start(wrong).await;
    let report = judged(&engine, cells).await;
    let found = convictions(&report);
    let found: Vec<(&str, Fault)> = found.iter().map(|(name, fault)| (name.as_str(), *fault)).collect();
    assert_eq!(found, of, "{wrong:?}:\n{}", told(&report));
    assert_eq!(report.exit_code(), u8::from(!of.is_empty()));
    assert_eq!(report.count("not proven"), 0, "{}", told(&report));
}

const EARLY: Cell = Cell::new(Phase::EarlyDecode, Trigger::Close);
const LATE: Cell = Cell::new(Phase::LateDecode, Trigger::Close);
const PREFILL: Cell = Cell::new(Phase::Prefill, Trigger::Close);
const QUEUED: Cell = Cell::new(Phase::Queued, Trigger::Close);
const CANCEL: Cell = Cell::new(Phase::EarlyDecode, Trigger::Cancel);

#[tokio::test(flavor = "multi_thread")]
async fn a_correct_engine_passes_the_quick_set() {
    is_convicted(Wrong::Nothing, &Set::Quick.cells(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_until_its_room_is_back_is_told() {
    let engine = Scripted::start(Wrong::Nothing).await;
    let report = judged(&engine, &[EARLY]).await;
    let of = &report.cells[0];
    let looks: Vec<f64> = of.seen[0].engine.iter().flat_map(|engine| &engine.after).map(|look| look.ended_ms).collect();
    assert!(of.capacity_ms.is_some_and(|ms| looks.contains(&ms)), "{:?} of {looks:?}", of.capacity_ms);
    // What leaks never comes back.
    let engine = Scripted::start(Wrong::LeaksBlock).await;
    assert_eq!(judged(&engine, &[EARLY]).await.cells[0].capacity_ms, None);
}

/// Every way of leaving that this engine can be left in, and half a close, which it takes for one.
#[tokio::test(flavor = "multi_thread")]
async fn a_correct_engine_passes_every_way_of_leaving() {
    let ways = [Trigger::Close, Trigger::Reset, Trigger::HalfClose, Trigger::Kill];
    let cells: Vec<Cell> =
        ways.iter().flat_map(|way| [Cell::new(Phase::EarlyDecode, *way), Cell::new(Phase::EarlyDecode, *way).whole()]).collect();
    is_convicted(Wrong::Nothing, &cells, &[]).await;
    let killed = [Cell::new(Phase::EarlyDecode, Trigger::Kill)];
    is_convicted(Wrong::NeverNotices, &killed, &[("early/kill/stream", Fault::NeverStops)]).await;
}

/// Looked at between a departure and its end or not, the answer is the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_judged_without_looking_is_judged_alike() {
    for (wrong, fails) in [(Wrong::Nothing, false), (Wrong::NeverNotices, true)] {
        let engine = Scripted::start(wrong).await;
        let passive = Settings { poll: Some(false), both_ways: true, neighbours: 0, ..settings() };
        let report = judged_by(&engine, &[EARLY, LATE.whole()], &passive).await;
        for of in &report.cells {
            assert_eq!((of.verdict.is_fail(), of.verdict == Verdict::Pass), (fails, !fails), "{}", told(&report));
            assert_eq!(of.by, [Source::CountersApart]);
        }
        let observer = report.checks.iter().find(|check| check.name == "observer").expect("it was asked for");
        assert_eq!((&observer.verdict, observer.measured["cells"]), (&Verdict::Pass, 2.0), "{}", told(&report));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_never_notices() {
    let early = "early/close/stream";
    let whole = "early/close/whole";
    is_convicted(Wrong::NeverNotices, &[EARLY, EARLY.whole()], &[(early, Fault::NeverStops), (whole, Fault::NeverStops)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_notices_at_the_next_write() {
    is_convicted(Wrong::NoticesAtWrite, &[EARLY, PREFILL], &[("prefill/close/stream", Fault::StopsAtNextWrite)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_late_by_some_tokens() {
    is_convicted(Wrong::LateBy(30), &[EARLY], &[("early/close/stream", Fault::StopsLate)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_leaks_a_block_or_an_entry_of_each() {
    is_convicted(Wrong::LeaksBlock, &[EARLY, LATE], &[("capacity", Fault::CapacityLeaks)]).await;
    is_convicted(Wrong::LeaksState, &[EARLY, LATE], &[("per-request state", Fault::StateLeaks)]).await;
}

/// Entries that a pool keeps are none that each request leaves, and a cache that gives what it gave is well.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_pool_or_a_cache_keeps_is_no_leak() {
    is_convicted(Wrong::GrowsPool, &[EARLY, LATE], &[]).await;
    let engine = Scripted::start(Wrong::Caches).await;
    let report = judged(&engine, &[EARLY]).await;
    assert_eq!(convictions(&report), [], "{}", told(&report));
    let cache = report.checks.iter().find(|check| check.name == "cache").expect("it is looked at");
    assert_eq!((&cache.verdict, cache.measured["prompts"]), (&Verdict::Pass, 1.0));
}

/// Where no counter tells how much room there is, requests at once do.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_leaks_slots_and_tells_nothing_of_its_room() {
    let untold: String = PROFILE.lines().filter(|line| !line.starts_with("kv_held")).map(|line| format!("{line}\n")).collect();
    let settings = Settings { neighbours: 0, ..settings() };
    for (wrong, fails) in [(Wrong::Nothing, &[][..]), (Wrong::LeaksSlot, &[("probe".to_owned(), Fault::CapacityLeaks)][..])] {
        let engine = Scripted::start(wrong).await;
        let report = judged_as(&engine, &[], &settings, &untold).await;
        assert_eq!(convictions(&report), fails, "{}", told(&report));
        assert_eq!(report.checks.iter().filter(|check| check.name == "probe").count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_cache_is_gone_behind_departures() {
    // The cache is looked at before and behind the departures of its own check: nobody may have left before.
    is_convicted(Wrong::LosesCache, &[], &[("cache", Fault::CapacityLeaks)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_neighbours_feel_departures() {
    is_convicted(Wrong::SlowsNeighbours, &[EARLY], &[("neighbours", Fault::NeighboursSlowed)]).await;
    is_convicted(Wrong::CorruptsNeighbour, &[EARLY], &[("neighbours", Fault::NeighboursCorrupted)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_begins_what_nobody_waits_for() {
    is_convicted(Wrong::KeepsQueued, &[QUEUED, EARLY], &[("queued/close/stream", Fault::QueuedIsBegun)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_confirms_a_cancel_and_goes_on() {
    is_convicted(Wrong::IgnoresCancel, &[CANCEL, EARLY], &[("early/cancel/stream", Fault::CancelDoesNothing)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_asks_again_for_what_was_left() {
    is_convicted(Wrong::AsksAgain, &[EARLY], &[("early/close/stream", Fault::AskedAgain)]).await;
}

/// It is counted for as long as anybody looks, whether that is done meanwhile or not.
#[tokio::test(flavor = "multi_thread")]
async fn one_in_which_a_request_that_was_left_is_stuck() {
    for poll in [true, false] {
        let engine = Scripted::start(Wrong::GetsStuck).await;
        let settings = Settings { poll: Some(poll), patience_ms: 1000, neighbours: 0, departures: 0, ..settings() };
        let report = judged_by(&engine, &[EARLY], &settings).await;
        assert_eq!(convictions(&report), [("early/close/stream".to_owned(), Fault::NeverStops)], "{}", told(&report));
        let seen = report.cells[0].seen[0].engine.as_ref().expect("what the engine showed is kept");
        assert!(seen.outlived_ms.is_some() && seen.gone_ms.is_none() && seen.tokens_after.is_some(), "{seen:?}");
    }
}

/// Beside a neighbour that has the same beginning of its prompt, in both phases; and the same questions without one say nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_gives_away_what_a_neighbour_still_shares() {
    let shared = [PREFILL, EARLY].map(|cell| Cell { shared: true, ..cell });
    let settings = Settings { neighbours: 0, departures: 0, tokens: 16.0, ..settings() };
    let engine = Scripted::start(Wrong::Nothing).await;
    let report = judged_by(&engine, &shared, &settings).await;
    for of in &report.cells {
        assert_eq!(of.verdict, Verdict::Pass, "{}", told(&report));
        let neighbour = of.seen[0].neighbour.as_ref().expect("there was one");
        assert_eq!((neighbour.text, neighbour.end.as_str()), (Some(NeighbourText::Own), "complete"));
    }
    let engine = Scripted::start(Wrong::FreesShared).await;
    let report = judged_by(&engine, &[PREFILL, EARLY, shared[0], shared[1]], &settings).await;
    let expected = ["prefill/close/stream/shared", "early/close/stream/shared"].map(|cell| (cell.to_owned(), Fault::NeighboursCorrupted));
    assert_eq!(convictions(&report), expected, "{}", told(&report));
    // A neighbour beside it hides nothing.
    let engine = Scripted::start(Wrong::NeverNotices).await;
    let report = judged_by(&engine, &shared[1..], &settings).await;
    assert_eq!(convictions(&report), [("early/close/stream/shared".to_owned(), Fault::NeverStops)], "{}", told(&report));
}

/// Gauges that are set now and then count nothing when a request is left that came since: that is no end of it.
#[tokio::test(flavor = "multi_thread")]
async fn old_gauges_acquit_nobody_and_convict_nobody() {
    const GAUGES: &str = r#"
name = "scripted"
running = [{ metric = "scripted_running" }]
waiting = [{ metric = "scripted_waiting" }]
stale_ms = 500
"#;
    let settings = Settings { max_tokens: 800, neighbours: 0, departures: 0, ..settings() };
    for (wrong, fails) in [(Wrong::Nothing, false), (Wrong::NeverNotices, true)] {
        let engine = Scripted::start_with(wrong, Duration::from_millis(200)).await;
        let report = judged_as(&engine, &[EARLY], &settings, GAUGES).await;
        let verdict = &report.cells[0].verdict;
        assert_eq!((verdict.is_fail(), *verdict == Verdict::Pass), (fails, !fails), "{}", told(&report));
    }
}

/// Its own record says that it completed: that is a lie of what stopped short, and none of what was nearly there.
#[tokio::test(flavor = "multi_thread")]
async fn a_departure_that_races_with_the_end_and_loses_is_no_wrong_outcome() {
    let profile = format!("record = \"/records/{{id}}\"\n{PROFILE}");
    let settings = Settings { max_tokens: 40, tokens: 20.0, neighbours: 0, departures: 0, ..settings() };
    // It makes the twelve tokens that are left, and is over.
    let engine = Scripted::start(Wrong::LateBy(12)).await;
    let report = judged_as(&engine, &[LATE, EARLY], &settings, &profile).await;
    assert_eq!(report.cells[0].verdict, Verdict::Pass, "{}", told(&report));
    assert_eq!(report.cells[0].seen[0].record.as_deref(), Some("completed/length"));
    assert!(report.cells[0].note.as_ref().is_some_and(|note| note.contains("before it could be stopped")), "{:?}", report.cells[0].note);
    assert_eq!((&report.cells[1].verdict, &report.cells[1].note), (&Verdict::Pass, &None), "{}", told(&report));
    assert_eq!(report.cells[1].seen[0].record.as_deref(), Some("cancelled/client_closed"));
}

/// An engine that sets its gauges behind a step counts a request late: a look that came too soon is followed by others, and by a longer prompt.
#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_counted_late_is_left_when_it_is() {
    let engine = Scripted::start(Wrong::CountsBehind(2500)).await;
    let settings = Settings { neighbours: 0, departures: 0, ..settings() };
    let report = judged_by(&engine, &[PREFILL], &settings).await;
    assert_eq!(report.cells[0].verdict, Verdict::Pass, "{}", told(&report));
    assert_eq!(report.cells[0].seen[0].entered, Some(Source::Counters));
}

/// Dropping what waits may take as long as stopping what runs. A queue that is too short for that says nothing, and one that lasts is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_judged_by_one_that_lasts_as_long_as_a_stop_may_take() {
    const NEVER: u64 = u64::MAX / 2;
    let settings = Settings { stop_ms: 600.0, neighbours: 0, departures: 0, ..settings() };
    for (after_ms, fault) in [(300, None), (NEVER, Some(Fault::QueuedIsBegun))] {
        let engine = Scripted::start(Wrong::SeesQueuedAfter(after_ms)).await;
        let report = judged_by(&engine, &[QUEUED], &settings).await;
        let expected: Vec<_> = fault.into_iter().map(|fault| ("queued/close/stream".to_owned(), fault)).collect();
        assert_eq!(convictions(&report), expected, "{after_ms}: {}", told(&report));
        assert_eq!(report.count("not proven"), 0, "{after_ms}: {}", told(&report));
        let turn_ms = report.cells[0].seen[0].engine.as_ref().and_then(|saw| saw.turn_ms);
        // Only a turn that came behind the time that is allowed convicts of a token or two.
        assert!(fault.is_none() || turn_ms.is_some_and(|ms| ms >= settings.stop_ms), "{turn_ms:?}");
    }
}

/// Who stops reading is felt soon, for its side of the connection takes little; what buffers took is no work that went on.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_stops_reading_is_given_up_or_is_not() {
    let stops = Cell::new(Phase::EarlyDecode, Trigger::StopReading);
    let settings = Settings { max_tokens: 400, unread_tokens: 150, neighbours: 0, departures: 0, ..settings() };
    for (gives_up, fault) in [(true, None), (false, Some(Fault::NeverStops))] {
        let engine = Scripted::start(Wrong::WritesMuch { gives_up }).await;
        let report = judged_by(&engine, &[stops], &settings).await;
        let expected: Vec<_> = fault.into_iter().map(|fault| ("early/stop-reading/stream".to_owned(), fault)).collect();
        assert_eq!(convictions(&report), expected, "{gives_up}: {}", told(&report));
        assert_eq!(report.cells[0].verdict == Verdict::Pass, gives_up, "{}", told(&report));
    }
    let engine = Scripted::start(Wrong::Nothing).await;
    let report = judged_by(&engine, &[stops], &Settings { unread_tokens: 201, ..settings }).await;
    let Verdict::NotProven { missing } = &report.cells[0].verdict else { panic!("{}", told(&report)) };
    assert!(missing.contains("--max-tokens 402"), "{missing}");
}

// contract: C-31
#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_answers_ends_with_both() {
    let two = Cell { n: 2, ..EARLY };
    let settings = Settings { neighbours: 0, departures: 0, tokens: 16.0, ..settings() };
    let engine = Scripted::start(Wrong::Nothing).await;
    let report = judged_by(&engine, &[two, two.whole(), Cell { n: 2, ..LATE }], &settings).await;
    assert!(report.cells.iter().all(|of| of.verdict == Verdict::Pass), "{}", told(&report));
    assert!(report.cells.iter().all(|of| of.seen[0].asked_tokens == 200), "{}", told(&report));
    let engine = Scripted::start(Wrong::LeavesSecond).await;
    let report = judged_by(&engine, &[EARLY, two], &settings).await;
    assert_eq!(convictions(&report), [("early/close/stream/n=2".to_owned(), Fault::StopsLate)], "{}", told(&report));
    let engine = Scripted::start(Wrong::NeverNotices).await;
    let report = judged_by(&engine, &[two], &settings).await;
    assert_eq!(convictions(&report), [("early/close/stream/n=2".to_owned(), Fault::NeverStops)], "{}", told(&report));
}
