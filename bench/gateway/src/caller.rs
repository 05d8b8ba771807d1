//! The callers: many connections on one thread, each with one stream after the other, or one that stays open.
//!
//! What they find is told in lines of JSON on standard output: `begin` when what is measured begins, `end` when it is over, with what was
//! counted between the two; `open` when all streams are open. Whoever measures the gateway from outside does so at these lines.
//!
//! Invariant: only what arrived between `begin` and `end` is counted, and every stream that did not come as scripted is counted as failed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::answer::{Message, Side};
use crate::clock::{self, Stamps};
use crate::poll::{Poll, Ready};
use crate::script::Script;
use crate::sender::Sender;

/// Bytes of one read.
const READ: usize = 64 << 10;
const SECOND: u64 = 1_000_000_000;
/// Streams that are opened at once when many are to stay open.
const OPENING: usize = 64;
/// How long a stream that stays open may take to its first token.
const OPEN_WITHIN: u64 = 60 * SECOND;
/// Microseconds between the tokens of a stream that stays open.
const HELD_GAP_US: u64 = 3_600_000_000;

/// What the callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Streams of a steady pace: how late each token is.
    Pace,
    /// Short streams one after the other, as quick as they come: how many.
    Rush,
    /// Streams that show a token and are silent then, until the caller is ended.
    Hold,
}

/// Options of `gateway-bench caller`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Of the gateway, on loopback.
    #[arg(long)]
    port: u16,
    #[arg(long)]
    mode: Mode,
    /// At once, a connection each.
    #[arg(long, default_value_t = 40)]
    streams: usize,
    /// Between two tokens of a stream (pace).
    #[arg(long, default_value_t = 20_000)]
    gap_us: u64,
    /// Of a short stream (rush).
    #[arg(long, default_value_t = 16)]
    tokens: u64,
    /// Of what is measured.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Before it begins.
    #[arg(long, default_value_t = 1.0)]
    warm: f64,
    /// Key that the requests carry.
    #[arg(long, default_value = "sk-x")]
    key: String,
}

/// Where a stream is.
struct Conn {
    socket: TcpStream,
    message: Message,
    stamps: Stamps,
    sender: Sender,
    tokens: u64,
    /// Its answer is not over.
    asked: bool,
}

/// What was found.
#[derive(Default)]
struct Found {
    /// How late each token was, in nanoseconds.
    late: Vec<u64>,
    tokens: u64,
    streams: u64,
    failed: u64,
    /// Of what the first was that failed.
    why: String,
}

struct Caller<'a> {
    options: &'a Options,
    poll: Poll,
    conns: Vec<Option<Conn>>,
    script: Script,
    found: Found,
    /// Between `begin` and `end`.
    counting: bool,
    /// Streams that have shown a token.
    open: usize,
}

/// Does what the options say.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let nanoseconds = |seconds: f64| (seconds * SECOND as f64) as u64;
    let (warm, length) = (nanoseconds(options.warm), nanoseconds(options.seconds));
    let gap = if options.mode == Mode::Pace { options.gap_us } else { HELD_GAP_US };
    // A paced stream outlasts what is measured, whatever it takes to open them all.
    let tokens = match options.mode {
        Mode::Pace => (warm + length + OPEN_WITHIN) / (gap.max(1) * 1000) + 1,
        Mode::Rush => options.tokens,
        Mode::Hold => 2,
    };
    let script = Script { tokens, gap_us: if options.mode == Mode::Rush { 0 } else { gap }, wait_us: 0 };
    let conns = (0..options.streams).map(|_| None).collect();
    let mut caller = Caller { options, poll: Poll::new()?, conns, script, found: Found::default(), counting: false, open: 0 };
    match options.mode {
        Mode::Hold => caller.hold(),
        Mode::Pace | Mode::Rush => caller.measure(warm, length),
    }
}

impl Caller<'_> {
    fn measure(&mut self, warm: u64, length: u64) -> anyhow::Result<()> {
        for place in 0..self.conns.len() {
            if self.options.mode == Mode::Pace {
                // Spread evenly over a gap, as streams are that nobody brings into step.
                self.script.wait_us = self.options.gap_us * place as u64 / self.conns.len() as u64;
            }
            self.begin(place)?;
        }
        let opened = clock::now() + OPEN_WITHIN;
        while self.open < self.conns.len() && self.found.failed == 0 && clock::now() < opened {
            self.turn(opened)?;
        }
        self.until(clock::now() + warm)?;
        let before = clock::now();
        println!(r#"{{"at":"begin"}}"#);
        self.counting = true;
        self.until(before + length)?;
        let took = clock::now() - before;
        let Found { late, tokens, streams, failed, why } = &mut self.found;
        late.sort_unstable();
        let part = |of: f64| late.get(((late.len() as f64 * of) as usize).min(late.len().saturating_sub(1))).copied().unwrap_or(0);
        let (p50, p99) = (part(0.5), part(0.99));
        let seconds = took as f64 / SECOND as f64;
        println!(
            r#"{{"at":"end","seconds":{seconds:.6},"tokens":{tokens},"streams":{streams},"failed":{failed},"why":{why:?},"p50_ns":{p50},"p99_ns":{p99}}}"#
        );
        Ok(())
    }

    fn hold(&mut self) -> anyhow::Result<()> {
        let (mut next, mut moved) = (0, clock::now());
        while self.open + (self.found.failed as usize) < self.conns.len() && clock::now() < moved + OPEN_WITHIN {
            let before = self.open;
            while next < self.conns.len() && next < self.open + self.found.failed as usize + OPENING {
                self.begin(next)?;
                next += 1;
            }
            self.turn(moved + OPEN_WITHIN)?;
            if self.open > before {
                moved = clock::now();
            }
        }
        println!(r#"{{"at":"open","streams":{},"failed":{},"why":{:?}}}"#, self.open, self.found.failed, self.found.why);
        loop {
            self.turn(clock::now() + OPEN_WITHIN)?;
        }
    }

    fn until(&mut self, end: u64) -> anyhow::Result<()> {
        while clock::now() < end {
            self.turn(end)?;
        }
        Ok(())
    }

    fn turn(&mut self, until: u64) -> anyhow::Result<()> {
        let mut ready = Vec::new();
        self.poll.wait(Some(until), &mut ready)?;
        for one in ready {
            self.look(one)?;
        }
        Ok(())
    }

    /// A connection in that place, and a request on it.
    fn begin(&mut self, place: usize) -> anyhow::Result<()> {
        let port = self.options.port;
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).with_context(|| format!("cannot connect to 127.0.0.1:{port}"))?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        self.poll.add(&socket, place as u64)?;
        let message = Message::new(Side::Answers);
        self.conns[place] = Some(Conn { socket, message, stamps: Stamps::default(), sender: Sender::default(), tokens: 0, asked: false });
        self.ask(place)
    }

    fn ask(&mut self, place: usize) -> anyhow::Result<()> {
        let (body, Options { port, key, .. }) = (self.script.body(), self.options);
        let Some(conn) = &mut self.conns[place] else { return Ok(()) };
        let length = body.len();
        write!(
            conn.sender.out(),
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\naccept: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
        )?;
        (conn.message, conn.tokens, conn.asked) = (Message::new(Side::Answers), 0, true);
        // A request is smaller than any socket's buffer.
        if conn.sender.send(&conn.socket).is_err() {
            return self.failed(place, "the request could not be sent");
        }
        Ok(())
    }

    fn look(&mut self, ready: Ready) -> anyhow::Result<()> {
        let place = usize::try_from(ready.token)?;
        let Some(Some(conn)) = self.conns.get_mut(place) else { return Ok(()) };
        let mut buffer = [0; READ];
        let n = match conn.socket.read(&mut buffer) {
            Ok(n) => n,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(_) => 0,
        };
        if n == 0 {
            let over = !conn.asked || conn.message.closed();
            return if over { self.over(place) } else { self.failed(place, "closed before its end") };
        }
        let now = clock::now();
        let (found, counting, timed) = (&mut self.found, self.counting, self.options.mode == Mode::Pace);
        let Conn { message, stamps, tokens, .. } = conn;
        let first = *tokens == 0;
        let read = message.push(&buffer[..n], |data| {
            stamps.push(data, |at| {
                *tokens += 1;
                if counting {
                    found.tokens += 1;
                    if timed {
                        found.late.push(now.saturating_sub(at));
                    }
                }
            });
        });
        if first && *tokens > 0 && !self.counting && self.open < self.conns.len() {
            self.open += 1;
        }
        let Some(Some(conn)) = self.conns.get(place) else { return Ok(()) };
        match read {
            Err(error) => self.failed(place, &format!("{error:#}")),
            Ok(_) if conn.message.status != 0 && conn.message.status != 200 => {
                let why = format!("answered {}", conn.message.status);
                self.failed(place, &why)
            }
            Ok(_) if conn.message.is_over() => self.over(place),
            Ok(_) => Ok(()),
        }
    }

    /// An answer has its end, or its connection was closed behind it.
    fn over(&mut self, place: usize) -> anyhow::Result<()> {
        let Some(conn) = &mut self.conns[place] else { return Ok(()) };
        if conn.asked {
            if conn.tokens != self.script.tokens {
                let why = format!("had {} tokens of {}", conn.tokens, self.script.tokens);
                return self.failed(place, &why);
            }
            conn.asked = false;
            if self.counting {
                self.found.streams += 1;
            }
            if self.options.mode == Mode::Rush && !conn.message.closes {
                return self.ask(place);
            }
        }
        self.conns[place] = None;
        if self.options.mode == Mode::Rush { self.begin(place) } else { Ok(()) }
    }

    fn failed(&mut self, place: usize, why: &str) -> anyhow::Result<()> {
        self.found.failed += 1;
        if self.found.why.is_empty() {
            why.clone_into(&mut self.found.why);
        }
        self.conns[place] = None;
        // One that stays away or is refused is not asked again at once: nothing is gained by a storm.
        if self.options.mode == Mode::Rush && self.counting { self.begin(place) } else { Ok(()) }
    }
}
