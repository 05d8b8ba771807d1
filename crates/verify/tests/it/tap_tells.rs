//! What a tap tells, and how a judge takes it.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use verify::judge::tap::{Options, StartError, Tap, TapClient, TapError, Which};

use crate::stand::{Stand, fin, hear, hear_all, rst, say};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
/// A time that no clock is wrong by if it is asked over loopback.
const APART: Duration = Duration::from_millis(50);
/// A chunk with one event.
const EVENT: &str = "9\r\ndata: 1\n\n\r\n";

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// Asks for a run with this id, and gets a head and so many events.
fn streaming(stand: &Stand, id: &str, events: usize) -> (TcpStream, TcpStream) {
    let (caller, engine) = stand.pair();
    let ask = format!("POST /v1/completions?api_key=secret HTTP/1.1\r\nx-trace: {id}\r\nContent-Length: 0\r\n\r\n");
    say(&caller, &ask);
    hear(&engine, ask.len());
    say(&engine, HEAD);
    hear(&caller, HEAD.len());
    for _ in 0..events {
        say(&engine, EVENT);
        hear(&caller, EVENT.len());
    }
    (caller, engine)
}

fn traced() -> Stand {
    Stand::new(Options { name: "edge".to_owned(), trace_header: "X-Trace".to_owned(), ..Options::default() })
}

// contract: C-29
#[test]
fn a_judge_learns_what_passed_after_its_trigger_and_when_each_side_closed() {
    let stand = traced();
    let before = Instant::now();
    let (caller, engine) = streaming(&stand, "mine", 3);
    let trigger = Instant::now();
    fin(&caller);
    hear_all(&engine);
    // What comes later than the clocks can be wrong is surely counted.
    std::thread::sleep(APART);
    say(&engine, EVENT.repeat(2));
    hear(&caller, 2 * EVENT.len());
    rst(engine);
    assert!(hear_all(&caller).0.is_empty());
    stand.seen_when(|seen| seen[0].end.is_some());
    let after = Instant::now();
    let ask = || block_on(stand.client().saw("mine", trigger)).expect("it answers");
    let is_exact = |error: f64| error < APART.as_secs_f64() * 1e3;
    let saw = (0..100).map(|_| ask()).find(|saw| saw.clock_error_ms.is_some_and(is_exact)).expect("one quick answer of a hundred");
    let error = saw.clock_error_ms.expect("two clocks were compared");
    let ms = |instant: Instant| instant.saturating_duration_since(trigger).as_secs_f64() * 1e3;
    assert_eq!((saw.name.as_str(), saw.requests, saw.status, saw.complete), ("edge", 1, Some(200), false));
    assert_eq!((saw.events, saw.events_after, saw.events_after_close), (5, 2, 2));
    assert_eq!((saw.bytes, saw.bytes_after), ((HEAD.len() + 5 * EVENT.len()) as u64, 2 * EVENT.len() as u64));
    assert_eq!((saw.down_how.as_deref(), saw.up_how.as_deref()), (Some("fin"), Some("rst")));
    // In the order in which it was, on the judge's own clock, as exactly as is said.
    let since = -trigger.duration_since(before).as_secs_f64() * 1e3;
    let order =
        [Some(since), saw.request_ms, saw.head_ms, Some(0.0), saw.down_closed_ms, saw.last_byte_ms, saw.up_closed_ms, Some(ms(after))];
    let order: Vec<f64> = order.into_iter().map(|at| at.expect("it was seen")).collect();
    assert!(order.windows(2).all(|pair| pair[0] <= pair[1] + 2.0 * error), "{order:?} ±{error}");
}

#[test]
fn a_close_behind_a_whole_answer_is_the_connections() {
    let stand = traced();
    let (caller, engine) = streaming(&stand, "whole", 1);
    say(&engine, "0\r\n\r\n");
    hear(&caller, 5);
    fin(&engine);
    hear_all(&caller);
    fin(&caller);
    hear_all(&engine);
    let seen = stand.seen_when(|seen| seen[0].down_closed.is_some());
    assert!(seen[0].up_closed.is_some(), "the tap says it all the same: {seen:?}");
    let saw = block_on(stand.client().saw("whole", Instant::now())).expect("it answers");
    assert_eq!((saw.complete, saw.down_closed_ms, saw.up_closed_ms, saw.events_after), (true, None, None, 0));
}

#[test]
fn a_request_that_was_asked_again_is_two_and_others_are_none() {
    let stand = traced();
    let _both = [streaming(&stand, "twice", 1), streaming(&stand, "twice", 2)];
    stand.seen_when(|seen| seen.iter().map(|seen| seen.events).sum::<u64>() == 3);
    let saw = block_on(stand.client().saw("twice", Instant::now())).expect("it answers");
    assert_eq!((saw.requests, saw.events, saw.complete), (2, 3, false));
    let none = block_on(stand.client().saw("nobody", Instant::now())).expect("it answers");
    assert_eq!((none.requests, none.request_ms, none.bytes), (0, None, 0));
}

#[test]
fn where_no_header_is_passed_on_a_request_is_found_by_the_word_in_its_body() {
    let stand = traced();
    let (caller, engine) = stand.pair();
    let body = r#"{"prompt":"Tell a long story about verify-early-close-stream-7-1: once"}"#;
    let ask = format!("POST / HTTP/1.1\r\nX-Trace: the gateway's own\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    say(&caller, &ask);
    hear(&engine, ask.len());
    stand.seen_when(|seen| seen[0].request_end_ns.is_some());
    for (id, requests) in [("verify-early-close-stream-7-1", 1), ("the gateway's own", 1), ("verify-early-close-stream-7", 0)] {
        assert_eq!(block_on(stand.client().saw(id, Instant::now())).expect("it answers").requests, requests, "{id}");
    }
}

#[test]
fn neither_a_secret_of_a_path_nor_a_body_is_kept() {
    let stand = traced();
    let _streaming = streaming(&stand, "mine", 1);
    stand.seen_when(|seen| seen[0].events == 1);
    let page = block_on(stand.client().page(&Which::Id("mine".to_owned()))).expect("it answers");
    let text = serde_json::to_string(&page).expect("JSON");
    assert!(page.exchanges[0].path.as_deref() == Some("/v1/completions") && !text.contains("secret") && !text.contains("data:"), "{text}");
    assert!(!page.exchanges[0].marks.is_empty(), "an id's exchanges come with their marks");
    let page = block_on(stand.client().page(&Which::After(0))).expect("it answers");
    assert!(page.exchanges[0].marks.is_empty(), "a list does not");
}

#[test]
fn the_clocks_error_is_half_of_the_quickest_answer() {
    let stand = traced();
    let (before, clock) = (Instant::now(), block_on(stand.client().clock()).expect("it answers"));
    let took = before.elapsed();
    assert!(clock.error <= took / 2, "{:?} of {took:?}", clock.error);
    let second = block_on(stand.client().clock()).expect("it answers");
    let at = Instant::now();
    let apart = (clock.ns_of(at) - second.ns_of(at)).unsigned_abs();
    assert!(apart <= (clock.error + second.error).as_nanos(), "{apart} ns apart");
    assert_eq!(second.ms_after(0, at), second.ns_of(at) as f64 / -1e6);
}

#[test]
fn a_wrong_question_is_answered_with_what_is_right() {
    let stand = traced();
    for (ask, status, says) in [
        ("GET /exchanges", 400, "neither id=ID nor after=NUMBER"),
        ("GET /exchanges?after=x", 400, "neither id=ID nor after=NUMBER"),
        ("GET /other", 404, "ask for /exchanges or /clock"),
        ("POST /clock", 405, "ask with GET"),
        ("GET /clock", 200, "now_ns"),
    ] {
        let mut socket = TcpStream::connect(stand.tap.as_ref().expect("a tap").reporting()).expect("it is taken");
        say(&socket, format!("{ask} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(says), "{ask}: {answer}");
    }
}

#[test]
fn what_is_wrong_is_said_with_what_would_be_right() {
    for (listen, upstream) in [("nowhere", "127.0.0.1:1"), ("127.0.0.1:0", "127.0.0.1"), ("127.0.0.1:0", "127.0.0.1:x")] {
        let why = Tap::start(listen, upstream, Options::default()).err().expect("it is wrong").to_string();
        assert!(why.contains("no address for a tap") && why.contains("127.0.0.1:8001"), "{why}");
    }
    let why = Tap::start("127.0.0.1:0", "127.0.0.1:1", Options { trace_header: "a b".to_owned(), ..Options::default() });
    assert!(matches!(why.err(), Some(StartError::Header(name)) if name == "a b"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let why = Tap::start(&address, "127.0.0.1:1", Options::default()).err().expect("it is taken").to_string();
    assert!(why.contains(&format!("cannot listen on {address}")), "{why}");
    assert!(TapClient::new("").is_err() && TapClient::new("a@b:1").is_err());
    // Somebody takes the connection and says nothing that a tap would say.
    let strange = std::thread::spawn(move || {
        let (socket, _) = taken.accept().expect("it comes");
        hear(&socket, "GET /clock".len());
        say(&socket, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
        hear_all(&socket)
    });
    let client = TapClient::new(&address).expect("an address");
    let why = block_on(client.clock()).expect_err("it is none").to_string();
    assert!(why.contains("is no tap"), "{why}");
    strange.join().expect("it went");
    let why = block_on(client.clock()).expect_err("nobody is there any more");
    assert!(matches!(why, TapError::Call(..)) && why.to_string().contains("reporting on"), "{why}");
}
