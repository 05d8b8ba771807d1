//! PostgreSQL's programs: where they are, and who may run them.
//!
//! PostgreSQL does not run as root; for root it runs as an unprivileged user.
//!
//! Invariant: a program that is started here is told to end when the thread that started it is gone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::packages;
use crate::process::command;

/// An unprivileged user and its group.
pub(super) type User = (u32, u32);

/// Installs them if they are not here.
pub(super) fn install() -> anyhow::Result<()> {
    if found().is_none() {
        let or_else = format!(", or name a server's URL in {}", super::VARIABLE);
        packages::install("postgresql", "the tests of several gateways need PostgreSQL", &or_else)?;
    }
    Ok(())
}

/// The folder with `initdb` and `postgres`; of several versions the newest.
#[must_use]
pub fn found() -> Option<PathBuf> {
    // Debian keeps it off the path, a folder for each version.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort_by_key(|folder| version(folder));
    folders.extend(packages::found(&["initdb"]).and_then(|file| Some(Path::new(&file).parent()?.to_owned())));
    folders.into_iter().rev().find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}

fn version(folder: &Path) -> u32 {
    folder.iter().rev().nth(1).and_then(|name| name.to_str()?.parse().ok()).unwrap_or(0)
}

/// Who it runs as, if we are root.
pub(super) fn unprivileged() -> anyhow::Result<Option<User>> {
    let id = |args: &[&str]| {
        let output = command("id").args(args).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
    };
    if id(&["-u"]) != Some(0) {
        return Ok(None);
    }
    let who = ["postgres", "nobody"].iter().find_map(|name| Some((id(&["-u", name])?, id(&["-g", name])?)));
    who.map(Some).context("PostgreSQL does not run as root, and there is neither a user `postgres` nor `nobody`")
}

/// A program as that user, which is told to end when we are gone.
pub(super) fn as_user(user: Option<User>, program: &Path) -> Command {
    let mut setpriv = command("setpriv");
    setpriv.args(["--pdeathsig", "INT"]);
    if let Some((user, group)) = user {
        setpriv.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
    }
    setpriv.arg("--").arg(program);
    setpriv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_is_taken_by_its_number() {
        let mut folders: Vec<PathBuf> =
            ["9", "15", "17", "16"].iter().map(|v| Path::new("/usr/lib/postgresql").join(v).join("bin")).collect();
        folders.sort_by_key(|folder| version(folder));
        assert_eq!(folders.last().map(|folder| version(folder)), Some(17));
        assert_eq!(version(Path::new("/usr/bin")), 0);
    }
}
