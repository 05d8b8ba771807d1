//! Streams in every dress and every cut.

use proptest::prelude::*;

use super::*;

const MAX: usize = 1 << 16;

/// The events of a stream in these pieces, and what is left at its end.
fn scan(pieces: &[&[u8]]) -> (Vec<Event>, Bytes) {
    let (mut scanner, mut events, mut forwarded) = (Scanner::new(MAX, MAX), Vec::new(), Vec::new());
    for piece in pieces {
        let before = events.len();
        let run = scanner.push(Bytes::copy_from_slice(piece), &mut events).expect("within the limits");
        let new: Vec<u8> = events[before..].iter().flat_map(|e| e.raw.to_vec()).collect();
        assert_eq!(new, [&run.across[..], &run.within[..]].concat(), "a run is the bytes of its events");
        forwarded.extend(new);
    }
    let (last, rest) = scanner.finish();
    forwarded.extend(last.iter().flat_map(|e| e.raw.to_vec()));
    forwarded.extend_from_slice(&rest);
    assert_eq!(forwarded, pieces.concat(), "nothing is lost or changed");
    events.extend(last);
    (events, rest)
}

fn data(stream: &[u8]) -> Vec<Option<String>> {
    scan(&[stream]).0.iter().map(|e| e.data.as_ref().map(|d| String::from_utf8_lossy(d).into_owned())).collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|t| Some((*t).to_owned())).collect()
}

#[test]
fn every_line_end_every_dress() {
    for end in ["\n", "\r\n", "\r"] {
        let stream = format!("data: a{end}{end}data:b{end}data: c{end}{end}").into_bytes();
        assert_eq!(data(&stream), some(&["a", "b\nc"]), "{end:?}");
    }
    assert_eq!(data(b"\xef\xbb\xbfdata: a\n\n"), some(&["a"]));
    assert_eq!(data(b"data:  two\n\ndata\n\ndata:\n\n"), some(&[" two", "", ""]));
    assert_eq!(data(b": ping\n\nid: 7\nretry: 1\n\ndata: x\n\n\n"), [vec![None, None], some(&["x"]), vec![None]].concat());
    assert_eq!(data(b"datax: 1\nxdata: 2\n\n"), vec![None]);
    assert_eq!(data(b"data: a:b\n\n"), some(&["a:b"]));
    let (events, rest) = scan(&[b"event: error\ndata: {}\n\ndata: cut off\n"]);
    assert_eq!((events[0].name.as_deref(), &rest[..]), (Some(&b"error"[..]), &b"data: cut off\n"[..]));
}

#[test]
fn an_event_within_a_piece_is_a_slice_of_it() {
    let (mut scanner, mut events) = (Scanner::new(MAX, MAX), Vec::new());
    let piece = Bytes::from_static(b"data: one\n\ndata: two\n\ndata: th");
    let run = scanner.push(piece.clone(), &mut events).expect("fine");
    let within = |b: &Bytes| piece.as_ptr_range().contains(&b.as_ptr());
    assert!(events.iter().all(|e| within(&e.raw) && e.data.as_ref().is_some_and(within)) && within(&run.within));
    assert_eq!((events.len(), scanner.held(), run.across.len()), (2, 8, 0));
    let run = scanner.push(Bytes::from_static(b"ree\n\n: x\n\n"), &mut events).expect("fine");
    assert_eq!((&run.across[..], &run.within[..]), (&b"data: three\n\n"[..], &b": x\n\n"[..]));
}

#[test]
fn an_event_does_not_wait_for_more_than_it_must() {
    for (stream, events) in [("data: a\n\n", 1), ("data: a\r\r", 1), ("data: a\r\n\r\n", 1), ("data: a\r\n\r", 0)] {
        let mut found = Vec::new();
        Scanner::new(MAX, MAX).push(Bytes::from(stream), &mut found).expect("fine");
        assert_eq!(found.len(), events, "{stream:?}");
    }
}

#[test]
fn what_has_no_end_is_given_up_with_the_limit() {
    let endless = |line: &str, scanner: &mut Scanner| {
        let mut events = Vec::new();
        (0..1000).find_map(|_| scanner.push(Bytes::copy_from_slice(line.as_bytes()), &mut events).err())
    };
    let mut scanner = Scanner::new(100, 1000);
    assert_eq!(endless("xxxxxxx", &mut scanner), Some(SseError::Line { max: 100 }));
    assert!(scanner.held() <= 100, "and no more was kept than that");
    assert_eq!(endless("data: fine\n\n", &mut scanner), Some(SseError::Line { max: 100 }), "ever after");
    let mut scanner = Scanner::new(100, 1000);
    assert_eq!(endless("data: a\n", &mut scanner), Some(SseError::Event { max: 1000 }));
    assert!(scanner.held() <= 1000);
    let long = format!("data: {}\n\n", "y".repeat(200));
    assert_eq!(endless(&long, &mut Scanner::new(100, 1000)), Some(SseError::Line { max: 100 }), "even within one piece");
}

#[test]
fn what_an_event_says() {
    let stream = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\ndata: nonsense\n\n: c\n\n\
        event: error\ndata: it broke\n\ndata: {\"error\":{\"message\":\"m\",\"code\":500}}\n\n\
        data: {\"choices\":[],\"usage\":{\"completion_tokens\":4}}\n\n";
    let (events, _) = scan(&[stream]);
    let chunks: Vec<_> = events.iter().map(Event::read).collect();
    let counted: Vec<_> = chunks.iter().map(|c| (c.said.tokens(), c.done, c.unreadable, c.said.error.is_some())).collect();
    let plain = (0, false, false, false);
    assert_eq!(
        counted,
        [
            (1, false, false, false),
            (0, true, false, false),
            (0, false, true, false),
            plain,
            (0, false, true, true),
            (0, false, false, true),
            plain
        ]
    );
    assert_eq!(chunks[4].said.error.as_ref().map(|e| &*e.message), Some("it broke"));
    assert_eq!(chunks[6].said.usage.and_then(|u| u.completion_tokens), Some(4));
}

/// A second reading of the same rules, one byte at a time on the whole stream: what the scanner is compared with.
fn plainly(stream: &[u8]) -> Vec<Option<Vec<u8>>> {
    let text = stream.strip_prefix(BOM).unwrap_or(stream);
    let (mut lines, mut line, mut i) = (Vec::new(), Vec::new(), 0);
    while i < text.len() {
        match text[i] {
            b'\r' | b'\n' => {
                i += usize::from(text[i] == b'\r' && text.get(i + 1) == Some(&b'\n'));
                lines.push(std::mem::take(&mut line));
            }
            byte => line.push(byte),
        }
        i += 1;
    }
    let (mut events, mut data) = (Vec::new(), None::<Vec<u8>>);
    for line in lines {
        if line.is_empty() {
            events.push(data.take());
        } else if let Some(value) = if line == b"data" { Some(&line[..0]) } else { line.strip_prefix(b"data:") } {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            data = Some(data.map_or_else(|| value.to_vec(), |all| [&all[..], b"\n", value].concat()));
        }
    }
    events
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_events(
        words in proptest::collection::vec(
            prop_oneof![
                4 => Just("\n"), 3 => Just("\r\n"), 3 => Just("\r"), 3 => Just("data: "), 2 => Just("data:"), 1 => Just("event: e"),
                1 => Just(": c"), 2 => Just("{\"choices\":[{\"text\":\"é\"}]}"), 1 => Just("[DONE]"), 1 => Just("\u{feff}"), 1 => Just("data"),
            ],
            0..40,
        ),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let stream = words.concat().into_bytes();
        let whole = scan(&[&stream]);
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(stream.len() + 1)).chain([0, stream.len()]).collect();
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
        prop_assert_eq!(&scan(&pieces), &whole);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        prop_assert_eq!(&scan(&bytes), &whole);
        // A byte order mark before an empty line makes no line of it there; here it does. Neither has data.
        if !stream.starts_with(BOM) {
            let read: Vec<_> = whole.0.iter().map(|e| e.data.as_ref().map(|d| d.to_vec())).collect();
            prop_assert_eq!(read, plainly(&stream));
        }
    }
}
