//! A folder of a journal's files: which are there, which is written, and when the next is begun.
//!
//! Invariant: numbers only grow, through all lives of all processes that wrote there, so the order of names is the order of writing. What could
//! not be written whole is cut off again, or nothing is written behind it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::line::Head;
use super::{FilesConfig, FilesError};

/// Whoever holds it locked writes there.
const LOCK: &str = "journal.lock";

/// The path of a file by its number.
fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("journal-{number:08}.jsonl"))
}

/// The journal's files in a folder, by number, oldest first.
pub(super) fn files(dir: &Path) -> Result<Vec<(u64, PathBuf)>, FilesError> {
    let failed = |why| FilesError::Folder { dir: dir.to_owned(), why };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let digits = name.strip_prefix("journal-").and_then(|rest| rest.strip_suffix(".jsonl"));
        if let Some(number) = digits.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit())).and_then(|digits| digits.parse().ok()) {
            files.push((number, path));
        }
    }
    files.sort();
    Ok(files)
}

/// The folder that this process writes to.
pub(super) struct Folder {
    config: FilesConfig,
    /// When the journal's clock began, in nanoseconds since 1970.
    clock_ns: u64,
    /// Held for as long as it is written to.
    _lock: File,
    /// The number of the newest file.
    number: u64,
    /// The one that is written; `None` if a new one has to be begun.
    pub(super) file: Option<File>,
    /// Its length, and that of its head.
    len: u64,
    head_len: u64,
}

impl Folder {
    /// Takes the folder. A file is begun with the first record: a process that fails at its start, again and again, drives no old one out.
    pub(super) fn open(config: FilesConfig, clock_ns: u64) -> Result<Folder, FilesError> {
        let dir = config.dir.clone();
        let failed = |why| FilesError::Folder { dir: dir.clone(), why };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed)?;
        let mut lock = private().create(true).truncate(false).open(dir.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FilesError::Taken { dir }),
            Err(TryLockError::Error(why)) => return Err(failed(why)),
        }
        // Whoever has it; and a disk that is full takes nothing here either.
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", config.life)).map_err(failed)?;
        let number = files(&dir)?.last().map_or(0, |(number, _)| *number);
        Ok(Folder { config, clock_ns, _lock: lock, number, file: None, len: 0, head_len: 0 })
    }

    /// Bytes that still go into the file that is written; 0 if a new one has to be begun.
    pub(super) fn room(&self) -> u64 {
        if self.file.is_some() { self.config.file_bytes.saturating_sub(self.len) } else { 0 }
    }

    /// Writes whole lines, into a new file if they do not fit into this one; `first` is the number of the record that they begin with.
    pub(super) fn append(&mut self, lines: &str, first: u64) -> Result<(), FilesError> {
        if self.file.is_none() || (self.room() < lines.len() as u64 && self.len > self.head_len) {
            self.begin(first)?;
        }
        self.write(lines)
    }

    /// Begins the next file, for which the oldest makes room, on the disk too.
    fn begin(&mut self, first: u64) -> Result<(), FilesError> {
        self.file = None;
        let dir = &self.config.dir;
        let mut files = files(dir)?;
        for (_, file) in files.drain(..(files.len() + 1).saturating_sub(self.config.files_max.max(1)).min(files.len())) {
            std::fs::remove_file(&file).map_err(|why| FilesError::File { file, why })?;
        }
        let number = self.number + 1;
        let file = path(dir, number);
        let opened = private().create_new(true).open(&file).map_err(|why| FilesError::File { file: file.clone(), why })?;
        self.number = number;
        let begun_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |date| u64::try_from(date.as_millis()).unwrap_or(u64::MAX));
        let head = Head::new(&self.config.release, self.config.life, self.clock_ns, begun_ms, first).line();
        (self.file, self.len) = (Some(opened), 0);
        let written = self.write(&head);
        if written.is_err() {
            self.file = None;
            // It says nothing; a reader passes it by.
            let _ = std::fs::remove_file(&file);
        }
        self.head_len = self.len;
        written
    }

    fn write(&mut self, text: &str) -> Result<(), FilesError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.write_all(text.as_bytes());
        match written {
            Ok(()) => self.len += text.len() as u64,
            // What stands there of it would be a broken line in the middle.
            Err(_) if file.set_len(self.len).is_ok() => {}
            Err(_) => self.file = None,
        }
        written.map_err(|why| FilesError::File { file: path(&self.config.dir, self.number), why })
    }
}

/// For this user alone, each write at the end.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600);
    options
}
