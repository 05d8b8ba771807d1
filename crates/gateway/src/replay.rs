//! What a run has said so far, for whoever comes later, in little memory.
//!
//! Of the bytes that an engine sent a copy is kept, all in one row: a slice would hold the whole buffer that it was read into, and a reader
//! that never comes is no reason for that. Everything else is kept as it is.
//!
//! Invariant: what comes out is what went in, in its order; at most so many items, of so many bytes together, are kept, and then none.
// contract: C-26 C-28

use bytes::Bytes;
use lifecycle::AttemptId;
use lifecycle::message::{Delta, Piece};

use crate::feed::Item;

/// One thing that was said.
enum Kept {
    /// An engine's bytes, up to this place in the row, and the tokens that they show.
    Passed {
        end: usize,
        tokens: u32,
    },
    Said(Box<Item>),
}

/// Everything said so far.
pub(crate) struct Replay {
    items: Vec<Kept>,
    /// The engine's bytes, one behind the other.
    row: Vec<u8>,
    /// Whose those are.
    attempt: Option<AttemptId>,
    /// Bytes of what is kept, as far as they grow with what is said.
    bytes: usize,
    items_max: usize,
    bytes_max: usize,
    /// It was too much.
    over: bool,
}

impl Replay {
    /// Nothing yet.
    pub(crate) fn new(items_max: usize, bytes_max: usize) -> Replay {
        Replay { items: Vec::new(), row: Vec::new(), attempt: None, bytes: 0, items_max, bytes_max, over: false }
    }

    /// One thing more.
    pub(crate) fn item(&mut self, item: &Item) {
        if self.has_room(0) {
            self.items.push(Kept::Said(Box::new(item.clone())));
        }
    }

    /// A piece of the answer.
    pub(crate) fn delta(&mut self, delta: &Delta) {
        if !self.has_room(delta.bytes()) {
            return;
        }
        match self.plain(delta) {
            Some((bytes, tokens)) => {
                self.row.extend_from_slice(bytes);
                self.items.push(Kept::Passed { end: self.row.len(), tokens });
            }
            None => self.items.push(Kept::Said(Box::new(Item::Delta(delta.clone())))),
        }
    }

    /// Nothing is kept any more.
    pub(crate) fn close(&mut self) {
        (self.items, self.row, self.over) = (Vec::new(), Vec::new(), true);
    }

    /// How many things were said, if all of them are there.
    pub(crate) fn len(&self) -> Option<usize> {
        (!self.over).then_some(self.items.len())
    }

    /// All of it, if it is still there.
    pub(crate) fn said(&self) -> Option<impl Iterator<Item = Item>> {
        if self.over {
            return None;
        }
        let row = Bytes::copy_from_slice(&self.row);
        let mut begin = 0;
        Some(self.items.iter().filter_map(move |kept| match kept {
            Kept::Said(item) => Some(Item::clone(item)),
            Kept::Passed { end, tokens } => {
                let piece = Piece::Body(row.slice(std::mem::replace(&mut begin, *end)..*end));
                self.attempt.clone().map(|attempt| Item::Delta(Delta::passed(attempt, *tokens, piece)))
            }
        }))
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bytes_max || self.items.len() >= self.items_max {
            self.close();
        }
        !self.over
    }

    /// The bytes of a delta that says nothing else, and their tokens.
    fn plain<'a>(&mut self, delta: &'a Delta) -> Option<(&'a [u8], u32)> {
        let passed = delta.passed.as_deref()?;
        let Piece::Body(bytes) = &passed.piece else { return None };
        let says_more = delta.sequence != 0 || !delta.text.is_empty() || !delta.tokens.is_empty() || !delta.logprobs.is_empty();
        if says_more || delta.finish.is_some() || *self.attempt.get_or_insert_with(|| delta.attempt.clone()) != delta.attempt {
            return None;
        }
        Some((bytes, passed.tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::{RunId, RunKey, Tenant};

    fn attempt(attempt: u32) -> AttemptId {
        let run = RunId::parse("r").expect("an id");
        AttemptId { key: RunKey { tenant: Tenant::default(), run }, attempt }
    }

    fn body(of: u32, tokens: u32, bytes: &'static [u8]) -> Delta {
        Delta::passed(attempt(of), tokens, Piece::Body(Bytes::from_static(bytes)))
    }

    /// An engine's bytes in a row, whatever is said between them: text, another attempt's bytes, an answer's head.
    #[test]
    fn what_comes_out_is_what_went_in() {
        let head = Piece::Head { status: 200, content_type: None, headers: [].into() };
        let text = Delta { text: "hi".into(), ..Delta::passed(attempt(1), 1, Piece::Said) };
        let deltas = [Delta::passed(attempt(1), 0, head), body(1, 1, b"abc"), body(2, 3, b"de"), text, body(1, 0, b""), body(1, 2, b"fgh")];
        let mut replay = Replay::new(100, 1000);
        replay.item(&Item::Accepted);
        deltas.iter().for_each(|delta| replay.delta(delta));
        let said: Vec<Item> = replay.said().expect("it is there").collect();
        let went_in: Vec<Item> = std::iter::once(Item::Accepted).chain(deltas.into_iter().map(Item::Delta)).collect();
        assert_eq!(said, went_in);
        assert_eq!((replay.len(), replay.row.len()), (Some(7), 6), "only the first attempt's bytes lie in the row");
        replay.close();
        assert!(replay.said().is_none() && replay.len().is_none());
    }

    #[test]
    fn too_much_is_nothing() {
        for (items_max, bytes_max) in [(2, 1000), (100, 5)] {
            let mut replay = Replay::new(items_max, bytes_max);
            replay.delta(&body(1, 1, b"abc"));
            replay.delta(&body(1, 1, b"de"));
            assert_eq!(replay.len(), Some(2));
            replay.delta(&body(1, 1, b"f"));
            assert_eq!((replay.len(), replay.row.capacity(), replay.items.capacity()), (None, 0, 0));
            replay.item(&Item::Accepted);
            assert!(replay.said().is_none());
        }
    }
}
