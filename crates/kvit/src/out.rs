//! Results on stdout, and a server's words on stderr.
//!
//! A reader that has seen enough (`kvit runs | head`) closes the pipe; that is no failure, so such an error is swallowed here, once. So it is for
//! what a server says on stderr.

use std::io::{ErrorKind, IsTerminal, Write};

use crate::failure::Failure;

/// Narrowest and widest a table or timeline is drawn, in columns.
const WIDTH: std::ops::RangeInclusive<usize> = 40..=200;
/// Columns where the terminal's width is not known.
const WIDTH_UNKNOWN: usize = 100;

/// Writes a text and a newline.
///
/// # Errors
/// stdout cannot be written, other than by being closed.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// Says something on stderr. If whoever read that has gone, nobody is told, and nothing ends for it.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes JSON as a person can read it.
///
/// # Errors
/// As `line`.
pub fn json(value: &serde_json::Value) -> Result<(), Failure> {
    line(&format!("{value:#}"))
}

/// Columns to draw in: the terminal's, else `COLUMNS`, else a fixed number.
pub fn width() -> usize {
    let terminal = std::io::stdout().is_terminal().then(|| usize::from(console::Term::stdout().size().1));
    let told = || std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    terminal.or_else(told).unwrap_or(WIDTH_UNKNOWN).clamp(*WIDTH.start(), *WIDTH.end())
}

/// Whether to use colour: on a terminal, and unless `NO_COLOR` is set.
pub fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
