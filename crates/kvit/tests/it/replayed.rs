//! All numbers agree: a server's runs end in every way, it is killed, and its journal is folded again from the files that it wrote. Metrics,
//! runs, lists, timelines, steps, waste and diagnose are the same from both, for each run and in sum, and as the worker's own account has it.
// contract: C-15 C-20 C-24

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lifecycle::{Incarnation, RunId, RunKey, Tenant};
use observe::diagnose::{Look, judge};
use observe::{AlertRules, Format, Journal, Limits, PAGE_MAX, Prices, Replayed, RunFilter, Scrape, render_timeline, replay};
use serde_json::{Value, json};

use super::{Said, kvit, run, said};
use crate::gateway::until;
use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, lasting_model, tiny_model};
use crate::worker::Process;

/// Longest run that the pool holds.
const LONG: u32 = 15_000;
const RUNS: usize = 11;

fn start(dir: &Path) -> Server {
    let dir = dir.to_str().expect("a path");
    // Files that are small, so that the runs go through many of them.
    let files = ["--journal-dir", dir, "--journal-file-bytes", "10000", "--journal-files", "10000"];
    let engine = ["--max-running", "1", "--kv-blocks", "960", "--step-tokens", "32", "--deadline-check-percent", "0", "--log", "warn"];
    Server::start(&lasting_model(), &[&files[..], &engine[..]].concat())
}

/// A run that has the only place on the engine.
fn hold(server: &Server, id: &str) -> Caller {
    let mut caller = Caller::chat(server, id, &chat_body("Go on and on", LONG, true));
    assert!(!caller.read_tokens(3).is_empty(), "{id} decodes");
    caller
}

/// Runs that end in every way, all settled.
fn mix(server: &Server) {
    let ended = |id: &str, cause: &str| {
        let run = server.settled(id);
        assert_eq!(run["outcome"]["cause"], cause, "{run:#}");
        run
    };
    for (id, stream) in [("whole", false), ("streamed", true)] {
        assert_eq!(Caller::chat(server, id, &chat_body("Say something", 12, stream)).answer_or_events().0, 200);
        ended(id, "length");
    }
    hold(server, "left-in-decode").leave(Leave::Close);
    ended("left-in-decode", "client_closed");
    hold(server, "reset-in-decode").leave(Leave::Reset);
    ended("reset-in-decode", "client_reset");

    let caller = Caller::chat(server, "left-in-prefill", &chat_body(&"0123456789".repeat(1400), 8, false));
    server.wait_run("left-in-prefill", "begin", |run| run["steps"]["total"].as_u64() > Some(0));
    caller.leave(Leave::Close);
    assert_eq!(ended("left-in-prefill", "client_closed")["phase_at_disconnect"], "prefill");

    let holder = hold(server, "holder");
    let waits = Caller::chat(server, "left-in-queue", &chat_body("Wait", 8, true));
    server.wait_run("left-in-queue", "wait", |run| run["milestones"]["queued"].is_number());
    waits.leave(Leave::Close);
    assert_eq!(ended("left-in-queue", "client_closed")["phase_at_disconnect"], "queued");
    let mut body = chat_body("Wait", 8, false);
    body["timeout_ms"] = json!(60);
    Caller::chat(server, "expired-in-queue", &body).answer();
    assert_eq!(ended("expired-in-queue", "client_deadline")["tokens"]["generated"], 0);
    assert_eq!(server.json("POST", "/v1/runs/holder/cancel?wait_ms=60000").0, 200);
    ended("holder", "cancel_requested");
    drop(holder);

    let mut body = chat_body("Go on and on", LONG, false);
    body["timeout_ms"] = json!(700);
    Caller::chat(server, "expired", &body).answer();
    ended("expired", "client_deadline");

    assert_ne!(Caller::chat(server, "never-fits", &chat_body("Go on", 15_900, false)).answer().0, 200);
    ended("never-fits", "cannot_fit");
    let mut body = chat_body("Go on", 8, false);
    body["n"] = json!(2);
    assert_ne!(Caller::chat(server, "too-many", &body).answer().0, 200);
    ended("too-many", "over_limit");
}

fn samples(page: &str) -> BTreeMap<String, String> {
    let lines = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    lines.map(|(name, number)| (name.to_owned(), number.to_owned())).collect()
}

fn live_page(server: &Server) -> BTreeMap<String, String> {
    samples(&String::from_utf8(server.request("GET", "/metrics", None, None).2).expect("metrics are text"))
}

/// The page of what is replayed, but for the program's name and whether its workers answer.
fn replayed_page(journal: &Journal) -> BTreeMap<String, String> {
    let (workers, incarnation, version) = (&[], Incarnation(1), "0");
    let scrape = Scrape { version, incarnation, workers, holdings: None, outside: None, spans: None, format: Format::Text };
    let mut page = samples(&journal.metrics(&scrape));
    assert!(page.len() > 200, "{} samples", page.len());
    page.retain(|name, _| !["kvit_build_info", "kvit_worker_up"].iter().any(|other| name.starts_with(other)));
    page
}

fn read(dir: &Path) -> Replayed {
    let mut lives = replay(dir, Limits::default()).expect("the files are read");
    assert_eq!(lives.len(), 1, "one life");
    lives.remove(0)
}

/// What another number stands for.
fn differences(live: &BTreeMap<String, String>, replayed: &BTreeMap<String, String>) -> Vec<String> {
    let other = replayed.iter().filter(|(name, value)| live.get(*name) != Some(value));
    other.map(|(name, value)| format!("{name}: {:?} was shown, {value} is replayed", live.get(name))).collect()
}

/// As it comes out of an answer, and without the sentence that no file has.
fn as_answered(value: &Value) -> Value {
    let mut value: Value = serde_json::from_str(&value.to_string()).expect("JSON");
    let runs = if value["object"] == "list" { value["data"].as_array_mut().expect("runs").iter_mut().collect() } else { vec![&mut value] };
    for run in runs.into_iter().filter(|run| run["outcome"].is_object()) {
        run["outcome"]["reason"] = Value::Null;
    }
    value
}

fn key(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") }
}

/// The sum of a count over runs.
fn sum(runs: &[Value], at: &str) -> String {
    runs.iter().map(|run| run.pointer(at).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {at} in {run:#}"))).sum::<u64>().to_string()
}

/// What a server said of everything, when nothing was under way.
struct Told {
    page: BTreeMap<String, String>,
    list: Value,
    runs: Vec<Value>,
    steps: Vec<Value>,
    waste: Value,
    diagnosis: Value,
    kv: Value,
}

impl Told {
    fn ask(server: &Server) -> Told {
        let get = |path: &str| {
            let (status, answer) = server.json("GET", path);
            assert_eq!(status, 200, "{path}: {answer}");
            answer
        };
        let list = get(&format!("/v1/runs?limit={PAGE_MAX}"));
        let ids: Vec<String> =
            list["data"].as_array().expect("runs").iter().map(|run| run["id"].as_str().expect("an id").to_owned()).collect();
        let runs = ids.iter().map(|id| server.run(id)).collect();
        let steps = ids.iter().map(|id| get(&format!("/v1/runs/{id}/steps"))).collect();
        let (waste, diagnosis) = (get("/v1/waste"), get("/v1/diagnose?look=true"));
        Told { page: live_page(server), list, runs, steps, waste, diagnosis, kv: server.kv() }
    }

    /// The replayed views are those that were told.
    fn is_replayed(&self, life: &Replayed) {
        let journal = &life.journal;
        assert_eq!((life.removed, life.lost), (0, 0));
        assert_eq!(self.page["kvit_journal_records"], life.records.to_string());
        assert_eq!(differences(&self.page, &replayed_page(journal)), Vec::<String>::new());
        assert_eq!(
            as_answered(&self.list),
            as_answered(&json!(journal.runs_of_all(&RunFilter { limit: PAGE_MAX, ..RunFilter::default() })))
        );
        for (run, steps) in self.runs.iter().zip(&self.steps) {
            let key = key(run["id"].as_str().expect("an id"));
            let (run, replayed) = (as_answered(run), as_answered(&json!(journal.run(&key))));
            assert_eq!(run, replayed);
            assert_eq!(render_timeline(&run, 100, false), render_timeline(&replayed, 100, false));
            assert_eq!(as_answered(steps), as_answered(&json!(journal.steps(&key))));
            assert_eq!((&steps["complete"], replayed["steps"]["total"].as_u64()), (&json!(true), stepped(steps)), "{replayed:#}");
        }
        assert_eq!(as_answered(&self.waste)["total"], as_answered(&json!(journal.waste(&Prices::default())))["total"]);
        let look: Look = serde_json::from_value(self.diagnosis["look"].clone()).expect("a look");
        let folded = journal.look(&AlertRules::default(), &[]);
        let part =
            |look: &Look| (look.runs.clone(), look.left_total, look.orphans_oldest_ms, look.defects, look.tokens_generated, look.unproven);
        assert_eq!(part(&look), part(&folded));
        // With the account, which no journal has, the same verdict on the same evidence.
        let whole = Look { at_ms: look.at_ms, workers: look.workers, process: look.process, has_pool: look.has_pool, ..folded };
        let mut diagnosis = json!(judge(&[whole], None));
        let told = self.diagnosis.as_object().expect("a diagnosis").iter().filter(|(name, _)| !["look", "config"].contains(&name.as_str()));
        for (name, value) in told {
            assert_eq!(diagnosis[name].take(), *value, "{name}");
        }
        assert_eq!(self.diagnosis["verdict"], "healthy");
    }

    /// The sums over the runs are what the page counts, and nothing is left by the worker's own account.
    fn adds_up(&self) {
        assert_eq!(self.runs.len(), RUNS);
        let count = |name: &str| self.page.get(name).unwrap_or_else(|| panic!("no {name} on the page")).as_str();
        for (name, at) in [("generated", "generated"), ("delivered", "delivered"), ("overrun", "overrun")] {
            assert_eq!(count(&format!("kvit_tokens_{name}_total")), sum(&self.runs, &format!("/tokens/{at}")), "{name}");
        }
        let labelled = |family: &str, label: &str| {
            let of = self.page.iter().filter(|(name, _)| name.starts_with(&format!("{family}{{")) && name.contains(label));
            of.map(|(_, value)| value.parse::<u64>().expect("a count")).sum::<u64>()
        };
        assert_eq!(labelled("kvit_tokens_after_disconnect_total", "").to_string(), sum(&self.runs, "/tokens/after_disconnect"));
        let with = |at: &str, word: &str| self.runs.iter().filter(|run| run.pointer(at) == Some(&json!(word))).count() as u64;
        let causes = ["length", "client_closed", "client_reset", "cancel_requested", "client_deadline", "cannot_fit", "over_limit"];
        for cause in causes {
            let counted = labelled("kvit_run_outcomes_total", &format!("cause=\"{cause}\""));
            assert!(counted > 0 && counted == with("/outcome/cause", cause), "{cause}: {counted}");
        }
        assert_eq!(labelled("kvit_run_outcomes_total", ""), RUNS as u64, "and no other");
        assert_eq!(labelled("kvit_run_guarantees_total", "confirmed"), with("/guarantee", "confirmed"));
        assert_eq!((with("/guarantee", "confirmed"), count("kvit_settled_total")), (RUNS as u64, RUNS.to_string().as_str()));
        let attempts = self.runs.iter().map(|run| run["attempt"].as_u64().expect("a number")).sum::<u64>();
        assert_eq!(count("kvit_released_total"), attempts.to_string(), "each attempt once");
        assert_eq!(labelled("kvit_defects_total", ""), 0);
        // The worker's own audit: it holds nothing, as the records say of each run.
        let kv = |name: &str| self.kv[name].as_u64().unwrap_or_else(|| panic!("no {name} in {:#}", self.kv));
        assert_eq!(self.kv["conserved"], true);
        assert_eq!(self.kv["runs"], json!({"queued": 0, "running": 0, "stopping": 0}));
        assert_eq!((kv("active").to_string(), kv("draining"), kv("orphaned")), (sum(&self.runs, "/blocks/held"), 0, 0));
        assert_eq!(kv("free") + kv("cached"), kv("total"));
        assert_eq!([kv("stale_releases"), kv("foreign_releases"), kv("double_releases"), kv("late_completions")], [0; 4]);
        assert_eq!(kv("step").to_string(), count("kvit_steps_total"), "every step that was submitted is done");
    }
}

/// Rows of a run's steps.
fn stepped(steps: &Value) -> Option<u64> {
    steps["rows"].as_array().map(|rows| rows.len() as u64)
}

fn command(words: &[&str]) -> Said {
    let cache = tempfile::tempdir().expect("a folder");
    // Nobody is asked: there is no such server.
    said(kvit(cache.path(), words).env("KVIT_SERVER", "http://127.0.0.1:1").env("COLUMNS", "100").output().expect("it runs"))
}

#[test]
fn all_numbers_agree_when_the_journal_is_replayed_from_its_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("journal");
    let server = start(&folder);
    mix(&server);
    // All of it is told at one moment, and in the files: the device tells how long it was busy when it has nothing more to do.
    let since = Instant::now();
    let told = loop {
        let (before, told, after) = (live_page(&server), Told::ask(&server), live_page(&server));
        let replayed = replayed_page(&read(&folder).journal);
        let differences: Vec<_> = [&before, &told.page, &after].into_iter().flat_map(|page| differences(page, &replayed)).collect();
        if differences.is_empty() && told.page["kvit_journal_file_records_total"] == told.page["kvit_journal_records"] {
            break told;
        }
        assert!(since.elapsed() < PATIENCE, "{differences:#?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!([&told.page["kvit_journal_file_lost_records_total"], &told.page["kvit_journal_file_errors_total"]], ["0", "0"]);
    let address = format!("http://127.0.0.1:{}", server.port);
    let asked = |words: &[&str]| run(&[words, &["--server", &address]].concat());
    let (trace, json, runs) = (
        asked(&["trace", "left-in-decode", "whole"]),
        asked(&["trace", "expired", "--json"]),
        asked(&["runs", "--outcome", "cancelled", "--limit", "3"]),
    );
    server.signal("KILL");
    drop(server);
    let files = std::fs::read_dir(&folder).expect("the folder").count();
    assert!(files > 5, "{files} files: the runs went through several");
    told.is_replayed(&read(&folder));
    told.adds_up();

    // And what a person asks when the process has gone.
    let folder = folder.to_str().expect("a path");
    let past = |words: &[&str]| command(&[words, &["--journal", folder]].concat());
    for (words, live) in [
        (&["trace", "left-in-decode", "whole"][..], trace),
        (&["trace", "expired", "--json"], json),
        (&["runs", "--outcome", "cancelled", "--limit", "3"], runs),
    ] {
        let replayed = past(words);
        assert_eq!((live.code, replayed.code, replayed.err.as_str()), (0, 0, ""), "{words:?}");
        assert_eq!(live.out, replayed.out, "{words:?}");
    }
    let drawn = dir.path().join("run.pftrace");
    let perfetto = past(&["trace", "left-in-decode", "--perfetto", drawn.to_str().expect("a path")]);
    assert_eq!((perfetto.code, perfetto.err.as_str()), (0, ""));
    let steps = told.runs.iter().find(|run| run["id"] == "left-in-decode").expect("the run")["steps"]["total"].clone();
    assert!(perfetto.out.contains(&format!(": 1 run, {steps} steps, 0 moments")), "{}", perfetto.out);
    assert_eq!(past(&["trace", "nobody"]).code, 3);
    let wrong = past(&["runs", "--state", "asleep"]);
    assert!(wrong.code == 2 && wrong.err.contains("--state asleep: must be one of queued, "), "{}", wrong.err);
    assert_eq!(command(&["runs", "--journal", dir.path().to_str().expect("a path")]).code, 3, "no journal is there");
    assert_eq!(command(&["runs", "--journal", "no-such-folder"]).code, 3);
}

#[test]
fn what_lived_when_the_process_ended_is_found_and_a_next_life_goes_on_in_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().to_str().expect("a path");
    let server = start(dir.path());
    assert_eq!(Caller::chat(&server, "twice", &chat_body("Say something", 4, false)).answer().0, 200);
    let mut caller = hold(&server, "living");
    // Until the files have it decoding: what a killed process recorded last may be missing.
    let since = Instant::now();
    while read(dir.path()).journal.run(&key("living")).is_none_or(|run| run.tokens.generated == 0) {
        assert!(since.elapsed() < PATIENCE, "no token of it is in the files");
        caller.read_tokens(1);
    }
    // Another process may not write there meanwhile.
    let model = tiny_model();
    let second = ["serve", "--port", "0", "--log", "off", "--journal-dir", folder, "--model", model.to_str().expect("a path")];
    let refused = run(&second);
    assert_eq!((refused.code, refused.out.as_str()), (1, ""));
    assert!(
        refused.err.starts_with("kvit: journal_dir: ") && refused.err.contains("another process writes its journal there"),
        "{}",
        refused.err
    );
    server.signal("KILL");
    drop((server, caller));
    let live = command(&["runs", "--state", "live", "--json", "--journal", folder]);
    let live: Value = serde_json::from_str(&live.out).expect("JSON");
    assert_eq!((live["data"].as_array().map(Vec::len), &live["data"][0]["id"]), (Some(1), &json!("living")));
    assert_eq!(live["data"][0]["state"], "decoding");

    // The same id once more, in another life: the newest is shown, and the older one's runs are still listed.
    let server = start(dir.path());
    assert_eq!(Caller::chat(&server, "twice", &chat_body("Say something", 6, false)).answer().0, 200);
    server.settled("twice");
    assert!(server.terminate(), "what it had not written yet it writes at its end");
    let runs: Value = serde_json::from_str(&command(&["runs", "--json", "--journal", folder]).out).expect("JSON");
    let ids: Vec<_> = runs["data"].as_array().expect("runs").iter().map(|run| (&run["id"], &run["settled"])).collect();
    assert_eq!(json!(ids), json!([["twice", true], ["living", false], ["twice", true]]));
    let shown: Value = serde_json::from_str(&command(&["trace", "twice", "--json", "--journal", folder]).out).expect("JSON");
    assert_eq!(shown["tokens"]["generated"].as_u64(), Some(6), "{shown:#}");
    let nowhere = run(&["serve", "--port", "0", "--log", "off", "--journal-dir", model.to_str().expect("a path"), "--model", "x"]);
    assert_eq!((nowhere.code, nowhere.err.starts_with("kvit: journal_dir: ")), (1, true), "{}", nowhere.err);
}

#[test]
fn a_gateway_and_its_worker_each_write_what_they_saw() {
    let dir = tempfile::tempdir().expect("a folder");
    let [gateways, workers] = ["gateway", "worker"].map(|name| dir.path().join(name));
    let worker = Process::start(&tiny_model(), &["--journal-dir", workers.to_str().expect("a path")]);
    let gateway = Server::gateway(&[worker.address.as_str()], &["--journal-dir", gateways.to_str().expect("a path"), "--log", "warn"]);
    until("the worker is here", || (gateway.json("GET", "/health").0 == 200).then_some(()));
    assert_eq!(Caller::chat(&gateway, "run", &chat_body("Say something", 12, false)).answer().0, 200);
    let told = gateway.settled("run");
    assert!(gateway.terminate());
    worker.signal("TERM");
    assert_eq!(worker.ended().0, Some(0));
    let (of_gateway, of_worker) = (read(&gateways).journal, read(&workers).journal);
    assert_eq!(as_answered(&told), as_answered(&json!(of_gateway.run(&key("run")))));
    let run = of_worker.run(&key("run")).expect("the worker had it");
    assert_eq!((run.released, run.settled, run.model.as_str(), run.tokens.delivered), (true, false, "", 0));
    assert_eq!(
        (Some(run.tokens.generated), Some(run.steps.total)),
        (told["tokens"]["generated"].as_u64(), told["steps"]["total"].as_u64())
    );
    let page = replayed_page(&of_worker);
    assert_eq!(page["kvit_steps_total"], run.steps.total.to_string(), "what only the worker's process knows");
    assert_eq!(page["kvit_sessions_opened_total"], "1");
}
