//! The table with two tenants: the same id is two runs, and neither sees the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use lifecycle::message::{Down, From, ModelInfo, Prompt, Receipt, Up, Usage};
use lifecycle::params::Params;
use lifecycle::{AttemptId, Cause, Incarnation, Offer, OnDisconnect, Outcome, RunId, RunKey, Tenant, Time, WorkerIndex, Workers};
use observe::{Clock, Journal, Limits, RunFilter};

use super::Order;
use crate::GatewayConfig;
use crate::LinkEvent;
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::joining::Joining;
use crate::keys::Caller;
use crate::links::{Journals, LinkEnd};

fn table() -> (Arc<Calls>, Arc<Mutex<Vec<Down>>>) {
    let model = ModelInfo { id: "tiny".into(), context: 512, default_max_tokens: 64, created: 0 };
    before(model.into())
}

/// A table with one worker, which offers this.
fn before(offer: Offer) -> (Arc<Calls>, Arc<Mutex<Vec<Down>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let keep = sent.clone();
    let send = move |message: From<Down>| {
        keep.lock().expect("no panic").push(message.message);
        Ok(())
    };
    let journal = Journal::new(Clock::start(), Limits::default());
    let mut workers = Workers::default();
    let worker = workers.add("w".into());
    assert_eq!(workers.here(worker, Incarnation(1), offer, "w".into()), None);
    let calls = Calls::new(
        GatewayConfig::default(),
        journal,
        Incarnation(2),
        vec![LinkEnd::new("w".into(), Box::new(send), Journals::Here)],
        workers,
    );
    (Arc::new(calls), sent)
}

fn order(tenant: &str, id: &str) -> Order {
    Order {
        caller: Caller { tenant: Tenant::parse(tenant).expect("a name"), name: "somebody".into() },
        requested: Some(RunId::parse(id).expect("an id")),
        model: "tiny".into(),
        prompt: Prompt::Text("x".into()),
        params: Params::default(),
        arrived: Time(0),
        timeout: None,
        stream: false,
        joining: None,
        door: "text",
        on_disconnect: OnDisconnect::Cancel,
        stored: false,
        request: None,
        expires: None,
        tools: Vec::new(),
        trace: None,
    }
}

// contract: C-1 C-30
#[test]
fn an_id_is_taken_within_its_tenant_and_cancelled_within_it() {
    let (calls, sent) = table();
    let conn = Arc::new(ConnState::new(1, calls.clone()));
    let open = |tenant, id| calls.open(order(tenant, id), &conn).unwrap_or_else(|why| panic!("{why:?}"));
    let (one, two, again) = (open("one", "a").reader, open("two", "a").reader, open("one", "a").reader);
    let name = |key: &RunKey| format!("{key:?}");
    assert_eq!([name(&one.key), name(&two.key), name(&again.key)], ["one:a", "two:a", "one:a~2"]);

    let key = |tenant: &str, id: &str| RunKey { tenant: Tenant::parse(tenant).expect("a name"), run: RunId::parse(id).expect("an id") };
    assert!(calls.cancel(&key("three", "a")).is_none() && calls.cancel(&key("two", "a~2")).is_none());
    assert!(calls.cancel(&key("two", "a")).is_some());
    let cancelled: Vec<String> = sent
        .lock()
        .expect("no panic")
        .iter()
        .filter_map(|m| match m {
            Down::Cancel { attempt, cause: Cause::CancelRequested, .. } => Some(name(&attempt.key)),
            _ => None,
        })
        .collect();
    assert_eq!(cancelled, ["two:a"]);
    let listed =
        |tenant: &str| calls.journal.runs(&Tenant::parse(tenant).expect("a name"), &RunFilter::default()).expect("a page").data.len();
    assert_eq!([listed("one"), listed("two"), listed("three")], [2, 1, 0]);
}

// contract: C-26 C-28
#[test]
fn readers_that_have_left_are_forgotten_while_their_run_lives() {
    let (calls, _sent) = table();
    let conn = |id| Arc::new(ConnState::new(id, calls.clone()));
    let keyed = || Order { joining: Some(Joining::new("k", "chat", b"body")), ..order("a", "run") };
    let first = calls.open(keyed(), &conn(1)).expect("a run");
    for id in 2..1000 {
        let joined = calls.open(keyed(), &conn(id)).expect("a seat");
        assert!(joined.joined);
    }
    let key = first.reader.key.clone();
    let seats = |calls: &Calls| calls.lock().entries[&key].seats.kept();
    assert_eq!(seats(&calls), 1, "the first one's");
    assert_eq!(calls.lock().entries[&key].dispatch.call().wanted(), None, "somebody still reads");
}

// contract: C-22
#[test]
fn a_deadline_counts_from_the_arrival_of_the_requests_head() {
    let (calls, sent) = table();
    let conn = Arc::new(ConnState::new(1, calls.clone()));
    let timeout = std::time::Duration::from_micros(1);
    let arrived = calls.now();
    while calls.now() <= arrived.after(timeout) {
        std::thread::yield_now(); // the body takes its time
    }
    let _run = calls.open(Order { arrived, timeout: Some(timeout), ..order("a", "late") }, &conn).expect("a run");
    let sent = sent.lock().expect("no panic");
    let Some(Down::Submit(submit)) = sent.first() else { panic!("{sent:?}") };
    let left = submit.deadlines.iter().find(|d| d.cause == Cause::ClientDeadline).map(|d| d.left);
    assert_eq!(left, Some(std::time::Duration::ZERO));
}

/// A slot that becomes free is the first's in the queue, however close behind the release another one comes.
// contract: C-30
#[test]
fn who_comes_while_a_slot_is_given_on_waits_behind_those_that_wait() {
    const ROUNDS: usize = 600;
    let model = ModelInfo { id: "tiny".into(), context: 512, default_max_tokens: 64, created: 0 };
    for round in 0..ROUNDS {
        let (calls, sent) = before(Offer { slots: Some(1), ..Offer::from(model.clone()) });
        let open = |id: &str| {
            let conn = Arc::new(ConnState::new(1, calls.clone()));
            calls.open(order("one", id), &conn).unwrap_or_else(|why| panic!("{why:?}"))
        };
        let _read = [open("has"), open("waits")];
        let hear = |message| calls.hear(WorkerIndex(0), LinkEvent::Up(From { incarnation: Incarnation(1), message }));
        let key = RunKey { tenant: Tenant::parse("one").expect("a name"), run: RunId::parse("has").expect("an id") };
        let attempt = AttemptId { key: key.clone(), attempt: 1 };
        hear(Up::Ended { attempt: attempt.clone(), outcome: Outcome::of(Cause::Stop), usage: Usage::default() });
        let (start, is_over) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                hear(Up::Released { attempt, receipt: Receipt::default() });
                is_over.store(true, Ordering::Release);
            });
            start.wait();
            // As many as come meanwhile, so that one of them falls into whatever gap there is.
            for number in (0..64).take_while(|_| !is_over.load(Ordering::Acquire)) {
                let key = RunKey { run: RunId::parse(&format!("later-{number}")).expect("an id"), ..key.clone() };
                calls.open_background(&key, order("one", "later")).unwrap_or_else(|why| panic!("{why:?}"));
            }
        });
        let sent = sent.lock().expect("no panic");
        let begun = sent.iter().filter_map(|message| match message {
            Down::Submit(submit) => Some(submit.attempt.key.run.to_string()),
            _ => None,
        });
        assert_eq!(begun.take(2).collect::<Vec<_>>(), ["has", "waits"], "round {round}");
    }
}
