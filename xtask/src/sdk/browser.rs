//! A browser's clients: Chromium without a window, driven from Node, against the server.

use anyhow::{Context, bail};

use super::{Server, node};
use crate::process::{command, run as run_command};
use crate::test::Count;

/// Names the browser's binary, for the tests and for whoever has one of his own.
const VARIABLE: &str = "KVIT_TEST_CHROMIUM";
/// What systems call it.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Runs the browser's tests against the server at an address.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    node::files(server.address, &["browser.test.mjs"], &[(VARIABLE, &chromium()?)])
}

/// The binary: named, or found, or installed where that can be done.
fn chromium() -> anyhow::Result<String> {
    if let Some(named) = std::env::var(VARIABLE).ok().filter(|n| !n.is_empty()) {
        return Ok(named);
    }
    if let Some(found) = found() {
        return Ok(found);
    }
    let said = |program: &str, args: &[&str]| command(program).args(args).output().ok().filter(|o| o.status.success()).map(|o| o.stdout);
    let superuser = said("id", &["-u"]).is_some_and(|id| id.trim_ascii() == b"0");
    if !superuser || said("apt-get", &["--version"]).is_none() {
        bail!("the browser's tests need Chromium: install your system's package (`apt-get install chromium`), or name one in {VARIABLE}");
    }
    eprintln!("xtask: Chromium is missing; installing Debian's");
    let apt = |words: &[&str]| {
        let mut apt = command("apt-get");
        apt.args(["-qq", "-o", "DPkg::Lock::Timeout=300"]).args(words).env("DEBIAN_FRONTEND", "noninteractive");
        run_command(&mut apt)
    };
    apt(&["update"])?;
    apt(&["install", "-y", "--no-install-recommends", "chromium"])?;
    found().context("apt-get has installed chromium, and there is none")
}

fn found() -> Option<String> {
    let paths = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&paths).collect();
    let files = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.filter(|file| file.is_file()).find_map(|file| file.to_str().map(str::to_owned))
}
