//! PostgreSQL itself stopped for ten seconds, in good order and by SIGKILL, and started again with what it has: what is live goes on, background
//! runs are refused, and afterwards everything that was acknowledged is there once.
// contract: C-5, C-7, C-8, C-15, C-25, C-26, C-27

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use xtask::postgres::{Own, Stop};

use super::*;
use crate::faults::{alone, finish};
use crate::outside::{Payments, effect, paying};
use crate::server::{PATIENCE, chat_body, rest};

/// How long it is away: far longer than the leases of gateways and of what they tell the store.
const OUTAGE: Duration = Duration::from_secs(10);
/// Background runs that each asker has before it is stopped.
const ACKNOWLEDGED: usize = 4;
/// Most that an asker asks for.
const ASKED_MAX: usize = 2000;
/// Refusals after which an asker rests.
const REFUSALS: usize = 3;
/// Tokens of a stream that is over before the server is back.
const SHORT: u32 = 300;

/// A server that the test may stop.
fn own(settings: &[&str]) -> Option<Own> {
    if postgres::named().is_none() || postgres::found().is_none() {
        println!("skipped: {} names no PostgreSQL server, or none is installed that could be stopped", postgres::VARIABLE);
        return None;
    }
    Some(Own::with(settings).expect("it starts"))
}

/// A background response that pays, and what its caller was told.
fn create(server: &Server, id: &str, body: &Value) -> u16 {
    let answer = server.request("POST", "/v1/responses", Some(id), Some(body));
    if answer.0 != 200 {
        assert_eq!((answer.0, body_of(&answer)["error"]["code"].as_str()), (503, Some("store_unavailable")), "{id}: {}", body_of(&answer));
        assert!(answer.1.contains("retry-after: "), "{id}: {}", answer.1);
    }
    answer.0
}

/// Asks for one background run after the other until it was refused a few times; which ids were acknowledged, and which refused.
fn ask_until_refused(server: &Server, name: &str, port: u16, acknowledged: &AtomicUsize) -> BTreeMap<String, bool> {
    let mut told = BTreeMap::new();
    let mut refused = 0;
    for n in 0..ASKED_MAX {
        let id = format!("{name}{n}");
        let is_taken = create(server, &id, &paying(port, false, 4)) == 200;
        told.insert(id, is_taken);
        acknowledged.fetch_add(usize::from(is_taken), Ordering::SeqCst);
        refused += usize::from(!is_taken);
        if refused == REFUSALS {
            return told;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{name}: was never refused");
}

/// Every run that the database has, with how it ended.
fn in_the_database(url: &str) -> BTreeMap<String, Option<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = PgConnection::connect(url).await.expect("the server is back");
        let rows: Vec<(String, Option<String>)> =
            sqlx::query_as("SELECT run, cause FROM kvit_run").fetch_all(&mut connection).await.expect("the runs");
        rows.into_iter().collect()
    })
}

fn stopped_and_started_again(how: Stop) {
    let Some(mut server) = own(&[]) else { return };
    let (payments, port) = Payments::start();
    let stand = Stand::on(server.url(), 1);
    let urls = format!("http://127.0.0.1:{port}/pay");
    let flags = ["--store-patience-ms", "1000", "--tool-urls", &urls];
    let (a, b) = (stand.gateway_with("a", &flags), stand.gateway_with("b", &flags));
    let expected = alone(&lasting_model(), &[("Hello there", SHORT), ("Hi", 6)]);
    let baseline = rest(&a.kv());
    // One that ends while it is away, one that outlasts that, one that is cancelled meanwhile.
    let mut streams = [("short", SHORT), ("long", 12_000), ("mine", 12_000)]
        .map(|(id, tokens)| (id, Caller::chat(&a, id, &chat_body("Hello there", tokens, true)), String::new()));
    for (_, stream, text) in &mut streams {
        *text += &stream.read_tokens(2);
    }
    // A payment is under way, and is answered while it is away; of a background run some events have been read elsewhere.
    payments.hold(true);
    assert_eq!(create(&a, "paid", &paying(port, false, 4)), 200);
    until("the payment is under way", || (payments.total() == 1).then_some(()));
    assert_eq!(create(&a, "read", &paying(port, false, SHORT)), 200);
    let mut followers = [&a, &b].map(|gateway| (Follower::of(gateway, "read", 0), Vec::new()));
    followers.iter_mut().for_each(|(follower, told)| told.extend(follower.some(5)));

    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let (told, since) = std::thread::scope(|scope| {
        let askers = [(&a, "a", &counts[0]), (&b, "b", &counts[1])]
            .map(|(gateway, name, count)| scope.spawn(move || ask_until_refused(gateway, name, port, count)));
        let enough = || counts.iter().all(|count| count.load(Ordering::SeqCst) >= ACKNOWLEDGED);
        until("some are acknowledged at each", || enough().then_some(()));
        server.stop(how).expect("it stops");
        let since = Instant::now();
        (askers.map(|asker| asker.join().expect("it asks")), since)
    });
    payments.hold(false);
    let mut runs: BTreeMap<String, bool> = told.into_iter().flatten().collect();
    runs.extend([("paid".to_owned(), true), ("read".to_owned(), true)]);

    let [(_, short, short_text), (_, long, long_text), (_, mine, mine_text)] = &mut streams;
    let (rest_of_short, error) = finish(short);
    assert_eq!((short_text.clone() + &rest_of_short, error), (expected[0].clone(), None), "the live stream is whole");
    let mut interactive = Vec::new();
    for gateway in [&a, &b] {
        let answer = gateway.request("POST", "/v1/chat/completions", Some("asked"), Some(&chat_body("Hi", 6, false)));
        assert_eq!((answer.0, body_of(&answer)["choices"][0]["message"]["content"].as_str()), (200, Some(expected[1].as_str())));
        interactive.push(answer.1.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("its id").to_owned());
        let refused = gateway.request_with("POST", "/v1/chat/completions", GOES_ON, Some(&chat_body("Hi", 6, false)));
        assert_eq!((refused.0, body_of(&refused)["error"]["code"].as_str()), (503, Some("store_unavailable")), "{}", body_of(&refused));
    }
    assert_ne!(interactive[0], interactive[1], "each has an id of its own making");
    // What needs the other gateway is refused and changes nothing; what is here is cancelled here.
    let (status, answer) = cancel(&b, "long", 0);
    assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("store_unavailable")), "{answer}");
    *long_text += &long.read_tokens(3);
    let (status, run) = cancel(&a, "mine", 60_000);
    assert_eq!((status, &run["outcome"]["cause"]), (200, &json!("cancel_requested")), "{run:#}");
    let (rest_of_mine, error) = finish(mine);
    *mine_text += &rest_of_mine;
    assert_eq!(error.as_deref(), Some("cancel_requested"));
    std::thread::sleep(OUTAGE.saturating_sub(since.elapsed()));
    server.again().expect("it starts again");

    // It is cancelled there as ever, and the stream has told one story all the time.
    until("the store is back for both", || [&a, &b].iter().all(|gateway| create_works(gateway, &mut runs, port)).then_some(()));
    let (status, run) = cancel(&b, "long", 60_000);
    assert_eq!((status, &run["outcome"]["cause"]), (200, &json!("cancel_requested")), "{run:#}");
    let (rest_of_long, error) = finish(long);
    *long_text += &rest_of_long;
    assert_eq!(error.as_deref(), Some("cancel_requested"));
    for text in [long_text, mine_text] {
        assert!(text.starts_with(&expected[0]) || expected[0].starts_with(text.as_str()), "another story");
    }
    for gateway in [&a, &b] {
        for id in interactive.iter().map(String::as_str).chain(["short"]) {
            known(gateway, id);
            assert_eq!(outcome(gateway, id), is("completed", "length"), "{id}");
        }
        for id in ["long", "mine"] {
            assert_eq!(outcome(gateway, id), is("cancelled", "cancel_requested"), "{id}");
        }
    }
    // Who read on reads the same as who reads now.
    let read: Vec<Told> = Follower::of(&a, "read", 0).all();
    for (follower, mut told) in followers {
        told.extend(follower.all());
        assert_eq!(told, read, "a reader who was there all the time");
    }
    assert_eq!(whole_text(&read), expected[0]);
    for (id, is_acknowledged) in &runs {
        if *is_acknowledged {
            acknowledged_once([&a, &b], id, &payments);
        } else {
            refused_for_good([&a, &b], id, &payments);
        }
    }
    let calls = payments.calls();
    assert_eq!(calls.len(), runs.values().filter(|is_acknowledged| **is_acknowledged).count(), "{calls:?}");
    // Nothing else is there, and nothing is without an end.
    let known: Vec<&str> = runs.keys().chain(&interactive).map(String::as_str).chain(["short", "long", "mine"]).collect();
    for (id, cause) in in_the_database(&server.url()) {
        assert!(cause.is_some(), "{id} has no outcome");
        assert!(known.contains(&id.as_str()) || cause.as_deref() == Some("queue_full"), "{id} ended {cause:?}, and nobody was told of it");
    }
    until("every block is back", || (rest(&a.kv()) == baseline).then_some(()));
}

/// Whether the gateway takes a background run again; whatever it was told is written down.
fn create_works(gateway: &Server, runs: &mut BTreeMap<String, bool>, port: u16) -> bool {
    let id = format!("after{}", runs.len());
    let is_taken = create(gateway, &id, &paying(port, false, 4)) == 200;
    runs.insert(id, is_taken);
    is_taken
}

/// One outcome, one attempt, one payment, one story, at whichever gateway.
fn acknowledged_once(gateways: [&Server; 2], id: &str, payments: &Payments) {
    for gateway in gateways {
        assert_eq!(outcome(gateway, id), is("completed", "length"), "{id}");
        assert_eq!(gateway.run(id)["attempt"], 1, "{id}: nobody took it over");
        until("it has paid", || (effect(gateway, id) == "committed").then_some(()));
    }
    let [told, there] = gateways.map(|gateway| Follower::of(gateway, id, 0).all());
    whole_text(&told);
    assert_eq!(told, there, "{id}");
    let calls = payments.calls();
    assert_eq!(calls.get(id).map(Vec::len), Some(1), "{id}: {calls:?}");
}

/// It never was, or it ended without having begun.
fn refused_for_good(gateways: [&Server; 2], id: &str, payments: &Payments) {
    for gateway in gateways {
        let since = Instant::now();
        loop {
            let (status, run) = gateway.json("GET", &format!("/v1/runs/{id}"));
            let is_ended = (run["outcome"]["kind"].as_str(), run["outcome"]["cause"].as_str()) == (Some("rejected"), Some("queue_full"));
            if status == 404 || is_ended {
                break;
            }
            assert!(since.elapsed() < PATIENCE, "{id} was refused, and is {run:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(!payments.calls().contains_key(id), "{id} was refused and has paid");
}

#[test]
fn postgresql_stopped_for_ten_seconds_loses_and_doubles_nothing() {
    stopped_and_started_again(Stop::Fast);
}

#[test]
fn postgresql_killed_and_recovered_loses_and_doubles_nothing() {
    stopped_and_started_again(Stop::Killed);
}

/// What was committed and not yet on disk is gone with the server: the gateways live, and know better.
#[test]
fn what_postgresql_forgets_by_a_crash_is_told_it_again() {
    // It writes by itself so rarely that the crash takes all that no commit waited for.
    let Some(mut server) = own(&["wal_writer_delay=10s"]) else { return };
    let stand = Stand::on(server.url(), 1);
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let expected = alone(&lasting_model(), &[("Hello there", 200)]).remove(0);
    let mut reader = background(&a, "bg", &chat_body("Hello there", 200, true), 2);
    let mut stream = Caller::chat(&a, "fg", &chat_body("Hello there", 200, true));
    let mut text = stream.read_tokens(2);
    let mut follower = Follower::of(&b, "bg", 0);
    let mut told = follower.some(40);
    server.stop(Stop::Killed).expect("it stops");
    server.again().expect("it starts again");
    // Its readers are told the rest, wherever they are, and so is who asks afterwards.
    let (rest, error) = finish(&mut stream);
    text += &rest;
    assert_eq!((text, error), (expected.clone(), None));
    assert_eq!(finish(&mut reader).1, None);
    told.extend(follower.all());
    assert_eq!(whole_text(&told), expected);
    for gateway in [&a, &b] {
        assert_eq!(outcome(gateway, "bg"), is("completed", "length"));
        assert_eq!(Follower::of(gateway, "bg", 0).all(), told);
    }
    assert_eq!(in_the_database(&server.url()).get("bg"), Some(&Some("length".to_owned())));
}
