//! A PostgreSQL server for the tests: a fresh one on loopback, in a folder of its own, that is gone afterwards.
//!
//! PostgreSQL does not run as root; for root it runs as an unprivileged user.
//!
//! Invariant: the server is this process's child and ends with it: told to when this is dropped, by the kernel if this process is killed.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::process::command;
use crate::sdk::packages;

/// The tests find their server by this; one that is named already is used, and none is started.
pub const VARIABLE: &str = "KVIT_TEST_POSTGRES";
/// How long a server may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Many tests at once, each with a few stores.
const CONNECTIONS: &str = "max_connections=400";
/// How often another port is taken, should somebody have been quicker.
const PORTS: u32 = 3;

/// A server that runs, or one that somebody else runs.
pub struct Postgres {
    /// How a client reaches it.
    pub url: String,
    /// Ends with this.
    _ours: Option<Ours>,
}

struct Ours {
    server: Child,
    folder: Folder,
}

/// A folder that is removed with this.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // SIGINT is its fast shutdown: it closes its clients' connections, writes what is to be written, and goes.
        let _ = Command::new("kill").args(["-s", "INT", &self.server.id().to_string()]).status();
        let until = Instant::now() + PATIENCE;
        while matches!(self.server.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        if matches!(self.server.try_wait(), Ok(None)) {
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}

impl Postgres {
    /// The server that is named, or one of our own.
    ///
    /// # Errors
    /// It is not installed and cannot be, or does not start.
    pub fn start() -> anyhow::Result<Postgres> {
        if let Some(url) = std::env::var(VARIABLE).ok().filter(|url| !url.is_empty()) {
            return Ok(Postgres { url, _ours: None });
        }
        let programs = programs()?;
        let mut tries = 1;
        loop {
            match start(&programs) {
                Err(error) if tries < PORTS => {
                    eprintln!("xtask: PostgreSQL: {error:#}; again with another port");
                    tries += 1;
                }
                started => return started,
            }
        }
    }
}

/// Runs a command with a server in its environment.
///
/// # Errors
/// No server, or the command fails.
pub fn with(words: &[&str]) -> anyhow::Result<()> {
    let (program, args) = words.split_first().context("a command is missing")?;
    let postgres = Postgres::start()?;
    crate::process::run(command(program).args(args).env(VARIABLE, &postgres.url))
}

/// The folder with `initdb` and `postgres`.
fn programs() -> anyhow::Result<PathBuf> {
    if let Some(found) = found() {
        return Ok(found);
    }
    packages::install("postgresql", "the tests of several gateways need PostgreSQL", &format!(", or name a server's URL in {VARIABLE}"))?;
    found().context("apt-get has installed postgresql, and there is no initdb")
}

fn found() -> Option<PathBuf> {
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
fn unprivileged() -> anyhow::Result<Option<(u32, u32)>> {
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
fn as_user(user: Option<(u32, u32)>, program: &Path) -> Command {
    let mut setpriv = command("setpriv");
    setpriv.args(["--pdeathsig", "INT"]);
    if let Some((user, group)) = user {
        setpriv.args([format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]);
    }
    setpriv.arg("--").arg(program);
    setpriv
}

fn start(programs: &Path) -> anyhow::Result<Postgres> {
    let user = unprivileged()?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let folder = Folder(std::env::temp_dir().join(format!("kvit-postgres-{}-{port}", std::process::id())));
    std::fs::create_dir(&folder.0).with_context(|| format!("cannot make {}", folder.0.display()))?;
    if let Some((user, group)) = user {
        std::os::unix::fs::chown(&folder.0, Some(user), Some(group))?;
    }
    let data = folder.0.join("data");
    let mut initdb = as_user(user, &programs.join("initdb"));
    initdb.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-N", "-D"]).arg(&data);
    let made = initdb.current_dir(&folder.0).output().context("cannot start setpriv (util-linux)")?;
    if !made.status.success() {
        bail!("initdb: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    let log = std::fs::File::create(folder.0.join("log"))?;
    let mut server = as_user(user, &programs.join("postgres"));
    server.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    server.args(["-c", CONNECTIONS]).current_dir(&folder.0).stdout(Stdio::null()).stderr(log);
    let mut ours = Ours { server: server.spawn().context("cannot start setpriv (util-linux)")?, folder };
    ready(&mut ours, &data)?;
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    eprintln!("xtask: PostgreSQL at {url}, process {}", ours.server.id());
    Ok(Postgres { url, _ours: Some(ours) })
}

/// Waits for the word that it writes into its own file when it takes connections.
fn ready(ours: &mut Ours, data: &Path) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let says = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        if says.lines().any(|line| line.trim() == "ready") {
            return Ok(());
        }
        let ended = ours.server.try_wait()?.is_some();
        if ended || Instant::now() > until {
            let log = std::fs::read_to_string(ours.folder.0.join("log")).unwrap_or_default();
            bail!("the server {}: {}", if ended { "ended" } else { "is not ready" }, log.trim());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
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
