//! Colours, and what stands for them where there are none.

use ratatui::style::{Color, Modifier, Style};

use crate::health::Level;

/// Whether there are colours. They are the terminal's own sixteen, so that they suit its ground.
#[derive(Clone, Copy)]
pub(super) struct Ink(pub(super) bool);

impl Ink {
    pub(super) fn of(self, colour: Color) -> Style {
        if self.0 { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn good(self) -> Style {
        self.of(Color::Green)
    }

    pub(super) fn warn(self) -> Style {
        if self.0 { self.of(Color::Yellow) } else { self.bold() }
    }

    pub(super) fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn level(self, level: Level) -> Style {
        match level {
            Level::Ok => self.good(),
            Level::Unknown => self.dim(),
            Level::Warn => self.warn(),
            Level::Bad => self.bad(),
        }
    }

    /// How a run's state or outcome is written.
    pub(super) fn standing(self, word: &str) -> Style {
        match word {
            "prefilling" | "decoding" => self.good(),
            "stopping" | "suspended" | "preempted" => self.warn(),
            "failed" | "rejected" => self.bad(),
            "cancelled" | "expired" => self.of(Color::Cyan),
            "completed" => Style::new(),
            _ => self.dim(),
        }
    }
}
