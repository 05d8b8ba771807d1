//! How far a fetch is: a bar on a terminal, a few plain lines anywhere else. Always on stderr.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Plain lines come at each of this many equal parts.
const PLAIN_PARTS: u64 = 4;

/// One thing that is being fetched, in bytes.
pub struct Progress {
    bar: Option<ProgressBar>,
    what: String,
    total: u64,
    done: u64,
    parts_told: u64,
}

impl Progress {
    /// Begins; says what is coming.
    pub fn begin(what: &str, total: u64) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let style = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let bar = terminal.then(|| {
            let bar = ProgressBar::new(total).with_message(what.to_owned());
            match ProgressStyle::with_template(style) {
                Ok(style) => bar.with_style(style.progress_chars("=> ")),
                Err(_) => bar,
            }
        });
        if bar.is_none() {
            eprintln!("{what}: {}", HumanBytes(total));
        }
        Progress { bar, what: what.to_owned(), total, done: 0, parts_told: 0 }
    }

    /// So many bytes more are there.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(bar) = &self.bar {
            return bar.set_position(self.done);
        }
        let parts = (self.done * PLAIN_PARTS).checked_div(self.total).unwrap_or(0).min(PLAIN_PARTS);
        if parts > self.parts_told {
            self.parts_told = parts;
            eprintln!("{}: {} %", self.what, 100 * parts / PLAIN_PARTS);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
