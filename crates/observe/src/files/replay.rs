//! Reads a journal's files back and folds them: a journal for each life of a process that wrote there, with every view as the process had it.
//!
//! Invariant: what is missing is counted, never guessed; a file that is none, or of an unknown format, is refused by name.
// contract: C-24

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use lifecycle::Incarnation;

use super::FilesError;
use super::folder::files;
use super::line::{Head, Line, NoHead, read};
use crate::journal::{Folding, Journal, Limits};

/// What the files say of one life.
pub struct Replayed {
    /// Its journal. Its clock stands at the newest record.
    pub journal: Journal,
    /// The program's version.
    pub release: String,
    /// Which life.
    pub life: Incarnation,
    /// Records that were folded.
    pub records: u64,
    /// Records before the oldest file that is left.
    pub removed: u64,
    /// Records that are missing between those that are there.
    pub lost: u64,
    /// Files whose last line is not whole: the process was ended while it wrote, or writes now.
    pub torn: u64,
}

impl Replayed {
    /// What is missing, a sentence each.
    pub fn missing(&self) -> Vec<String> {
        let records = |n: u64| format!("{n} record{}", if n == 1 { "" } else { "s" });
        let mut said = Vec::new();
        if self.removed > 0 {
            said.push(format!(
                "{} stood in files that are no longer there: runs from before them are missing or not whole",
                records(self.removed)
            ));
        }
        if self.lost > 0 {
            said.push(format!("{} were lost before they were written: counts are too small by them", records(self.lost)));
        }
        if self.torn > 0 {
            let files = if self.torn == 1 { "a file ends" } else { "files end" };
            said.push(format!("{files} in the middle of a line: the process was ended while it wrote, or writes now"));
        }
        said
    }
}

/// Folds the files of a folder, life by life, oldest first; each journal remembers so much.
///
/// # Errors
/// The folder cannot be read, or has no records; a file is of another format, or damaged elsewhere than at its end.
pub fn replay(dir: &Path, limits: Limits) -> Result<Vec<Replayed>, FilesError> {
    let mut lives: Vec<Life> = Vec::new();
    for (_, path) in files(dir)? {
        let file = match File::open(&path) {
            Ok(file) => file,
            // A process that writes there has removed it meanwhile.
            Err(why) if why.kind() == ErrorKind::NotFound => continue,
            Err(why) => return Err(FilesError::File { file: path, why }),
        };
        read_file(&path, BufReader::new(file), limits, &mut lives)?;
    }
    match lives.is_empty() {
        true => Err(FilesError::Empty { dir: dir.to_owned() }),
        false => Ok(lives.into_iter().map(Life::ended).collect()),
    }
}

/// One that is being read.
struct Life {
    head: Head,
    life: Incarnation,
    folding: Folding,
    /// The number of the next record.
    next: u64,
    records: u64,
    lost: u64,
    torn: u64,
}

impl Life {
    fn ended(self) -> Replayed {
        let Life { head, life, folding, records, lost, torn, .. } = self;
        Replayed { journal: folding.end(head.clock_ns), release: head.release, life, records, removed: head.first, lost, torn }
    }
}

fn read_file(path: &Path, mut file: impl BufRead, limits: Limits, lives: &mut Vec<Life>) -> Result<(), FilesError> {
    let damaged = |line: usize, why: String| FilesError::Damaged { file: path.to_owned(), line, why };
    let (mut number, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let len = file.read_until(b'\n', &mut line).map_err(|why| FilesError::File { file: path.to_owned(), why })?;
        if len == 0 {
            return Ok(());
        }
        number += 1;
        if line.pop() != Some(b'\n') {
            // The process was ended here. A head that is not whole has nothing behind it.
            if let Some(life) = lives.last_mut() {
                life.torn += 1;
            }
            return Ok(());
        }
        if number == 1 {
            let head = Head::read(&line).map_err(|no| match no {
                NoHead::Version(found) => FilesError::Version { file: path.to_owned(), found },
                NoHead::Not(why) => damaged(1, why),
            })?;
            begin(head, limits, lives).map_err(|why| damaged(1, why))?;
            continue;
        }
        let Some(life) = lives.last_mut() else { continue };
        match read(&line).map_err(|why| damaged(number, why))? {
            Line::Gap(missing) => {
                life.lost += missing;
                life.next += missing;
            }
            Line::Record(record) => {
                life.records += 1;
                life.next += 1;
                life.folding.take(record);
            }
        }
    }
}

/// A further file of the newest life, or the first one of another.
fn begin(head: Head, limits: Limits, lives: &mut Vec<Life>) -> Result<(), String> {
    let life = head.life().ok_or("`life` is no UUID")?;
    if let Some(last) = lives.last_mut().filter(|last| last.life == life) {
        last.lost += head.first.checked_sub(last.next).ok_or("it has records that stand in the file before it, too")?;
        last.next = head.first;
        return Ok(());
    }
    lives.push(Life { life, folding: Folding::new(limits), next: head.first, records: 0, lost: 0, torn: 0, head });
    Ok(())
}
