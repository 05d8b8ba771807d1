//! `kvit tap`: two lines, bytes that pass, questions that are answered, and an end by the first signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use super::{kvit, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A tap's process; it ends with this.
struct Tap {
    child: Child,
    listening: String,
    reporting: String,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn tap(upstream: &str, flags: &[&str]) -> Tap {
    let cache = tempfile::tempdir().unwrap();
    let mut command = kvit(cache.path(), &[&["tap", "127.0.0.1:0", upstream], flags].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut at = |word: &str| lines.next().and_then(|line| line.strip_prefix(word).map(str::to_owned)).unwrap();
    let (listening, reporting) = (at("listening on "), at("reporting on "));
    Tap { child, listening, reporting }
}

fn ask(address: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

// contract: C-29
#[test]
fn a_tap_passes_tells_and_ends_with_the_first_signal() {
    const REQUEST: &str = "GET /v1/models HTTP/1.1\r\nX-Trace: mine\r\n\r\n";
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = engine.local_addr().unwrap().to_string();
    let heard = std::thread::spawn(move || {
        let (mut socket, _) = engine.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = String::new();
        socket.read_to_string(&mut heard).unwrap();
        socket.write_all(ANSWER.as_bytes()).unwrap();
        heard
    });
    let mut tap = tap(&upstream, &["--name", "edge", "--trace-header", "X-Trace"]);
    assert_eq!(ask(&tap.listening, REQUEST), ANSWER);
    assert_eq!(heard.join().unwrap(), REQUEST);
    let said = ask(&tap.reporting, "GET /exchanges?id=mine HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let page: serde_json::Value = serde_json::from_str(said.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let seen = &page["exchanges"][0];
    assert_eq!((&page["name"], &seen["path"], &seen["status"]), (&"edge".into(), &"/v1/models".into(), &200.into()));
    assert_eq!((&seen["end"], &seen["down_closed"]["how"]), (&"complete".into(), &"fin".into()));
    rustix::process::kill_process(rustix::process::Pid::from_child(&tap.child), rustix::process::Signal::TERM).unwrap();
    assert_eq!(tap.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_is_no_address_and_what_is_taken_is_said() {
    let said = run(&["tap", "here", "127.0.0.1:1"]);
    assert_eq!((said.code, said.out.as_str()), (2, ""));
    assert!(said.err.contains("`here` is no address for a tap"), "{}", said.err);
    assert_eq!(run(&["tap", "127.0.0.1:0", "127.0.0.1:1", "--trace-header", "a b"]).code, 2);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let said = run(&["tap", &taken.local_addr().unwrap().to_string(), "127.0.0.1:1"]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("cannot listen on"), "{}", said.err);
}
