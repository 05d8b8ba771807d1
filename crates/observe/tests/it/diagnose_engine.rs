//! Engines that others wrote, by their counters: what these show is told, and what they do not show is not made up.
// contract: C-29

use observe::diagnose::{Diagnosis, EngineLook, Probe, Verdict, judge_engine};

fn look(at_ms: u64, running: f64, generated: f64) -> EngineLook {
    EngineLook {
        at_ms,
        running: Some(running),
        waiting: Some(0.0),
        kv_used: Some(if running > 0.0 { 0.3 } else { 0.0 }),
        generated: Some(generated),
        prompted: Some(9.0),
        steps: Some(generated),
        ..EngineLook::default()
    }
}

fn of(looks: &[EngineLook], callers: Option<u64>) -> Diagnosis {
    judge_engine(looks, callers, None)
}

#[test]
fn requests_without_a_caller_are_known_by_whoever_knows_the_callers() {
    let busy = [look(0, 2.0, 10.0), look(5000, 2.0, 90.0)];
    let told = of(&busy, None);
    assert_eq!(told.verdict, Verdict::CannotTell);
    assert!(told.evidence[0].contains("counted like any other") && told.next[0].contains("--callers"), "{told:#?}");
    assert_eq!(of(&busy, Some(2)).verdict, Verdict::Healthy);
    let left = of(&busy, Some(1));
    assert_eq!((left.verdict, left.boundary.as_deref()), (Verdict::UpstreamNeverCancelled, Some("gateway-worker")));
    assert!(left.evidence.iter().any(|line| line.contains("80 tokens were generated meanwhile")), "{left:#?}");
    // One look may have met a request on its way out.
    assert_eq!(of(&busy[..1], Some(1)).verdict, Verdict::Healthy);
    assert_eq!(of(&[look(0, 2.0, 10.0), look(5000, 1.0, 90.0)], Some(1)).verdict, Verdict::Healthy);
}

#[test]
fn an_engine_that_computes_nothing_for_its_requests_is_stuck_where_it_counts_steps() {
    let still = [look(0, 1.0, 10.0), look(5000, 1.0, 10.0)];
    assert_eq!(of(&still, Some(1)).verdict, Verdict::DrainingStuck);
    let without = still.map(|look| EngineLook { steps: None, ..look });
    let told = of(&without, Some(1));
    assert_eq!(told.verdict, Verdict::CannotTell);
    assert!(told.cannot_tell.iter().any(|line| line.starts_with("A long prefill")), "{told:#?}");
    let at_end = still.map(|look| EngineLook { sums_move_at_end: true, ..look });
    assert_eq!(of(&at_end, Some(1)).verdict, Verdict::CannotTell);
    // A prompt is computed: steps are done, and no token comes yet.
    let prefill = [look(0, 1.0, 10.0), EngineLook { steps: Some(30.0), ..look(5000, 1.0, 10.0) }];
    assert_eq!(of(&prefill, Some(1)).verdict, Verdict::Healthy);
}

#[test]
fn memory_in_use_at_rest_is_a_leak_only_where_a_cache_is_counted_apart() {
    let used = [look(0, 0.0, 10.0), look(5000, 0.0, 10.0)].map(|look| EngineLook { kv_used: Some(0.4), ..look });
    let told = of(&used, Some(0));
    assert_eq!(told.verdict, Verdict::CannotTell);
    assert!(told.evidence.iter().any(|line| line.contains("a cache looks like this, and so does a leak")), "{told:#?}");
    let held = used.map(|look| EngineLook { kv_held: Some(12.0), ..look });
    assert_eq!(of(&held, Some(0)).verdict, Verdict::AccountingDefect);
    assert_eq!(of(&[look(0, 0.0, 10.0)], None).verdict, Verdict::Healthy);
    let kept = [EngineLook { resident: Some(9e9), ..look(0, 1.0, 10.0) }, EngineLook { resident: Some(9e9), ..look(9000, 0.0, 20.0) }];
    assert_eq!(of(&kept, Some(1)).verdict, Verdict::NoLeakAllocatorKeeps);
}

#[test]
fn a_queue_or_a_full_pool_is_pressure_as_far_as_the_callers_are_there() {
    let full = [EngineLook { kv_used: Some(0.97), waiting: Some(3.0), ..look(0, 8.0, 10.0) }];
    let told = of(&full, None);
    assert_eq!(told.verdict, Verdict::PressureFromLiveRuns);
    assert!(told.cannot_tell.iter().any(|line| line.contains("--callers N")), "{told:#?}");
}

#[test]
fn what_is_not_shown_is_unknown() {
    assert_eq!(of(&[], None).verdict, Verdict::CannotTell);
    let blind = EngineLook { generated: Some(4.0), ..EngineLook::default() };
    let told = of(&[blind], Some(0));
    assert_eq!(told.verdict, Verdict::CannotTell);
    assert!(told.evidence.concat().contains("not shown"), "{told:#?}");
}

#[test]
fn a_probe_that_is_not_served_convicts_only_an_idle_engine() {
    let starved = Probe { runs: 4, answered: 1, starved: 3, patience_ms: 20_000, ..Probe::default() };
    let with = |looks: &[EngineLook]| judge_engine(looks, Some(0), Some(&starved)).verdict;
    assert_eq!(with(&[look(0, 0.0, 1.0)]), Verdict::AccountingDefect);
    assert_eq!(with(&[look(0, 1.0, 1.0)]), Verdict::CannotTell);
    let served = Probe { answered: 4, starved: 0, ..starved.clone() };
    let told = judge_engine(&[look(0, 0.0, 1.0)], Some(0), Some(&served));
    assert!(told.verdict == Verdict::Healthy && told.evidence.iter().any(|line| line.contains("4 were answered")), "{told:#?}");
}
