//! The server that `--serve` starts: this same program, on a free port, ended by its process id.
//!
//! Invariant: it does not outlive the soak, whether that ends well, fails, or is told to end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use super::args::SoakArgs;
use crate::failure::Failure;

/// Runs that its journal keeps, and records: few, so that a warm-up fills it and memory can be judged.
pub const JOURNAL_RUNS: u64 = 256;
const JOURNAL_RECORDS: u64 = 4096;
/// How long it may take to end, its own drain included.
const ENDING: Duration = Duration::from_secs(30);

/// Exit code of a soak that was told to end: as a shell shows SIGINT.
const CUT_SHORT: i32 = 130;

/// A running server.
pub struct Server {
    child: Child,
    /// Its address.
    pub url: String,
}

impl Server {
    /// Starts it and waits until it can answer.
    ///
    /// # Errors
    /// It cannot be started, or ends before it listens.
    pub fn start(args: &SoakArgs, config: Option<&Path>, cache: Option<&Path>) -> Result<Server, Failure> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]);
        for (name, value) in
            [("--log", "warn"), ("--journal-runs", &JOURNAL_RUNS.to_string()), ("--journal-records", &JOURNAL_RECORDS.to_string())]
        {
            if !args.serve_options.iter().any(|o| o == name || o.starts_with(&format!("{name}="))) {
                command.args([name, value]);
            }
        }
        for (name, path) in [("--model", args.model.as_deref()), ("--config", config), ("--cache", cache)] {
            if let Some(path) = path {
                command.arg(name).arg(path);
            }
        }
        command.args(&args.serve_options);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start the server")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output is no pipe")?).lines();
        let found = lines.by_ref().map_while(Result::ok).find_map(|l| l.strip_prefix("listening on ").map(str::to_owned));
        let Some(url) = found else {
            let status = child.wait().context("cannot wait for the server")?;
            return Err(Failure::Other(anyhow!("the server ended before it listened ({status}); its reason stands above")));
        };
        end_with_a_signal(child.id());
        // Read to the end, so that it never blocks on a pipe that nobody empties.
        std::thread::spawn(move || lines.map_while(Result::ok).count());
        Ok(Server { child, url })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as an operator would and waits.
    ///
    /// # Errors
    /// It does not end, or says that runs were left unsettled.
    pub fn end(mut self) -> Result<(), Failure> {
        terminate(self.pid()).context("the server cannot be told to end")?;
        let since = Instant::now();
        while since.elapsed() < ENDING {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(Failure::Other(anyhow!("the server ended with {status} after SIGTERM"))),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Err(Failure::Other(anyhow!("the server did not end within {ENDING:?} of SIGTERM")))
    }
}

fn terminate(pid: u32) -> std::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Signal::TERM)?)
}

/// A soak that is told to end tells its server so first. Without a runtime for signals it goes as before, and the server stays: said then.
fn end_with_a_signal(pid: u32) {
    let listen = move || -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (mut interrupt, mut ended) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = ended.recv() => {}
            }
            let _ = terminate(pid);
            eprintln!("kvit: soak: told to end before it was done; its server drains and ends");
            std::process::exit(CUT_SHORT)
        })
    };
    std::thread::spawn(move || {
        if let Err(e) = listen() {
            eprintln!("kvit: soak: no signal can be listened for ({e}): end the server, process {pid}, yourself if you end the soak");
        }
    });
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already waited for where it ended well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
