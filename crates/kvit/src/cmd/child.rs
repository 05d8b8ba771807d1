//! A command's own `kvit serve`: a child process on a free port, so that everything the command says was seen from outside.
//!
//! Invariant: the child is ended by its process id, whichever way the command ends: at its end, when it fails, on SIGINT, SIGTERM and SIGHUP.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
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

/// The running server.
pub struct Server {
    child: Arc<Mutex<Option<Child>>>,
    /// `http://127.0.0.1:PORT`
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Its process id.
    pub pid: u32,
}

impl Server {
    /// Starts it with these arguments behind `serve --port 0` and waits until it can answer. `whose` names the command in messages.
    ///
    /// # Errors
    /// It does not start; its last words are in the error.
    pub fn start(whose: &'static str, log: Log, arguments: impl FnOnce(&mut Command)) -> Result<Server, Failure> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0", "--store", "none"]);
        arguments(&mut command);
        // A group of its own: Ctrl-C is heard here, and ends the child from here.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // Signals are heard before there is a child: none of them finds one that it would leave behind.
        let slot = Arc::new(Mutex::new(None));
        end_on_signal(whose, slot.clone())?;
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let child = held.insert(command.spawn().context("cannot start `kvit serve`")?);
        let (pid, stdout, stderr) = (child.id(), child.stdout.take(), child.stderr.take());
        drop(held);
        let mut server = Server { child: slot, address: String::new(), port: 0, pid };

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
                    if let Some(address) = line.strip_prefix("listening on ") {
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
        match self.child.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !end(&self.child) {
            // A signal ended it, which is why its streams broke off; the thread that heard the signal is about to end this process.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Ends the child if it still runs; false if somebody else has ended it. One that was waited for is not signalled again: its id may be
/// another's by now.
fn end(child: &Mutex<Option<Child>>) -> bool {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    // It leaves its place when it is gone, so that whoever finds the place empty knows that.
    let Some(running) = child.as_mut() else { return false };
    let _ = running.kill();
    let _ = running.wait();
    *child = None;
    true
}

/// From now on a signal that ends this process ends the child first.
fn end_on_signal(whose: &'static str, child: Arc<Mutex<Option<Child>>>) -> Result<(), Failure> {
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
        end(&child);
        eprintln!("kvit: {whose} interrupted; its server was ended");
        std::process::exit(code);
    });
    Ok(())
}
