//! Stop strings over a stream of text pieces.

/// What a piece changed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StopStep {
    /// Text that is safe to show.
    pub text: String,
    /// A stop string was found; nothing more follows.
    pub hit: bool,
}

/// Holds back whatever could begin a stop string.
#[derive(Clone, Debug)]
pub struct StopFinder {
    stops: Vec<String>,
    held: String,
}

impl StopFinder {
    /// Looks for these strings.
    pub fn new(stops: &[String]) -> StopFinder {
        StopFinder { stops: stops.to_vec(), held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> StopStep {
        self.held.push_str(piece);
        let first = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min();
        if let Some(at) = first {
            self.held.truncate(at);
            return StopStep { text: std::mem::take(&mut self.held), hit: true };
        }
        let keep = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopStep { text: std::mem::replace(&mut self.held, rest), hit: false }
    }

    /// The end: what was held back is shown.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = stop.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|n| text.is_char_boundary(text.len() - n) && stop.as_bytes().starts_with(&text.as_bytes()[text.len() - n..]))
        .unwrap_or(0)
}
