//! An engine without counters whose work is seen on its GPU: a double of NVIDIA's library tells what the scripted engine does, for no GPU is
//! here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpu::Gpus;
use gpu::double::Double;
use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Trigger};
use verify::judge::cpu::Processes;
use verify::judge::device::Devices;
use verify::judge::result::{Fault, Report, Source, Verdict};
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::Stack;

use crate::convicted::{settings, told};
use crate::scripted::{Scripted, Wrong};

/// Left behind its first tokens, with a second and more of work before it: what a driver can tell.
const LATE: Cell = Cell::new(Phase::LateDecode, Trigger::Close);
const TELLS_EVERY: Duration = Duration::from_millis(20);

/// What is seen of an engine by its GPU alone.
async fn judged(wrong: Wrong, settings: Settings) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let double = Arc::new(Double::new(folder.path()).expect("it is compiled"));
    double.say("gpu 0 1000000 8000000\n").expect("it is written");
    let gpus = Arc::new(Gpus::open(Some(&double.library)).expect("it is opened"));
    let engine = Arc::new(Scripted::start(wrong).await);
    let ends = Arc::new(AtomicBool::new(false));
    let driver = tokio::task::spawn_blocking({
        let (engine, double, ends) = (engine.clone(), double.clone(), ends.clone());
        move || {
            while !ends.load(Ordering::Relaxed) {
                let busy = if engine.is_busy() { 93 } else { 0 };
                double.say(&format!("gpu {busy} 1000000 8000000\n")).expect("it is written");
                std::thread::sleep(TELLS_EVERY);
            }
        }
    });
    let target = Target::parse(&format!("http://{}", engine.addr)).expect("a URL");
    let mut stack = Stack::meet(target, None, None, None, false).await.expect("it is there");
    stack.devices = Some(Devices::named(gpus, &[0]).expect("it is there"));
    let report = run(stack, &settings, &[LATE], |_| {}).await.expect("it can be judged");
    ends.store(true, Ordering::Relaxed);
    driver.await.expect("it ends");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_ends_is_seen_to_end_on_the_gpu_and_memory_is_looked_at_there() {
    let report = judged(Wrong::Nothing, Settings { max_tokens: 800, stop_ms: 400.0, departures: 8, ..settings() }).await;
    let of = &report.cells[0];
    assert_eq!((&of.verdict, &*of.by), (&Verdict::Pass, &[Source::Gpu][..]), "{}", told(&report));
    let load = of.seen[0].gpu.as_ref().expect("it was looked at");
    assert!((load.busy - 0.93).abs() < 1e-9 && load.idle == 0.0 && load.quiet_ms.is_some(), "{load:?}");
    let memory = report.checks.iter().find(|check| check.name == "gpu memory").expect("it was checked");
    assert_eq!((&memory.verdict, &*memory.by), (&Verdict::Pass, &[Source::Gpu][..]));
    assert_eq!(memory.measured["before_mib"], 1_000_000.0 / 1024.0 / 1024.0);
    assert!(report.hints.iter().any(|hint| hint.contains("GPU 0 (double of a GPU, driver 999.0-double)")), "{:?}", report.hints);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_goes_on_for_nobody_is_seen_on_the_gpu() {
    // Behind its middle it goes on for longer than a driver may be late, and what is allowed beside that.
    let settings = Settings { max_tokens: 2400, stop_ms: 400.0, neighbours: 0, departures: 0, ..settings() };
    let report = judged(Wrong::NeverNotices, settings).await;
    let of = &report.cells[0];
    assert!(matches!(of.verdict, Verdict::Fail { fault: Fault::NeverStops | Fault::StopsLate, .. }), "{}", told(&report));
    assert!(of.by.contains(&Source::Gpu), "{:?}", of.by);
}

#[test]
fn gpus_are_found_by_who_computes_on_them_or_by_their_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let double = Double::new(folder.path()).expect("it is compiled");
    let own = std::process::id();
    double
        .say(&format!("gpu 1 9000 16000\nprocess 1 9000\ngpu 2 12288 16000\nprocess {own} 10240\nprocess 1 2048\n"))
        .expect("it is written");
    let gpus = Arc::new(Gpus::open(Some(&double.library)).expect("it is opened"));
    let processes = Processes::of(&[own]).expect("it is there");
    let found = Devices::of(gpus.clone(), &processes).expect("one of them");
    assert_eq!(found.told(), ["GPU 1 (double of a GPU, driver 999.0-double)"]);
    assert_eq!((found.held_kib(Some(&processes)), found.held_kib(None)), (Some(10.0), Some(12.0)), "its own, or all that is allocated");
    let why = Devices::named(gpus.clone(), &[0, 7]).expect_err("there is no such one");
    assert!(why.contains("GPU 7") && why.contains("there are 2"), "{why}");
    double.say("gpu 1 9000 16000\nprocess 1 9000\n").expect("it is written");
    assert!(Devices::of(gpus, &processes).is_none(), "nobody of the engine computes there");
}
