//! The demo's own `kvit serve`: a child process, so that everything the demo says was seen from outside.
//!
//! Invariant: the child is ended by its process id, whichever way the demo ends: at its end, when it fails, on SIGINT, SIGTERM and SIGHUP.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// What the server is told beside its model: few places, so that a queue forms, and short patience, so that nobody has to wait long for it.
pub const OPTIONS: &[(&str, &str)] = &[
    ("max_running", "3"),
    ("unread_max_ms", "900"),
    ("client_lost_after_ms", "2000"),
    ("send_buffer_bytes", "16384"),
    ("drain_ms", "2000"),
    ("log", "warn"),
];
/// Longest wait for the server to be ready, and for it to end.
const READY: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(20);
/// Lines of its log that are kept, to be shown if it fails.
const LOG_LINES: usize = 20;
/// How often it is looked at whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

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
    /// Starts it and waits until it can answer.
    ///
    /// # Errors
    /// It does not start; its last words are in the error.
    pub fn start(model: &Path, threads: Option<u16>) -> Result<Server, Failure> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.args(["serve", "--host", "127.0.0.1", "--port", "0", "--model"]).arg(model);
        command.args(OPTIONS.iter().flat_map(|(key, value)| [format!("--{}", key.replace('_', "-")), (*value).to_owned()]));
        if let Some(threads) = threads {
            command.args(["--threads", &threads.to_string()]);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KVIT_")) {
            command.env_remove(name);
        }
        // A group of its own: Ctrl-C is heard here, and ends the child from here.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // Signals are heard before there is a child: none of them finds one that it would leave behind.
        let slot = Arc::new(Mutex::new(None));
        end_on_signal(slot.clone())?;
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let child = held.insert(command.spawn().context("cannot start `kvit serve`")?);
        let (pid, stdout, stderr) = (child.id(), child.stdout.take(), child.stderr.take());
        drop(held);
        let mut server = Server { child: slot, address: String::new(), port: 0, pid };

        let log = Arc::new(Mutex::new(VecDeque::new()));
        let keep = log.clone();
        let logged = std::thread::spawn(move || {
            for line in stderr.into_iter().flat_map(|e| BufReader::new(e).lines()).map_while(Result::ok) {
                let mut log = keep.lock().unwrap_or_else(PoisonError::into_inner);
                if log.len() == LOG_LINES {
                    log.pop_front();
                }
                log.push_back(line);
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
                    let said: Vec<String> = log.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
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

/// From now on a signal that ends the demo ends the child first.
fn end_on_signal(child: Arc<Mutex<Option<Child>>>) -> Result<(), Failure> {
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
        eprintln!("kvit: demo interrupted; its server was ended");
        std::process::exit(code);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeFlags;

    #[test]
    fn the_servers_options_are_options_of_serve() {
        let mut flags = ServeFlags::default();
        for (key, value) in OPTIONS {
            assert_eq!(flags.set(key, value), Some(Ok(())), "{key}");
        }
        flags.fill().check().expect("they go together");
    }
}
