//! Server-sent events, counted in bytes that are only looked at.
//!
//! Invariant: a count does not depend on how the bytes were cut; nothing is kept of an event but its line's first bytes.

/// What is kept of a line: enough to know the stream's last word.
const PREFIX: usize = 13;

/// Counts events.
#[derive(Default, Debug)]
pub struct Events {
    prefix: [u8; PREFIX],
    /// The line's length, as far as it matters.
    line: usize,
    has_data: bool,
    is_done: bool,
    /// Whether `[DONE]` came.
    pub done: bool,
}

impl Events {
    /// How many events became whole by these bytes. One without data is none, and so is the closing `[DONE]`.
    pub fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut whole = 0;
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            self.keep(&bytes[begin..end]);
            whole += u64::from(self.line_ends());
            begin = end + 1;
        }
        self.keep(&bytes[begin..]);
        whole
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = PREFIX.saturating_sub(self.line);
        let taken = &piece[..piece.len().min(room)];
        self.prefix[PREFIX - room..PREFIX - room + taken.len()].copy_from_slice(taken);
        self.line = (self.line + piece.len()).min(PREFIX + 1);
    }

    /// Whether an event ends with this line.
    fn line_ends(&mut self) -> bool {
        let line = self.prefix[..self.line.min(PREFIX)].trim_ascii_end();
        let fits = self.line <= PREFIX;
        self.line = 0;
        if line.is_empty() && fits {
            let counts = self.has_data && !self.is_done;
            self.done |= self.is_done;
            (self.has_data, self.is_done) = (false, false);
            return counts;
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            self.is_done = !self.has_data && fits && data.trim_ascii_start() == b"[DONE]";
            self.has_data = true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_however_they_are_cut() {
        let stream = concat!(
            ": a comment\n\ndata: {\"a\":\"a line that is long\"}\r\n\r\nevent: x\ndata:1\ndata:2\n\nid: 7\n\n\n\n",
            "data: [DONE] is not the last word\n\ndata: x\ndata: [DONE]\n\ndata: [DONE]\r\n\r\n",
        );
        for size in 1..stream.len() {
            let mut events = Events::default();
            let count: u64 = stream.as_bytes().chunks(size).map(|piece| events.count(piece)).sum();
            assert_eq!((count, events.done), (4, true), "{size}");
        }
        let mut events = Events::default();
        assert_eq!((events.count(b"data:[DONE]\n\n"), events.done), (0, true));
        assert_eq!((events.count(b"data: half\n"), events.done), (0, true), "an event ends with an empty line");
    }
}
