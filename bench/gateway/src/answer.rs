//! One message of HTTP/1.1 as it comes: its head, then its body without chunks.
//!
//! Invariant: a message is over when its own framing says so, and bytes behind it are none of it.

use anyhow::{Context, bail, ensure};

/// Most bytes of a head.
const HEAD_MAX: usize = 64 << 10;
/// Most headers of a head.
const HEADERS_MAX: usize = 96;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// Its head is not there yet.
    Head,
    /// After so many bytes more.
    Left(u64),
    /// In chunks: where in them it is.
    Chunks(Chunk),
    /// With the connection.
    Close,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// In its size, and whether that has digits yet.
    Size(u64),
    /// Behind the size, to the end of the line.
    Line(u64),
    Data(u64),
    /// CR and LF behind the data.
    After,
    /// In a line of the trailer; whether it has anything in it.
    Trailer(bool),
}

/// Which side's messages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Requests,
    Answers,
}

/// One message.
#[derive(Debug)]
pub(crate) struct Message {
    side: Side,
    held: Vec<u8>,
    body: Body,
    /// The status of an answer, once its head is there.
    pub(crate) status: u16,
    /// Method and target of a request, once its head is there.
    pub(crate) target: String,
    /// The other side closes behind it.
    pub(crate) closes: bool,
}

impl Message {
    pub(crate) fn new(side: Side) -> Message {
        Message { side, held: Vec::new(), body: Body::Head, status: 0, target: String::new(), closes: false }
    }

    /// Whether it is over.
    pub(crate) fn is_over(&self) -> bool {
        self.body == Body::Over
    }

    /// Takes in bytes; `data` gets those of the body. Gives back how many belong to the message.
    pub(crate) fn push(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> anyhow::Result<usize> {
        let mut rest = bytes;
        if self.body == Body::Head {
            let before = self.held.len();
            self.held.extend_from_slice(bytes);
            let Some(end) = self.head()? else { return Ok(bytes.len()) };
            rest = &bytes[end - before..];
        }
        while !rest.is_empty() && !self.is_over() {
            rest = self.step(rest, &mut data)?;
        }
        Ok(bytes.len() - rest.len())
    }

    /// The other side has closed: an answer without a length is over, anything else is cut.
    pub(crate) fn closed(&mut self) -> bool {
        if self.body == Body::Close {
            self.body = Body::Over;
        }
        self.is_over()
    }

    fn head(&mut self) -> anyhow::Result<Option<usize>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let (parsed, minor) = match self.side {
            Side::Requests => {
                let mut request = httparse::Request::new(&mut headers);
                let parsed = request.parse(&self.held).context("a request's head")?;
                if parsed.is_complete() {
                    self.target = format!("{} {}", request.method.unwrap_or_default(), request.path.unwrap_or_default());
                }
                (parsed, request.version)
            }
            Side::Answers => {
                let mut answer = httparse::Response::new(&mut headers);
                let parsed = answer.parse(&self.held).context("an answer's head")?;
                self.status = answer.code.unwrap_or_default();
                (parsed, answer.version)
            }
        };
        let httparse::Status::Complete(end) = parsed else {
            ensure!(self.held.len() <= HEAD_MAX, "a head of more than {HEAD_MAX} bytes");
            return Ok(None);
        };
        self.body = if self.side == Side::Requests { Body::Left(0) } else { Body::Close };
        self.closes = minor == Some(0);
        for header in headers.iter().take_while(|header| !header.name.is_empty()) {
            let value = std::str::from_utf8(header.value).unwrap_or_default();
            if header.name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                self.body = Body::Chunks(Chunk::Size(0));
            } else if header.name.eq_ignore_ascii_case("content-length") && !matches!(self.body, Body::Chunks(_)) {
                self.body = Body::Left(value.parse().with_context(|| format!("a length of `{value}`"))?);
            } else if header.name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
                self.closes = true;
            }
        }
        if self.body == Body::Left(0) {
            self.body = Body::Over;
        }
        self.held = Vec::new();
        Ok(Some(end))
    }

    fn step<'a>(&mut self, bytes: &'a [u8], data: &mut impl FnMut(&[u8])) -> anyhow::Result<&'a [u8]> {
        let part = |left: u64| bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        match self.body {
            Body::Head | Body::Over => Ok(bytes),
            Body::Close => {
                data(bytes);
                Ok(&[])
            }
            Body::Left(left) => {
                let (now, rest) = part(left);
                data(now);
                let left = left - now.len() as u64;
                self.body = if left == 0 { Body::Over } else { Body::Left(left) };
                Ok(rest)
            }
            Body::Chunks(Chunk::Data(left)) => {
                let (now, rest) = part(left);
                data(now);
                let left = left - now.len() as u64;
                self.body = Body::Chunks(if left == 0 { Chunk::After } else { Chunk::Data(left) });
                Ok(rest)
            }
            Body::Chunks(at) => {
                let byte = bytes[0];
                self.body = match (at, byte) {
                    (Chunk::Size(size), b'\n') | (Chunk::Line(size), b'\n') => {
                        Body::Chunks(if size == 0 { Chunk::Trailer(false) } else { Chunk::Data(size) })
                    }
                    (Chunk::Size(size), _) => match char::from(byte).to_digit(16) {
                        Some(digit) => Body::Chunks(Chunk::Size(size.checked_mul(16).context("a chunk's size")? + u64::from(digit))),
                        None if matches!(byte, b'\r' | b';' | b' ') => Body::Chunks(Chunk::Line(size)),
                        None => bail!("a chunk's size has the byte {byte:#x}"),
                    },
                    (Chunk::Trailer(false), b'\n') => Body::Over,
                    (Chunk::After | Chunk::Trailer(true), b'\n') => match at {
                        Chunk::After => Body::Chunks(Chunk::Size(0)),
                        _ => Body::Chunks(Chunk::Trailer(false)),
                    },
                    (Chunk::Trailer(any), _) => Body::Chunks(Chunk::Trailer(any || byte != b'\r')),
                    (Chunk::Line(_) | Chunk::After | Chunk::Data(_), _) => self.body,
                };
                Ok(&bytes[1..])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(side: Side, wire: &[u8], step: usize) -> (Message, Vec<u8>, usize) {
        let (mut message, mut body, mut used) = (Message::new(side), Vec::new(), 0);
        for piece in wire.chunks(step) {
            used += message.push(piece, |data| body.extend_from_slice(data)).expect("it is HTTP");
        }
        (message, body, used)
    }

    #[test]
    fn an_answer_in_chunks_is_read_however_it_is_cut() {
        let wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0a;x=y\r\n0123456789\r\n0\r\nA: b\r\n\r\nnext";
        for step in 1..=wire.len() {
            let (message, body, used) = read(Side::Answers, wire, step);
            assert_eq!((message.status, message.is_over(), message.closes), (200, true, false));
            assert_eq!((body.as_slice(), used), (&b"abc0123456789"[..], wire.len() - 4), "in pieces of {step}");
        }
    }

    #[test]
    fn a_request_has_the_body_that_it_says() {
        for step in [1, 5, 1000] {
            let (message, body, _) = read(Side::Requests, b"POST /v1/x HTTP/1.1\r\ncontent-length: 4\r\n\r\nbody", step);
            assert_eq!((message.target.as_str(), message.is_over(), body.as_slice()), ("POST /v1/x", true, &b"body"[..]));
            let (message, ..) = read(Side::Requests, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", step);
            assert!(message.is_over() && message.closes);
        }
    }

    #[test]
    fn an_answer_without_a_length_ends_with_its_connection_and_one_with_a_length_is_cut_by_it() {
        let (mut message, body, _) = read(Side::Answers, b"HTTP/1.1 200 OK\r\n\r\nabc", 4);
        assert!(!message.is_over() && message.closed() && body == b"abc");
        let (mut message, ..) = read(Side::Answers, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", 4);
        assert!(!message.closed());
    }

    #[test]
    fn what_is_no_http_is_an_error() {
        assert!(Message::new(Side::Answers).push(b"hello\r\n\r\n", |_| {}).is_err());
        assert!(Message::new(Side::Answers).push(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz", |_| {}).is_err());
    }
}
