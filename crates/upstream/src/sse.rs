//! Server-sent events out of pieces of bytes: whole events as slices of the pieces, copied only where one lies across a boundary.
//!
//! The bytes of an event are kept as they came, with its comments and its line ends, so that they can be forwarded unchanged. A CR may have
//! its LF in the next piece, so an event that ends with one waits for the next byte, unless the line before ended with a CR alone: then lines
//! do so here, and an LF that follows belongs to the next event.
//!
//! Invariant: however a stream is cut into pieces, its events are the same, and their bytes together are the stream.
// contract: C-28

use bytes::{Buf, Bytes, BytesMut};

pub use super::json::{Choice, Complaint, Said, Usage};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Why a stream is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SseError {
    /// A line has no end.
    #[error("a line of the stream is longer than line_bytes_max, {max} bytes")]
    Line {
        /// The limit.
        max: usize,
    },
    /// An event has no end.
    #[error("an event of the stream is longer than event_bytes_max, {max} bytes")]
    Event {
        /// The limit.
        max: usize,
    },
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its bytes as they came, the blank line behind it included.
    pub raw: Bytes,
    /// The value of its `data` lines, joined by LF; `None` if it has none, as a comment.
    pub data: Option<Bytes>,
    /// The value of its `event` line.
    pub name: Option<Bytes>,
}

/// What one event says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chunk<'a> {
    /// It is `[DONE]`: the stream is complete.
    pub done: bool,
    /// Its JSON, if it has any.
    pub said: Said<'a>,
    /// It has data that is neither `[DONE]` nor a JSON object.
    pub unreadable: bool,
}

impl Event {
    /// Reads it. An event named `error` complains, whatever its data is.
    pub fn read(&self) -> Chunk<'_> {
        let Some(data) = &self.data else { return Chunk::default() };
        match data.trim_ascii() {
            b"[DONE]" => return Chunk { done: true, ..Chunk::default() },
            // Some keep a connection alive so.
            b"" if self.name.is_none() => return Chunk::default(),
            _ => {}
        }
        let (mut said, unreadable) = Said::read(data).map_or_else(|| (Said::default(), true), |said| (said, false));
        if said.error.is_none() && self.name.as_deref() == Some(b"error") {
            said.error = Some(Complaint { message: String::from_utf8_lossy(data), ..Complaint::default() });
        }
        Chunk { done: false, said, unreadable }
    }
}

/// The bytes of the events that one piece completed: forwarding both, in this order, forwards them unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// The event that lay across the boundary, or nothing.
    pub across: Bytes,
    /// All others: one slice of the piece.
    pub within: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Before a line's first byte; whether the line before ended with a CR alone.
    Begin { bare: bool },
    /// Within a line.
    Line,
    /// Behind a CR that ended a line.
    LineCr,
    /// Behind a CR that ended the event, if no LF follows it.
    BlankCr,
    /// Behind a CR that has ended the event before: an LF is passed over.
    Skip,
}

/// Finds events in a stream.
#[derive(Debug)]
pub struct Scanner {
    line_bytes_max: usize,
    event_bytes_max: usize,
    at: At,
    /// Bytes of this line so far.
    line: usize,
    /// The beginning of an event, from pieces before.
    held: BytesMut,
    first: bool,
    failed: Option<SseError>,
}

impl Scanner {
    /// At a stream's beginning.
    pub fn new(line_bytes_max: usize, event_bytes_max: usize) -> Scanner {
        Scanner {
            line_bytes_max,
            event_bytes_max,
            at: At::Begin { bare: false },
            line: 0,
            held: BytesMut::new(),
            first: true,
            failed: None,
        }
    }

    /// Takes the next piece and puts the events that it completes behind `events`.
    ///
    /// # Errors
    /// [`SseError`], then and ever after. The events before it are in `events` all the same, but not in the run.
    pub fn push(&mut self, mut piece: Bytes, events: &mut Vec<Event>) -> Result<Run, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut run = Run::default();
        if !self.held.is_empty() {
            match self.end(&piece) {
                Ok(None) => {
                    self.held.extend_from_slice(&piece);
                    return Ok(run);
                }
                Ok(Some(end)) => {
                    self.held.extend_from_slice(&piece[..end]);
                    piece.advance(end);
                    run.across = self.held.split().freeze();
                    events.push(self.event(run.across.clone()));
                }
                Err(error) => return Err(error),
            }
        }
        let all = piece.clone();
        while let Some(end) = self.end(&piece)? {
            let raw = piece.split_to(end);
            events.push(self.event(raw));
        }
        run.within = all.slice(..all.len() - piece.len());
        self.held.extend_from_slice(&piece);
        Ok(run)
    }

    /// The stream is at its end. Gives the event that only waited for an LF, if there is one, and whether bytes of an unfinished event are
    /// left: then the stream broke off within one.
    pub fn finish(&mut self) -> (Option<Event>, Bytes) {
        let rest = self.held.split().freeze();
        if self.at == At::BlankCr && self.failed.is_none() {
            self.at = At::Begin { bare: false };
            return (Some(self.event(rest)), Bytes::new());
        }
        (None, rest)
    }

    /// Bytes of an unfinished event that are kept.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Where in `bytes` the event ends that began in `held`, if it does.
    fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, SseError> {
        let mut i = 0;
        while i < bytes.len() {
            let byte = bytes[i];
            match self.at {
                At::Line => {
                    let found = memchr::memchr2(b'\n', b'\r', &bytes[i..]);
                    self.line += found.unwrap_or(bytes.len() - i);
                    if self.line > self.line_bytes_max {
                        return self.fail(SseError::Line { max: self.line_bytes_max });
                    }
                    let Some(found) = found else { break };
                    i += found + 1;
                    self.line = 0;
                    self.at = if bytes[i - 1] == b'\n' { At::Begin { bare: false } } else { At::LineCr };
                }
                At::LineCr | At::Skip => {
                    i += usize::from(byte == b'\n');
                    self.at = At::Begin { bare: self.at == At::LineCr && byte != b'\n' };
                }
                At::BlankCr => return self.ended(i + usize::from(byte == b'\n'), At::Begin { bare: false }),
                At::Begin { bare } => match byte {
                    b'\n' => return self.ended(i + 1, At::Begin { bare: false }),
                    b'\r' if bare => return self.ended(i + 1, At::Skip),
                    b'\r' => {
                        self.at = At::BlankCr;
                        i += 1;
                    }
                    _ => self.at = At::Line,
                },
            }
        }
        if self.held.len() + bytes.len() > self.event_bytes_max {
            return self.fail(SseError::Event { max: self.event_bytes_max });
        }
        Ok(None)
    }

    fn ended(&mut self, end: usize, at: At) -> Result<Option<usize>, SseError> {
        if self.held.len() + end > self.event_bytes_max {
            return self.fail(SseError::Event { max: self.event_bytes_max });
        }
        self.at = at;
        Ok(Some(end))
    }

    fn fail<T>(&mut self, error: SseError) -> Result<T, SseError> {
        self.failed = Some(error);
        Err(error)
    }

    fn event(&mut self, raw: Bytes) -> Event {
        let mut event = Event { raw, data: None, name: None };
        let raw = event.raw.clone();
        let mut joined: Option<BytesMut> = None;
        let mut start = if std::mem::take(&mut self.first) && raw.starts_with(BOM) { BOM.len() } else { 0 };
        while start < raw.len() {
            let end = memchr::memchr2(b'\n', b'\r', &raw[start..]).map_or(raw.len(), |n| start + n);
            let line = start..end;
            start = end + 1;
            let colon = memchr::memchr(b':', &raw[line.clone()]).map_or(line.end, |n| line.start + n);
            let mut value = (colon + 1).min(line.end)..line.end;
            value.start += usize::from(raw[value.clone()].first() == Some(&b' '));
            match &raw[line.start..colon] {
                b"data" => match (&event.data, &mut joined) {
                    (None, _) => event.data = Some(raw.slice(value)),
                    (Some(first), None) => {
                        let mut all = BytesMut::from(&first[..]);
                        all.extend_from_slice(b"\n");
                        all.extend_from_slice(&raw[value]);
                        joined = Some(all);
                    }
                    (Some(_), Some(all)) => {
                        all.extend_from_slice(b"\n");
                        all.extend_from_slice(&raw[value]);
                    }
                },
                b"event" => event.name = Some(raw.slice(value)),
                _ => {}
            }
        }
        if let Some(all) = joined {
            event.data = Some(all.freeze());
        }
        event
    }
}

#[cfg(test)]
#[path = "sse_tests.rs"]
mod tests;
