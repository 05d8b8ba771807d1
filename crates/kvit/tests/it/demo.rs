//! `kvit demo` as a script meets it: every scene on a tiny model that is slow enough to be left in the middle.
// contract: C-12, C-14, C-15, C-18

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{kvit, said};

/// A model whose answer lasts longer than it takes to find out that its caller has vanished, on a quick machine too.
fn slow_model(dir: &std::path::Path) -> PathBuf {
    let path = dir.join("slow.gguf");
    let spec = model::tiny::TinySpec {
        layers: 12,
        embedding: 256,
        heads: 8,
        kv_heads: 4,
        head_dim: 32,
        ffn: 1024,
        context: 8192,
        weights: model::gguf::TensorKind::Q8_0,
        ..model::tiny::TinySpec::default()
    };
    model::tiny::write(&path, &spec).expect("the model can be written");
    path
}

fn named<'a>(demo: &'a Value, name: &str) -> &'a Value {
    demo["scenes"].as_array().expect("scenes").iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("no scene {name}"))
}

// field: F-01, F-13, F-34, F-80
#[test]
fn every_scene_of_the_demo_passes_on_a_tiny_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = slow_model(dir.path());
    let said = said(kvit(dir.path(), &["demo", "--json", "--model", model.to_str().expect("a path")]).output().expect("kvit runs"));
    let demo: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}{}", said.out, said.err));
    let failed: Vec<String> = demo["scenes"]
        .as_array()
        .expect("scenes")
        .iter()
        .filter(|s| s["passed"] != true)
        .map(|s| format!("{}: skipped {}, error {}, {:#}", s["name"], s["skipped"], s["error"], s["checks"]))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!((said.code, &demo["passed"], &demo["server"]["ended_well"]), (0, &Value::from(true), &Value::from(true)), "{}", said.err);
    // What it says is what the server's records say.
    for (scene, cause, phase) in [
        ("decode", "client_closed", "decode"),
        ("prefill", "client_closed", "prefill"),
        ("queue", "client_closed", "queued"),
        ("shared_prefix", "client_closed", "decode"),
        ("vanished", "client_lost", "decode"),
        ("silent", "client_stalled", "decode"),
    ] {
        let run = &named(&demo, scene)["runs"][0];
        assert_eq!((run["outcome"]["cause"].as_str(), run["phase_at_disconnect"].as_str()), (Some(cause), Some(phase)), "{scene}: {run:#}");
        assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{scene}: {run:#}");
        assert_eq!((&run["released"], &run["blocks"]["held"]), (&Value::from(true), &Value::from(0)), "{scene}: {run:#}");
    }
    for scene in ["shared_prefix", "neighbour"] {
        let texts = &named(&demo, scene)["texts"];
        assert!(texts["alone"].as_str().is_some_and(|t| !t.is_empty()) && texts["alone"] == texts["beside"], "{scene}: {texts:#}");
    }
    for scene in demo["scenes"].as_array().expect("scenes") {
        let at = |when: &str| {
            let n = |key: &str| scene["account"][when][key].as_u64().expect("a count");
            (n("free") + n("cached"), n("active"), n("draining"), n("quarantined"), n("total"))
        };
        assert_eq!(at("before"), at("after"), "{}", scene["name"]);
    }
}

#[test]
fn a_demo_without_its_model_says_so_and_starts_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let missing = said(kvit(dir.path(), &["demo", "--model", "no-such-file.gguf"]).output().expect("kvit runs"));
    assert_eq!((missing.code, missing.out.as_str()), (3, ""), "{}", missing.err);
    let file = dir.path().join("x.gguf");
    std::fs::write(&file, "these are no weights, and this is no model").expect("a file");
    let broken = said(kvit(dir.path(), &["demo", "--model", file.to_str().expect("a path")]).output().expect("kvit runs"));
    assert_eq!((broken.code, broken.out.as_str()), (1, ""), "{}", broken.err);
    assert!(broken.err.contains("the server ended before it was ready; it said:") && broken.err.contains("x.gguf"), "{}", broken.err);
}

/// Whoever ends the demo in the middle ends its server too.
#[test]
fn an_interrupted_demo_leaves_no_server_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = crate::server::tiny_model();
    let mut demo = kvit(dir.path(), &["demo", "--model", model.to_str().expect("a path")]);
    let mut demo = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kvit starts");
    let mut lines = BufReader::new(demo.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    let line = lines.find(|l| l.starts_with("kvit serve is process ")).expect("it names its server");
    let server: u32 = line.split(' ').nth(4).and_then(|pid| pid.parse().ok()).expect("a process id");
    assert!(alive(server), "it serves");
    let status = Command::new("kill").args(["-TERM", &demo.id().to_string()]).status().expect("kill runs");
    assert!(status.success());
    let since = Instant::now();
    let code = loop {
        if let Some(status) = demo.try_wait().expect("it can be waited for") {
            break status.code();
        }
        assert!(since.elapsed() < Duration::from_secs(60), "it did not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut err = String::new();
    demo.stderr.take().expect("a pipe").read_to_string(&mut err).expect("text");
    assert_eq!(code, Some(143), "{err}");
    assert!(err.contains("its server was ended") && !alive(server), "{err}");
}

fn alive(pid: u32) -> bool {
    Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status().expect("kill runs").success()
}
