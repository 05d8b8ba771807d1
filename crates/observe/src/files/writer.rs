//! The thread that carries records from the ring to the disk.
//!
//! Invariant: no recorder waits for it. A record that could not be written is tried again for as long as the ring has it; each that the ring let go
//! of is counted once and marked in the file.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use lifecycle::Time;

use super::folder::Folder;
use super::line::{gap, put_record};
use super::{Counts, FilesConfig, FilesError};
use crate::journal::Journal;

/// Pause between two looks at the ring.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Records that are copied without letting go of the journal's lock.
pub(super) const BATCH: usize = 256;
/// How long the end of the process waits for the last records.
const END_MAX: Duration = Duration::from_secs(5);
/// Least time between two warnings of lost records.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Holds the thread. When it is dropped, what the ring has is written, and the thread ends.
pub struct FileWriter {
    stop: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl Journal {
    /// Writes the records that the ring has, and those that come, to files in a folder, until what is returned is dropped.
    ///
    /// # Errors
    /// The folder cannot be written to, another process has it, or this journal is written already.
    pub fn write_files(&self, config: FilesConfig) -> Result<FileWriter, FilesError> {
        let mut writer = Writer::new(self.clone(), config)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let (end, ended) = mpsc::channel();
        let work = move || {
            writer.work(&stopped);
            drop(end);
        };
        std::thread::Builder::new().name("journal-files".to_owned()).spawn(work).map_err(FilesError::Thread)?;
        Ok(FileWriter { stop: Some(stop), ended })
    }
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.ended.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk does not take the journal's last records; the process ends without them");
        }
    }
}

/// What the thread works on.
pub(super) struct Writer {
    journal: Journal,
    pub(super) folder: Folder,
    counts: Arc<Counts>,
    /// The number of the first record that is in no file and not marked as missing in one.
    position: u64,
    /// Up to which number those that are missing are counted.
    counted: u64,
    failing: bool,
    warned: Option<Instant>,
}

impl Writer {
    pub(super) fn new(journal: Journal, config: FilesConfig) -> Result<Writer, FilesError> {
        if journal.filed().is_some() {
            return Err(FilesError::Begun);
        }
        let (first, _) = journal.numbered(0, 0);
        let folder = Folder::open(config, journal.clock().calendar_ns(Time::ZERO))?;
        let counts = Arc::new(Counts::default());
        if !journal.begin_filing(counts.clone()) {
            return Err(FilesError::Begun);
        }
        Ok(Writer { journal, folder, counts, position: first, counted: first, failing: false, warned: None })
    }

    /// Until it is told to stop; then once more.
    fn work(&mut self, stopped: &Receiver<()>) {
        let mut pause = PAUSE;
        loop {
            let stops = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
            pause = if self.catch_up() { PAUSE } else { RETRY };
            if stops {
                return;
            }
        }
    }

    /// Writes what the ring has; whether it could.
    pub(super) fn catch_up(&mut self) -> bool {
        let result = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(why) => break Err(why),
            }
        };
        if let Err(why) = &result {
            self.counts.errors.fetch_add(1, Ordering::Relaxed);
            if !self.failing {
                tracing::warn!(%why, "the journal's files cannot be written; what the ring still has is tried again every second");
            }
        } else if self.failing {
            tracing::info!("the journal's files are written again");
        }
        self.failing = result.is_err();
        result.is_ok()
    }

    /// Writes one batch; whether there may be more.
    fn turn(&mut self) -> Result<bool, FilesError> {
        let (first, records) = self.journal.numbered(self.position, BATCH);
        self.missed(first);
        if first > self.position {
            self.put(&gap(first - self.position), first - self.position)?;
        }
        let (mut lines, mut count) = (String::new(), 0);
        for record in &records {
            let begins = lines.len();
            put_record(&mut lines, record);
            if begins > 0 && self.folder.room() < lines.len() as u64 {
                let next = lines.split_off(begins);
                self.records(&std::mem::replace(&mut lines, next), std::mem::take(&mut count))?;
            }
            count += 1;
        }
        self.records(&lines, count)?;
        Ok(records.len() == BATCH)
    }

    fn records(&mut self, lines: &str, count: u64) -> Result<(), FilesError> {
        if count > 0 {
            self.put(lines, count)?;
            self.counts.written.fetch_add(count, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Writes lines that stand for so many records.
    fn put(&mut self, lines: &str, count: u64) -> Result<(), FilesError> {
        self.folder.append(lines, self.position)?;
        self.position += count;
        Ok(())
    }

    /// Counts those that the ring let go of.
    fn missed(&mut self, first: u64) {
        let lost = first.saturating_sub(self.counted.max(self.position));
        if lost == 0 {
            return;
        }
        self.counted = first;
        self.counts.lost.fetch_add(lost, Ordering::Relaxed);
        if self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(lost, "records of the journal are in no file: the disk is slower than they come, raise journal_records");
        }
    }
}
