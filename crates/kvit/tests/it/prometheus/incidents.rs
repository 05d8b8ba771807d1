//! Every alert fires in a real Prometheus for its incident and is resolved when it is over, and the rules inside say the same.
//!
//! The page is the journal's own; what happens is scripted, for a sound kvit does not do it.
// contract: C-9 C-12 C-15 C-20 C-23

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lifecycle::event::{Event, Record};
use lifecycle::message::{Receipt, Snapshot};
use lifecycle::{Cause, Incarnation, OnDisconnect, Outcome, Phase, RunId, RunKey, Tenant};
use observe::{Alert, AlertRules, Clock, Format, Journal, Limits, Scrape, WorkerScrape};

use super::{Prometheus, programs, until};

const WINDOW: Duration = Duration::from_secs(3);
const CAUSE: Cause = Cause::ClientClosed;

/// A server with a page and a script.
struct Scripted {
    journal: Journal,
    account: Mutex<Snapshot>,
    runs: Mutex<u64>,
}

impl Scripted {
    fn worker<'a>(&self, account: &'a Snapshot) -> WorkerScrape<'a> {
        WorkerScrape { name: "w", snapshot: Some(account), takes_runs: false, runs: 0, slots: None }
    }

    fn page(&self) -> String {
        let account = self.account.lock().expect("no panic").clone();
        let workers = [self.worker(&account)];
        let (version, incarnation) = ("0", Incarnation(1));
        self.journal.metrics(&Scrape {
            version,
            incarnation,
            workers: &workers,
            holdings: None,
            outside: None,
            spans: None,
            format: Format::Exemplars,
        })
    }

    /// Answers every request with the page.
    fn answer(&self, stream: TcpStream) {
        let mut lines = BufReader::new(&stream).lines();
        while lines.by_ref().take_while(|line| line.as_ref().is_ok_and(|l| !l.is_empty())).count() > 0 {
            let (page, kind) = (self.page(), Format::Exemplars.content_type());
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", page.len());
            if (&stream).write_all(format!("{head}{page}").as_bytes()).is_err() {
                return;
            }
        }
    }

    fn firing_inside(&self, rules: &AlertRules) -> BTreeSet<String> {
        let account = self.account.lock().expect("no panic").clone();
        let view = self.journal.alerts(rules, &[self.worker(&account)]);
        view.data.iter().filter(|a| a.state == observe::AlertState::Firing).map(|a| a.name.to_owned()).collect()
    }

    fn event(&self, id: &str, ago: Duration, event: Event) {
        let key = RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") };
        let at = lifecycle::Time(self.journal.clock().now().0.saturating_sub(ago.as_micros() as u64));
        self.journal.record_at(Record { at, run: Some(key), attempt: 1, event });
    }

    /// A run of 100 tokens whose caller leaves at the end; after that so many more were computed, and the cancel took so long.
    fn left(&self, wasted: u32, cancel: Duration) {
        let n = {
            let mut runs = self.runs.lock().expect("no panic");
            *runs += 1;
            *runs
        };
        let id = format!("left{n}");
        let step = |n| lifecycle::StepId(n);
        let now = |event| self.event(&id, Duration::ZERO, event);
        let before = |event| self.event(&id, cancel, event);
        before(Event::Accepted { model: "m".into(), n: 1, stream: true, on_disconnect: OnDisconnect::Cancel });
        before(Event::Queued { prompt_tokens: 8, n: 1, max_tokens: 200 });
        for token in 0..4 {
            before(Event::Computed { step: step(token), prompt_tokens: 0, generated: 25, discarded: 0, late: 0 });
        }
        before(Event::AbandonmentObserved { cause: CAUSE });
        before(Event::CancelSent { cause: CAUSE, count: 1 });
        before(Event::CancelReceived { cause: CAUSE });
        if wasted > 0 {
            now(Event::Computed { step: step(9), prompt_tokens: 0, generated: 0, discarded: wasted, late: wasted });
        }
        now(Event::CancelApplied { cause: CAUSE, phase: Phase::Decode });
        now(Event::CancelAcknowledged);
        now(Event::Released { receipt: Receipt::default() });
        now(Event::OutcomeSet { outcome: Outcome::of(CAUSE) });
        now(Event::Settled { proven: true });
    }

    fn begin(&self, id: &str) {
        self.event(id, Duration::ZERO, Event::Accepted { model: "m".into(), n: 1, stream: true, on_disconnect: OnDisconnect::Cancel });
    }
}

#[test]
fn every_alert_fires_and_is_resolved() {
    let Some(programs) = programs() else { return };
    let rules = AlertRules { unacknowledged: Duration::from_secs(1), orphaned: Duration::from_secs(1), ..AlertRules::default() };
    let healthy = Snapshot { total: 8, free: 8, ..Snapshot::default() };
    let journal = Journal::new(Clock::start(), Limits { window: WINDOW, ..Limits::default() });
    let server = Arc::new(Scripted { journal, account: Mutex::new(healthy.clone()), runs: Mutex::default() });
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let serving = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = serving.clone();
            std::thread::spawn(move || server.answer(stream));
        }
    });
    let prometheus = Prometheus::start(&programs, port, &rules.prometheus(WINDOW));
    let (sick, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let all: BTreeSet<String> = Alert::ALL.iter().map(|alert| alert.name().to_owned()).collect();
    let none = BTreeSet::new();
    let agree = |wanted: &BTreeSet<String>, what: &str| {
        until(what, || {
            let (outside, inside) = (prometheus.firing(), server.firing_inside(&rules));
            outside == *wanted && inside == *wanted
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                match sick.load(Ordering::Relaxed) {
                    true => server.left(5, Duration::from_millis(200)),
                    false => server.left(0, Duration::from_millis(1)),
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until("three windows are scraped", || server.journal.clock().now().0 > 4 * WINDOW.as_micros() as u64);
            agree(&none, "twenty healthy runs and more are silent");
            assert!(*server.runs.lock().expect("no panic") >= 20);
            sick.store(true, Ordering::Relaxed);
            server.begin("lost");
            server.event("lost", Duration::ZERO, Event::CancelSent { cause: CAUSE, count: 1 });
            server.begin("orphan");
            server.event("orphan", Duration::ZERO, Event::Orphaned);
            *server.account.lock().expect("no panic") = Snapshot { free: 6, active: 2, ..healthy.clone() };
            until("all of them fire", || {
                // A defect is told of for a window: it happens again until the others are there.
                server.event("left1", Duration::ZERO, Event::Released { receipt: Receipt::default() });
                prometheus.firing() == all && server.firing_inside(&rules) == all
            });
            sick.store(false, Ordering::Relaxed);
            for id in ["lost", "orphan"] {
                server.event(id, Duration::ZERO, Event::Released { receipt: Receipt::default() });
            }
            *server.account.lock().expect("no panic") = healthy.clone();
            agree(&none, "all of them are resolved");
        }));
        over.store(true, Ordering::Relaxed);
        told.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
