//! Reads along on one connection: which bytes belong to which exchange.
//!
//! Requests and answers are matched by their order, as HTTP/1.1 has it. What cannot be read is counted on one exchange, to the connection's
//! end; nothing here can keep a byte from passing, or ends a connection.
//!
//! Invariant: every byte that passed after the first of an exchange is counted on one exchange; an exchange ends once, and is `complete`
//! only if HTTP says so.

use std::collections::VecDeque;
use std::sync::Arc;

use super::book::{Book, Kept, lock};
use super::exchange::{Closed, End, Exchange, How, Protocol};
use super::http1::{self, Body};
use super::sse::Events;
use super::word::Word;

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";
/// Characters that are kept of an id, of a path and of a method.
const ID_CHARS: usize = 256;
const PATH_CHARS: usize = 1024;
const METHOD_CHARS: usize = 32;
/// Requests of one connection that wait for their answers; with more it is not read along any more.
const PIPELINED_MAX: usize = 256;

/// A head that is not whole yet.
#[derive(Default)]
struct Head {
    bytes: Vec<u8>,
}

/// What came of it.
enum Gathered<'a> {
    /// It goes on.
    Part,
    /// All of it, and how many of the new bytes belong to it.
    Whole(&'a [u8], usize),
    /// It is longer than it may be.
    Long,
}

impl Head {
    fn gather<'a>(&'a mut self, bytes: &'a [u8], bytes_max: usize) -> Gathered<'a> {
        if self.bytes.is_empty()
            && let Some(end) = http1::head_end(bytes, 0)
        {
            return if end > bytes_max { Gathered::Long } else { Gathered::Whole(&bytes[..end], end) };
        }
        let had = self.bytes.len();
        let room = bytes_max.saturating_sub(had).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
        match http1::head_end(&self.bytes, had) {
            Some(end) => Gathered::Whole(&self.bytes[..end], end - had),
            None if room < bytes.len() => Gathered::Long,
            None => Gathered::Part,
        }
    }

    /// Whether it is time to look whether it can become a head at all: whenever its length has doubled, so that all looks cost no more than
    /// one at its end.
    fn is_due(&self, added: usize) -> bool {
        let had = self.bytes.len() - added.min(self.bytes.len());
        had.next_power_of_two() != self.bytes.len().next_power_of_two() || had == 0
    }
}

/// One direction.
#[derive(Default)]
struct Half {
    head: Head,
    body: Option<Body>,
    kept: Option<Kept>,
    events: Option<Events>,
    word: Word,
}

/// A request whose answer is not over.
struct Open {
    kept: Kept,
    /// Its answer has no body: it was a HEAD.
    is_head: bool,
    /// Behind its answer it is no HTTP any more: it was a CONNECT.
    is_tunnel: bool,
}

/// One connection's.
pub struct Ear {
    book: Arc<Book>,
    connection: u64,
    asked: Half,
    answered: Half,
    open: VecDeque<Open>,
    /// The newest exchange that is over.
    last: Option<Kept>,
    /// What the rest of the connection is counted on, once it is not read along any more.
    rest: Option<Kept>,
}

impl Ear {
    pub(super) fn new(book: Arc<Book>) -> Ear {
        let connection = book.connection();
        Ear { book, connection, asked: Half::default(), answered: Half::default(), open: VecDeque::new(), last: None, rest: None }
    }

    fn begin(&mut self, at: u64) -> Kept {
        let kept = self.book.open(self.connection, Protocol::Http1, at);
        self.open.push_back(Open { kept: Arc::clone(&kept), is_head: false, is_tunnel: false });
        kept
    }

    /// From here on bytes are only counted.
    fn give_up(&mut self, at: u64, protocol: Protocol, why: &str) {
        for open in &self.open {
            lock(&open.kept).unread.get_or_insert_with(|| why.to_owned());
        }
        let kept = match self.open.back() {
            Some(open) => Arc::clone(&open.kept),
            None => self.begin(at),
        };
        let mut exchange = lock(&kept);
        exchange.protocol = protocol;
        exchange.unread.get_or_insert_with(|| why.to_owned());
        drop(exchange);
        self.rest = Some(kept);
        (self.asked, self.answered) = (Half::default(), Half::default());
    }

    /// Bytes from the caller.
    pub(super) fn hear_request(&mut self, mut bytes: &[u8], at: u64) {
        while !bytes.is_empty() && self.rest.is_none() {
            let taken = if self.asked.body.is_some() { self.request_body(bytes, at) } else { self.request_head(bytes, at) };
            match taken {
                Ok(taken) => bytes = &bytes[taken..],
                Err(why) => self.give_up(at, Protocol::Other, &why),
            }
        }
        if let Some(rest) = &self.rest {
            lock(rest).request_bytes += bytes.len() as u64;
        }
    }

    fn request_body(&mut self, bytes: &[u8], at: u64) -> Result<usize, String> {
        let begins = &self.book.options.trace_text;
        let Half { body: Some(body), kept, word, .. } = &mut self.asked else { return Ok(bytes.len()) };
        let (taken, over) = body.take(bytes, &mut |data| word.look(begins, data))?;
        if let Some(kept) = kept {
            let mut exchange = lock(kept);
            if exchange.word.as_deref() != word.found() {
                exchange.word = word.found().map(str::to_owned);
            }
            exchange.request_bytes += taken as u64;
            exchange.request_end_ns = over.then_some(at);
        }
        if over {
            self.asked = Half::default();
        }
        Ok(taken)
    }

    fn request_head(&mut self, bytes: &[u8], at: u64) -> Result<usize, String> {
        let kept = match &self.asked.kept {
            Some(kept) => Arc::clone(kept),
            None => {
                // Empty lines before a request are allowed, and nobody's.
                let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                if blank > 0 {
                    return Ok(blank);
                }
                if self.open.len() >= PIPELINED_MAX {
                    return Err(format!("more than {PIPELINED_MAX} requests that wait for their answers"));
                }
                let kept = self.begin(at);
                self.asked.kept = Some(Arc::clone(&kept));
                kept
            }
        };
        let bytes_max = self.book.options.head_bytes_max;
        let (head, taken) = match self.asked.head.gather(bytes, bytes_max) {
            Gathered::Whole(head, taken) => (head, taken),
            Gathered::Long => return Err(format!("a request's head of more than {bytes_max} bytes")),
            Gathered::Part => {
                let head = &self.asked.head;
                if head.is_due(bytes.len()) && !PREFACE.starts_with(&head.bytes) {
                    http1::can_be_request(&head.bytes)?;
                }
                lock(&kept).request_bytes += bytes.len() as u64;
                return Ok(bytes.len());
            }
        };
        if head == PREFACE {
            self.give_up(at, Protocol::Http2, "HTTP/2 passes unchanged and is not read");
            return Ok(0);
        }
        let said = http1::request(head, &self.book.options.trace_header)?;
        if let Some(open) = self.open.iter_mut().rev().find(|open| Arc::ptr_eq(&open.kept, &kept)) {
            (open.is_head, open.is_tunnel) = (said.method == "HEAD", said.method == "CONNECT");
        }
        let is_over = said.body == Body::Length(0);
        let mut exchange = lock(&kept);
        exchange.request_bytes += taken as u64;
        exchange.request_end_ns = is_over.then_some(at);
        exchange.id = said.id.map(|id| id.chars().take(ID_CHARS).collect());
        exchange.method = Some(said.method.chars().take(METHOD_CHARS).collect());
        exchange.path = Some(said.path.chars().take(PATH_CHARS).collect());
        drop(exchange);
        self.asked = if is_over { Half::default() } else { Half { body: Some(said.body), kept: Some(kept), ..Half::default() } };
        Ok(taken)
    }

    /// Bytes from the engine's side.
    pub(super) fn hear_answer(&mut self, mut bytes: &[u8], at: u64) {
        while !bytes.is_empty() && self.rest.is_none() {
            let taken = if self.answered.body.is_some() { self.answer_body(bytes, at) } else { self.answer_head(bytes, at) };
            match taken {
                Ok(taken) => bytes = &bytes[taken..],
                Err(why) => self.give_up(at, Protocol::Other, &why),
            }
        }
        if let Some(rest) = self.rest.as_ref().filter(|_| !bytes.is_empty()) {
            lock(rest).passed(at, bytes.len(), 0, self.book.options.marks_max);
        }
    }

    fn answer_body(&mut self, bytes: &[u8], at: u64) -> Result<usize, String> {
        let Half { body: Some(body), kept: Some(kept), events, .. } = &mut self.answered else { return Ok(bytes.len()) };
        let mut whole = 0;
        let (taken, over) = body.take(bytes, &mut |data| whole += events.as_mut().map_or(0, |events| events.count(data)))?;
        let mut exchange = lock(kept);
        exchange.passed(at, taken, whole, self.book.options.marks_max);
        exchange.done = events.as_ref().is_some_and(|events| events.done);
        drop(exchange);
        if over {
            self.answer_ends();
        }
        Ok(taken)
    }

    fn answer_head(&mut self, bytes: &[u8], at: u64) -> Result<usize, String> {
        let kept = match self.open.front() {
            Some(open) => Arc::clone(&open.kept),
            None => self.begin(at),
        };
        let (bytes_max, marks_max) = (self.book.options.head_bytes_max, self.book.options.marks_max);
        let (head, taken) = match self.answered.head.gather(bytes, bytes_max) {
            Gathered::Whole(head, taken) => (head, taken),
            Gathered::Long => return Err(format!("an answer's head of more than {bytes_max} bytes")),
            Gathered::Part => {
                let head = &self.answered.head;
                if head.is_due(bytes.len()) {
                    http1::can_be_response(&head.bytes)?;
                }
                lock(&kept).passed(at, bytes.len(), 0, marks_max);
                return Ok(bytes.len());
            }
        };
        let said = http1::response(head)?;
        self.answered.head = Head::default();
        let mut exchange = lock(&kept);
        exchange.passed(at, taken, 0, marks_max);
        if matches!(said.status, 100 | 102..=199) {
            return Ok(taken);
        }
        (exchange.status, exchange.head_ns) = (Some(said.status), Some(at));
        drop(exchange);
        let (is_head, is_tunnel) = self.open.front().map_or((false, false), |open| (open.is_head, open.is_tunnel));
        if said.status == 101 || is_tunnel && (200..300).contains(&said.status) {
            self.give_up(at, Protocol::Other, "the connection goes on in another protocol");
            return Ok(taken);
        }
        let has_body = !is_head && !matches!(said.status, 204 | 304);
        let body = if has_body { said.body } else { Body::Length(0) };
        let events = said.events.then(Events::default);
        self.answered = Half { body: Some(body), kept: Some(kept), events, ..Half::default() };
        if body == Body::Length(0) {
            self.answer_ends();
        }
        Ok(taken)
    }

    fn answer_ends(&mut self) {
        self.answered = Half::default();
        if let Some(open) = self.open.pop_front() {
            lock(&open.kept).end = Some(End::Complete);
            self.last = Some(open.kept);
        }
    }

    /// Those that a close belongs to: what goes on; where nothing does, what was last.
    fn concerned(&self) -> Vec<Kept> {
        let asked = self.asked.kept.iter().filter(|asked| !self.open.iter().any(|open| Arc::ptr_eq(&open.kept, asked)));
        let all: Vec<Kept> = self.open.iter().map(|open| &open.kept).chain(asked).map(Arc::clone).collect();
        if all.is_empty() { self.last.iter().map(Arc::clone).collect() } else { all }
    }

    fn stamp(&self, side: fn(&mut Exchange) -> &mut Option<Closed>, closed: Closed) {
        for kept in self.concerned() {
            let mut exchange = lock(&kept);
            let stands = side(&mut exchange);
            // A side that sends no more can still be reset: the first word is the one that counts.
            stands.get_or_insert(closed);
        }
    }

    /// The caller's side closed.
    pub(super) fn down_closed(&mut self, at: u64, how: How) {
        self.stamp(|exchange| &mut exchange.down_closed, Closed { at_ns: at, how });
    }

    /// The engine's side closed.
    pub(super) fn up_closed(&mut self, at: u64, how: How) {
        self.stamp(|exchange| &mut exchange.up_closed, Closed { at_ns: at, how });
        if how == How::Fin && self.rest.is_none() && self.answered.body == Some(Body::Close) {
            self.answer_ends();
        }
        for open in self.open.iter().filter(|_| self.rest.is_none()) {
            lock(&open.kept).end.get_or_insert(End::Cut);
        }
    }

    /// Nobody took the connection.
    pub(super) fn refused(&mut self, at: u64, why: &str) {
        self.give_up(at, Protocol::Other, why);
        self.up_closed(at, How::Refused);
        self.over(false);
    }

    /// The connection is over; `well` if both sides said so.
    pub(super) fn over(&mut self, well: bool) {
        let rest = self.rest.take();
        for open in self.open.drain(..) {
            let is_rest = rest.as_ref().is_some_and(|rest| Arc::ptr_eq(rest, &open.kept));
            lock(&open.kept).end.get_or_insert(if is_rest && well { End::Complete } else { End::Cut });
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.over(false);
    }
}

#[cfg(test)]
#[path = "ear_tests.rs"]
mod tests;
