//! Stop strings over a stream of text pieces.
//!
//! Each stop string is searched by Knuth, Morris and Pratt's automaton (Fast pattern matching in strings, 1977), whose state is exactly
//! how much of the string the text could be in the middle of: the longest such state is what must be held back, and any text takes
//! linear time.
//! Invariant: text that was handed out is no part of a stop string; the result does not depend on how the text is cut into pieces.

/// What a piece changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StopStep {
    /// Text that is safe to show.
    pub text: String,
    /// A stop string was found; nothing more follows.
    pub hit: bool,
}

#[derive(Clone, Debug)]
struct Automaton {
    stop: Vec<u8>,
    /// For each prefix's length less one: the length of its longest proper end that is a prefix too.
    fallback: Vec<usize>,
    matched: usize,
}

impl Automaton {
    fn new(stop: &str) -> Automaton {
        let stop = stop.as_bytes().to_vec();
        let mut fallback = vec![0; stop.len()];
        let mut len = 0;
        for at in 1..stop.len() {
            while len > 0 && stop[at] != stop[len] {
                len = fallback[len - 1];
            }
            len += usize::from(stop[at] == stop[len]);
            fallback[at] = len;
        }
        Automaton { stop, fallback, matched: 0 }
    }

    /// Takes a byte; whether the string is complete.
    fn push(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.stop[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(self.stop[self.matched] == byte);
        self.matched == self.stop.len()
    }
}

/// Finds the stop string that is complete first (of those complete at once, the longest), and holds back whatever could begin one.
#[derive(Clone, Debug)]
pub struct StopFinder {
    stops: Vec<Automaton>,
    held: String,
    over: bool,
}

impl StopFinder {
    /// Looks for these strings; an empty one is never found.
    pub fn new(stops: &[String]) -> StopFinder {
        let stops = stops.iter().filter(|s| !s.is_empty()).map(|s| Automaton::new(s)).collect();
        StopFinder { stops, held: String::new(), over: false }
    }

    /// Takes the next piece. After a hit nothing is shown any more.
    pub fn push(&mut self, piece: &str) -> StopStep {
        if self.over {
            return StopStep { text: String::new(), hit: true };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|s| s.push(byte).then_some(s.stop.len())).max();
            if let Some(len) = complete {
                self.over = true;
                // Never negative: a string that began in an earlier piece was held back from its beginning.
                self.held.truncate((before + at + 1).saturating_sub(len));
                return StopStep { text: std::mem::take(&mut self.held), hit: true };
            }
        }
        let keep = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep { text: std::mem::replace(&mut self.held, rest), hit: false }
    }

    /// The end: what was held back is shown.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
