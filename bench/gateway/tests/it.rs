//! The load against itself, and in front of a `kvit gateway` that lies beside it: small numbers, all of them counted.
//!
//! Invariant: whatever is started is ended by its process id.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const LOAD: &str = env!("CARGO_BIN_EXE_gateway-bench");

struct Running {
    child: Child,
    port: String,
}

impl Running {
    /// Starts it and waits for the line that names its port.
    fn start(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let line = lines.find(|line| line.starts_with("listening on")).expect("it listens");
        // Reads on: a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Running { child, port: line.rsplit(':').next().expect("a port").to_owned() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn upstream() -> Running {
    Running::start(Command::new(LOAD).arg("upstream"))
}

/// What the callers say at their end.
fn call(port: &str, words: &[&str]) -> String {
    let output = Command::new(LOAD).args(["caller", "--port", port, "--warm", "0"]).args(words).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").lines().last().expect("a line").to_owned()
}

fn number(said: &str, name: &str) -> f64 {
    let rest = said.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {said}")).1;
    rest.split([',', '}']).next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name} is no number in {said}"))
}

/// Streams come as scripted, whoever is between.
fn measures(port: &str) {
    let said = call(port, &["--mode", "pace", "--streams", "4", "--gap-us", "5000", "--seconds", "0.5"]);
    assert!(number(&said, "tokens") > 0.0 && number(&said, "failed") == 0.0, "{said}");
    assert!(number(&said, "p50_ns") > 0.0 && number(&said, "p50_ns") <= number(&said, "p99_ns"), "{said}");
    let said = call(port, &["--mode", "rush", "--streams", "2", "--tokens", "3", "--seconds", "0.5"]);
    assert!(number(&said, "streams") > 0.0 && number(&said, "failed") == 0.0, "{said}");
}

#[test]
fn callers_count_what_the_upstream_sends() {
    measures(&upstream().port);
}

#[test]
fn callers_of_kvit_count_the_same() {
    let kvit = PathBuf::from(LOAD).with_file_name("kvit");
    if !kvit.exists() {
        return eprintln!("skipped: there is no {}; `cargo build -p kvit` makes it", kvit.display());
    }
    let upstream = upstream();
    let url = format!("http://127.0.0.1:{}", upstream.port);
    let gateway = Running::start(Command::new(kvit).args(["gateway", "--port", "0", "--store", "none", "--upstream", &url]));
    // It has met its upstream when a stream of it comes.
    let met = (0..100).any(|_| {
        let said = call(&gateway.port, &["--mode", "rush", "--streams", "1", "--tokens", "1", "--seconds", "0.1"]);
        number(&said, "streams") > 0.0
    });
    assert!(met, "kvit gateway has met no upstream");
    measures(&gateway.port);
}

/// A server that answers every connection with these bytes and closes it.
fn answers(wire: &'static [u8]) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let mut request = BufReader::new(&socket);
            // The body has no line end: its head is read to the blank line.
            let mut line = String::new();
            while request.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let _ = (&socket).write_all(wire);
        }
    });
    port.to_string()
}

#[test]
fn a_stream_that_does_not_come_as_scripted_is_counted_as_failed() {
    let cases: [(&'static [u8], &str); 3] = [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", "answered 503"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n15\r\n@0000000000000000001 \r\n", "closed before its end"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\nconnection: close\r\n\r\n@0000000000000000001", "had 1 tokens of 16"),
    ];
    for (wire, why) in cases {
        let said = call(&answers(wire), &["--mode", "rush", "--streams", "1", "--seconds", "0.2"]);
        assert!(number(&said, "failed") > 0.0 && number(&said, "streams") == 0.0, "{said}");
        assert!(said.contains(why), "{said}");
    }
    let refused = Command::new(LOAD).args(["caller", "--port", "1", "--mode", "rush"]).output().expect("it runs");
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("cannot connect to 127.0.0.1:1"));
}
