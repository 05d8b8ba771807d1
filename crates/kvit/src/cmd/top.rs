//! `kvit top`: the server in the terminal. What is shown and how stands in the crate `top`; here are the server, the signals and the command line.

mod remote;

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use tokio::signal::unix::{SignalKind, signal};
use top::{Looker, Settings, State, Stop, Trouble, Wanted};

use crate::cli::TopArgs;
use crate::failure::Failure;
use crate::{client, out};
use remote::Remote;

/// How long the screen has to put the terminal back once a signal has come.
const PATIENCE: Duration = Duration::from_secs(2);
/// Columns and rows where nobody says how many there are.
const SIZE: (u16, u16) = (80, 24);
/// Most of either that one frame is drawn in.
const SIZE_MAX: u16 = 500;

/// Shows the server until somebody ends it, or prints one frame.
///
/// # Errors
/// An address or a key that is none, no terminal, or, for one frame, no server.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let remote = Remote::new(&args.ask.server)?;
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let settings = Settings { server: remote.base().to_owned(), every_ms: (args.interval * 1000.0) as u64, colour };
    if args.once || args.ask.json {
        return once(&remote, settings, args.ask.json);
    }
    if !is_at_terminal() {
        return Err(Failure::Usage("`kvit top` needs a terminal to draw on; `kvit top --once` prints one frame".to_owned()));
    }
    let stop = Stop::default();
    hear_signals(stop.clone())?;
    match top::run(settings, Arc::new(remote), &stop) {
        // Whoever closed the terminal wants no more of it, and nobody is there to be told anything.
        Err(_) if !is_at_terminal() => Ok(()),
        result => Ok(result.context("the terminal")?),
    }
}

fn is_at_terminal() -> bool {
    std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// One look, as a frame or as JSON.
fn once(remote: &Remote, settings: Settings, is_json: bool) -> Result<(), Failure> {
    // What goes wrong at the first question has its own exit code.
    client::get(remote.base(), "/v1/workers")?;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1000.0);
    let look = Looker::new(remote).look(&Wanted::default(), now_ms);
    match look.trouble() {
        None => {}
        Some(Trouble::Unreachable(why)) => return Err(Failure::Unreachable(why.clone())),
        Some(trouble) => return Err(anyhow!("{}", trouble.text()).into()),
    }
    let mut state = State::new(Settings { colour: false, ..settings }, now_ms);
    state.take(look);
    if is_json {
        return out::json(&top::json(&state));
    }
    let (width, height) = size();
    out::line(&top::frame(&state, width, height))
}

/// The terminal's size, else that of `COLUMNS` and `LINES`, else a fixed one.
fn size() -> (u16, u16) {
    if std::io::stdout().is_terminal() {
        let (rows, columns) = console::Term::stdout().size();
        return (columns, rows.saturating_sub(1));
    }
    let told = |name: &str, else_: u16| std::env::var(name).ok().and_then(|n| n.parse().ok()).map_or(else_, |n: u16| n.clamp(1, SIZE_MAX));
    (told("COLUMNS", SIZE.0), told("LINES", SIZE.1))
}

/// SIGTERM, SIGHUP (the connection to the terminal is gone) and SIGINT end the screen in good order.
fn hear_signals(stop: Stop) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("cannot listen for signals")?;
    let hear = |kind| {
        let _inside = runtime.enter();
        signal(kind).context("cannot listen for signals")
    };
    let (mut terminate, mut hangup, mut interrupt) =
        (hear(SignalKind::terminate())?, hear(SignalKind::hangup())?, hear(SignalKind::interrupt())?);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        stop.stop();
        // Whatever the screen's thread still waits for, it has had its time.
        std::thread::sleep(PATIENCE);
        std::process::exit(1);
    });
    Ok(())
}
