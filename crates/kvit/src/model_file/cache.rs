//! The cache folder: where it is, what is in it, and the lock that lets one process at a time fetch into it.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Spec, digest};

/// The folder that fetched models are kept in.
#[derive(Clone, Debug)]
pub struct Cache {
    models: PathBuf,
}

/// A model file in the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// Where it is.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: String,
    /// Whether that is the one expected; `None` for a file whose digest kvit does not know.
    pub verified: Option<bool>,
}

/// What stands in the cache under a model's name, by its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No file.
    Nothing,
    /// The expected bytes.
    Whole {
        /// Their SHA-256, just computed.
        sha256: String,
        /// How many they are.
        bytes: u64,
    },
    /// Other bytes.
    Damaged {
        /// Their SHA-256.
        sha256: String,
        /// How many they are.
        bytes: u64,
    },
}

impl Cache {
    /// The cache at `dir` if one is given (`--cache`, `KVIT_CACHE`), else where the XDG rules put it.
    ///
    /// # Errors
    /// Neither a folder nor a home is known.
    pub fn locate(dir: Option<PathBuf>) -> anyhow::Result<Cache> {
        let from = |name: &str| std::env::var_os(name).filter(|v: &OsString| Path::new(v).is_absolute()).map(PathBuf::from);
        let xdg = || from("XDG_CACHE_HOME").map(|d| d.join("kvit"));
        let home = || from("HOME").map(|d| d.join(".cache").join("kvit"));
        let root = dir.or_else(xdg).or_else(home).context("no cache folder: name one with --cache DIR or KVIT_CACHE, or set HOME")?;
        Ok(Cache { models: root.join("models") })
    }

    /// The folder that the model files stand in.
    pub fn models(&self) -> &Path {
        &self.models
    }

    /// Where this model's file stands, or would.
    pub fn path(&self, spec: &Spec) -> PathBuf {
        self.models.join(spec.file)
    }

    /// Where a damaged file of this model is moved; one at most is kept.
    pub fn aside(&self, spec: &Spec) -> PathBuf {
        self.models.join(format!("{}.damaged", spec.file))
    }

    /// Reads the model's file through and tells what it is. It was verified before it got its name, but a disk, a copy or an editor may have
    /// changed it since, and only its bytes say whether.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn check(&self, spec: &Spec) -> anyhow::Result<Found> {
        let path = self.path(spec);
        match std::fs::metadata(&path) {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => anyhow::bail!("{} is no file; remove it and pull again", path.display()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(e).with_context(|| format!("cannot look at {}", path.display())),
        }
        let (sha256, bytes) =
            digest::of_file(&path).with_context(|| format!("cannot read {} (if it stays so, remove it and pull again)", path.display()))?;
        let whole = sha256 == spec.sha256 && bytes == spec.bytes;
        Ok(if whole { Found::Whole { sha256, bytes } } else { Found::Damaged { sha256, bytes } })
    }

    /// Creates the folder and waits for the right to fetch into it; the lock lasts as long as the file that is given back is open.
    ///
    /// # Errors
    /// The folder cannot be made or locked.
    pub fn lock(&self) -> anyhow::Result<File> {
        std::fs::create_dir_all(&self.models).with_context(|| format!("cannot make the folder {}", self.models.display()))?;
        let path = self.models.join(".lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("another kvit is fetching a model into {}; waiting for it", self.models.display());
                file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(e)) => return Err(e).with_context(|| format!("cannot lock {}", path.display())),
        }
        Ok(file)
    }

    /// Every model file here, by name, each read through for its digest.
    ///
    /// # Errors
    /// The folder or a file in it cannot be read. A folder that is not there has no models.
    pub fn list(&self, known: &[Spec]) -> anyhow::Result<Vec<Cached>> {
        let entries = match std::fs::read_dir(&self.models) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", self.models.display())),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "gguf") && path.is_file() {
                paths.push(path);
            }
        }
        paths.sort();
        paths.into_iter().map(|path| cached(path, known)).collect()
    }
}

fn cached(path: PathBuf, known: &[Spec]) -> anyhow::Result<Cached> {
    let (sha256, bytes) = digest::of_file(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let spec = known.iter().find(|s| path.file_name().is_some_and(|n| n == s.file));
    Ok(Cached { verified: spec.map(|s| s.sha256 == sha256), path, bytes, sha256 })
}
