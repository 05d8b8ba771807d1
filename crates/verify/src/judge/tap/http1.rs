//! HTTP/1.1 as a tap needs it: where a head ends and what it says, and where a body ends.
//!
//! Invariant: pure, and the same however the bytes were cut. Who cannot say where a message ends says why, and is not asked again: a tap
//! that guesses would show exchanges that never were.

use httparse::{Header, Status};

/// Headers of one message that are looked at.
const HEADERS_MAX: usize = 256;
/// Digits of a chunk's size; more would be more bytes than there are.
const SIZE_DIGITS: u32 = 15;

/// Where a message's body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked(Chunk),
    /// With the connection.
    Close,
}

/// Where in a chunked body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// In the line of its size: what was read of it, how many digits that was, and whether the digits are over.
    Size(u64, u32, bool),
    /// In its data: what is left.
    Data(u64),
    /// In the line break behind the data.
    Behind,
    /// In the trailer: bytes of the line so far.
    Trailer(u64),
}

/// A chunked body's beginning.
pub const CHUNKED: Body = Body::Chunked(Chunk::Size(0, 0, false));

/// What a request's head says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// `POST`, …
    pub method: String,
    /// Without what stands behind `?`.
    pub path: String,
    /// The traced header's value.
    pub id: Option<String>,
    /// Where it ends.
    pub body: Body,
}

/// What an answer's head says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// 200, …
    pub status: u16,
    /// Whether its body is a stream of events that can be counted.
    pub events: bool,
    /// Where it ends, if it answers a request that may have a body.
    pub body: Body,
}

/// Where a head ends: behind its empty line, of which a part may stand before `from`.
pub fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let from = from.saturating_sub(3);
    let lines = memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at + 1);
    let mut ends = lines.filter_map(|line| match &bytes[line..] {
        [b'\n', ..] => Some(line + 1),
        [b'\r', b'\n', ..] => Some(line + 2),
        _ => None,
    });
    ends.next()
}

/// Whether a request's head can begin so.
///
/// # Errors
/// It cannot.
pub fn can_be_request(begun: &[u8]) -> Result<(), String> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let said = httparse::Request::new(&mut []).parse_with_uninit_headers(begun, &mut headers);
    said.map(drop).map_err(|e| format!("no request of HTTP/1.1: {e}"))
}

/// Whether an answer's head can begin so.
///
/// # Errors
/// It cannot.
pub fn can_be_response(begun: &[u8]) -> Result<(), String> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let said =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut httparse::Response::new(&mut []), begun, &mut headers);
    said.map(drop).map_err(|e| format!("no answer of HTTP/1.1: {e}"))
}

/// Reads a request's head, which is whole.
///
/// # Errors
/// Why it is none.
pub fn request(head: &[u8], trace_header: &str) -> Result<Request, String> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(head, &mut headers) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err("a request's head that is not whole where it ends".to_owned()),
        Err(e) => return Err(format!("no request of HTTP/1.1: {e}")),
    }
    let id = find(request.headers, trace_header).next().map(|id| String::from_utf8_lossy(id).trim().to_owned());
    let body = match framing(request.headers)? {
        Framing::None => Body::Length(0),
        Framing::Length(length) => Body::Length(length),
        Framing::Chunked => CHUNKED,
        Framing::Coded => return Err("a request's transfer-encoding that does not end with chunked".to_owned()),
    };
    let target = request.path.unwrap_or_default();
    let path = target.split(['?', '#']).next().unwrap_or_default().to_owned();
    Ok(Request { method: request.method.unwrap_or_default().to_owned(), path, id, body })
}

/// Reads an answer's head, which is whole.
///
/// # Errors
/// Why it is none.
pub fn response(head: &[u8]) -> Result<Response, String> {
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut response, head, &mut headers) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => return Err("an answer's head that is not whole where it ends".to_owned()),
        Err(e) => return Err(format!("no answer of HTTP/1.1: {e}")),
    }
    let kind = find(response.headers, "content-type").next().unwrap_or_default().trim_ascii_start();
    let is_stream = kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"));
    let is_plain = find(response.headers, "content-encoding").all(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"identity"));
    let body = match framing(response.headers)? {
        Framing::None | Framing::Coded => Body::Close,
        Framing::Length(length) => Body::Length(length),
        Framing::Chunked => CHUNKED,
    };
    Ok(Response { status: response.code.unwrap_or(0), events: is_stream && is_plain, body })
}

fn find<'a>(headers: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

enum Framing {
    None,
    Length(u64),
    Chunked,
    Coded,
}

fn framing(headers: &[Header<'_>]) -> Result<Framing, String> {
    if let Some(coding) = find(headers, "transfer-encoding").last() {
        let last = coding.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
        return Ok(if last.eq_ignore_ascii_case(b"chunked") { Framing::Chunked } else { Framing::Coded });
    }
    let mut length = None;
    for value in find(headers, "content-length").flat_map(|value| value.split(|byte| *byte == b',')) {
        let digits = std::str::from_utf8(value.trim_ascii()).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let value = digits.and_then(|text| text.parse::<u64>().ok()).ok_or("a content-length that is no number")?;
        if length.is_some_and(|length| length != value) {
            return Err("two content-lengths that differ".to_owned());
        }
        length = Some(value);
    }
    Ok(length.map_or(Framing::None, Framing::Length))
}

impl Body {
    /// Takes what belongs to the body off the bytes: how many that are, and whether it ends with them. Its data, without framing, is shown.
    ///
    /// # Errors
    /// It is not framed as it should be.
    pub fn take(&mut self, bytes: &[u8], data: &mut impl FnMut(&[u8])) -> Result<(usize, bool), String> {
        match self {
            Body::Close => {
                data(bytes);
                Ok((bytes.len(), false))
            }
            Body::Length(left) => {
                let taken = (*left).min(bytes.len() as u64) as usize;
                data(&bytes[..taken]);
                *left -= taken as u64;
                Ok((taken, *left == 0))
            }
            Body::Chunked(chunk) => chunk.take(bytes, data),
        }
    }
}

impl Chunk {
    fn take(&mut self, bytes: &[u8], data: &mut impl FnMut(&[u8])) -> Result<(usize, bool), String> {
        let mut at = 0;
        while at < bytes.len() {
            if let Chunk::Data(left) = self {
                let taken = (*left).min((bytes.len() - at) as u64) as usize;
                data(&bytes[at..at + taken]);
                at += taken;
                *left -= taken as u64;
                if *left == 0 {
                    *self = Chunk::Behind;
                }
                continue;
            }
            let byte = bytes[at];
            at += 1;
            *self = match *self {
                Chunk::Size(_, 0, _) if byte == b'\n' => return Err("a chunk without a size".to_owned()),
                Chunk::Size(0, _, _) if byte == b'\n' => Chunk::Trailer(0),
                Chunk::Size(size, _, _) if byte == b'\n' => Chunk::Data(size),
                Chunk::Size(size, digits, false) => match char::from(byte).to_digit(16) {
                    Some(_) if digits == SIZE_DIGITS => return Err("a chunk's size that is too long".to_owned()),
                    Some(digit) => Chunk::Size(size * 16 + u64::from(digit), digits + 1, false),
                    None if digits > 0 && matches!(byte, b'\r' | b';' | b' ' | b'\t') => Chunk::Size(size, digits, true),
                    None => return Err("a chunk's size that is no number".to_owned()),
                },
                Chunk::Size(size, digits, true) => Chunk::Size(size, digits, true),
                Chunk::Behind if byte == b'\r' => Chunk::Behind,
                Chunk::Behind if byte == b'\n' => Chunk::Size(0, 0, false),
                Chunk::Behind => return Err("a chunk that is longer than its size".to_owned()),
                Chunk::Trailer(0) if byte == b'\n' => return Ok((at, true)),
                Chunk::Trailer(_) if byte == b'\n' => Chunk::Trailer(0),
                Chunk::Trailer(length) if byte == b'\r' => Chunk::Trailer(length),
                Chunk::Trailer(length) => Chunk::Trailer(length.saturating_add(1)),
                Chunk::Data(_) => Chunk::Behind,
            };
        }
        Ok((at, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(mut body: Body, bytes: &[u8], size: usize) -> Result<(Vec<u8>, usize, bool), String> {
        let (mut all, mut taken) = (Vec::new(), 0);
        for piece in bytes.chunks(size) {
            let (count, over) = body.take(piece, &mut |data| all.extend_from_slice(data))?;
            taken += count;
            if over {
                return Ok((all, taken, true));
            }
        }
        Ok((all, taken, false))
    }

    #[test]
    fn a_body_ends_where_it_says_however_it_is_cut() {
        let chunked = b"5;x=y\r\nhello\r\nA \r\n0123456789\r\n00\r\nTrailer: x\r\n\r\nHTTP/1.1";
        for size in 1..chunked.len() {
            assert_eq!(body(CHUNKED, chunked, size), Ok((b"hello0123456789".to_vec(), chunked.len() - 8, true)), "{size}");
            assert_eq!(body(Body::Length(4), chunked, size), Ok((b"5;x=".to_vec(), 4, true)));
            assert_eq!(body(Body::Close, chunked, size), Ok((chunked.to_vec(), chunked.len(), false)));
        }
        for bad in ["\r\n", "x\r\n", "5\r\nhellohello", "1000000000000000\r\n", ";x\r\n"] {
            assert!(body(CHUNKED, bad.as_bytes(), 3).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_head_ends_behind_its_empty_line() {
        let head = b"GET / HTTP/1.1\r\nA: b\r\n\r\nrest";
        let end = head.len() - 4;
        for from in 0..=end {
            assert_eq!(head_end(head, from), Some(end), "{from}");
        }
        assert_eq!(head_end(&head[..end - 1], 0), None);
        assert_eq!(head_end(b"GET / HTTP/1.1\n\nrest", 0), Some(16));
    }

    #[test]
    fn what_heads_say() {
        let head = b"POST /v1/chat/completions?key=secret HTTP/1.1\r\nX-Request-ID: a-1\r\nContent-Length: 12\r\n\r\n";
        let said = request(head, "x-request-id").expect("a head");
        assert_eq!((said.method.as_str(), said.path.as_str(), said.id.as_deref()), ("POST", "/v1/chat/completions", Some("a-1")));
        assert_eq!((said.body, request(head, "x-other").expect("a head").id), (Body::Length(12), None));
        let of = |lines: &str| request(format!("POST / HTTP/1.1\r\n{lines}\r\n").as_bytes(), "x");
        assert_eq!(of("Transfer-Encoding: gzip, chunked\r\nContent-Length: 3\r\n").expect("a head").body, CHUNKED);
        assert_eq!(of("").expect("a head").body, Body::Length(0));
        for bad in ["Content-Length: -1\r\n", "Content-Length: 1\r\nContent-Length: 2\r\n", "Transfer-Encoding: gzip\r\n", "a b: c\r\n"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert!(request(b"PRI * HTTP/2.0\r\n\r\n", "x").is_err());
        let of = |lines: &str| response(format!("HTTP/1.1 200 OK\r\n{lines}\r\n").as_bytes()).expect("a head");
        assert_eq!(of("Content-Type: text/event-stream; charset=utf-8\r\n"), Response { status: 200, events: true, body: Body::Close });
        assert!(!of("Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\n").events && !of("Content-Type: text/plain\r\n").events);
        assert_eq!(of("Content-Length: 5, 5\r\n").body, Body::Length(5));
    }
}
