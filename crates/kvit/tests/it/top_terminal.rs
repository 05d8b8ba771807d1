//! `kvit top` in a real pseudo-terminal, read back by a terminal emulator: runs appear and end, keys are heard, the server goes and comes back,
//! and the terminal is afterwards what it was before.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::server::{Caller, PATIENCE, Server, chat_body, lasting_model};

/// What a program wrote to its terminal, and what that shows.
struct Shown {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

/// A terminal with `kvit top` in it.
struct Terminal {
    child: Child,
    keys: Option<File>,
    /// The thread that reads, and whether it is to end with what it reads next.
    reading: Option<JoinHandle<()>>,
    closes: Arc<AtomicBool>,
    /// The program's own end, kept open so that its modes can be read.
    own: OwnedFd,
    shown: Arc<Mutex<Shown>>,
}

impl Terminal {
    fn open(server: &Server, args: &[&str], variables: &[(&str, &str)]) -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("the terminal can be opened");
        let own = ioctl_tiocgptpeer(&master, flags).expect("its other end");
        let end = || Stdio::from(own.try_clone().expect("it can be cloned"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
        command.args(["top", "--interval", "0.2", "--server", &format!("http://127.0.0.1:{}", server.port)]).args(args);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(variables.iter().copied());
        let keys = File::from(master.try_clone().expect("it can be cloned"));
        let shown = Arc::new(Mutex::new(Shown { parser: vt100::Parser::new(some(24), some(80), 0), bytes: Vec::new() }));
        size(&master, 80, 24);
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("kvit starts");
        let closes = Arc::new(AtomicBool::new(false));
        let (seen, is_closing, mut master) = (shown.clone(), closes.clone(), File::from(master));
        let reading = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = master.read(&mut piece) {
                let mut shown = seen.lock().expect("nobody panics with it");
                shown.parser.process(&piece[..n]);
                shown.bytes.extend_from_slice(&piece[..n]);
                if is_closing.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Terminal { child, keys: Some(keys), reading: Some(reading), closes, own, shown }
    }

    fn resize(&self, width: u16, height: u16) {
        self.shown.lock().expect("nobody panics with it").parser.screen_mut().set_size(some(height), some(width));
        size(self.keys.as_ref().expect("it is open"), width, height);
    }

    fn screen(&self) -> String {
        self.shown.lock().expect("nobody panics with it").parser.screen().contents()
    }

    /// Waits until the screen is so.
    fn wait(&self, what: &str, when: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let screen = self.screen();
            if when(&screen) {
                return screen;
            }
            assert!(since.elapsed() < PATIENCE, "it does not show {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn shows(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    fn press(&mut self, keys: &str) {
        self.keys.as_mut().expect("it is open").write_all(keys.as_bytes()).expect("keys can be typed");
    }

    /// Closes the terminal, as a window is closed. It is nobody's controlling terminal, so no signal tells of it.
    fn close(&mut self) {
        self.closes.store(true, Ordering::Relaxed);
        // A further frame, for the thread that reads.
        self.press("?");
        self.reading.take().expect("it is open").join().expect("it read");
        self.keys = None;
    }

    fn status(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            match self.child.try_wait().expect("it can be waited for") {
                Some(status) => return status,
                None => assert!(since.elapsed() < PATIENCE, "it does not end:\n{}", self.screen()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, and checks that the terminal is what it was.
    fn ended(&mut self) -> ExitStatus {
        let status = self.status();
        let modes = tcgetattr(&self.own).expect("its modes can be read").local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "the modes are put back: {modes:?}");
        self.wait("nothing of it any more", |_| {
            let shown = self.shown.lock().expect("nobody panics with it");
            !shown.parser.screen().alternate_screen() && !shown.parser.screen().hide_cursor()
        });
        status
    }

    fn has_colours(&self) -> bool {
        let shown = self.shown.lock().expect("nobody panics with it");
        let text = String::from_utf8_lossy(&shown.bytes);
        let is_colour = |sequence: &str| {
            let body = sequence.split(|c: char| c.is_ascii_alphabetic()).next().unwrap_or("");
            sequence[body.len()..].starts_with('m')
                && body.split(';').filter_map(|n| n.parse().ok()).any(|n: u32| matches!(n, 30..=38 | 40..=48 | 90..=107))
        };
        text.split("\u{1b}[").skip(1).any(is_colour)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn some(n: u16) -> NonZero<u16> {
    NonZero::new(n).expect("a terminal has rows and columns")
}

fn size(terminal: impl std::os::fd::AsFd, width: u16, height: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 }).expect("a terminal has a size");
}

#[test]
fn a_run_appears_is_cancelled_and_ends_and_the_server_goes_and_comes_back() {
    let server = Server::start(&lasting_model(), &["--log", "warn"]);
    let port = server.port.to_string();
    let mut terminal = Terminal::open(&server, &[], &[]);
    terminal.shows("No run yet. Ask the model something, and it appears here.");
    terminal.shows(" Healthy ");
    let mut caller = Caller::chat(&server, "appearing", &chat_body("Go on and on", 15_000, true));
    caller.read_tokens(3);
    terminal.wait("the run", |screen| screen.lines().any(|line| line.starts_with("> decoding   appearing")));

    terminal.press("?");
    terminal.shows("cancel the chosen run, once that is confirmed");
    terminal.press("?");
    terminal.wait("no help", |screen| !screen.contains("once that is confirmed"));
    terminal.press("\r");
    terminal.shows("first token");
    terminal.press("\r");
    terminal.shows("Runs  1 live");
    // Only a yes is one.
    terminal.press("c");
    terminal.shows("Cancel appearing?");
    terminal.press("n");
    terminal.shows("appearing was not cancelled");
    assert_eq!(server.run("appearing")["state"], "decoding");
    terminal.press("c");
    terminal.shows("Cancel appearing?");
    terminal.press("y");
    terminal.shows("appearing: cancelled (cancel_requested), released after ");
    assert_eq!(server.settled("appearing")["outcome"]["cause"], "cancel_requested");
    terminal.wait("the end", |screen| screen.lines().any(|line| line.contains("cancelled  appearing")));
    assert!(terminal.has_colours());

    // Another size is another frame.
    terminal.resize(40, 12);
    terminal
        .wait("a small frame", |screen| screen.lines().count() <= 12 && screen.contains("appearing") && !screen.contains("After leaving"));
    terminal.resize(80, 24);
    terminal.shows("After leaving");

    assert!(server.terminate());
    let away = terminal.shows("The server cannot be reached");
    assert!(away.contains("appearing"), "what was known is still there:\n{away}");
    terminal.wait("that it asks again", |screen| screen.contains("asking again; below as of"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
    command.args(["serve", "--port", &port, "--log", "warn", "--model"]).arg(lasting_model());
    let again = Server::listening(command);
    assert_eq!(again.port.to_string(), port);
    terminal.shows(" Healthy ");
    terminal.shows("No run yet.");
    terminal.press("q");
    assert!(terminal.ended().success());
    assert!(again.terminate());
}

#[test]
fn without_colours_there_are_none_and_a_signal_puts_the_terminal_back() {
    let server = Server::start(&lasting_model(), &["--log", "warn"]);
    for signal in ["TERM", "HUP"] {
        let mut terminal = Terminal::open(&server, &[], &[("NO_COLOR", "1")]);
        terminal.shows(" Healthy ");
        assert!(!terminal.has_colours());
        let status = Command::new("kill").args([&format!("-{signal}"), &terminal.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success() && terminal.ended().success(), "{signal}");
    }
    let mut closed = Terminal::open(&server, &[], &[]);
    closed.shows(" Healthy ");
    closed.close();
    assert!(closed.status().success(), "a terminal that is gone ends it");
    // Control-C is a key there.
    let mut terminal = Terminal::open(&server, &[], &[]);
    terminal.shows(" Healthy ");
    terminal.press("h");
    terminal.shows("Workers");
    terminal.press("\u{3}");
    assert!(terminal.ended().success());
    assert!(server.terminate());
}
