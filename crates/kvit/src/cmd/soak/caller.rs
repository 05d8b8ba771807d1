//! One caller: sends its request, goes when the run is where it wants it, and looks what became of the run.
//!
//! When to go is read off the run (its record, its tokens), never guessed by a clock.
//!
//! Invariant: whatever the run does, the caller comes to its end within the patience, and says what it saw.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Value, json};

use super::args::{Departure, Phase};
use super::http::{Address, Watch, read_body, read_head, send};
use super::plan::{Aim, Dice};
use crate::failure::Failure;

/// Pause between two looks at a run.
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Looks at a run that the server does not know, before it counts as never read: its caller was gone before the request was.
const UNKNOWN_LOOKS: u32 = 20;

/// What became of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The caller was gone before its request was read, so there is none.
    NeverRead,
    /// It ended, was released and settled.
    Ended {
        /// How.
        outcome: String,
        /// Why.
        cause: String,
        /// Where it was when somebody first no longer wanted it.
        phase: Option<String>,
        /// Tokens computed after the worker had the cancel.
        after_receipt: u64,
        /// Blocks that it still holds by its own record.
        held: u64,
    },
    /// It did not settle within the patience; its record as it stands.
    Stuck(Box<Value>),
}

impl Fate {
    /// Whether the run was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Fate::Ended { outcome, .. } if outcome == "cancelled")
    }
}

/// A connection with a request in progress.
struct Line {
    reader: BufReader<TcpStream>,
    stream: bool,
    status: Option<u16>,
}

impl Line {
    fn open(address: Address, id: &str, body: &Value, stream: bool) -> Result<Line, Failure> {
        let mut socket = address.connect()?;
        send(&mut socket, "POST", "/v1/completions", Some(id), &body.to_string())?;
        Ok(Line { reader: BufReader::new(socket), stream, status: None })
    }

    /// Waits for the head of the answer; whether a stream follows.
    fn head(&mut self) -> Result<bool, Failure> {
        if self.status.is_none() {
            let head = read_head(&mut self.reader)?;
            self.status = head.map(|h| h.status);
            if let Some(head) = head.filter(|h| h.status != 200 || !self.stream) {
                read_body(&mut self.reader, head)?;
                self.stream = false;
            }
        }
        Ok(self.stream && self.status == Some(200))
    }

    /// The next event of a stream; `None` at its end.
    fn event(&mut self) -> Result<Option<Value>, Failure> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end().strip_prefix("data: ") {
                Some("[DONE]") => return Ok(None),
                Some(data) => {
                    let event: Value = serde_json::from_str(data).unwrap_or(Value::Null);
                    return Ok(Some(event).filter(|e| e.get("error").is_none()));
                }
                None => {}
            }
        }
    }

    /// Reads until so many tokens have come, or the end.
    fn tokens(&mut self, n: u32) -> Result<(), Failure> {
        let mut seen = 0;
        while self.stream && seen < n as usize {
            let Some(event) = self.event()? else { break };
            seen += event.pointer("/choices/0/logprobs/tokens").and_then(Value::as_array).map_or(0, Vec::len);
        }
        Ok(())
    }

    /// Reads the answer to its end, well or not.
    fn finish(mut self) -> Result<(), Failure> {
        if self.head()? {
            while self.event()?.is_some() {}
        }
        Ok(())
    }

    /// Closes with nothing unread, as far as that can be had: unread bytes would make it a reset.
    fn close(mut self) -> Result<(), Failure> {
        let socket = self.reader.get_mut();
        socket.set_nonblocking(true)?;
        let mut rest = [0; 16_384];
        while matches!(socket.read(&mut rest), Ok(n) if n > 0) {}
        Ok(())
    }

    fn reset(self) -> Result<(), Failure> {
        rustix::net::sockopt::set_socket_linger(self.reader.get_ref(), Some(Duration::ZERO)).map_err(std::io::Error::from)?;
        Ok(())
    }
}

/// A caller and the connection over which it looks at runs.
pub struct Caller {
    address: Address,
    watch: Watch,
    /// With so many answers asked for at once an engine is full; `None` if callers wait behind one another anyhow.
    fill: Option<u32>,
}

impl Caller {
    /// A caller.
    ///
    /// # Errors
    /// No connection.
    pub fn new(address: Address, fill: Option<u32>) -> Result<Caller, Failure> {
        Ok(Caller { address, watch: Watch::open(address)?, fill })
    }

    /// Does what is aimed at, and says what became of the run.
    ///
    /// # Errors
    /// The server went away, or the run never got where it was to be left.
    pub fn go(&mut self, aim: &Aim) -> Result<Fate, Failure> {
        let holder = match self.fill.filter(|_| aim.phase == Phase::Queued) {
            Some(n) => Some(self.fill_engine(&format!("{}-holder", aim.id), n)?),
            None => None,
        };
        let mut line = Line::open(self.address, &aim.id, &aim.body(), aim.stream)?;
        self.steer(aim, &mut line)?;
        match aim.departure {
            Departure::Close => line.close()?,
            Departure::Reset => line.reset()?,
            Departure::Cancel => {
                self.cancel(&aim.id)?;
                line.finish()?;
            }
        }
        let fate = self.fate(&aim.id)?;
        if let Some(holder) = holder {
            holder.close()?;
            self.fate(&format!("{}-holder", aim.id))?;
        }
        Ok(fate)
    }

    /// A run with an answer for every sequence that the engine can run: while it decodes, whoever comes waits.
    fn fill_engine(&mut self, id: &str, n: u32) -> Result<Line, Failure> {
        let mut dice = Dice::new(0x401d, id.len() as u64);
        let prompt: Vec<u64> = (0..8).map(|_| 32 + dice.roll(224)).collect();
        let body = json!({"prompt": prompt, "n": n, "ignore_eos": true, "temperature": 0, "stream": true, "logprobs": 0});
        let mut line = Line::open(self.address, id, &body, true)?;
        if line.head()? {
            line.tokens(1)?;
        }
        Ok(line)
    }

    fn steer(&mut self, aim: &Aim, line: &mut Line) -> Result<(), Failure> {
        let milestone = |run: &Value, name: &str| run["milestones"][name].is_number();
        match aim.phase {
            Phase::Dispatch => Ok(()),
            Phase::Queued => self.reach(&aim.id, "be queued", |run| milestone(run, "queued")),
            Phase::Prefill => self.reach(&aim.id, "reach its prefill", |run| milestone(run, "prefill_start")),
            Phase::BeforeFirstToken if aim.stream => line.head().map(drop),
            Phase::BeforeFirstToken => self.reach(&aim.id, "compute", |run| run["steps"]["total"].as_u64() > Some(0)),
            Phase::EarlyDecode | Phase::LateDecode if aim.stream => match line.head()? {
                true => line.tokens(aim.at),
                false => Ok(()),
            },
            Phase::EarlyDecode | Phase::LateDecode => {
                self.reach(&aim.id, "decode", |run| run["tokens"]["generated"].as_u64() >= Some(u64::from(aim.at)))
            }
        }
    }

    /// Looks at a run until it is where it should be, or has ended.
    fn reach(&mut self, id: &str, what: &str, there: impl Fn(&Value) -> bool) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let (status, run) = self.watch.json("GET", &format!("/v1/runs/{id}"))?;
            if status == 200 && (there(&run) || run["state"] == "ended") {
                return Ok(());
            }
            if since.elapsed() > self.address.patience() {
                let state = run["state"].as_str().unwrap_or("unknown").to_owned();
                return Err(Failure::Other(anyhow!(
                    "run {id} did not {what} within {:?}: it is {state}. Is the server this slow? --patience-ms gives it longer",
                    self.address.patience()
                )));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Cancels by name. The request is sent and its connection open, so the run will be known, if it is not yet.
    fn cancel(&mut self, id: &str) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let (status, answer) = self.watch.json("POST", &format!("/v1/runs/{id}/cancel?wait_ms=0"))?;
            match status {
                200 => return Ok(()),
                404 if since.elapsed() <= self.address.patience() => std::thread::sleep(LOOK_AGAIN),
                _ => {
                    let said = answer.pointer("/error/message").and_then(Value::as_str).unwrap_or("nothing").to_owned();
                    return Err(Failure::Other(anyhow!("cancel of run {id}: status {status}, the server said: {said}")));
                }
            }
        }
    }

    fn fate(&mut self, id: &str) -> Result<Fate, Failure> {
        let since = Instant::now();
        let mut unknown = 0;
        loop {
            let (status, run) = self.watch.json("GET", &format!("/v1/runs/{id}"))?;
            if status == 200 && run["released"] == true && run["settled"] == true {
                let word = |v: &Value| v.as_str().map(str::to_owned);
                let count = |path: &str| run.pointer(path).and_then(Value::as_u64).unwrap_or(0);
                return Ok(Fate::Ended {
                    outcome: word(&run["outcome"]["kind"]).unwrap_or_else(|| "none".into()),
                    cause: word(&run["outcome"]["cause"]).unwrap_or_else(|| "none".into()),
                    phase: word(&run["phase_at_disconnect"]),
                    after_receipt: count("/tokens/after_receipt"),
                    held: count("/blocks/held"),
                });
            }
            unknown += u32::from(status != 200);
            if status != 200 && unknown > UNKNOWN_LOOKS {
                return Ok(Fate::NeverRead);
            }
            if since.elapsed() > self.address.patience() {
                return Ok(Fate::Stuck(Box::new(run)));
            }
            std::thread::sleep(if status == 200 { LOOK_AGAIN } else { LOOK_AGAIN * 5 });
        }
    }
}
