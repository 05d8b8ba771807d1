//! Callers that stay: one that closes its sending side alone, a neighbour of a request that is cancelled, and whoever asks when others have left;
//! and questions that nobody answers.

use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Trigger};
use verify::judge::profile::Profile;
use verify::judge::result::{Fault, Verdict};
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::Stack;

use crate::convicted::{convictions, judged_by, settings, told};
use crate::scripted::{PROFILE, Scripted, Wrong};

const HALF: Cell = Cell::new(Phase::EarlyDecode, Trigger::HalfClose);
const EARLY: Cell = Cell::new(Phase::EarlyDecode, Trigger::Close);
const CANCEL: Cell = Cell::new(Phase::EarlyDecode, Trigger::Cancel);

fn alone() -> Settings {
    Settings { neighbours: 0, departures: 0, tokens: 16.0, ..settings() }
}

/// What the stack makes of it is told, and is a fault only where the user says that such a caller stays.
#[tokio::test(flavor = "multi_thread")]
async fn half_a_close_that_is_taken_for_a_whole_one_is_told_with_its_advice() {
    let engine = Scripted::start(Wrong::Nothing).await;
    let report = judged_by(&engine, &[HALF, HALF.whole()], &alone()).await;
    for of in &report.cells {
        assert_eq!((&of.verdict, of.advice.len()), (&Verdict::Pass, 0), "{}", told(&report));
        assert!(of.note.as_ref().is_some_and(|note| note.contains("half a close")), "{:?}", of.note);
    }
    let stays = Settings { half_close_leaves: false, ..alone() };
    let report = judged_by(&engine, &[HALF, HALF.whole()], &stays).await;
    let expected = ["early/half-close/stream", "early/half-close/whole"].map(|cell| (cell.to_owned(), Fault::WantedIsCancelled));
    assert_eq!(convictions(&report), expected, "{}", told(&report));
    assert!(report.cells.iter().all(|of| of.advice == ["engine-half-close"]), "{:?}", report.cells[0].advice);
    let engine = Scripted::start(Wrong::ServesHalfClose).await;
    let report = judged_by(&engine, &[HALF, HALF.whole(), EARLY], &stays).await;
    assert!(report.cells.iter().all(|of| of.verdict == Verdict::Pass && of.note.is_none()), "{}", told(&report));
}

/// An abort that is matched by the beginning of an id ends the neighbour whose id begins so.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_ends_a_neighbour_convicts() {
    let engine = Scripted::start(Wrong::CancelsAlike).await;
    let report = judged_by(&engine, &[CANCEL, Cell { shared: true, ..CANCEL }], &alone()).await;
    assert_eq!(convictions(&report), [("early/cancel/stream/shared".to_owned(), Fault::WantedIsCancelled)], "{}", told(&report));
}

/// A stack that is broken stops every request: what passed before it was seen is not taken for a proof.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_breaks_with_the_first_departure_passes_nothing() {
    let engine = Scripted::start(Wrong::Breaks).await;
    let report = judged_by(&engine, &[EARLY], &alone()).await;
    assert_eq!(convictions(&report), [("control".to_owned(), Fault::ControlFails)], "{}", told(&report));
    assert!(matches!(&report.cells[0].verdict, Verdict::NotProven { missing } if missing.contains("broken")), "{}", told(&report));
    let control = &report.checks[0];
    assert!(matches!(&control.verdict, Verdict::Fail { why, .. } if why.contains("status 503: broken")), "{:?}", control.verdict);
    assert_eq!(control.advice, ["stack-breaks"]);
}

/// What is refused is refused the next time, too, and an edge that gave nobody up gives nobody up: neither is tried nine times.
#[tokio::test(flavor = "multi_thread")]
async fn what_would_be_the_same_again_is_tried_once() {
    let engine = Scripted::start(Wrong::RefusesCancel).await;
    let settings = Settings { tries: 3, idle_ms: 200, ..alone() };
    let idle = Cell::new(Phase::EarlyDecode, Trigger::EdgeIdle).whole();
    let report = judged_by(&engine, &[CANCEL, idle], &Settings { max_tokens: 400, ..settings }).await;
    for (of, says) in report.cells.iter().zip(["answered with 501", "no hop gave it up before"]) {
        let Verdict::NotProven { missing } = &of.verdict else { panic!("{}", told(&report)) };
        assert!(missing.contains(says) && missing.contains("tried once"), "{missing}");
        assert_eq!(of.seen.len(), 1, "{missing}");
    }
}

/// Why the departures of the checks could not be repeated is told as it was.
#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_check_from_its_departures_is_named() {
    let settings = Settings { departures: 8, patience_ms: 1000, ..alone() };
    for (wrong, says) in [(Wrong::RefusesDepartures, "status 503: broken"), (Wrong::GetsStuck, "not at rest")] {
        let engine = Scripted::start(wrong).await;
        let report = judged_by(&engine, &[EARLY], &settings).await;
        let cache = report.checks.iter().find(|check| check.name == "cache").expect("it is looked at");
        let Verdict::NotProven { missing } = &cache.verdict else { panic!("{wrong:?}: {}", told(&report)) };
        assert!(missing.contains("could not be repeated") && missing.contains(says), "{wrong:?}: {missing}");
    }
}

/// A hop that keeps connections loses one now and then: that is told, and no reason to judge nothing. Twice is no accident.
#[tokio::test(flavor = "multi_thread")]
async fn one_request_that_nobody_left_and_that_did_not_end_well_is_asked_again_and_told() {
    let engine = Scripted::start(Wrong::RefusesFirst(1)).await;
    let report = judged_by(&engine, &[EARLY], &alone()).await;
    assert_eq!(report.cells[0].verdict, Verdict::Pass, "{}", told(&report));
    assert!(report.hints.iter().any(|hint| hint.contains("status 503: broken") && hint.contains("asked again")), "{:?}", report.hints);
    let engine = Scripted::start(Wrong::RefusesFirst(2)).await;
    let target = Target::parse(&format!("http://{}", engine.addr)).expect("a URL");
    let stack = Stack::meet(target, None, None, Some(Profile::parse(PROFILE).expect("a profile")), true).await.expect("it is there");
    let why = run(stack, &alone(), &[EARLY], |_| {}).await.expect_err("it cannot be judged");
    assert!(why.to_string().contains("status 503: broken"), "{why}");
}
