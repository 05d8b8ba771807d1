//! Starts the real binary and speaks to it over raw sockets, so that nothing between the test and the wire can hide a hang-up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for anything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Positions of a run of the lasting model.
pub const LASTING_CONTEXT: u32 = 16_000;

/// A `kvit serve` of its own on a free port; ended by its process id when dropped.
pub struct Server {
    child: Child,
    pub port: u16,
}

/// Waits until every thread of a process has stopped. One of them takes the signal and stops the others: on a busy machine they go on until it
/// has its turn.
pub fn until_stopped(pid: u32) {
    let state = |stat: String| stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']));
    let since = Instant::now();
    loop {
        let threads: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there").flatten().collect();
        // One that ended meanwhile does nothing more.
        if threads.iter().all(|thread| std::fs::read_to_string(thread.path().join("stat")).map_or(true, state)) {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The tiny model, written once a test process.
pub fn tiny_model() -> PathBuf {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("kvit-it-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary folder can be made");
        let path = dir.join("tiny.gguf");
        model::tiny::write(&path, &model::tiny::TinySpec::default()).expect("the tiny model can be written");
        path
    })
    .clone()
}

/// A tiny model that is slow: a prompt of 3,000 tokens or an answer of 3,000 takes many seconds with `SLOW`.
pub fn slow_model() -> PathBuf {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let path = tiny_model().with_file_name("slow.gguf");
        let spec = model::tiny::TinySpec { layers: 16, embedding: 256, head_dim: 64, ffn: 1024, context: 8192, ..Default::default() };
        model::tiny::write(&path, &spec).expect("the slow model can be written");
        path
    })
    .clone()
}

/// A tiny model that takes its time: its longest run outlasts every test that only needs a run to be under way.
pub fn lasting_model() -> PathBuf {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let path = tiny_model().with_file_name("lasting.gguf");
        let spec = model::tiny::TinySpec {
            layers: 12,
            embedding: 256,
            heads: 8,
            kv_heads: 4,
            head_dim: 32,
            ffn: 1024,
            context: LASTING_CONTEXT,
            ..Default::default()
        };
        model::tiny::write(&path, &spec).expect("the lasting model can be written");
        path
    })
    .clone()
}

/// What makes the slow one slow, whatever the machine can do.
pub const SLOW: [&str; 6] = ["--isa", "scalar", "--threads", "1", "--step-tokens", "32"];

/// About 5,000 tokens of the tiny models, of which the prefix index knows nothing yet.
pub fn long_prompt(id: &str) -> String {
    format!("{id} ") + &"0123456789".repeat(500)
}

/// The real model, where `cargo xtask test` has put it.
pub fn real_model() -> PathBuf {
    let path = std::env::var_os("KVIT_TEST_MODEL").expect("KVIT_TEST_MODEL names the real model: run `cargo xtask test`");
    PathBuf::from(path)
}

impl Server {
    pub fn start(model: &Path, args: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
        command.args(["serve", "--port", "0", "--model"]).arg(model).args(args);
        Server::listening(command)
    }

    /// A `kvit gateway` for workers at these addresses.
    pub fn gateway(workers: &[&str], args: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
        command.args(["gateway", "--port", "0"]).args(workers.iter().flat_map(|worker| ["--worker", worker])).args(args);
        Server::listening(command)
    }

    /// Started by this command, whose stderr goes where it says.
    pub fn listening(mut command: Command) -> Server {
        // A flag goes before it: whoever wants a store names one of its own.
        let mut child = command.env("KVIT_STORE", "none").stdout(Stdio::piped()).spawn().expect("kvit starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let line = lines.find_map(|l| l.ok().filter(|l| l.starts_with("listening on ")));
        let port = line.and_then(|l| l.rsplit(':').next().and_then(|p| p.trim().parse().ok()));
        let port = port.unwrap_or_else(|| {
            let _ = child.kill();
            panic!("kvit serve said no `listening on http://127.0.0.1:PORT`")
        });
        std::thread::spawn(move || lines.count()); // its output is read to the end, so that it never blocks
        Server { child, port }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        stream.set_nodelay(true).expect("nodelay can be set");
        stream
    }

    /// One request on a connection of its own: status, headers in lower case, body.
    pub fn request(&self, method: &str, path: &str, id: Option<&str>, body: Option<&Value>) -> (u16, String, Vec<u8>) {
        let id = id.map(|id| format!("X-Request-Id: {id}\r\n")).unwrap_or_default();
        self.request_with(method, path, &id, body)
    }

    /// The same with these headers, each with its line's end.
    pub fn request_with(&self, method: &str, path: &str, headers: &str, body: Option<&Value>) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        send(&mut stream, method, path, headers, body);
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("the answer can be read");
        let at = all.windows(4).position(|w| w == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8_lossy(&all[..at]).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("an answer has a status");
        let raw = all[at + 4..].to_vec();
        let body = if head.contains("transfer-encoding: chunked") { unchunk(&raw) } else { raw };
        (status, head, body)
    }

    pub fn json(&self, method: &str, path: &str) -> (u16, Value) {
        let (status, _, body) = self.request(method, path, None, None);
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub fn run(&self, id: &str) -> Value {
        self.json("GET", &format!("/v1/runs/{id}")).1
    }

    /// The account. On a starved machine the worker may answer too late for one question.
    pub fn kv(&self) -> Value {
        let since = Instant::now();
        loop {
            let kv = self.json("GET", "/v1/kv").1;
            if kv["error"]["code"] != "worker_silent" || since.elapsed() > PATIENCE {
                return kv;
            }
        }
    }

    /// Waits until a run is released and settled, and returns it.
    pub fn settled(&self, id: &str) -> Value {
        self.wait_run(id, "settle", |run| run["released"] == true && run["settled"] == true)
    }

    /// Waits until a run is settled, whatever an engine of another make lets be proven of its release.
    pub fn settled_whatever(&self, id: &str) -> Value {
        self.wait_run(id, "settle", |run| run["settled"] == true)
    }

    pub fn wait_run(&self, id: &str, what: &str, when: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let run = self.run(id);
            if when(&run) {
                return run;
            }
            assert!(since.elapsed() < PATIENCE, "{id} did not {what}: {run:#}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until as many descriptors are open as there were: every connection since then is closed.
    pub fn wait_descriptors(&self, before: usize) {
        let since = Instant::now();
        while self.descriptors() > before {
            assert!(since.elapsed() < PATIENCE, "{} descriptors are open, {before} were", self.descriptors());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many descriptors the process has open.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("the process lives").count()
    }

    /// CPU time of the process so far, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("the process lives");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        fields[11].parse::<u64>().unwrap_or(0) + fields[12].parse::<u64>().unwrap_or(0)
    }

    /// Sends a signal. Behind `STOP` it has stopped.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().expect("kill runs");
        assert!(status.success());
        if name == "STOP" {
            until_stopped(self.pid());
        }
    }

    /// Waits for the end; the exit code, if there is one.
    pub fn ended(mut self) -> Option<i32> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the process did not end");
    }

    /// Sends SIGTERM and waits for the end; the exit status's success.
    pub fn terminate(self) -> bool {
        self.signal("TERM");
        self.ended() == Some(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &str, body: Option<&Value>) {
    let body = body.map(Value::to_string).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).expect("the request can be sent");
}

fn unchunk(mut raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(at) = raw.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&raw[..at]).unwrap_or("0").trim(), 16).unwrap_or(0);
        if size == 0 || raw.len() < at + 2 + size {
            break;
        }
        out.extend_from_slice(&raw[at + 2..at + 2 + size]);
        raw = raw.get(at + 4 + size..).unwrap_or_default();
    }
    out
}

/// How a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    Close,
    Reset,
}

impl Leave {
    pub fn cause(self) -> &'static str {
        match self {
            Leave::Close => "client_closed",
            Leave::Reset => "client_reset",
        }
    }
}

/// A request in progress on a socket that the test can close as it likes.
pub struct Caller {
    stream: Option<TcpStream>,
    reader: BufReader<TcpStream>,
}

impl Caller {
    pub fn post(server: &Server, path: &str, id: &str, body: &Value) -> Caller {
        Caller::over(server.connect(), path, id, body)
    }

    /// Asks over a connection that is there already.
    pub fn over(stream: TcpStream, path: &str, id: &str, body: &Value) -> Caller {
        Caller::send_with(stream, path, id, "", body)
    }

    /// With further headers, each with its line's end.
    pub fn post_with(server: &Server, path: &str, id: &str, headers: &str, body: &Value) -> Caller {
        Caller::send_with(server.connect(), path, id, headers, body)
    }

    fn send_with(mut stream: TcpStream, path: &str, id: &str, headers: &str, body: &Value) -> Caller {
        let body = body.to_string();
        let length = body.len();
        let text = format!("POST {path} HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).expect("the request can be sent");
        let reader = BufReader::new(stream.try_clone().expect("a socket can be cloned"));
        Caller { stream: Some(stream), reader }
    }

    pub fn chat(server: &Server, id: &str, body: &Value) -> Caller {
        Caller::post(server, "/v1/chat/completions", id, body)
    }

    /// The next SSE event's data; `None` at the end of the stream.
    pub fn event(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            match self.reader.read_line(&mut line) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            match line.trim_end().strip_prefix("data: ") {
                // The connection lives on for a next request.
                Some("[DONE]") => return None,
                Some(data) => return Some(data.to_string()),
                None => {}
            }
        }
    }

    /// The whole answer of a call that does not stream: status and body.
    pub fn answer(&mut self) -> (u16, Value) {
        let (status, body) = self.answer_or_events();
        (status, body.expect("no stream of events"))
    }

    /// The whole answer: status, and the body or the events of a stream with its `[DONE]`, if it has one.
    pub fn answer_or_events(&mut self) -> (u16, Result<Value, Vec<String>>) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.reader.read_line(&mut head).expect("the answer can be read") > 0, "closed in the head: {head}");
        }
        let head = head.to_lowercase();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("an answer has a status");
        if head.contains("content-type: text/event-stream") {
            let mut events: Vec<String> = Vec::new();
            let mut line = String::new();
            // The last chunk is empty; the connection lives on.
            while line.trim_end() != "0" {
                line.clear();
                assert!(self.reader.read_line(&mut line).expect("the stream can be read") > 0, "closed in the stream: {events:?}");
                events.extend(line.trim_end().strip_prefix("data: ").map(str::to_owned));
            }
            return (status, Err(events));
        }
        let length = head.lines().find_map(|l| l.strip_prefix("content-length:")).and_then(|n| n.trim().parse().ok());
        let mut body = vec![0; length.expect("the answer has a length")];
        self.reader.read_exact(&mut body).expect("the body can be read");
        (status, Ok(serde_json::from_slice(&body).expect("the answer is JSON")))
    }

    /// Reads until `n` events with content have come; returns the text.
    pub fn read_tokens(&mut self, n: usize) -> String {
        let mut text = String::new();
        let mut seen = 0;
        while seen < n {
            let Some(data) = self.event() else { break };
            let v: Value = serde_json::from_str(&data).unwrap_or(Value::Null);
            if let Some(piece) = v["choices"][0]["delta"]["content"].as_str().filter(|p| !p.is_empty()) {
                text.push_str(piece);
                seen += 1;
            }
        }
        text
    }

    pub fn leave(mut self, how: Leave) {
        let Some(stream) = self.stream.take() else { return };
        if how == Leave::Reset {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("linger can be set");
            drop(self.reader);
            drop(stream);
        } else {
            // Unread bytes would turn a close into a reset, also those that are still on their way: after its own end is sent, a caller in
            // good order reads until the server has closed too.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let mut rest = [0; 65_536];
            while matches!((&stream).read(&mut rest), Ok(n) if n > 0) {}
            drop(self.reader);
            drop(stream);
        }
    }
}

/// A chat request's body.
pub fn chat_body(content: &str, max_tokens: u32, stream: bool) -> Value {
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0, "stream": stream, "ignore_eos": true})
}

/// The part of an account that must come back exactly: what is free or cached, and what is not.
pub fn rest(kv: &Value) -> (u64, u64, u64, u64, String) {
    let n = |k: &str| kv[k].as_u64().unwrap_or_else(|| panic!("no number `{k}` in {kv}"));
    (n("free") + n("cached"), n("active"), n("draining"), n("quarantined"), kv["runs"].to_string())
}
