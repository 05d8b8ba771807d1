//! A line of a drawing: characters at columns, each with its colour, later ones over earlier ones.
//!
//! Invariant: what does not fit is cut off; a line has no blanks at its end.

/// How a piece of text looks where colours are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Cyan,
}

/// A text in its colour, or as it is where none is wanted.
pub(super) fn paint(ink: Ink, text: &str, colour: bool) -> String {
    let code = match ink {
        Ink::Plain => return text.to_owned(),
        Ink::Bold => 1,
        Ink::Dim => 2,
        Ink::Red => 31,
        Ink::Green => 32,
        Ink::Yellow => 33,
        Ink::Cyan => 36,
    };
    if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// One line of a fixed number of columns.
pub(super) struct Cells(Vec<(char, Ink)>);

impl Cells {
    pub(super) fn new(columns: usize) -> Cells {
        Cells(vec![(' ', Ink::Plain); columns])
    }

    /// Writes a text from a column on.
    pub(super) fn put(&mut self, column: usize, text: &str, ink: Ink) {
        for (cell, c) in self.0.iter_mut().skip(column).zip(text.chars()) {
            *cell = (c, ink);
        }
    }

    /// Writes one character from a column up to another, which is left as it is.
    pub(super) fn fill(&mut self, columns: std::ops::Range<usize>, c: char, ink: Ink) {
        let end = columns.end.min(self.0.len());
        for cell in self.0.get_mut(columns.start.min(end)..end).unwrap_or_default() {
            *cell = (c, ink);
        }
    }

    /// The line with its newline.
    pub(super) fn line(&self, colour: bool) -> String {
        let end = self.0.iter().rposition(|(c, _)| *c != ' ').map_or(0, |at| at + 1);
        let mut out = String::new();
        for piece in self.0[..end].chunk_by(|a, b| a.1 == b.1) {
            let text: String = piece.iter().map(|(c, _)| *c).collect();
            out += &paint(piece[0].1, &text, colour);
        }
        out.push('\n');
        out
    }
}
