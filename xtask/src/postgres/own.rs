//! A PostgreSQL server of our own, in a folder of its own, which can be stopped in its ways and started again on the same port and data.
//!
//! Invariant: the server is this process's child and ends with it: told to when this is dropped, by the kernel if the thread that started it is
//! gone.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::programs::{User, as_user, found, unprivileged};

/// How long a server may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Many tests at once, each with a few stores.
const CONNECTIONS: &str = "max_connections=400";
/// How often another port is taken, should somebody have been quicker.
const PORTS: u32 = 3;
/// Ports that nobody is given who asks for any: a server that is stopped for a while finds its own free again.
const FIRST_PORT: u32 = 10_000;
/// So many of them.
const PORT_RANGE: u32 = 20_000;

/// The server.
pub struct Own {
    programs: PathBuf,
    user: Option<User>,
    port: u16,
    folder: Folder,
    settings: Vec<String>,
    /// `None` while it is stopped.
    server: Option<Child>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its fast shutdown: it closes its clients' connections, writes what is to be written, and goes.
    Fast,
    /// Every process of it at once by SIGKILL: nothing is written any more, and the next start recovers from the log.
    Killed,
}

/// A folder that is removed with this.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.stop(Stop::Fast) {
            eprintln!("xtask: PostgreSQL: {error:#}");
            let _ = self.stop(Stop::Killed);
        }
    }
}

impl Own {
    /// A fresh one, which is ready.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start() -> anyhow::Result<Own> {
        Own::with(&[])
    }

    /// The same with settings of its own, as `name=value`.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn with(settings: &[&str]) -> anyhow::Result<Own> {
        let mut tries = 1;
        loop {
            match fresh(tries, settings) {
                Err(error) if tries < PORTS => {
                    eprintln!("xtask: PostgreSQL: {error:#}; again with another port");
                    tries += 1;
                }
                started => return started,
            }
        }
    }

    /// How a client reaches it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Stops it, and comes back when no process of it is left.
    ///
    /// # Errors
    /// It does not end.
    pub fn stop(&mut self, how: Stop) -> anyhow::Result<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let mut family = Vec::new();
        match how {
            Stop::Fast => signal("INT", server.id()),
            Stop::Killed => {
                // Stopped first, so that it starts no further one.
                signal("STOP", server.id());
                family = children(server.id());
                family.iter().chain([&server.id()]).for_each(|process| signal("KILL", *process));
            }
        }
        let until = Instant::now() + PATIENCE;
        while server.try_wait()?.is_none() || family.iter().any(|process| lives(*process)) {
            if Instant::now() > until {
                bail!("the server did not end within {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.server = None;
        Ok(())
    }

    /// Starts it where it was, with what it has, and comes back when it takes connections.
    ///
    /// # Errors
    /// It does not start.
    pub fn again(&mut self) -> anyhow::Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        let (data, log) = (self.folder.0.join("data"), self.folder.0.join("log"));
        let mut server = as_user(self.user, &self.programs.join("postgres"));
        server.arg("-D").arg(&data).args([
            "-p",
            &self.port.to_string(),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
        ]);
        server.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        server.current_dir(&self.folder.0).stdout(Stdio::null()).stderr(std::fs::File::create(&log)?);
        let server = self.server.insert(server.spawn().context("cannot start setpriv (util-linux)")?);
        ready(server, &data, &log)
    }
}

fn fresh(number: u32, settings: &[&str]) -> anyhow::Result<Own> {
    let programs = found().context("there is no PostgreSQL here: install your system's package")?;
    let user = unprivileged()?;
    let port = free_port(number)?;
    let folder = Folder(std::env::temp_dir().join(format!("kvit-postgres-{}-{port}", std::process::id())));
    std::fs::create_dir(&folder.0).with_context(|| format!("cannot make {}", folder.0.display()))?;
    if let Some((user, group)) = user {
        std::os::unix::fs::chown(&folder.0, Some(user), Some(group))?;
    }
    let mut initdb = as_user(user, &programs.join("initdb"));
    initdb.args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-N", "-D"]).arg(folder.0.join("data"));
    let made = initdb.current_dir(&folder.0).output().context("cannot start setpriv (util-linux)")?;
    if !made.status.success() {
        bail!("initdb: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    let settings = [CONNECTIONS].iter().chain(settings).map(|setting| (*setting).to_owned()).collect();
    let mut own = Own { programs, user, port, folder, settings, server: None };
    own.again()?;
    Ok(own)
}

/// A port that is free now; other processes begin to look elsewhere.
fn free_port(number: u32) -> anyhow::Result<u16> {
    let begin = std::process::id().wrapping_mul(31).wrapping_add(number * 977);
    let ports = (0..PORT_RANGE).map(|n| FIRST_PORT + begin.wrapping_add(n) % PORT_RANGE).filter_map(|port| u16::try_from(port).ok());
    ports.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).context("no port is free")
}

fn signal(name: &str, process: u32) {
    let _ = Command::new("kill").args(["-s", name, &process.to_string()]).status();
}

/// The state and the parent of a process, as the kernel shows them.
fn shown(process: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// Whether it still has anything; one that nobody has waited for has nothing but its number.
fn lives(process: u32) -> bool {
    shown(process).is_some_and(|(state, _)| state != "Z" && state != "X")
}

fn children(of: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.filter(|process| shown(*process).is_some_and(|(_, parent)| parent == of)).collect()
}

/// Waits for the word that it writes into its own file when it takes connections.
fn ready(server: &mut Child, data: &Path, log: &Path) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let says = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        // Its number is there, too: the file may be left by an earlier life that was killed.
        let is_its = says.lines().next().is_some_and(|line| line.trim() == server.id().to_string());
        if is_its && says.lines().any(|line| line.trim() == "ready") {
            return Ok(());
        }
        let ended = server.try_wait()?.is_some();
        if ended || Instant::now() > until {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            bail!("the server {}: {}", if ended { "ended" } else { "is not ready" }, log.trim());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
