//! The logs of named hops, read once when everything is over: a proxy writes its line when a request ends, and often later than that.
//!
//! A log may be older than this run, grow for other requests, and be put aside meanwhile: what was there before is not read, and a file that
//! took its place is read from its beginning.
//!
//! Invariant: of a log nothing is kept but the lines of this run's own ids, and of them nothing but the status, state or flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::logs::{self, ENVOY_FORMAT, HAPROXY_FORMAT, LINE_BYTES_MAX, LINES_MAX, NGINX_FORMAT};
use super::result::{LogSaw, Try};

/// Most that is read of a log behind the place where it ended when the run began, in bytes.
pub const LOG_BYTES_MAX: u64 = 256 << 20;
/// How all ids of a run begin.
pub const ID_BEGINS: &str = "verify-";
const PAUSE: Duration = Duration::from_millis(100);

/// A hop's log.
#[derive(Debug)]
pub struct LogFile {
    hop: String,
    kind: Option<String>,
    path: PathBuf,
    /// As it was when the run began: where it ended, and which file it was.
    file: File,
    from: u64,
}

/// What the logs said of ids.
pub type Said = BTreeMap<String, Vec<LogSaw>>;

impl LogFile {
    /// The log as it is now: only what comes will be read.
    ///
    /// # Errors
    /// It is not there, cannot be read, or is no file.
    pub fn open(hop: &str, kind: Option<&str>, path: &Path) -> Result<LogFile, String> {
        let wrong = |why: String| {
            format!("--hop {hop}: its log {} {why}; name the access log that {hop} writes, as a file that can be read", path.display())
        };
        let file = File::open(path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        let about = file.metadata().map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if !about.is_file() {
            return Err(wrong("is no file".to_owned()));
        }
        Ok(LogFile { hop: hop.to_owned(), kind: kind.map(str::to_owned), path: path.to_owned(), file, from: about.len() })
    }

    /// What has come since, of these ids.
    fn read(&self, ids: &BTreeSet<&str>) -> std::io::Result<Said> {
        let mut said = Said::new();
        let mut take = |mut file: &File, from: u64| {
            let from = if file.metadata()?.len() < from { 0 } else { from };
            file.seek(SeekFrom::Start(from))?;
            lines(BufReader::new(file.take(LOG_BYTES_MAX)), |line| {
                for id in logs::ids(line, ID_BEGINS).filter(|id| ids.contains(id)).collect::<BTreeSet<_>>() {
                    let all = said.entry(id.to_owned()).or_default();
                    if let Some(saw) = logs::read(&self.hop, self.kind.as_deref(), line).filter(|_| all.len() < LINES_MAX) {
                        all.push(saw);
                    }
                }
            })
        };
        take(&self.file, self.from)?;
        // It was put aside, and another one has its name.
        if let Ok(now) = File::open(&self.path) {
            let which = |file: &File| file.metadata().map(|about| (about.dev(), about.ino()));
            if which(&now)? != which(&self.file)? {
                take(&now, 0)?;
            }
        }
        Ok(said)
    }

    /// What to do where it has lines that cannot be joined.
    fn advice(&self) -> String {
        let how = match self.kind.as_deref() {
            Some("nginx") => NGINX_FORMAT,
            Some("haproxy") => HAPROXY_FORMAT,
            Some("envoy") => ENVOY_FORMAT,
            Some("caddy") => "`log` in the site, with its default JSON",
            _ => "the request header x-request-id has to be in its lines, beside the status",
        };
        format!("{how} (docs/verify.md); a log that is written late needs log_wait_ms in --settings")
    }
}

/// Whole lines that are not too long.
fn lines(mut from: impl BufRead, mut each: impl FnMut(&str)) -> std::io::Result<()> {
    let mut line = Vec::new();
    let mut is_rest = false;
    loop {
        line.clear();
        let read = from.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line)?;
        let is_whole = line.ends_with(b"\n");
        if read == 0 || (!is_whole && read <= LINE_BYTES_MAX) {
            // Its last line is still being written.
            return Ok(());
        }
        if is_whole && !is_rest {
            each(String::from_utf8_lossy(&line).trim_end());
        }
        is_rest = !is_whole;
    }
}

/// Reads the logs for these tries, and waits until each has said something of each or `wait` is over. What could not be had, as hints.
pub async fn read(logs: &[LogFile], tries: &mut [&mut Try], wait: Duration) -> Vec<String> {
    let mut hints = Vec::new();
    let until = Instant::now() + wait;
    let wanted: Vec<String> = tries.iter().filter(|seen| seen.void.is_none()).map(|seen| seen.id.clone()).collect();
    let ids: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    for log in logs {
        let said = loop {
            match log.read(&ids) {
                Ok(said) if said.len() < ids.len() && Instant::now() < until => tokio::time::sleep(PAUSE).await,
                other => break other,
            }
        };
        let said = match said {
            Ok(said) => said,
            Err(why) => {
                hints.push(format!("{}'s log {} could not be read: {why}", log.hop, log.path.display()));
                continue;
            }
        };
        let missing = ids.len() - said.len();
        if missing > 0 {
            let path = log.path.display();
            hints.push(format!("{}'s log {path} has no line of {missing} of {} requests: {}", log.hop, ids.len(), log.advice()));
        } else if !ids.is_empty() && said.values().all(Vec::is_empty) {
            hints.push(format!(
                "{}'s log {} has the ids and says nothing of how requests ended: {}",
                log.hop,
                log.path.display(),
                log.advice()
            ));
        }
        for seen in tries.iter_mut() {
            seen.logs.extend(said.get(&seen.id).into_iter().flatten().cloned());
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn tries() -> Vec<Try> {
        ["verify-a-1", "verify-a-11"].map(|id| Try { id: id.to_owned(), ..Try::default() }).into()
    }

    async fn of(logs: &[LogFile]) -> (Vec<String>, Vec<String>) {
        let mut all = tries();
        let hints = read(logs, &mut all.iter_mut().collect::<Vec<_>>(), Duration::ZERO).await;
        (all.iter().map(|seen| seen.logs.iter().map(|log| log.said.as_str()).collect::<Vec<_>>().join(" ")).collect(), hints)
    }

    #[tokio::test]
    async fn only_what_came_since_is_read_and_every_id_gets_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let add = |text: &str| {
            let mut file = File::options().append(true).create(true).open(&path).expect("a log");
            file.write_all(text.as_bytes()).expect("it is written");
        };
        add("\"POST / HTTP/1.1\" 200 id=verify-a-1 completion=OK\n");
        let log = [LogFile::open("edge", Some("nginx"), &path).expect("a log")];
        assert_eq!(of(&log).await.0, ["", ""]);
        add(&format!("\"POST / HTTP/1.1\" 499 id=verify-a-11 completion=\n{}\n", "x".repeat(3 * LINE_BYTES_MAX)));
        add("\"POST / HTTP/1.1\" 499 id=verify-a-1 compl");
        let (said, hints) = of(&log).await;
        assert_eq!(said, ["", "499, not complete"]);
        assert!(hints[0].contains("no line of 1 of 2") && hints[0].contains("log_format"), "{hints:?}");
        add("etion=OK\n");
        assert_eq!(of(&log).await, (vec!["499 OK".to_owned(), "499, not complete".to_owned()], vec![]));
        std::fs::rename(&path, folder.path().join("log.1")).expect("it is put aside");
        add("\"POST / HTTP/1.1\" 502 id=verify-a-1 completion=\n");
        assert_eq!(of(&log).await.0, ["499 OK 502, not complete", "499, not complete"]);
    }

    #[test]
    fn what_is_no_log_is_refused_with_what_to_do() {
        for path in ["/nowhere/log", "/"] {
            let error = LogFile::open("edge", None, Path::new(path)).expect_err(path);
            assert!(error.contains("--hop edge") && error.contains(path) && error.contains("name the access log"), "{error}");
        }
    }
}
