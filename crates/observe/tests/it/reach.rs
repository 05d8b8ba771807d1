//! How long the word of an end took, boundary by boundary; what has waited longest; what the device did.
// contract: C-9 C-23 C-24

use std::time::Duration;

use lifecycle::event::{Event, Record};
use lifecycle::message::{AttemptCut, Snapshot};
use lifecycle::session::PeerState;
use lifecycle::{AttemptId, Cause, Incarnation, Time};
use observe::{Clock, Format, Journal, Limits, Scrape, WorkerScrape};

use crate::metrics::parse;
use crate::story::*;

fn whole(journal: &Journal, event: Event) {
    journal.record_at(Record { at: Time(0), run: None, attempt: 0, event });
}

/// The histograms have what the run's own view shows, to the microsecond.
#[test]
fn each_boundary_is_timed_as_the_runs_view_has_it() {
    let journal = journal();
    cancelled_run(&journal, &key("r"));
    let samples = parse(&page(&journal));
    let view = journal.run(&key("r")).expect("it is known");
    for hop in view.boundaries {
        let observed = hop.observed.expect("it was left");
        for (family, until) in [("forwarded", hop.forwarded), ("acknowledged", hop.acknowledged)] {
            let of =
                |what: &str| samples[&format!("kvit_boundary_{family}_seconds_{what}{{boundary=\"{}\",cause=\"client_closed\"}}", hop.hop)];
            assert_eq!(of("count"), 1.0, "{} {family}", hop.hop);
            let ms = until.expect("it came that far") - observed;
            assert!((of("sum") * 1000.0 - ms).abs() < 1e-6, "{} {family}: {} s, {ms} ms", hop.hop, of("sum"));
        }
    }
    let sums = [
        ("kvit_disconnect_to_sent_seconds", 0.0),
        ("kvit_disconnect_to_cancel_seconds", 0.0001),
        ("kvit_disconnect_to_acknowledged_seconds", 0.0002),
        ("kvit_disconnect_to_released_seconds", 0.003),
    ];
    for (family, seconds) in sums {
        assert_eq!(samples[&format!("{family}_sum{{cause=\"client_closed\"}}")], seconds, "{family}");
    }
    let inside = |boundary: &str, family: &str| {
        samples[&format!("kvit_boundary_{family}_seconds_sum{{boundary=\"{boundary}\",cause=\"client_closed\"}}")]
    };
    assert_eq!((inside("worker-engine", "forwarded"), inside("worker-engine", "acknowledged")), (0.0, 0.0029));
    assert_eq!((inside("engine-allocator", "forwarded"), inside("engine-allocator", "acknowledged")), (0.0028, 0.0029));
}

#[test]
fn a_run_that_nobody_left_is_timed_at_no_boundary() {
    let journal = journal();
    at(&journal, &key("r"), 0, accepted());
    at(&journal, &key("r"), 1, queued(3));
    at(&journal, &key("r"), 2, released());
    at(&journal, &key("r"), 3, outcome_set(Cause::Stop));
    at(&journal, &key("r"), 4, Event::Settled { proven: true });
    let samples = parse(&page(&journal));
    assert!(!samples.keys().any(|s| s.starts_with("kvit_boundary_") || s.starts_with("kvit_disconnect_to_")));
}

/// A clock that stands at 100 s, for ages.
fn late() -> Journal {
    fn read() -> Duration {
        static READ: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Duration::from_secs(100 * READ.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(1))
    }
    Journal::new(Clock::over(read), Limits::default())
}

#[test]
fn the_age_is_that_of_the_oldest_and_goes_when_it_goes() {
    let journal = late();
    for (id, us) in [("old", 10_000_000), ("young", 70_000_000)] {
        at(&journal, &key(id), us, accepted());
        at(&journal, &key(id), us, Event::CancelSent { cause: Cause::ClientLost, count: 1 });
        at(&journal, &key(id), us + 1, Event::CancelSent { cause: Cause::ClientLost, count: 2 });
        at(&journal, &key(id), us + 5_000_000, Event::Orphaned);
    }
    let ages = || {
        let samples = parse(&page(&journal));
        (samples["kvit_cancels_unacknowledged_oldest_seconds"], samples["kvit_orphaned_oldest_seconds"])
    };
    assert_eq!(ages(), (90.0, 85.0));
    at(&journal, &key("old"), 90_000_000, Event::CancelAcknowledged);
    assert_eq!(ages(), (30.0, 85.0), "it is acknowledged, and still an orphan");
    at(&journal, &key("old"), 91_000_000, released());
    assert_eq!(ages(), (30.0, 25.0));
    at(&journal, &key("young"), 92_000_000, released());
    assert_eq!(ages(), (0.0, 0.0));
}

#[test]
fn a_forgotten_run_is_waited_for_no_more() {
    let journal = Journal::new(Clock::start(), Limits { runs: 1, ..Limits::default() });
    at(&journal, &key("lost"), 0, accepted());
    at(&journal, &key("lost"), 1, Event::CancelSent { cause: Cause::ClientLost, count: 1 });
    for run in 0..9 {
        at(&journal, &key(&format!("r{run}")), 2, accepted());
    }
    assert!(journal.run(&key("lost")).is_none(), "beyond the hard limit the oldest goes");
    let samples = parse(&page(&journal));
    assert_eq!((samples["kvit_cancels_unacknowledged"], samples["kvit_cancels_unacknowledged_oldest_seconds"]), (0.0, 0.0));
}

#[test]
fn lookups_leases_and_lost_attempts_are_counted_once() {
    let journal = journal();
    for (id, cached) in [("hit", 16), ("miss", 0)] {
        at(&journal, &key(id), 0, accepted());
        at(&journal, &key(id), 1, queued(40));
        at(&journal, &key(id), 2, Event::BlocksAllocated { held: 1, cached_tokens: cached, shared: 0 });
        at(&journal, &key(id), 3, Event::BlocksAllocated { held: 2, cached_tokens: 0, shared: 0 });
    }
    at(&journal, &key("elsewhere"), 0, accepted());
    at(&journal, &key("elsewhere"), 1, Event::PromptCounted { tokens: 50, cached: 20 });
    for _ in 0..2 {
        at(&journal, &key("miss"), 4, Event::Void { worker: Incarnation(1) });
        whole(&journal, Event::Gateway { gateway: "g".into(), state: Some(PeerState::LeaseOver) });
    }
    whole(&journal, Event::DeviceBusy { span: Duration::from_millis(1250) });
    whole(&journal, Event::DeviceBusy { span: Duration::from_millis(250) });
    let samples = parse(&page(&journal));
    let expected = [
        ("kvit_prefix_lookups_total", 3.0),
        ("kvit_prefix_hits_total", 2.0),
        ("kvit_prefix_cached_tokens_total", 36.0),
        ("kvit_void_attempts_total", 1.0),
        ("kvit_leases_over_total", 1.0),
        ("kvit_device_busy_seconds_total", 1.5),
    ];
    for (series, value) in expected {
        assert_eq!(samples[series], value, "{series}");
    }
}

/// The Gateway API Inference Extension's gauges, and the pool as an allocator sees it beside who owns its blocks.
// contract: C-15
#[test]
fn what_waits_what_runs_and_how_full_the_pool_is() {
    let journal = journal();
    for (id, events) in [
        ("waits", vec![queued(9)]),
        ("prefills", vec![queued(9), Event::PrefillStart]),
        ("decodes", vec![queued(9), Event::PrefillStart, Event::FirstToken]),
        ("preempted", vec![queued(9), Event::PrefillStart, Event::Preempted]),
        ("stops", vec![queued(9), Event::CancelReceived { cause: Cause::ClientClosed }]),
    ] {
        at(&journal, &key(id), 0, accepted());
        events.into_iter().for_each(|event| at(&journal, &key(id), 1, event));
    }
    let cut = |id: &str, blocks| AttemptCut { attempt: AttemptId { key: key(id), attempt: 1 }, state: "decoding", blocks };
    let account = Snapshot {
        total: 100,
        free: 60,
        active: 20,
        cached: 10,
        draining: 10,
        running: 2,
        reserved_bytes: 100 << 10,
        attempts: vec![cut("prefills", 9), cut("decodes", 8)],
        ..Snapshot::default()
    };
    let scraped = |snapshots: &[&Snapshot]| {
        let worker = |snapshot| WorkerScrape { name: "w", snapshot: Some(snapshot), takes_runs: false, runs: 0, slots: None };
        let workers: Vec<_> = snapshots.iter().map(|s| worker(*s)).collect();
        let (version, incarnation) = ("0", Incarnation(7));
        parse(&journal.metrics(&Scrape {
            version,
            incarnation,
            workers: &workers,
            holdings: None,
            outside: None,
            spans: None,
            format: Format::Text,
        }))
    };
    let samples = scraped(&[&account]);
    assert_eq!((samples["kvit_inference_queued_requests"], samples["kvit_inference_running_requests"]), (2.0, 3.0));
    assert_eq!(samples["kvit_inference_kv_cache_utilization"], 0.3, "what is only cached can be had");
    let bytes = ["reserved", "allocated", "free"].map(|state| samples[&format!("kvit_kv_pool_bytes{{state=\"{state}\"}}")]);
    assert_eq!(bytes.map(|b| b / 1024.0), [100.0, 40.0, 60.0]);
    assert_eq!(samples["kvit_kv_unowned_blocks"], 3.0, "20 are active, and the attempts hold 17");
    let silent = Snapshot { attempts: Vec::new(), ..account.clone() };
    assert!(!scraped(&[&silent]).contains_key("kvit_kv_unowned_blocks"), "a worker that does not name its attempts says nothing of it");
    assert!(!scraped(&[]).contains_key("kvit_inference_kv_cache_utilization"));
}
