//! The scripted engine of the tests as a process of its own, so that real proxies can stand in front of it: `cargo xtask stacks --engine
//! scripted`. `scripted [FAULT]` serves on a free port of loopback, `scripted --profile` prints how its counters are read.
//!
//! Invariant: nothing but `listening on URL`, or the profile, goes to stdout.

#[path = "../tests/it/scripted.rs"]
#[allow(dead_code, reason = "what tests alone ask of it")]
mod scripted;

use std::process::ExitCode;

use scripted::{PROFILE, Scripted, Wrong};

/// A fault by its word.
const FAULTS: [(&str, Wrong); 27] = [
    ("nothing", Wrong::Nothing),
    ("never-notices", Wrong::NeverNotices),
    ("notices-at-write", Wrong::NoticesAtWrite),
    ("late", Wrong::LateBy(30)),
    ("leaks-block", Wrong::LeaksBlock),
    ("leaks-state", Wrong::LeaksState),
    ("slows-neighbours", Wrong::SlowsNeighbours),
    ("corrupts-neighbour", Wrong::CorruptsNeighbour),
    ("keeps-queued", Wrong::KeepsQueued),
    ("ignores-cancel", Wrong::IgnoresCancel),
    ("asks-again", Wrong::AsksAgain),
    ("grows-pool", Wrong::GrowsPool),
    ("caches", Wrong::Caches),
    ("loses-cache", Wrong::LosesCache),
    ("leaks-slot", Wrong::LeaksSlot),
    ("gets-stuck", Wrong::GetsStuck),
    ("frees-shared", Wrong::FreesShared),
    ("serves-half-close", Wrong::ServesHalfClose),
    ("cancels-alike", Wrong::CancelsAlike),
    ("breaks", Wrong::Breaks),
    ("refuses-cancel", Wrong::RefusesCancel),
    ("refuses-departures", Wrong::RefusesDepartures),
    ("counts-late", Wrong::CountsBehind(2500)),
    ("sees-queued-late", Wrong::SeesQueuedAfter(1000)),
    ("gives-up-unread", Wrong::WritesMuch { gives_up: true }),
    ("writes-on-unread", Wrong::WritesMuch { gives_up: false }),
    ("leaves-second", Wrong::LeavesSecond),
];

#[tokio::main]
async fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_else(|| FAULTS[0].0.to_owned());
    if word == "--profile" {
        print!("{PROFILE}");
        return ExitCode::SUCCESS;
    }
    let Some((_, wrong)) = FAULTS.iter().find(|(known, _)| *known == word) else {
        let known = FAULTS.map(|(known, _)| known).join(", ");
        eprintln!("scripted: `{word}` is no fault: name one of {known}, or --profile");
        return ExitCode::from(2);
    };
    let engine = Scripted::start(*wrong).await;
    println!("listening on http://{}", engine.addr);
    // It serves until it is ended by its process id.
    std::future::pending().await
}
