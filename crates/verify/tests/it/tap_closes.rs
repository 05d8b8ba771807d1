//! Each side's close passes as it came, and is reported so.

use std::net::TcpStream;

use verify::judge::tap::{End, How, Options, Protocol};

use crate::stand::{Seen, Stand, fill, fin, hear, hear_all, reset_comes, rst, say};

const ASK: &str = "POST /v1/chat/completions HTTP/1.1\r\nX-Request-Id: a\r\nContent-Length: 2\r\n\r\n{}";
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
const EVENT: &str = "data: {\"choices\":[]}\n\n";

/// A connection on which a stream is under way.
fn streaming(stand: &Stand) -> (TcpStream, TcpStream) {
    let (caller, engine) = stand.pair();
    say(&caller, ASK);
    assert_eq!(hear(&engine, ASK.len()), ASK.as_bytes());
    say(&engine, HEAD);
    say(&engine, EVENT);
    hear(&caller, HEAD.len() + EVENT.len());
    (caller, engine)
}

// contract: C-29
#[test]
fn a_callers_reset_is_one_for_the_engine() {
    let stand = Stand::new(Options::default());
    let (caller, engine) = streaming(&stand);
    rst(caller);
    assert_eq!(hear_all(&engine), (Vec::new(), Seen::Rst));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].end, seen[0].events, seen[0].events_after_close), (Some(End::Cut), 1, 0));
    assert_eq!(seen[0].down_closed.map(|closed| closed.how), Some(How::Rst));
    assert_eq!(seen[0].up_closed, None, "the engine's side said nothing of its own");
}

#[test]
fn an_engines_reset_is_one_for_the_caller_behind_all_that_it_had_said() {
    let stand = Stand::new(Options::default());
    let (caller, engine) = streaming(&stand);
    rst(engine);
    assert_eq!(hear_all(&caller), (Vec::new(), Seen::Rst));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].end, seen[0].up_closed.map(|closed| closed.how)), (Some(End::Cut), Some(How::Rst)));
    assert_eq!(seen[0].down_closed, None);
}

#[test]
fn half_a_close_leaves_the_other_half_open_and_what_passes_after_it_is_counted() {
    let stand = Stand::new(Options::default());
    let (caller, engine) = streaming(&stand);
    fin(&caller);
    assert_eq!(hear_all(&engine), (Vec::new(), Seen::Fin));
    (0..5).for_each(|_| say(&engine, EVENT));
    fin(&engine);
    assert_eq!(hear_all(&caller), (EVENT.repeat(5).into_bytes(), Seen::Fin));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].end, seen[0].events, seen[0].events_after_close), (Some(End::Complete), 6, 5));
    assert_eq!(seen[0].bytes_after_close, 5 * EVENT.len() as u64);
    let closed = [seen[0].down_closed, seen[0].up_closed].map(|closed| closed.expect("both closed"));
    assert_eq!(closed.map(|closed| closed.how), [How::Fin, How::Fin]);
    assert!(closed[0].at_ns < closed[1].at_ns && Some(closed[0].at_ns) < seen[0].last_byte_ns);
}

#[test]
fn half_a_close_of_the_engines_side_leaves_the_callers_half_open() {
    let stand = Stand::new(Options::default());
    let (caller, engine) = stand.pair();
    fin(&engine);
    assert_eq!(hear_all(&caller), (Vec::new(), Seen::Fin));
    say(&caller, ASK);
    fin(&caller);
    assert_eq!(hear_all(&engine), (ASK.as_bytes().to_vec(), Seen::Fin));
}

#[test]
fn a_caller_that_is_gone_after_its_fin_is_a_reset_for_who_goes_on_writing() {
    let stand = Stand::new(Options::default());
    let (caller, engine) = streaming(&stand);
    drop(caller);
    assert_eq!(hear_all(&engine), (Vec::new(), Seen::Fin));
    say(&engine, EVENT);
    reset_comes(&engine);
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].events_after_close, seen[0].end), (1, Some(End::Cut)), "the piece that found the caller gone has passed the tap");
}

#[test]
fn a_reset_behind_a_fin_passes_though_nobody_writes() {
    let stand = Stand::new(Options::default());
    let (caller, engine) = streaming(&stand);
    fin(&caller);
    assert_eq!(hear_all(&engine), (Vec::new(), Seen::Fin));
    rst(caller);
    reset_comes(&engine);
    let (caller, engine) = streaming(&stand);
    fin(&engine);
    assert_eq!(hear_all(&caller), (Vec::new(), Seen::Fin));
    rst(engine);
    reset_comes(&caller);
}

#[test]
fn a_close_behind_unread_bytes_is_the_reset_that_it_is_without_a_tap() {
    for stand in [Stand::untapped(), Stand::new(Options::default())] {
        let (caller, engine) = stand.pair();
        say(&engine, "here");
        hear(&caller, 1);
        drop(caller);
        assert_eq!(hear_all(&engine), (Vec::new(), Seen::Rst));
    }
}

#[test]
fn who_is_gone_while_nobody_takes_his_bytes_is_noticed() {
    let stand = Stand::new(Options::default());
    // The engine writes, its caller does not read, and one of both is reset.
    let (caller, engine) = streaming(&stand);
    fill(&engine, usize::MAX);
    rst(engine);
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].end, seen[0].up_closed.map(|closed| closed.how)), (Some(End::Cut), Some(How::Rst)));
    assert_eq!(hear_all(&caller).1, Seen::Rst);
    let (caller, engine) = streaming(&stand);
    fill(&engine, usize::MAX);
    rst(caller);
    assert_eq!(hear_all(&engine), (Vec::new(), Seen::Rst));
    // A caller that closes its half while it does not read is heard.
    let (caller, engine) = streaming(&stand);
    fill(&engine, usize::MAX);
    fin(&caller);
    assert_eq!(hear_all(&engine), (Vec::new(), Seen::Fin));
}

#[test]
fn what_an_engine_said_before_it_refused_the_rest_still_passes() {
    const NO: &str = "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let stand = Stand::new(Options::default());
    let (caller, engine) = stand.pair();
    say(&caller, "POST / HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n");
    fill(&caller, 8 << 20);
    say(&engine, NO);
    // Closed with unread bytes in it: the answer, and a reset at once.
    drop(engine);
    assert_eq!(hear_all(&caller), (NO.as_bytes().to_vec(), Seen::Rst));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].status, seen[0].end), (Some(413), Some(End::Complete)));
}

#[test]
fn where_nobody_listens_a_caller_is_reset_and_the_report_says_why() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = free.local_addr().expect("an address").to_string();
    drop(free);
    let tap = verify::judge::tap::Tap::start("127.0.0.1:0", &nobody, Options::default()).expect("a tap");
    let stand = Stand::dead_end(tap);
    let caller = stand.caller();
    assert_eq!(hear_all(&caller), (Vec::new(), Seen::Rst));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].protocol, seen[0].up_closed.map(|closed| closed.how)), (Protocol::Other, Some(How::Refused)));
    assert!(seen[0].unread.as_deref().is_some_and(|why| why.contains("nobody took the connection")), "{seen:?}");
}

#[test]
fn a_tap_that_ends_resets_what_is_open() {
    let mut stand = Stand::new(Options::default());
    let (caller, engine) = streaming(&stand);
    drop(stand.tap.take());
    assert_eq!((hear_all(&caller).1, hear_all(&engine).1), (Seen::Rst, Seen::Rst));
}
