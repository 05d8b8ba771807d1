//! Stop strings over a stream of text pieces.
//!
//! Invariant: what is shown and where it stops do not depend on how the text was cut into pieces, and nothing shown has to be taken back.
//! So the match that is complete first wins; of those complete at the same place, the longest.

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
    /// Looks for these strings; empty ones are never found.
    pub fn new(stops: &[String]) -> StopFinder {
        StopFinder { stops: stops.iter().filter(|s| !s.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> StopStep {
        self.held.push_str(piece);
        let first = self.stops.iter().filter_map(|s| self.held.find(s.as_str()).map(|at| (at + s.len(), at))).min();
        if let Some((_, at)) = first {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Looks at every beginning of the whole text, shortest first.
    fn naive(text: &str, stops: &[String]) -> (String, bool) {
        for end in (1..=text.len()).filter(|n| text.is_char_boundary(*n)) {
            if let Some(longest) = stops.iter().filter(|s| text[..end].ends_with(s.as_str())).map(String::len).max() {
                return (text[..end - longest].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #[test]
        fn a_cut_text_stops_where_the_whole_one_does(pieces in prop::collection::vec("[abé]{0,4}", 0..10),
                                                     stops in prop::collection::vec("[abé]{1,4}", 0..4)) {
            let whole = pieces.concat();
            let mut finder = StopFinder::new(&stops);
            let (mut shown, mut hit) = (String::new(), false);
            let (expected, expected_hit) = naive(&whole, &stops);
            for piece in &pieces {
                let step = finder.push(piece);
                shown.push_str(&step.text);
                prop_assert!(expected.starts_with(&shown), "{} was shown of {}", shown, expected);
                if step.hit {
                    hit = true;
                    break;
                }
            }
            if !hit {
                shown.push_str(&finder.finish());
            }
            prop_assert_eq!((shown, hit), (expected, expected_hit));
        }
    }

    #[test]
    fn the_match_that_is_complete_first_wins() {
        let mut finder = StopFinder::new(&["abcd".into(), "bc".into(), String::new()]);
        assert_eq!(finder.push("xabcd"), StopStep { text: "xa".into(), hit: true });
    }
}
