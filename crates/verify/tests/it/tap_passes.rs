//! Bytes pass unchanged and in order, however they are cut and whatever they are, and no faster than they are taken.

use std::net::TcpStream;
use std::time::Duration;

use proptest::prelude::*;
use verify::judge::tap::{End, Options, Protocol};

use crate::stand::{Seen, Stand, fill, fin, hear, hear_all, rst, say};

/// Writes bytes in pieces of these lengths, again and again.
fn say_cut(socket: &TcpStream, bytes: &[u8], lengths: &[usize]) {
    let (mut at, mut lengths) = (0, lengths.iter().cycle());
    while at < bytes.len() {
        let length = lengths.next().copied().unwrap_or(1).min(bytes.len() - at);
        say(socket, &bytes[at..at + length]);
        at += length;
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Framed {
    Length,
    Chunked,
    Close,
}

/// A message with a body of so many bytes.
fn message(first_line: &str, framed: Framed, length: usize) -> Vec<u8> {
    let body: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    let (head, body) = match framed {
        Framed::Length => (format!("Content-Length: {length}\r\n"), body),
        Framed::Close => (String::new(), body),
        Framed::Chunked => {
            let chunk = |chunk: &[u8]| [format!("{:x}\r\n", chunk.len()).into_bytes(), chunk.to_vec(), b"\r\n".to_vec()].concat();
            let chunks: Vec<u8> = body.chunks(977).flat_map(chunk).chain(*b"0\r\n\r\n").collect();
            ("Transfer-Encoding: chunked\r\n".to_owned(), chunks)
        }
    };
    [format!("{first_line}\r\n{head}\r\n").into_bytes(), body].concat()
}

/// What an end heard, and how it ended for it.
type Heard = (Vec<u8>, Seen);

/// Plays a connection: each request, then its answer, each in pieces, and a close in the end. What the caller and the engine heard.
fn play(stand: &Stand, script: &[(Vec<u8>, Vec<u8>)], cuts: &[usize], caller_closes: bool, by_rst: bool) -> (Heard, Heard) {
    let (caller, engine) = stand.pair();
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    for (request, answer) in script {
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| hear(&engine, request.len()));
            say_cut(&caller, request, cuts);
            asked.extend(heard.join().expect("it came"));
            let heard = scope.spawn(|| hear(&caller, answer.len()));
            say_cut(&engine, answer, cuts);
            answered.extend(heard.join().expect("it came"));
        });
    }
    let (first, second) = if caller_closes { (caller, engine) } else { (engine, caller) };
    let (of_second, of_first) = if by_rst {
        rst(first);
        (hear_all(&second), (Vec::new(), Seen::Rst))
    } else {
        fin(&first);
        let of_second = hear_all(&second);
        drop(second);
        (of_second, hear_all(&first))
    };
    let (of_caller, of_engine) = if caller_closes { (of_first, of_second) } else { (of_second, of_first) };
    ((([answered, of_caller.0].concat()), of_caller.1), (([asked, of_engine.0].concat()), of_engine.1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    // contract: C-29
    #[test]
    fn a_tapped_run_and_one_without_a_tap_are_the_same(
        all in prop::collection::vec((any::<bool>(), 0..3000usize, any::<bool>(), 0..3000usize), 1..5),
        until_close: bool,
        cuts in prop::collection::vec(prop_oneof![1..8usize, 1..2000usize], 1..6),
        caller_closes: bool,
        by_rst: bool,
    ) {
        let framed = |chunked| if chunked { Framed::Chunked } else { Framed::Length };
        let mut script: Vec<(Vec<u8>, Vec<u8>)> = all.iter().enumerate().map(|(n, &(asks, asked, answers, answered))| {
            let is_last = n + 1 == all.len();
            let answer = if until_close && is_last { Framed::Close } else { framed(answers) };
            let ask = format!("POST /{n} HTTP/1.1\r\nx-request-id: id-{n}");
            (message(&ask, framed(asks), asked), message("HTTP/1.1 200 OK", answer, answered))
        }).collect();
        let stand = Stand::new(Options::default());
        let tapped = play(&stand, &script, &cuts, caller_closes, by_rst);
        prop_assert_eq!(&tapped, &play(&Stand::untapped(), &script, &cuts, caller_closes, by_rst));
        let sent: (Vec<Vec<u8>>, Vec<Vec<u8>>) = script.drain(..).unzip();
        prop_assert_eq!((sent.1.concat(), sent.0.concat()), (tapped.0.0, tapped.1.0));
        let seen = stand.seen_when(|seen| seen.len() == all.len() && seen.iter().all(|seen| seen.end.is_some()));
        for (n, seen) in seen.iter().enumerate() {
            prop_assert_eq!((seen.id.clone(), seen.path.clone()), (Some(format!("id-{n}")), Some(format!("/{n}"))));
            prop_assert_eq!((seen.request_bytes, seen.response_bytes), (sent.0[n].len() as u64, sent.1[n].len() as u64));
            let is_cut = until_close && by_rst && n + 1 == all.len();
            prop_assert_eq!((seen.status, seen.end), (Some(200), Some(if is_cut { End::Cut } else { End::Complete })));
        }
    }

    #[test]
    fn what_is_no_http_passes_the_same(
        up in prop::collection::vec(any::<u8>(), 1..5000),
        down in prop::collection::vec(any::<u8>(), 0..5000),
        cuts in prop::collection::vec(1..2000usize, 1..6),
        by_rst: bool,
    ) {
        let stand = Stand::new(Options::default());
        // No line of HTTP can begin so.
        let up = [b"\0".to_vec(), up].concat();
        let heard = play(&stand, &[(up.clone(), down.clone())], &cuts, true, by_rst);
        prop_assert_eq!((&heard.0.0, &heard.1.0), (&down, &up));
        let seen = stand.seen_when(|seen| seen.len() == 1 && seen[0].end.is_some());
        prop_assert_eq!((seen[0].protocol, seen[0].end), (Protocol::Other, Some(if by_rst { End::Cut } else { End::Complete })));
        prop_assert_eq!((seen[0].request_bytes, seen[0].response_bytes), (up.len() as u64, down.len() as u64));
    }
}

#[test]
fn a_reader_that_stops_makes_the_writer_stop_and_nothing_is_lost() {
    const MUCH: usize = 256 << 20;
    const SMALL: usize = 64 << 20;
    let stand = Stand::new(Options::default());
    let (caller, engine) = stand.pair();
    say(&caller, "GET / HTTP/1.1\r\n\r\n");
    hear(&engine, 18);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {MUCH}\r\n\r\n");
    say(&engine, &head);
    hear(&caller, head.len());
    let taken = fill(&engine, MUCH);
    assert!(taken < SMALL, "{taken} bytes were taken though nobody read them");
    let passed = stand.seen_when(|_| true)[0].response_bytes as usize;
    assert!(passed <= head.len() + taken);
    // And in the other direction, on the same connection.
    let taken_up = fill(&caller, MUCH);
    assert!(taken_up < SMALL, "{taken_up} bytes were taken though nobody read them");
    std::thread::scope(|scope| {
        let up = scope.spawn(|| hear(&engine, taken_up));
        let down = scope.spawn(|| hear(&caller, taken));
        assert!(up.join().expect("it came").iter().chain(&down.join().expect("it came")).all(|byte| *byte == b'x'));
    });
    fin(&caller);
    fin(&engine);
    assert_eq!((hear_all(&caller), hear_all(&engine)), ((Vec::new(), Seen::Fin), (Vec::new(), Seen::Fin)));
}

#[test]
fn a_head_that_is_too_long_passes_and_is_only_counted() {
    let stand = Stand::new(Options { head_bytes_max: 1000, ..Options::default() });
    let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(100_000));
    let answer = message("HTTP/1.1 200 OK", Framed::Length, 5);
    let heard = play(&stand, &[(long.clone().into_bytes(), answer.clone())], &[777], true, false);
    assert_eq!((heard.0.0, heard.1.0), (answer, long.into_bytes()));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].protocol, seen[0].response_bytes), (Protocol::Other, 43));
    assert_eq!(seen[0].unread.as_deref(), Some("a request's head of more than 1000 bytes"));
}

#[test]
fn http2_passes_unchanged_and_is_reported_as_bytes() {
    let stand = Stand::new(Options::default());
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let settings = b"\0\0\0\x04\0\0\0\0\0".to_vec();
    let heard = play(&stand, &[(preface.clone(), settings.clone())], &[5], true, false);
    assert_eq!((&heard.0.0, &heard.1.0), (&settings, &preface));
    let seen = stand.seen_when(|seen| seen[0].end.is_some());
    assert_eq!((seen[0].protocol, seen[0].request_bytes, seen[0].response_bytes), (Protocol::Http2, 33, 9));
}

#[test]
fn many_connections_at_once_do_not_meet() {
    const MANY: usize = 200;
    let stand = Stand::new(Options { connections_max: MANY, ..Options::default() });
    std::thread::scope(|scope| {
        for n in 0..MANY {
            let stand = &stand;
            scope.spawn(move || {
                let (caller, engine) = stand.pair();
                for turn in 0..5 {
                    let ask = message(&format!("POST /{n} HTTP/1.1\r\nx-request-id: {n}-{turn}"), Framed::Chunked, n * 10);
                    let answer = message(&format!("HTTP/1.1 200 {n}-{turn}"), Framed::Length, n * 10);
                    say(&caller, &ask);
                    assert_eq!(hear(&engine, ask.len()), ask);
                    say(&engine, &answer);
                    assert_eq!(hear(&caller, answer.len()), answer);
                }
            });
        }
    });
    let seen = stand.client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = runtime.block_on(seen.page(&verify::judge::tap::Which::After(after))).expect("it answers");
        after = page.exchanges.last().map_or(after, |last| last.number);
        all.extend(page.exchanges);
        if !page.more {
            break;
        }
    }
    assert_eq!(all.len(), MANY * 5);
    assert!(all.iter().all(|seen| seen.end == Some(End::Complete) && seen.unread.is_none()));
    for seen in &all {
        let n = seen.path.as_deref().map(|path| &path[1..]).expect("a path");
        assert!(seen.id.as_deref().is_some_and(|id| id.split('-').next() == Some(n)), "{seen:?}");
    }
}

#[test]
fn connections_over_the_limit_wait_until_there_is_room() {
    let stand = Stand::new(Options { connections_max: 1, ..Options::default() });
    let (first, engine) = stand.pair();
    let second = stand.caller();
    say(&second, "GET /second HTTP/1.1\r\n\r\n");
    say(&first, "GET /first HTTP/1.1\r\n\r\n");
    hear(&engine, 23);
    let seen = stand.seen_when(|seen| seen[0].path.is_some());
    assert_eq!((seen.len(), seen[0].path.as_deref()), (1, Some("/first")), "the second waits in the kernel");
    rst(first);
    let engine = stand.engine();
    assert!(hear(&engine, 24).starts_with(b"GET /second"));
    engine.set_read_timeout(Some(Duration::from_secs(1))).expect("an option");
    rst(second);
    assert_eq!(hear_all(&engine).1, Seen::Rst);
}
