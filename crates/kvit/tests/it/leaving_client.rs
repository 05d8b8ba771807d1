//! The callers of the departures matrix: a socket of the test's own, or a process that can be ended without a word.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::server::{PATIENCE, Server};

/// How a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Closes its socket with nothing unread: a FIN.
    Close,
    /// Resets it.
    Reset,
    /// Closes its sending side only, and would go on reading.
    HalfClose,
    /// Its process ends by SIGKILL.
    Sigkill,
    /// Somebody cancels the run by name; the caller stays and hears of it.
    Cancel,
    /// Its own deadline passes; it stays and hears of it.
    Deadline,
}

/// Copies a socket to its output, so that the test sees what it has read: a process that a test can end at any moment.
const PROCESS: &str = "import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
s.sendall(sys.stdin.buffer.read())
while data := s.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
";

/// A request in progress.
pub struct Client {
    lines: BufReader<Box<dyn Read>>,
    socket: Option<TcpStream>,
    process: Option<Child>,
    status: Option<u16>,
    /// Tokens that were read.
    pub tokens: usize,
    /// Everything that was read.
    pub heard: String,
}

impl Client {
    /// Sends a request; from a process of its own where it will be killed.
    pub fn start(server: &Server, way: Way, id: &str, deadline_ms: Option<u64>, body: &Value) -> Client {
        let body = body.to_string();
        let deadline = deadline_ms.map(|ms| format!("X-Request-Timeout-Ms: {ms}\r\n")).unwrap_or_default();
        let head =
            format!("POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\n{deadline}Content-Type: application/json\r\n");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let (read, socket, process): (Box<dyn Read>, _, _) = if way == Way::Sigkill {
            let mut child = Command::new("python3")
                .args(["-c", PROCESS, &server.port.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("python3 is installed, as CONTRIBUTING.md says");
            child.stdin.take().expect("a pipe").write_all(request.as_bytes()).expect("it reads its input");
            (Box::new(child.stdout.take().expect("a pipe")), None, Some(child))
        } else {
            let mut socket = server.connect();
            socket.write_all(request.as_bytes()).expect("the request can be sent");
            (Box::new(socket.try_clone().expect("a socket can be cloned")), Some(socket), None)
        };
        Client { lines: BufReader::new(read), socket, process, status: None, tokens: 0, heard: String::new() }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(n) if n > 0 => {
                self.heard.push_str(&line);
                Some(line.trim_end().to_owned())
            }
            _ => None,
        }
    }

    /// Waits for the answer's head; its status.
    pub fn head(&mut self) -> Option<u16> {
        if self.status.is_none() {
            self.status = self.line()?.split(' ').nth(1)?.parse().ok();
            while self.line().is_some_and(|l| !l.is_empty()) {}
        }
        self.status
    }

    /// Reads until so many tokens have come in all; false if the stream ended before.
    pub fn read_tokens(&mut self, n: usize) -> bool {
        if self.head() != Some(200) {
            return false;
        }
        while self.tokens < n {
            let Some(line) = self.line() else { return false };
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let Ok(event) = serde_json::from_str::<Value>(data) else { return false };
            self.tokens += event.pointer("/choices/0/logprobs/tokens").and_then(Value::as_array).map_or(0, Vec::len);
        }
        true
    }

    /// Reads on to the end: of the stream, of a body as long as the head says, or of the connection.
    pub fn read_to_the_end(&mut self) {
        self.head();
        let length = self.heard.to_lowercase().lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse().ok());
        if let Some(length) = length {
            let mut body = vec![0; length];
            if self.lines.read_exact(&mut body).is_ok() {
                self.heard.push_str(&String::from_utf8_lossy(&body));
            }
            return;
        }
        // A stream's last chunk is empty.
        while self.line().is_some_and(|l| l != "0") {}
    }

    /// Goes. A caller that is cancelled or whose deadline passes stays.
    pub fn leave(&mut self, way: Way) {
        match way {
            Way::Cancel | Way::Deadline => {}
            Way::HalfClose => {
                self.socket.as_ref().expect("a socket").shutdown(Shutdown::Write).expect("it can be half closed");
            }
            Way::Sigkill => {
                let mut process = self.process.take().expect("a process");
                process.kill().expect("it can be killed");
                process.wait().expect("it can be waited for");
            }
            Way::Close | Way::Reset => {
                let mut socket = self.socket.take().expect("a socket");
                if way == Way::Reset {
                    socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).expect("linger can be set");
                } else {
                    // Unread bytes would make a reset of it.
                    socket.set_nonblocking(true).expect("it can be set");
                    let mut rest = [0; 65_536];
                    while matches!(socket.read(&mut rest), Ok(n) if n > 0) {}
                }
                // The reader's clone of the socket goes first: the close is the last one's.
                self.lines = BufReader::new(Box::new(std::io::empty()));
                drop(socket);
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Cancels by name, as soon as the run is known.
pub fn cancel(server: &Server, id: &str) {
    let since = std::time::Instant::now();
    while server.json("POST", &format!("/v1/runs/{id}/cancel?wait_ms=0")).0 != 200 {
        assert!(since.elapsed() < PATIENCE, "{id} did not become known");
        std::thread::sleep(Duration::from_millis(1));
    }
}
