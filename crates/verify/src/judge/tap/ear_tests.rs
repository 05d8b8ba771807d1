//! What is read along does not depend on how bytes are cut, and what cannot be read is counted all the same.

use proptest::prelude::*;

use super::super::Options;
use super::super::book::Which;
use super::*;

fn ear(options: Options) -> (Ear, Arc<Book>) {
    let book = Arc::new(Book::new(options));
    (Ear::new(Arc::clone(&book)), book)
}

fn seen(book: &Book) -> Vec<Exchange> {
    book.page(&Which::After(0)).exchanges
}

/// One exchange as it stands on the wire, and what is to be seen of it.
#[derive(Clone, Debug)]
struct Said {
    request: Vec<u8>,
    answer: Vec<u8>,
    status: u16,
    events: u64,
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for chunk in body.chunks(size) {
        all.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        all.extend_from_slice(chunk);
        all.extend_from_slice(b"\r\n");
    }
    all.extend_from_slice(b"0\r\n\r\n");
    all
}

fn any_exchange() -> impl Strategy<Value = Said> {
    (0..4u8, 0..6u8, 0..200usize, 1..40usize, 0..12u64).prop_map(|(request, answer, length, size, events)| {
        let body = ("a\r\n\r\n".repeat(length) + "verify-7").into_bytes();
        let request = match request {
            0 => b"GET /a?b=c HTTP/1.1\r\nX-Request-Id: i\r\n\r\n".to_vec(),
            1 => [format!("POST /a HTTP/1.1\r\nx-request-id: i\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body.clone()]
                .concat(),
            2 => [b"PUT /a HTTP/1.1\r\nX-REQUEST-ID: i\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(), chunked(&body, size)].concat(),
            _ => b"\r\nHEAD /a HTTP/1.1\r\nx-request-id:i\r\n\r\n".to_vec(),
        };
        let is_head = request.starts_with(b"\r\nHEAD");
        let stream: String = (0..events).map(|n| format!(": hm\n\ndata: {{\"n\":{n}}}\n\n")).collect::<String>() + "data: [DONE]\n\n";
        let (status, head, body, events) = match answer {
            0 => (200, format!("Content-Length: {}\r\n", body.len()), body, 0),
            1 => (200, "Transfer-Encoding: chunked\r\n".to_owned(), chunked(&body, size), 0),
            2 => (204, String::new(), Vec::new(), 0),
            3 => (404, "Content-Length: 0\r\n".to_owned(), Vec::new(), 0),
            4 => {
                let head = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n".to_owned();
                (200, head, chunked(stream.as_bytes(), size), events)
            }
            _ => (200, format!("content-type: text/event-stream\r\ncontent-length: {}\r\n", stream.len()), stream.into_bytes(), events),
        };
        let informed = if size % 3 == 0 { "HTTP/1.1 100 Continue\r\n\r\n" } else { "" };
        let answer = format!("{informed}HTTP/1.1 {status} x\r\n{head}\r\n").into_bytes();
        let (body, events) = if is_head { (Vec::new(), 0) } else { (body, events) };
        Said { request, answer: [answer, body].concat(), status, events }
    })
}

/// Shows bytes in pieces of these lengths, again and again.
fn cut(bytes: &[u8], lengths: &[usize], mut show: impl FnMut(&[u8])) {
    let (mut at, mut lengths) = (0, lengths.iter().cycle());
    while at < bytes.len() {
        let length = lengths.next().copied().unwrap_or(1).min(bytes.len() - at);
        show(&bytes[at..at + length]);
        at += length;
    }
}

proptest! {
    #[test]
    fn exchanges_are_the_same_however_they_are_cut(
        all in prop::collection::vec(any_exchange(), 1..6),
        cuts in prop::collection::vec(1..400usize, 1..9),
        is_pipelined: bool,
    ) {
        let (mut ear, book) = ear(Options::default());
        let turns: Vec<&[Said]> = if is_pipelined { vec![&all] } else { all.chunks(1).collect() };
        for (at, turn) in turns.iter().enumerate() {
            let at = at as u64 * 10;
            turn.iter().for_each(|said| cut(&said.request, &cuts, |piece| ear.hear_request(piece, at)));
            turn.iter().for_each(|said| cut(&said.answer, &cuts, |piece| ear.hear_answer(piece, at + 1)));
        }
        ear.down_closed(1000, How::Fin);
        ear.up_closed(1001, How::Fin);
        ear.over(true);
        let seen = seen(&book);
        prop_assert_eq!(seen.len(), all.len());
        for (seen, said) in seen.iter().zip(&all) {
            prop_assert_eq!((&seen.unread, seen.protocol, seen.end), (&None, Protocol::Http1, Some(End::Complete)));
            prop_assert_eq!((seen.id.as_deref(), seen.path.as_deref()), (Some("i"), Some("/a")));
            let has_body = matches!(seen.method.as_deref(), Some("POST" | "PUT"));
            prop_assert_eq!(seen.word.as_deref(), has_body.then_some("verify-7"));
            prop_assert_eq!((seen.status, seen.events), (Some(said.status), said.events));
            let blank = said.request.iter().take_while(|byte| b"\r\n".contains(byte)).count();
            prop_assert_eq!((seen.request_bytes, seen.response_bytes), ((said.request.len() - blank) as u64, said.answer.len() as u64));
            let is_last = seen.number == all.len() as u64;
            prop_assert_eq!((seen.down_closed.is_some(), seen.up_closed.is_some()), (is_last, is_last));
            prop_assert!(seen.request_end_ns.is_some() && seen.head_ns.is_some());
        }
    }

    #[test]
    fn whatever_passes_is_counted(
        pieces in prop::collection::vec((any::<bool>(), "[A-Z0-9 /:.\r\n-]{0,40}|HTTP/1\\.1 200 OK\r\n\r\n|GET / HTTP/1\\.1\r\n\r\n"), 0..20),
    ) {
        let (mut ear, book) = ear(Options { head_bytes_max: 60, ..Options::default() });
        let (mut up, mut down) = (0, 0);
        for (at, (is_request, piece)) in pieces.iter().enumerate() {
            if *is_request {
                ear.hear_request(piece.as_bytes(), at as u64);
                up += piece.len() as u64;
            } else {
                ear.hear_answer(piece.as_bytes(), at as u64);
                down += piece.len() as u64;
            }
        }
        ear.over(true);
        let seen = seen(&book);
        prop_assert_eq!(seen.iter().map(|exchange| exchange.response_bytes).sum::<u64>(), down);
        // Empty lines before a request are nobody's.
        prop_assert!(seen.iter().map(|exchange| exchange.request_bytes).sum::<u64>() <= up);
        prop_assert!(seen.iter().all(|exchange| exchange.end.is_some()));
    }
}

#[test]
fn an_answer_until_the_close_is_complete_with_a_fin_and_cut_with_a_reset() {
    for (how, end) in [(How::Fin, End::Complete), (How::Rst, End::Cut), (How::Lost, End::Cut)] {
        let (mut ear, book) = ear(Options::default());
        ear.hear_request(b"GET / HTTP/1.0\r\n\r\n", 1);
        ear.hear_answer(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n", 2);
        assert_eq!(seen(&book)[0].end, None, "it goes on");
        ear.up_closed(3, how);
        let seen = seen(&book);
        assert_eq!((seen.len(), seen[0].end, seen[0].events), (1, Some(end), 1));
        assert_eq!(seen[0].up_closed, Some(Closed { at_ns: 3, how }));
    }
}

#[test]
fn an_answer_that_is_cut_says_so_and_closes_stand_where_they_belong() {
    let (mut ear, book) = ear(Options::default());
    ear.hear_request(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab", 1);
    ear.hear_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", 2);
    ear.hear_request(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\na", 3);
    ear.down_closed(4, How::Rst);
    ear.over(false);
    let seen = seen(&book);
    assert_eq!((seen[0].end, seen[0].down_closed), (Some(End::Complete), None), "the connection went on behind the first");
    assert_eq!((seen[1].end, seen[1].down_closed), (Some(End::Cut), Some(Closed { at_ns: 4, how: How::Rst })));
    assert_eq!((seen[1].request_end_ns, seen[1].status), (None, None));
}

#[test]
fn an_answer_before_its_request_is_whole_and_one_that_nobody_asked_for() {
    let (mut ear, book) = ear(Options::default());
    ear.hear_request(b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\na", 1);
    ear.hear_answer(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", 2);
    ear.hear_request(b"bcdefghi", 3);
    ear.hear_answer(b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n", 4);
    let seen = seen(&book);
    assert_eq!((seen[0].status, seen[0].request_end_ns), (Some(413), Some(3)));
    assert_eq!((seen[1].status, seen[1].method.as_deref(), seen[1].request_ns), (Some(408), None, 4));
}

#[test]
fn what_is_no_http_or_no_more_is_counted_on_one_exchange() {
    let long = format!("GET /{}", "a".repeat(300));
    for (asked, answered, protocol, why) in [
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0\0\0\x04\0", Protocol::Http2, "HTTP/2"),
        ("\x16\x03\x01\n\n", "\x16\x03", Protocol::Other, "no request"),
        ("PING\r\n", "+PONG\r\n", Protocol::Other, "no request"),
        ("", "220 here is a server that speaks first\r\n", Protocol::Other, "no answer"),
        (&long, "x", Protocol::Other, "more than 200 bytes"),
        ("GET /ws HTTP/1.1\r\nUpgrade: x\r\n\r\n", "HTTP/1.1 101 x\r\n\r\n", Protocol::Other, "another protocol"),
        ("CONNECT a:1 HTTP/1.1\r\n\r\n", "HTTP/1.1 200 x\r\n\r\n", Protocol::Other, "another protocol"),
    ] {
        for size in [1, 3, 1000] {
            let (mut ear, book) = ear(Options { head_bytes_max: 200, ..Options::default() });
            cut(asked.as_bytes(), &[size], |piece| ear.hear_request(piece, 1));
            cut(answered.as_bytes(), &[size], |piece| ear.hear_answer(piece, 2));
            ear.hear_request(b"\r\nGET / HTTP/1.1\r\n\r\n", 3);
            ear.hear_answer(b"data: 1\n\n", 4);
            ear.over(true);
            let seen = seen(&book);
            assert_eq!((seen.len(), seen[0].protocol, seen[0].end), (1, protocol, Some(End::Complete)), "{seen:?}");
            assert!(seen[0].unread.as_deref().is_some_and(|said| said.contains(why)), "{why}: {:?}", seen[0].unread);
            assert_eq!((seen[0].request_bytes, seen[0].response_bytes), (asked.len() as u64 + 20, answered.len() as u64 + 9), "{why}");
        }
    }
}

#[test]
fn too_many_requests_that_wait_are_not_read() {
    let (mut ear, book) = ear(Options::default());
    (0..=PIPELINED_MAX).for_each(|_| ear.hear_request(b"GET / HTTP/1.1\r\n\r\n", 1));
    let seen = book.page(&Which::After(PIPELINED_MAX as u64 - 1)).exchanges;
    assert_eq!((seen.len(), seen[0].protocol, seen[0].request_bytes), (1, Protocol::Other, 36));
}
