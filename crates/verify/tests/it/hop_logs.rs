//! Real proxies write real logs of requests that are left, and they are read: nginx, haproxy and envoy in front of a scripted upstream, each
//! in the format that is advised. The same logs show that what the knowledge base says of nginx and haproxy is so. A proxy that is not
//! installed is said to be missing and not tested; the lines that these wrote stand as texts in the tests of `judge::logs`.
//!
//! Invariant: every process that is started is ended by its own handle, whatever a test does.
// contract: C-29

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use verify::judge::fingerprint::{self, Facts};
use verify::judge::logs::{self, ENVOY_FORMAT, HAPROXY_FORMAT, NGINX_FORMAT};

/// Looks of 20 ms until something is given up.
const LOOKS_MAX: usize = 1000;

/// The program, if it is here: by its variable, else in the path.
fn program(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(format!("KVIT_TEST_{}", name.to_uppercase())).map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named.or_else(|| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file()));
    if found.is_none() {
        eprintln!("{name} is not installed: nothing is said of it");
    }
    found
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS_MAX {
        if let Some(found) = look() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not come");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// What a test and its upstream say to each other.
struct Upstream {
    port: u16,
    /// Paths of requests that have come.
    told: Receiver<String>,
    /// Answers to `/late` may be written.
    late: Arc<AtomicBool>,
}

/// An upstream that answers `/done` at once and `/late` when it is told to, begins a stream for `/stream`, and says nothing to anything else.
fn upstream() -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, told) = channel();
    let late = Arc::new(AtomicBool::new(false));
    let go = Arc::clone(&late);
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let (tell, go) = (tell.clone(), Arc::clone(&go));
            std::thread::spawn(move || serve(socket, &tell, &go));
        }
    });
    Upstream { port, told, late }
}

const DONE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";

fn serve(mut socket: TcpStream, tell: &Sender<String>, go: &AtomicBool) {
    let mut head = Vec::new();
    let mut part = [0_u8; 4096];
    while !head.ends_with(b"\r\n\r\n{}") {
        match socket.read(&mut part) {
            Ok(0) | Err(_) => return,
            Ok(n) => head.extend_from_slice(&part[..n]),
        }
    }
    let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
    let answer: &[u8] = match path.as_str() {
        "/done" => DONE,
        "/stream" => b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n",
        _ => b"",
    };
    let _ = socket.write_all(answer);
    let is_late = path == "/late";
    let _ = tell.send(path);
    if is_late {
        until("the word to answer", || go.load(Ordering::SeqCst).then_some(()));
        let _ = socket.write_all(DONE);
    }
    // Whatever comes now is the proxy's leaving.
    while socket.read(&mut part).is_ok_and(|n| n > 0) {}
}

/// A proxy that runs until it is dropped.
pub struct Running {
    child: Child,
    pub port: u16,
    pub log: PathBuf,
    /// Its configuration.
    pub config: PathBuf,
    _folder: tempfile::TempDir,
}

/// One in front of an upstream of the test's own.
struct Proxy {
    running: Running,
    up: Upstream,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts it in front of a port with this configuration, made from its folder and the two ports; the log is its standard output or the
    /// file `log`.
    pub fn start(program: &Path, file: &str, arguments: &[&str], up: u16, config: impl Fn(&str, u16, u16) -> String) -> Running {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let log = folder.path().join("log");
        let out = std::fs::File::create(&log).expect("a log");
        let text = config(&folder.path().to_string_lossy(), port, up);
        let config = folder.path().join(file);
        std::fs::write(&config, text).expect("a configuration");
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder.path()).stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        let running = Running { child, port, log, config, _folder: folder };
        until("the proxy's port", || TcpStream::connect(("127.0.0.1", port)).ok());
        running
    }
}

impl Proxy {
    fn start(program: &Path, file: &str, arguments: &[&str], config: impl Fn(&str, u16, u16) -> String) -> Proxy {
        let up = upstream();
        Proxy { running: Running::start(program, file, arguments, up.port, config), up }
    }

    /// Asks with this id, and leaves when the request is at the upstream and, of a stream, the first event is here. `/done` is read to its end.
    fn ask(&self, path: &str, id: &str) {
        let mut socket = TcpStream::connect(("127.0.0.1", self.running.port)).expect("it listens");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: test\r\nX-Request-Id: {id}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}");
        socket.write_all(head.as_bytes()).expect("it reads");
        let has = until("the request at the upstream", || self.up.told.try_recv().ok());
        assert_eq!(has, path);
        let mut text = Vec::new();
        let mut part = [0_u8; 1024];
        let is_read =
            |text: &[u8]| ["/wait", "/late"].contains(&path) || (path == "/stream" && text.windows(7).any(|part| part == b"data: 1"));
        while !is_read(&text) {
            match socket.read(&mut part).expect("an answer") {
                0 => break,
                n => text.extend_from_slice(&part[..n]),
            }
        }
        let _ = socket.shutdown(Shutdown::Both);
    }

    /// What its log says of the id, once it says something.
    fn said(&self, kind: &str, id: &str) -> (String, String) {
        let lines = || {
            let text = std::fs::read_to_string(&self.running.log).unwrap_or_default();
            let saw = logs::saw("edge", Some(kind), &text, id);
            assert_eq!(logs::saw("edge", None, &text, id), saw, "a line says of itself whose it is");
            assert!(saw.len() < 2, "{saw:?}");
            saw.into_iter().next()
        };
        let saw = until("a line of the log", lines);
        (saw.said, saw.means)
    }

    /// What it does with a request whose caller leaves long before its answer: the log says it once all is over.
    fn left_early(&self, kind: &str) -> String {
        self.ask("/late", "left");
        // A request that comes later is served to its end first, so that the proxy had its time.
        self.ask("/done", "stayed");
        self.said(kind, "stayed");
        self.up.late.store(true, Ordering::SeqCst);
        self.said(kind, "left").0
    }

    fn says(&self, kind: &str, want: [(&str, &str, &str); 3]) {
        // One id is the beginning of another: they are told apart.
        for (id, (path, said, means)) in ["run-1", "run-11", "run-111"].into_iter().zip(want) {
            self.ask(path, id);
            assert_eq!(self.said(kind, id), (said.to_owned(), means.to_owned()), "{kind} {path}");
        }
    }
}

/// nginx with these words in `http` and in its location.
fn nginx(http: &str, location: &str) -> Option<Proxy> {
    let up = upstream();
    Some(Proxy { running: nginx_before(up.port, http, location)?, up })
}

/// The same in front of anything.
pub fn nginx_before(up: u16, http: &str, location: &str) -> Option<Running> {
    let program = program("nginx")?;
    Some(Running::start(&program, "n.conf", &["-p", ".", "-c", "n.conf"], up, |folder, port, up| {
        let temp: String =
            ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|of| format!("{of}_temp_path {folder}/{of};\n")).concat();
        format!(
            "daemon off; master_process off; pid {folder}/pid; error_log {folder}/err;\nevents {{}}\nhttp {{\n{NGINX_FORMAT}\n\
             access_log {folder}/log verify;\n{temp}{http}\nserver {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{up}; \
             proxy_http_version 1.1; {location} }} }}\n}}\n"
        )
    }))
}

#[test]
fn nginx_writes_what_is_read() {
    let Some(proxy) = nginx("", "") else { return };
    proxy.says(
        "nginx",
        [
            ("/wait", "499, not complete", "client left before an answer"),
            ("/stream", "200, not complete", "not all of the answer was sent"),
            ("/done", "200 OK", "completed"),
        ],
    );
}

/// haproxy with these words in `defaults` and in the backend behind its frontend.
fn haproxy(defaults: &str, backend: &str) -> Option<Proxy> {
    let up = upstream();
    Some(Proxy { running: haproxy_before(up.port, defaults, backend)?, up })
}

/// The same in front of anything.
pub fn haproxy_before(up: u16, defaults: &str, backend: &str) -> Option<Running> {
    let program = program("haproxy")?;
    Some(Running::start(&program, "h.cfg", &["-f", "h.cfg"], up, |_, port, up| {
        format!(
            "defaults\nmode http\nlog stdout format raw local0\ntimeout connect 5s\ntimeout client 60s\ntimeout server 60s\n{defaults}\n\
             frontend f\nbind 127.0.0.1:{port}\n{HAPROXY_FORMAT}\ndefault_backend b\n\
             backend b\n{backend}\nserver s 127.0.0.1:{up}\n"
        )
    }))
}

const ABORT: &str = "option abortonclose";

#[test]
fn haproxy_writes_what_is_read() {
    let Some(proxy) = haproxy(ABORT, "") else { return };
    proxy.says(
        "haproxy",
        [("/wait", "CH--", "client left before an answer"), ("/stream", "CD--", "client left"), ("/done", "----", "completed")],
    );
}

#[test]
fn the_knowledge_base_is_right_about_haproxy() {
    for (defaults, backend, says) in [("", "", "----"), ("", ABORT, "----"), (ABORT, "", "CH--")] {
        let Some(proxy) = haproxy(defaults, backend) else { return };
        assert_eq!(proxy.left_early("haproxy"), says, "defaults {defaults:?}, backend {backend:?}");
    }
}

#[test]
fn the_knowledge_base_is_right_about_nginx() {
    let cache = "proxy_cache_path cache keys_zone=z:1m;";
    let cached = "proxy_cache z; proxy_cache_methods GET HEAD POST; proxy_cache_valid 200 1m; proxy_cache_key $http_x_request_id;";
    for (http, location, says) in [("", "", "499"), ("", "proxy_ignore_client_abort on;", "200"), (cache, cached, "200")] {
        let Some(proxy) = nginx(http, location) else { return };
        let said = proxy.left_early("nginx");
        assert_eq!(said.split([' ', ',']).next(), Some(says), "{location}: {said}");
    }
}

#[test]
fn envoy_writes_what_is_read() {
    let Some(program) = program("envoy") else { return };
    let arguments = ["-c", "e.yaml", "--concurrency", "1", "--use-dynamic-base-id", "-l", "error", "--file-flush-interval-msec", "50"];
    let proxy = Proxy::start(&program, "e.yaml", &arguments, |folder, port, up| {
        let of = "type.googleapis.com/envoy.extensions";
        let address = |port: u16| format!("{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}");
        format!(
            "static_resources:\n  listeners:\n  - address: {}\n    filter_chains:\n    - filters:\n      \
             - name: envoy.filters.network.http_connection_manager\n        typed_config:\n          \
             \"@type\": {of}.filters.network.http_connection_manager.v3.HttpConnectionManager\n          stat_prefix: x\n          \
             preserve_external_request_id: true\n          access_log:\n          - name: envoy.access_loggers.file\n            \
             typed_config: {{\"@type\": {of}.access_loggers.file.v3.FileAccessLog, path: {folder}/log, log_format: {{{ENVOY_FORMAT}}}}}\n          \
             http_filters: [{{name: envoy.filters.http.router, typed_config: {{\"@type\": {of}.filters.http.router.v3.Router}}}}]\n          \
             route_config: {{virtual_hosts: [{{name: v, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: {{cluster: c}}}}]}}]}}\n  \
             clusters:\n  - {{name: c, type: STATIC, load_assignment: {{cluster_name: c, endpoints: [{{lb_endpoints: [{{endpoint: \
             {{address: {}}}}}]}}]}}}}\n",
            address(port),
            address(up)
        )
    });
    proxy.says("envoy", [("/wait", "0 DC", "client left"), ("/stream", "200 DC", "client left"), ("/done", "200 -", "completed")]);
}

#[test]
fn caddy_writes_what_is_read() {
    let Some(program) = program("caddy") else { return };
    let proxy = Proxy::start(&program, "c.json", &["run", "--config", "c.json"], |folder, port, up| {
        let handle = serde_json::json!({"handler": "reverse_proxy", "upstreams": [{"dial": format!("127.0.0.1:{up}")}]});
        let server = serde_json::json!({
            "listen": [format!("127.0.0.1:{port}")], "automatic_https": {"disable": true}, "logs": {}, "routes": [{"handle": [handle]}],
        });
        let writer = serde_json::json!({"output": "file", "filename": format!("{folder}/log")});
        let config = serde_json::json!({
            "admin": {"disabled": true, "config": {"persist": false}},
            "logging": {"logs": {"default": {"writer": writer}}},
            "apps": {"http": {"servers": {"s": server}}},
        });
        config.to_string()
    });
    proxy.says(
        "caddy",
        [
            ("/wait", "0", "client left before an answer"),
            ("/stream", "200", "answered, in part or whole"),
            ("/done", "200", "answered, in part or whole"),
        ],
    );
}

#[test]
fn programs_say_which_release_they_are() {
    for (name, argument) in [("nginx", "-v"), ("haproxy", "-v"), ("envoy", "--version"), ("caddy", "version")] {
        let Some(program) = program(name) else { continue };
        let out = Command::new(program).arg(argument).stdin(Stdio::null()).output().expect("it runs");
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        let hop = fingerprint::hop(&Facts { name, kind: Some(name), printed: Some(&text), ..Facts::default() });
        let version = hop.version.unwrap_or_else(|| panic!("{name} said no release: {text}"));
        assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{name} {version}");
    }
}
