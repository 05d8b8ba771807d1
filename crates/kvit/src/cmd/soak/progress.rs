//! How far a soak is: a bar on a terminal, a line a quarter anywhere else. On stderr.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Plain lines come at each of this many equal parts.
const PLAIN_PARTS: u64 = 4;

/// The progress of one part.
pub struct Progress {
    bar: Option<ProgressBar>,
    what: &'static str,
    total: u64,
    done: AtomicU64,
}

impl Progress {
    /// Begins.
    pub fn begin(what: &'static str, total: u64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total).with_message(what);
            match ProgressStyle::with_template("{msg:>11} [{bar:40}] {pos}/{len} cancels {per_sec} {eta}") {
                Ok(style) => bar.with_style(style.progress_chars("=> ")),
                Err(_) => bar,
            }
        });
        Progress { bar, what, total, done: AtomicU64::new(0) }
    }

    /// One more is done.
    pub fn add(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None => {
                let part = |n: u64| n * PLAIN_PARTS / self.total.max(1);
                if part(done) > part(done - 1) {
                    eprintln!("{}: {done} of {} cancels", self.what, self.total);
                }
            }
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
