//! Looking must not change what is seen: with a tap in front of the engine and without, looked at meanwhile or only before and after, each
//! question has the same answer.

use verify::judge::caller::Target;
use verify::judge::cell::{Phase, Set};
use verify::judge::profile::Profile;
use verify::judge::result::Verdict;
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::Stack;
use verify::judge::tap::{Options, Tap, TapClient};

use crate::convicted::{settings, told};
use crate::scripted::{PROFILE, Scripted, Wrong};

/// Each question of the quick set with its answer: its word, and the fault.
async fn answers(wrong: Wrong, tapped: bool, poll: bool) -> Vec<String> {
    let engine = Scripted::start(wrong).await;
    let tap = tapped.then(|| Tap::start("127.0.0.1:0", &engine.addr.to_string(), Options::default()).expect("a tap"));
    let at = tap.as_ref().map_or(engine.addr, Tap::listening);
    let target = Target::parse(&format!("http://{at}")).expect("a URL");
    let profile = Profile::parse(PROFILE).expect("a profile");
    let mut stack = Stack::meet(target, None, None, Some(profile), true).await.expect("it is there");
    stack.taps.extend(tap.as_ref().map(|tap| TapClient::new(&tap.reporting().to_string()).expect("an address")));
    let settings = Settings { neighbours: 0, departures: 0, poll: Some(poll), ..settings() };
    // Without looks nothing says when one that waits was dropped, so a queue is asked elsewhere.
    let cells: Vec<_> = Set::Quick.cells().into_iter().filter(|cell| cell.phase != Phase::Queued).collect();
    let report = run(stack, &settings, &cells, |_| {}).await.expect("it can be judged");
    let answer = |verdict: &Verdict| match verdict {
        Verdict::Fail { fault, .. } => format!("FAIL {fault}"),
        other => other.word().to_owned(),
    };
    let answers = report.cells.iter().map(|of| format!("{} {}", of.cell, answer(&of.verdict))).collect();
    assert_eq!(report.count("not proven"), 0, "{wrong:?}, tapped {tapped}, poll {poll}: {}", told(&report));
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_the_same_tapped_and_not_looked_at_and_not() {
    for wrong in [Wrong::Nothing, Wrong::NeverNotices] {
        let bare = answers(wrong, false, true).await;
        for (tapped, poll) in [(true, true), (true, false), (false, false)] {
            assert_eq!(answers(wrong, tapped, poll).await, bare, "{wrong:?}, tapped {tapped}, poll {poll}");
        }
    }
}
