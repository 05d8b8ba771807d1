//! The route over Hugging Face, through its own crate.
//!
//! The crate's client blocks and has no time-outs, so it runs on a thread that reports each piece it got; where no report comes for a while
//! the route is given up and the thread left to its fate (it holds nothing but a socket and the part file, and ends with the process).
//! An interrupted download stays as `*.part` and is gone on with the next time.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};

use super::Spec;
use super::progress::Progress;

/// Longest wait for the first word: name, connection, TLS and the file's description.
const FIRST_WORD: Duration = Duration::from_secs(8);
/// Longest wait for the next piece.
const NEXT_PIECE: Duration = Duration::from_secs(30);
/// Reports that may wait to be read.
const REPORTS: usize = 64;

enum Report {
    /// The hub's description of the file: its SHA-256, as the hub stores large files, and its length.
    Described {
        etag: String,
        bytes: u64,
    },
    Piece(u64),
    Done(Result<PathBuf, String>),
}

/// Downloads into `dir` and gives back the file's path there. Its bytes are not verified yet.
///
/// # Errors
/// The hub cannot be reached, says no, falls silent, or has another file under this name.
pub fn fetch(spec: &Spec, dir: &Path, endpoint: Option<&str>) -> anyhow::Result<PathBuf> {
    forget_overlong_parts(dir, spec.bytes);
    let mut builder = ApiBuilder::from_env().with_cache_dir(dir.to_owned()).with_progress(false).with_retries(0);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    let api = builder.build().context("no client")?;
    let repository = api.model(spec.hub_repository.to_owned());
    let (tx, rx) = sync_channel(REPORTS);
    let file = spec.file;
    let expected = spec.sha256;
    std::thread::Builder::new().name("hub".to_owned()).spawn(move || {
        let done = download(&api, &repository, file, expected, &tx);
        let _ = tx.send(Report::Done(done));
    })?;
    let path = follow(spec, &rx)?;
    path.canonicalize().with_context(|| format!("cannot find {}", path.display()))
}

fn download(
    api: &hf_hub::api::sync::Api,
    repository: &ApiRepo,
    file: &str,
    expected: &str,
    tx: &SyncSender<Report>,
) -> Result<PathBuf, String> {
    let described = api.metadata(&repository.url(file)).map_err(|e| chain(&e))?;
    let etag = described.etag().to_owned();
    let other = is_sha256(&etag) && etag != expected;
    // A send fails when the fetch was given up; then the download is worth nothing more.
    tx.send(Report::Described { etag, bytes: described.size() as u64 }).map_err(|e| e.to_string())?;
    if other {
        return Err("another file".to_owned());
    }
    repository.download_with_progress(file, Pieces(tx.clone())).map_err(|e| chain(&e))
}

/// Reads the reports until the file is there.
fn follow(spec: &Spec, rx: &Receiver<Report>) -> anyhow::Result<PathBuf> {
    let mut progress: Option<Progress> = None;
    loop {
        let patience = if progress.is_some() { NEXT_PIECE } else { FIRST_WORD };
        match rx.recv_timeout(patience) {
            Ok(Report::Described { etag, bytes }) => {
                let same = bytes == spec.bytes && (!is_sha256(&etag) || etag == spec.sha256);
                anyhow::ensure!(
                    same,
                    "its file is another one: {bytes} bytes with SHA-256 {etag}, expected {} with {}",
                    spec.bytes,
                    spec.sha256
                );
                progress = Some(Progress::begin(&format!("{} from Hugging Face", spec.file), bytes));
            }
            Ok(Report::Piece(bytes)) => {
                if let Some(p) = progress.as_mut() {
                    p.add(bytes);
                }
            }
            Ok(Report::Done(done)) => return done.map_err(|why| anyhow::anyhow!(why)),
            Err(RecvTimeoutError::Timeout) => anyhow::bail!("no answer for {} s", patience.as_secs()),
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("its client ended without a word"),
        }
    }
}

/// Whether the hub's tag is a digest of the content, as it is for large files.
fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Removes part files that hold all bytes or more: the hub refuses to go on from there.
fn forget_overlong_parts(dir: &Path, bytes: u64) {
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "part") && entry.metadata().is_ok_and(|m| m.len() >= bytes) {
                std::fs::remove_file(&path).ok();
            }
        }
    }
}

/// An error with its reasons.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(e) = next {
        let reason = e.to_string();
        if !text.contains(&reason) {
            text += &format!(": {reason}");
        }
        next = e.source();
    }
    text
}

/// Passes the crate's progress on.
struct Pieces(SyncSender<Report>);

impl hf_hub::api::Progress for Pieces {
    fn init(&mut self, _size: usize, _filename: &str) {}

    fn update(&mut self, size: usize) {
        let _ = self.0.send(Report::Piece(size as u64));
    }

    fn finish(&mut self) {}
}
