//! A command's own `kvit serve`, or `kvit gateway` and `kvit worker`: child processes on free ports, so that everything the command says was
//! seen from outside.
//!
//! Invariant: each child is ended by its process id, whichever way the command ends: at its end, when it fails, on SIGINT, SIGTERM and SIGHUP.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Longest wait for the server to be ready, and for it to end.
const READY: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(30);
/// Lines of its log that are kept, to be shown if it fails.
const LOG_LINES: usize = 20;
/// How often it is looked at whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// What becomes of what the server says while it runs. Its last lines are told if it does not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Log {
    /// Nobody sees the rest.
    Kept,
    /// It goes to standard error as it comes.
    Shown,
}

/// The children of this process that a signal ends with it. Listening is begun once.
#[derive(Clone)]
pub struct Brood(Arc<Mutex<Children>>);

#[derive(Default)]
struct Children {
    /// In the order in which they were started; those that are over stay in their places.
    all: Vec<Child>,
    /// A signal has ended them, and is about to end this process.
    over: bool,
}

impl Brood {
    /// From now on a signal that ends this process ends its children first. `whose` names the command in messages.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub fn guarded(whose: &'static str) -> Result<Brood, Failure> {
        let brood = Brood(Arc::default());
        end_on_signal(whose, brood.clone())?;
        Ok(brood)
    }

    fn held(&self) -> MutexGuard<'_, Children> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is started, and the words by which it says that it listens.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The command and what it is told in any case.
    pub words: &'static [&'static str],
    /// What stands before the address.
    pub says: &'static str,
}

/// `kvit serve` on a free port, that keeps nothing.
pub const SERVE: Program = Program { words: &["serve", "--port", "0", "--store", "none"], says: "listening on " };
/// `kvit gateway`, likewise.
pub const GATEWAY: Program = Program { words: &["gateway", "--port", "0", "--store", "none"], says: "listening on " };
/// `kvit worker` on a free port.
pub const WORKER: Program =
    Program { words: &["worker", "--name", "worker", "--listen", "127.0.0.1:0"], says: "worker worker listening on " };

/// The running server.
pub struct Server {
    brood: Brood,
    place: usize,
    /// `http://127.0.0.1:PORT`, or `grpc://` of a worker.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Its process id.
    pub pid: u32,
}

impl Server {
    /// Starts `kvit serve` with these further arguments and waits until it can answer. `whose` names the command in messages.
    ///
    /// # Errors
    /// It does not start; its last words are in the error.
    pub fn start(whose: &'static str, log: Log, arguments: impl FnOnce(&mut Command)) -> Result<Server, Failure> {
        Server::start_in(&Brood::guarded(whose)?, SERVE, log, arguments)
    }

    /// The same of any of the programs, among other children.
    ///
    /// # Errors
    /// It does not start; its last words are in the error.
    pub fn start_in(brood: &Brood, program: Program, log: Log, arguments: impl FnOnce(&mut Command)) -> Result<Server, Failure> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(own);
        command.args(program.words);
        arguments(&mut command);
        // A group of its own: Ctrl-C is heard here, and ends the child from here.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // Signals are heard before there is a child: none of them finds one that it would leave behind.
        let mut held = brood.held();
        if held.over {
            drop(held);
            wait_for_the_end();
        }
        let mut child = command.spawn().with_context(|| format!("cannot start `kvit {}`", program.words[0]))?;
        let (pid, stdout, stderr) = (child.id(), child.stdout.take(), child.stderr.take());
        held.all.push(child);
        let place = held.all.len() - 1;
        drop(held);
        let mut server = Server { brood: brood.clone(), place, address: String::new(), port: 0, pid };

        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let keep = lines.clone();
        let logged = std::thread::spawn(move || {
            for line in stderr.into_iter().flat_map(|e| BufReader::new(e).lines()).map_while(Result::ok) {
                if log == Log::Shown {
                    eprintln!("{line}");
                }
                let mut lines = keep.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.len() == LOG_LINES {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
        });
        let (tell, told) = channel();
        // Reads to the end, so that the child never blocks on its output.
        std::thread::spawn(move || {
            for line in stdout.into_iter().flat_map(|o| BufReader::new(o).lines()).map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let until = Instant::now() + READY;
        loop {
            match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix(program.says) {
                        let port = address.rsplit(':').next().and_then(|p| p.parse().ok());
                        server.port = port.ok_or_else(|| anyhow!("the server said `{line}`, which names no port"))?;
                        server.address = address.to_owned();
                        return Ok(server);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Failure::Other(anyhow!("the server was not ready within {} s", READY.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = logged.join();
                    let said: Vec<String> = lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
                    return Err(Failure::Other(anyhow!("the server ended before it was ready; it said:\n{}", said.join("\n"))));
                }
            }
        }
    }

    /// Asks it to drain and waits for its end; true if it ended well, which it does when every run was settled.
    ///
    /// # Errors
    /// It did not end in time; then it was ended.
    pub fn drain(self) -> Result<bool, Failure> {
        let pid = i32::try_from(self.pid).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("cannot ask the server to drain")?;
        }
        let until = Instant::now() + END;
        while Instant::now() < until {
            if let Some(status) = self.ended()? {
                return Ok(status.success());
            }
            std::thread::sleep(LOOK);
        }
        Err(Failure::Other(anyhow!("the server, process {}, did not drain within {} s", self.pid, END.as_secs())))
    }

    fn ended(&self) -> Result<Option<ExitStatus>, Failure> {
        match self.brood.held().all.get_mut(self.place) {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut held = self.brood.held();
        if held.over {
            // Which is why its streams broke off.
            drop(held);
            wait_for_the_end();
        }
        if let Some(child) = held.all.get_mut(self.place) {
            end(child);
        }
    }
}

/// The thread that heard a signal is about to end this process.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

/// Ends a child if it still runs. One that was waited for is not signalled again, as std promises: its id may be another's by now.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// From now on a signal that ends this process ends the children first, the newest before those that it needs.
fn end_on_signal(whose: &'static str, brood: Brood) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let kinds = [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143), (SignalKind::hangup(), 129)];
    let [mut interrupt, mut terminate, mut hangup] = kinds.map(|(kind, _)| signal(kind));
    drop(guard);
    for heard in [&interrupt, &terminate, &hangup] {
        if let Err(e) = heard {
            return Err(Failure::Other(anyhow!("cannot listen for signals: {e}")));
        }
    }
    std::thread::spawn(move || {
        let code = runtime.block_on(async {
            let (Ok(interrupt), Ok(terminate), Ok(hangup)) = (&mut interrupt, &mut terminate, &mut hangup) else { return 1 };
            tokio::select! {
                _ = interrupt.recv() => kinds[0].1,
                _ = terminate.recv() => kinds[1].1,
                _ = hangup.recv() => kinds[2].1,
            }
        });
        let mut held = brood.held();
        held.over = true;
        held.all.iter_mut().rev().for_each(end);
        let what = if held.all.len() > 1 { "servers were" } else { "server was" };
        drop(held);
        eprintln!("kvit: {whose} interrupted; its {what} ended");
        std::process::exit(code);
    });
    Ok(())
}
