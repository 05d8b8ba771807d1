//! Processes: run one and listen to what it says, or keep one for a while and end it by its id.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How long a process may take to end after it was told to.
const END: Duration = Duration::from_secs(30);

/// A command that runs in the repository's root.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(crate::root()).stdin(Stdio::null());
    // Cargo says to us which package we are. To a cargo that we start it would look like a change, and it would build ring and all above anew.
    let ours = |name: &OsStr| name.to_str().is_some_and(|name| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|sign| name.starts_with(sign)));
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command
}

/// Runs to the end; a failure is an error that names the command.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = show(command);
    eprintln!("> {shown}");
    let status = command.status().with_context(|| format!("cannot start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs to the end, passing on what it says, and gives back all of that and whether it succeeded.
pub fn listen(command: &mut Command) -> anyhow::Result<(String, bool)> {
    let shown = show(command);
    eprintln!("> {shown}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(|| format!("cannot start {shown}"))?;
    let errors = child.stderr.take().map(|pipe| std::thread::spawn(move || pass_on(pipe, std::io::stderr())));
    let mut said = child.stdout.take().map(|pipe| pass_on(pipe, std::io::stdout())).unwrap_or_default();
    if let Some(errors) = errors {
        said += &errors.join().unwrap_or_default();
    }
    let status = child.wait().with_context(|| format!("cannot wait for {shown}"))?;
    Ok((said, status.success()))
}

/// The same of what it says to stdout; its stderr is ours.
pub fn listen_to_stdout(command: &mut Command) -> anyhow::Result<(String, bool)> {
    let shown = show(command);
    eprintln!("> {shown}");
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {shown}"))?;
    let said = child.stdout.take().map(|pipe| pass_on(pipe, std::io::stdout())).unwrap_or_default();
    let status = child.wait().with_context(|| format!("cannot wait for {shown}"))?;
    Ok((said, status.success()))
}

fn pass_on(from: impl Read, mut to: impl Write) -> String {
    let mut said = String::new();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line).into_owned();
        let _ = to.write_all(text.as_bytes());
        said += &text;
        line.clear();
    }
    said
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// A process that runs beside us. Dropping it ends it.
pub struct Running {
    child: Child,
    name: String,
}

impl Running {
    /// Starts a process and waits for the first line on its stdout that begins with `sign`; gives back the rest of that line.
    pub fn start(command: &mut Command, sign: &str, patience: Duration) -> anyhow::Result<(Running, String)> {
        let name = show(command);
        eprintln!("> {name} &");
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take();
        let running = Running { child, name };
        let (tx, rx) = mpsc::channel();
        // Reads on after the sign too: a full pipe would stop the process.
        std::thread::spawn(move || {
            for line in stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(Result::ok) {
                eprintln!("  | {line}");
                let _ = tx.send(line);
            }
        });
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = rx.recv_timeout(left).with_context(|| format!("{}: no line `{sign}...` within {patience:?}", running.name))?;
            if let Some(rest) = line.strip_prefix(sign) {
                return Ok((running, rest.trim().to_owned()));
            }
        }
    }

    /// Asks it to end (SIGTERM) and waits; it must end by itself, and well.
    pub fn end(mut self) -> anyhow::Result<()> {
        self.signal();
        let until = Instant::now() + END;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{}: {status} after SIGTERM", self.name),
                None if Instant::now() > until => bail!("{}: still there {END:?} after SIGTERM", self.name),
                None => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn signal(&self) {
        let _ = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The words of a driver: those that were given, with the document's name behind `--write`.
pub fn written<'a>(args: &[&'a str], document: &'a str) -> Vec<&'a str> {
    args.iter().flat_map(|&word| if word == "--write" { vec!["--write", document] } else { vec![word] }).collect()
}
