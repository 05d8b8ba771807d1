//! An incident bundle has what a report needs, and nothing of anybody's: no prompt, no answer, no key, no name, no address.
// contract: C-30

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{kvit, said, url};
use crate::server::{Caller, Server, chat_body, lasting_model};

const SECRET: &str = "sk-planted-secret-of-the-operator";
const OTHER: &str = "sk-planted-secret-of-nobody";
const PROMPT: &str = "planted prompt about a merger";
const RUN: &str = "planted-run-id";
const TENANT: &str = "planted-tenant";

fn keyed(folder: &Path) -> Server {
    let key =
        |name: &str, secret: &str, more: &str| format!("[[key]]\nname = \"{name}\"\ntenant = \"{TENANT}\"\nsecret = \"{secret}\"\n{more}");
    let text = ["log = \"error\"\n", &key("planted-operator", SECRET, "operator = true\n"), &key("planted-caller", OTHER, "")].concat();
    let file = folder.join("planted-folder-kvit.toml");
    std::fs::write(&file, text).expect("it can be written");
    Server::start(&lasting_model(), &["--config", file.to_str().expect("a path")])
}

fn diagnose(server: &Server, folder: &Path, secret: &str, words: &[&str]) -> super::Said {
    said(kvit(folder, &[&["diagnose", "--server", &url(server)], words].concat()).env("KVIT_API_KEY", secret).output().expect("it runs"))
}

fn read(folder: &Path) -> Vec<(String, String)> {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("it is there")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (name(&path), std::fs::read_to_string(&path).expect("a text")))
        .collect();
    files.sort();
    files
}

#[test]
fn a_bundle_has_nothing_of_anybodys() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = keyed(folder.path());
    let header = format!("Authorization: Bearer {SECRET}\r\n");
    let mut caller = Caller::post_with(&server, "/v1/chat/completions", RUN, &header, &chat_body(PROMPT, 10_000, true));
    let answer = caller.read_tokens(40);
    let said: String = answer.chars().take(20).collect();
    assert_eq!(said.chars().count(), 20, "{answer}");

    let archive = folder.path().join("incident.tar.gz");
    let text = archive.to_str().expect("a path");
    let told = diagnose(&server, folder.path(), SECRET, &["--bundle", text]);
    assert_eq!(told.code, 0, "{} {}", told.out, told.err);
    assert!(told.err.contains(&format!("is {RUN}")), "whoever made it is told which run is which: {}", told.err);
    let status = Command::new("tar").args(["xzf", text, "-C"]).arg(folder.path()).status().expect("tar runs");
    assert!(status.success(), "it is an archive");
    let files = read(&folder.path().join("kvit-incident"));
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let wanted = [
        "README.txt",
        "alerts.json",
        "config.json",
        "diagnosis.json",
        "journal.json",
        "metrics.txt",
        "missing.txt",
        "runs.json",
        "snapshot.json",
        "versions.json",
        "waste.json",
    ];
    assert_eq!(names, wanted);
    let model = lasting_model();
    let model = model.file_stem().and_then(|name| name.to_str()).expect("a name");
    let hidden = [
        SECRET,
        OTHER,
        PROMPT,
        "merger",
        RUN,
        TENANT,
        "planted",
        &said,
        &format!(":{}", server.port),
        "127.0.0.1",
        &format!("{model}.gguf"),
    ];
    for (name, text) in &files {
        for word in hidden {
            assert!(!text.contains(word), "{name} has `{word}`: {text}");
        }
    }
    // And what is needed is there.
    let json = |wanted: &str| -> Value {
        let (_, text) = files.iter().find(|(name, _)| name == wanted).expect("the file");
        serde_json::from_str(text).expect("JSON")
    };
    assert_eq!(json("diagnosis.json")["verdict"], "healthy");
    let runs = json("runs.json");
    let id = runs[0]["id"].as_str().expect("a name").to_owned();
    assert!(id.starts_with("run-") && runs[0]["state"] == "decoding" && runs[0]["tokens"]["generated"].as_u64() > Some(0), "{runs:#}");
    let journal = json("journal.json");
    let tail = journal.as_array().expect("records");
    assert!(tail.iter().all(|line| line["run"] == id.as_str()) && tail.iter().any(|line| line["event"] == "FirstToken"), "{journal:#}");
    let config = json("config.json");
    assert_eq!((&config["kv_blocks"], &config["model"], &config["keys"]), (&"1024".into(), &"set".into(), &"2".into()));
    let snapshot = folder.path().join("kvit-incident/snapshot.json");
    let snapshot = snapshot.to_str().expect("a path");
    assert_eq!(diagnose(&server, folder.path(), SECRET, &["--compare", snapshot, snapshot]).code, 0, "it can be judged again");
    let metrics = &files.iter().find(|(name, _)| name == "metrics.txt").expect("the page").1;
    assert!(metrics.contains("kvit_kv_blocks{state=\"active\"}"), "{metrics}");

    // As a folder; and for operators only.
    let plain = folder.path().join("plain");
    let told = diagnose(&server, folder.path(), SECRET, &["--bundle", plain.to_str().expect("a path")]);
    assert_eq!((told.code, read(&plain).len()), (0, wanted.len()), "{}", told.err);
    let told = diagnose(&server, folder.path(), OTHER, &[]);
    assert!(told.code == 2 && told.err.contains("this is for operators"), "{}", told.err);
    assert_eq!(server.request_with("GET", "/v1/diagnose", &format!("Authorization: Bearer {OTHER}\r\n"), None).0, 403);
    assert_eq!(server.json("GET", "/v1/diagnose").0, 401);
}
