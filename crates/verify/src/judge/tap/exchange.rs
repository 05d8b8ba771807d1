//! What a tap remembers of one exchange: a request and its answer, or what passed of a connection that cannot be read along.
//!
//! Times are nanoseconds of the tap's own clock; who asks converts them (`client`). A close stands here as it came, whether it mattered or
//! not: one after the answer's last byte is the end of a connection, not of an exchange.
//!
//! Invariant: stamps are of the moment when the tap had the bytes, before it passed them on; what was not seen is absent.

use serde::{Deserialize, Serialize};

use super::super::cell::words;

words! {
    /// What was spoken.
    Protocol {
        /// HTTP/1.0 or 1.1, read along.
        Http1 = "http1",
        /// HTTP/2: passed unchanged, bytes only.
        Http2 = "http2",
        /// Something else, or what went on after HTTP/1.1 could not be read any more: bytes only.
        Other = "other",
    }
}

words! {
    /// How a side closed.
    How {
        /// It sends no more (FIN).
        Fin = "fin",
        /// Its connection is gone (RST).
        Rst = "rst",
        /// Its connection broke without a word: the kernel gave up.
        Lost = "lost",
        /// It was never there: nobody took the connection.
        Refused = "refused",
    }
}

words! {
    /// How an exchange ended.
    End {
        /// The answer came to its own end.
        Complete = "complete",
        /// It did not.
        Cut = "cut",
    }
}

/// When a side closed, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Closed {
    /// When.
    pub at_ns: u64,
    /// How.
    pub how: How,
}

/// What of an answer had passed, at a moment at which some of it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// When this piece came.
    pub at_ns: u64,
    /// Bytes of the answer with it.
    pub bytes: u64,
    /// Events with it.
    pub events: u64,
}

/// One exchange.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// Counts up over all of a tap's exchanges, from 1.
    pub number: u64,
    /// Which connection, from 1; several exchanges of one are one after the other.
    pub connection: u64,
    /// What was spoken.
    pub protocol: Protocol,
    /// The id that it was traced by.
    pub id: Option<String>,
    /// The last word of the request's body that begins as the words of a judge do: another way to trace it.
    #[serde(default)]
    pub word: Option<String>,
    /// `POST`, …
    pub method: Option<String>,
    /// Without what stands behind `?`.
    pub path: Option<String>,
    /// The request's first byte; of an answer that nobody asked for, that one's.
    pub request_ns: u64,
    /// Its last one, if it was whole.
    pub request_end_ns: Option<u64>,
    /// Its bytes.
    pub request_bytes: u64,
    /// Of the answer.
    pub status: Option<u16>,
    /// When the answer's head was whole.
    pub head_ns: Option<u64>,
    /// When the newest byte of the answer passed.
    pub last_byte_ns: Option<u64>,
    /// Bytes of the answer, head and framing with them.
    pub response_bytes: u64,
    /// Server-sent events that carry something; the closing `[DONE]` is none.
    pub events: u64,
    /// Whether `[DONE]` was among them.
    pub done: bool,
    /// How it ended, if it has.
    pub end: Option<End>,
    /// The close of the caller's side.
    pub down_closed: Option<Closed>,
    /// The close of the engine's side. A reset of the caller's is passed on as one, and what the engine says to it nobody hears.
    pub up_closed: Option<Closed>,
    /// Bytes of the answer that passed after the caller's side had closed.
    pub bytes_after_close: u64,
    /// And events.
    pub events_after_close: u64,
    /// Why it could not be read along, or not to its end.
    pub unread: Option<String>,
    /// Pieces in which the answer came.
    pub pieces: u64,
    /// How often its marks were halved.
    #[serde(skip)]
    halved: u32,
    /// How the answer passed, piece by piece; where there were too many, only every second, fourth, … has a mark, and the newest one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
}

impl Exchange {
    pub(super) fn new(number: u64, connection: u64, protocol: Protocol, at_ns: u64) -> Exchange {
        Exchange {
            number,
            connection,
            protocol,
            id: None,
            word: None,
            method: None,
            path: None,
            request_ns: at_ns,
            request_end_ns: None,
            request_bytes: 0,
            status: None,
            head_ns: None,
            last_byte_ns: None,
            response_bytes: 0,
            events: 0,
            done: false,
            end: None,
            down_closed: None,
            up_closed: None,
            bytes_after_close: 0,
            events_after_close: 0,
            unread: None,
            pieces: 0,
            halved: 0,
            marks: Vec::new(),
        }
    }

    /// Without its marks.
    pub(super) fn brief(&self) -> Exchange {
        Exchange { marks: Vec::new(), ..self.clone() }
    }

    /// A piece of the answer, with so many events.
    pub(super) fn passed(&mut self, at_ns: u64, bytes: usize, events: u64, marks_max: usize) {
        self.last_byte_ns = Some(at_ns);
        self.response_bytes += bytes as u64;
        self.events += events;
        if self.down_closed.is_some() {
            self.bytes_after_close += bytes as u64;
            self.events_after_close += events;
        }
        let mark = Mark { at_ns, bytes: self.response_bytes, events: self.events };
        // Every 2^halved-th piece has a mark of its own, and the newest one.
        match self.marks.last_mut() {
            Some(last) if last.at_ns == at_ns => return *last = mark,
            Some(last) if !self.pieces.is_multiple_of(1 << self.halved) => *last = mark,
            _ => self.marks.push(mark),
        }
        self.pieces += 1;
        if self.marks.len() > marks_max.max(2) {
            self.halved += 1;
            let (mut number, newest) = (0, self.marks.len());
            self.marks.retain(|_| {
                number += 1;
                number % 2 == 0 || number == newest
            });
        }
    }

    /// Bytes and events of the answer that passed after a moment. Where marks were thinned it may be a few too many, never too few.
    pub fn after(&self, at_ns: i128) -> (u64, u64) {
        let until = self.marks.iter().rev().find(|mark| i128::from(mark.at_ns) <= at_ns);
        let (bytes, events) = until.map_or((0, 0), |mark| (mark.bytes, mark.events));
        (self.response_bytes.saturating_sub(bytes), self.events.saturating_sub(events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_after_a_moment_is_exact_until_marks_are_thinned_and_never_too_little_then() {
        for (marks_max, slack) in [(1000, 0), (10, 63), (0, 255)] {
            let mut exchange = Exchange::new(1, 1, Protocol::Http1, 0);
            (1..=500).for_each(|at| exchange.passed(at * 10, 3, 1, marks_max));
            assert!(exchange.marks.len() <= marks_max.max(2));
            assert_eq!((exchange.response_bytes, exchange.marks.last().map(|mark| mark.events)), (1500, Some(500)));
            for at in [0, 5, 10, 11, 2500, 4999, 5000, 9000] {
                let exact = 500 - u64::try_from(at / 10).expect("a count").min(500);
                let (bytes, events) = exchange.after(at);
                assert_eq!(bytes, events * 3);
                assert!((exact..=exact + slack).contains(&events), "{marks_max} {at}: {events}, and it was {exact}");
            }
        }
    }

    #[test]
    fn what_passes_after_the_close_is_counted_apart() {
        let mut exchange = Exchange::new(1, 1, Protocol::Http1, 0);
        exchange.passed(1, 5, 0, 8);
        exchange.passed(1, 5, 1, 8);
        exchange.down_closed = Some(Closed { at_ns: 2, how: How::Fin });
        exchange.passed(3, 20, 2, 8);
        assert_eq!((exchange.bytes_after_close, exchange.events_after_close, exchange.response_bytes), (20, 2, 30));
        assert_eq!((exchange.pieces, exchange.marks.len()), (2, 2), "a head and a body that came together are one piece");
        let json = serde_json::to_value(&exchange).expect("JSON");
        assert_eq!(json["down_closed"]["how"], "fin");
        assert_eq!(serde_json::from_value::<Exchange>(json).expect("read back"), exchange);
    }
}
