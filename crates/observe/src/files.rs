//! The journal as files: its records as JSON lines, from which every view is folded again when the process has gone.
//!
//! The ring is the queue between the recorders and the disk: a thread of its own copies from it what is not written yet (`writer`), into files that
//! are rotated by size (`folder`), and `replay` reads them back. So a record costs its recorder what it costs without files, and where the disk
//! is too slow the ring lets go of its oldest records unwritten: they are counted, shown in the metrics, and marked in the file.
//!
//! Invariant: nothing is read or written under the journal's lock. In no file is the text of a prompt or an answer, nor a sentence in which
//! somebody explains an end, for those may quote one: of an outcome its cause is written.
// contract: C-24

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use lifecycle::Incarnation;

use crate::exposition::Text;

mod event;
mod field;
mod folder;
mod line;
mod replay;
mod writer;

pub use replay::{Replayed, replay};
pub use writer::FileWriter;

#[cfg(test)]
mod tests;

/// Where a journal is written, and how much of it is kept.
#[derive(Clone, Debug)]
pub struct FilesConfig {
    /// The folder; it is made if it is not there. One process writes there at a time.
    pub dir: PathBuf,
    /// Size from which on the next file is begun. A file has one record at the least.
    pub file_bytes: u64,
    /// Most files in the folder; the oldest is removed before one more is begun.
    pub files_max: usize,
    /// The program's version.
    pub release: String,
    /// This process's life.
    pub life: Incarnation,
}

/// Why a journal's files cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The folder is not there and cannot be made, or cannot be looked into.
    #[error("{dir}: {why}")]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// Another process has it.
    #[error("{dir}: another process writes its journal there; give each process a folder of its own")]
    Taken {
        /// The folder.
        dir: PathBuf,
    },
    /// A file cannot be written, or the oldest not removed.
    #[error("{file}: {why}")]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// No thread could be had.
    #[error("no thread for the journal's files: {0}")]
    Thread(io::Error),
    /// This journal is written already.
    #[error("this journal is written to files already")]
    Begun,
    /// Nothing to read.
    #[error("{dir}: there is no file of a journal (journal-NUMBER.jsonl) with a record in it")]
    Empty {
        /// The folder.
        dir: PathBuf,
    },
    /// A file of another kvit.
    #[error("{file}: is of format {found}, and this kvit reads format {known}: read it with the kvit that wrote it", known = line::FORMAT)]
    Version {
        /// The file.
        file: PathBuf,
        /// What it says of itself.
        found: u64,
    },
    /// A line that nobody wrote so.
    #[error("{file}:{line}: {why}; move the file elsewhere to read the others")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// What became of the journal's records on their way to the disk.
#[derive(Default)]
pub(crate) struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
    errors: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Filed {
    pub written: u64,
    pub lost: u64,
    pub errors: u64,
}

impl Counts {
    pub(crate) fn cut(&self) -> Filed {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Filed { written: of(&self.written), lost: of(&self.lost), errors: of(&self.errors) }
    }
}

pub(crate) fn expose(text: &mut Text, filed: &Filed) {
    let mut count = |name, help, value| {
        text.counter(name, help).sample(&[], value);
    };
    count("kvit_journal_file_records_total", "Records that were written to the journal's files.", filed.written);
    count(
        "kvit_journal_file_lost_records_total",
        "Records that the ring let go of before they were written: the disk was too slow, full or away.",
        filed.lost,
    );
    count("kvit_journal_file_errors_total", "Times that a file of the journal could not be written or begun.", filed.errors);
}
