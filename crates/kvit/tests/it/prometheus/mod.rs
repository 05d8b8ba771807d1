//! What Prometheus makes of kvit: the real one, from the system's package, scrapes, evaluates and is asked.
//!
//! Where it is not installed these tests say so and prove nothing; `cargo xtask test` installs it, and fails where it cannot.

mod dashboard;
mod incidents;
mod inside;
mod rules;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use xtask::prometheus::{Programs, found};

use crate::server::PATIENCE;

/// The programs, or the sentence that they are missing.
fn programs() -> Option<Programs> {
    let programs = found();
    if programs.is_none() {
        println!("skipped: neither promtool nor prometheus is here (the system's package `prometheus`; `cargo xtask test` installs it)");
    }
    programs
}

/// Runs promtool; what it says. Panics if it is not content.
fn promtool(programs: &Programs, args: &[&str], folder: &Path, stdin: &str) -> String {
    let mut command = Command::new(&programs.promtool);
    command.args(args).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool starts");
    // A subcommand that reads nothing may be gone.
    let _ = child.stdin.take().expect("it is a pipe").write_all(stdin.as_bytes());
    let output = child.wait_with_output().expect("promtool ends");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "promtool {}: {}\n{said}", args.join(" "), output.status);
    said
}

/// A Prometheus of the test's own that scrapes one target four times a second; ended by its process id when dropped.
struct Prometheus {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(programs: &Programs, target: u16, rules: &str) -> Prometheus {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it can be written");
        file("rules.yml", rules);
        let config = format!(
            "global:\n  scrape_interval: 250ms\n  evaluation_interval: 250ms\nrule_files: [rules.yml]\nscrape_configs:\n  - job_name: kvit\n    \
             static_configs:\n      - targets: [\"127.0.0.1:{target}\"]\n"
        );
        file("prometheus.yml", &config);
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let listen = format!("--web.listen-address=127.0.0.1:{port}");
        let args = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--enable-feature=exemplar-storage", "--log.level=error"];
        let mut command = Command::new(&programs.server);
        command.args(args).arg(listen).current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().expect("prometheus starts");
        let prometheus = Prometheus { child, port, _folder: folder };
        let since = Instant::now();
        while prometheus.get("/-/ready").is_none_or(|(status, _)| status != 200) {
            assert!(since.elapsed() < PATIENCE, "prometheus is not ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        prometheus
    }

    /// Status and body; `None` while it does not answer.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    fn ask(&self, path: &str) -> Value {
        let (status, body) = self.get(path).expect("it answers");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }

    /// The numbers that an expression gives now.
    fn query(&self, expression: &str) -> Vec<f64> {
        let answer = self.ask(&format!("/api/v1/query?query={}", encoded(expression)));
        let samples = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        samples.iter().filter_map(|sample| sample["value"][1].as_str()?.parse().ok()).collect()
    }

    /// Names of the alerts that fire.
    fn firing(&self) -> BTreeSet<String> {
        let answer = self.ask("/api/v1/alerts");
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.filter_map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned)).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As a query's value.
fn encoded(text: &str) -> String {
    text.bytes().map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
