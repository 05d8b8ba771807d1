//! `kvit verify`: what it says of wrong hops, and whether an earlier report still holds. What it finds of stacks is tested in its own crate.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use verify::judge::cell::Set;
use verify::judge::result::Report;

use super::server::{Server, lasting_model};
use super::{Said, run};

/// A server that names a model and its release, and asks for nothing more; it answers until the test's process ends.
fn engine() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut part = [0; 1024];
            while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                match socket.read(&mut part) {
                    Ok(0) | Err(_) => break,
                    Ok(n) => head.extend_from_slice(&part[..n]),
                }
            }
            let (status, body) = match String::from_utf8_lossy(&head).split(' ').nth(1) {
                Some("/v1/models") => ("200 OK", r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#),
                Some("/version") => ("200 OK", r#"{"version":"0.32.0"}"#),
                Some("/metrics") => ("200 OK", "vllm:num_requests_running 0\n"),
                _ => ("404 Not Found", "{}"),
            };
            let _ = write!(socket, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        }
    });
    url
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

// contract: C-29
#[test]
fn a_wrong_hop_is_refused_with_its_word_and_what_to_do() {
    let url = engine();
    let refused = |args: &[&str], says: &[&str]| {
        let said = run(&[&["verify", &url], args].concat());
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{args:?} {}", said.err);
        says.iter().for_each(|text| assert!(said.err.contains(text), "{args:?}: {text} in {}", said.err));
    };
    refused(&["--hop", "nginx,lgo=x"], &["--hop", "`lgo` is no word of a hop: kind, tap, log, config, version, version-by, url"]);
    refused(&["--hop", "edge,kind=ngnix"], &["the kind `ngnix` is none of nginx, haproxy"]);
    refused(&["--hop", "nginx", "--tap", "127.0.0.1:1"], &["--hop", "--tap", "cannot be used with"]);
    refused(&["--hop", "nginx", "--hop", "nginx"], &["two hops are named `nginx`"]);
    refused(&["--hop", "nginx,log=/nowhere/log"], &["--hop nginx: its log /nowhere/log cannot be read", "name the access log"]);
    refused(&["--hop", "nginx,config=/nowhere/conf"], &["--hop nginx: its configuration /nowhere/conf cannot be read"]);
    refused(&["--hop", "gate,version-by=no-such-program-here"], &["`no-such-program-here` cannot say its release", "version=TEXT"]);
    refused(&["--check", "/nowhere/report.json", "--full"], &["cannot be used with"]);
}

// contract: C-29
#[test]
fn a_report_says_whether_its_hops_are_still_what_they_were() {
    let (url, folder) = (engine(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let (edge, engine) = (write(folder, "edge.conf", "a"), write(folder, "engine.conf", "b"));
    let digest = |byte: &str| verify::judge::fingerprint::sha256(byte.as_bytes());
    let report = serde_json::json!({
        "object": "verify", "target": url, "began_s": 1_796_033_477_u64, "hops": [
            {"name": "edge", "kind": "nginx", "version": "1.22.1", "config_sha256": digest("a")},
            {"name": "vllm", "kind": "vllm", "version": "0.32.0", "config_sha256": digest("b")},
        ],
    });
    let old = write(folder, "old.json", &report.to_string());
    let json = folder.join("stale.json");
    let check = |edge_words: &str, engine_words: &str| -> (Said, serde_json::Value) {
        let (first, last) = (format!("edge,kind=nginx{edge_words}"), format!("vllm{engine_words}"));
        // Where the stack is, the report says.
        let said = run(&["verify", "--check", &old, "--hop", &first, "--hop", &last, "--json", json.to_str().unwrap()]);
        let told = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        (said, told)
    };
    let engine_words = format!(",config={engine}");
    let (said, told) = check(&format!(",version=1.22.1,config={edge}"), &engine_words);
    assert_eq!((said.code, told["stale"].as_bool()), (0, Some(false)), "{} {}", said.out, said.err);
    assert!(said.out.contains("the evidence stands"), "{}", said.out);
    let (said, told) = check(&format!(",version=1.24.0,config={edge}"), &engine_words);
    assert_eq!((said.code, told["hops"][0]["what"].as_str()), (1, Some("version")), "{}", said.out);
    assert!(said.out.contains("stale      edge: version was 1.22.1, is 1.24.0"), "{}", said.out);
    // A release that nobody tells is no release that is the same.
    let (said, _) = check(&format!(",config={edge}"), &engine_words);
    assert_eq!(said.code, 2, "{}", said.out);
    assert!(said.out.contains("unknown    edge: nothing says whether it is what it was (no version to compare)"), "{}", said.out);
    std::fs::write(&engine, "c").unwrap();
    let (said, _) = check(&format!(",version=1.22.1,config={edge}"), &engine_words);
    assert_eq!(said.code, 1);
    assert!(said.out.contains("vllm: configuration was"), "{}", said.out);
    // Hops that are not named again cannot be looked at.
    let said = run(&["verify", "--check", &old]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("the report is of the hops edge, vllm: name them again"), "{}", said.err);
}

/// Settings with which a judgement of a tiny model is short.
const SHORT: &str = "tries = 1\nmax_tokens = 2048\nprefill_ms = 50\nneighbours = 0\ndepartures = 0\nlook_every_ms = 5\n";

// contract: C-29
#[test]
fn kvit_is_judged_by_its_own_rules_in_one_process_and_in_two() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, json) = (write(folder.path(), "s.toml", SHORT), folder.path().join("now.json"));
    let model = lasting_model();
    let cells = [
        "early/close/stream",
        "early/h2-reset/stream",
        "early/grpc-cancel/stream",
        "early/grpc-deadline/stream",
        "prefill/edge-idle/stream",
    ];
    let mut args = vec!["verify", "--self", "--model", model.to_str().unwrap(), "--settings", &settings, "--json", json.to_str().unwrap()];
    args.extend(cells.iter().flat_map(|cell| ["--cell", cell]));
    let said = run(&args);
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    for (name, hops, boundaries) in [
        ("now.serve.json", &["kvit"][..], &["client → kvit", "kvit → work"][..]),
        ("now.gateway.json", &["gateway", "worker"], &["client → gateway", "gateway → worker", "worker → work"]),
    ] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let report: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(report.hops.iter().map(|hop| hop.name.as_str()).collect::<Vec<_>>(), hops);
        assert!(report.hops.iter().all(|hop| hop.version.as_deref() == Some(env!("CARGO_PKG_VERSION"))), "{:?}", report.hops);
        let words: Vec<_> = report.cells.iter().map(|of| of.verdict.word()).collect();
        assert_eq!(words, ["pass", "pass", "pass", "pass", "n/a"], "{}", said.out);
        let crossed = &report.cells[0].boundaries;
        assert_eq!(crossed.iter().map(|of| of.name.as_str()).collect::<Vec<_>>(), boundaries);
        assert_eq!((crossed[0].is_crossed(), crossed.last().unwrap().is_crossed()), (Some(true), Some(true)));
        // What kvit itself recorded of each is what was done to it.
        let records: Vec<_> = report.cells.iter().flat_map(|of| of.seen.first()?.record.as_deref()).collect();
        assert_eq!(records, ["cancelled/client_closed", "cancelled/client_reset", "cancelled/client_reset", "expired/client_deadline"]);
    }
    let refused = run(&["verify", "--self", "http://127.0.0.1:1"]);
    assert_eq!((refused.code, refused.err.contains("cannot be used with")), (2, true), "{}", refused.err);
}

// contract: C-29
#[test]
fn a_url_alone_is_enough_to_be_judged_by_the_quick_set_and_by_every_check() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("now.json");
    let server = Server::start(&lasting_model(), &["--isa", "scalar", "--max-running", "4", "--log", "error"]);
    let said = run(&["verify", &format!("http://127.0.0.1:{}", server.port), "--json", json.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
    let report: Report = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let cells: Vec<_> = report.cells.iter().map(|of| (of.cell, of.verdict.word())).collect();
    assert_eq!(cells, Set::Quick.cells().into_iter().map(|cell| (cell, "pass")).collect::<Vec<_>>(), "{}", said.out);
    let checks: Vec<_> = report.checks.iter().map(|of| of.name.as_str()).collect();
    for name in ["control", "capacity", "per-request state", "memory", "cache", "neighbours"] {
        assert!(checks.contains(&name), "{checks:?}");
    }
    // Who it was and where its processes are was found out, and no word was needed for it.
    assert_eq!((report.profile.as_str(), report.hops[0].kind.as_deref()), ("kvit", Some("kvit")));
}

// contract: C-29
#[test]
fn a_signal_ends_the_servers_of_the_judge() {
    let folder = tempfile::tempdir().unwrap();
    let settings = write(folder.path(), "s.toml", SHORT);
    let model = lasting_model();
    // A question that is asked again and again: it goes on until somebody ends it.
    let args = [
        "verify",
        "--self",
        "--model",
        model.to_str().unwrap(),
        "--settings",
        &settings,
        "--tries",
        "100000",
        "--cell",
        "early/close/stream",
    ];
    let mut judge = super::kvit(folder.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let line =
        BufReader::new(judge.stdout.take().unwrap()).lines().map_while(Result::ok).find(|line| line.starts_with("kvit serve: ")).unwrap();
    let pid = |text: &str| text.split("is process ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<i32>().ok());
    let server = rustix::process::Pid::from_raw(pid(&line).unwrap()).unwrap();
    assert!(rustix::process::test_kill_process(server).is_ok(), "it runs");
    rustix::process::kill_process(rustix::process::Pid::from_child(&judge), rustix::process::Signal::INT).unwrap();
    let ended = judge.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(rustix::process::test_kill_process(server).is_err(), "process {server:?} is still there");
}
