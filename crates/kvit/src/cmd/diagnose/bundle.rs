//! An incident bundle: everything that a report needs and nothing that it must not have.
//!
//! The verdict in it is judged anew from looks that have their names taken out, so no sentence of its evidence can have one.
//!
//! Invariant: whatever goes in has passed the redactor; what could not be got is named in `missing.txt` and hinders nothing.

use std::path::Path;

use anyhow::{Context, anyhow};
use observe::diagnose::Probe;
use serde_json::{Value, json};

use super::redact::Redactor;
use super::{DiagnoseArgs, Saw, files};
use crate::failure::Failure;
use crate::{client, out};

/// Records of each run.
const TAIL: usize = 300;
/// Runs whose records and views are in it.
const RUNS_MAX: usize = 20;

const ABOUT: &str = "An incident bundle of `kvit diagnose`.\n\n\
    diagnosis.json  the verdict, its evidence, and what to do\n\
    snapshot.json   what was seen; `kvit diagnose --compare` reads it\n\
    metrics.txt     /metrics at the end\n\
    alerts.json     the alert rules as they stood\n\
    waste.json      what was computed for nobody\n\
    runs.json       the records of the runs that it is about\n\
    journal.json    the newest records of the journal about them\n\
    config.json     the server's options, without addresses, paths and texts\n\
    versions.json   of kvit, of the server and of this system\n\
    missing.txt     what could not be got\n\n\
    Names of runs, tenants, models, workers and engines are digests with a salt that nobody kept. There is no prompt, no answer, no key and no\n\
    address in it.\n";

/// Gathers it and writes it.
///
/// # Errors
/// It cannot be written.
pub fn write(to: &Path, args: &DiagnoseArgs, saw: &Saw, probe: Option<&Probe>) -> Result<(), Failure> {
    let redactor = Redactor::new().map_err(|why| anyhow!("no randomness for new names: {why}"))?;
    let hidden = match saw {
        Saw::Kvit(looks) => Saw::Kvit(looks.iter().map(|look| redactor.look(look)).collect()),
        Saw::Engine(looks) => Saw::Engine(looks.clone()),
    };
    let diagnosis = hidden.judge(args.callers, probe);
    let profile = args.profile.as_deref().map(|profile| profile.split(':').next().unwrap_or_default());
    let mut all = vec![
        ("README.txt".to_owned(), ABOUT.to_owned()),
        ("diagnosis.json".to_owned(), pretty(&json!(diagnosis))),
        ("snapshot.json".to_owned(), pretty(&files::json(profile, &hidden))),
        ("versions.json".to_owned(), pretty(&versions(saw))),
    ];
    let mut missing = String::new();
    let mut add = |name: &str, got: Result<String, Failure>| match got {
        Ok(text) => all.push((name.to_owned(), text)),
        // What a server says for an excuse may have anything in it.
        Err(_) => missing += &format!("{name}: the server did not answer, or not so\n"),
    };
    match (saw, &args.compare) {
        (_, Some(_)) => missing += "everything but the verdict and the snapshots: two files were compared, and nobody was asked\n",
        (Saw::Engine(_), None) => {
            let page = super::ask::profile(args.profile.as_deref().unwrap_or_default());
            let path = page.ok().flatten().map_or_else(|| "/metrics".to_owned(), |profile| profile.path);
            add("metrics.txt", client::text(&args.server, &path).map(|page| counters(&page)));
        }
        (Saw::Kvit(_), None) => asked(&args.server, &redactor, &mut add),
    }
    all.push(("missing.txt".to_owned(), missing));
    put(to, &all)?;
    for (old, new) in redactor.runs() {
        out::note(&format!("in the bundle {new} is {}", old.escape_debug()));
    }
    out::note(&format!("bundle: {}", to.display()));
    Ok(())
}

fn asked(server: &str, redactor: &Redactor, add: &mut dyn FnMut(&str, Result<String, Failure>)) {
    add("metrics.txt", client::text(server, "/metrics").map(|page| redactor.metrics(&page)));
    add("alerts.json", client::get(server, "/v1/alerts").map(|json| pretty(&json)));
    add("waste.json", client::get(server, "/v1/waste").map(|json| pretty(&json)));
    let answer = client::get(server, &format!("/v1/diagnose?look=true&tail={TAIL}"));
    let tail = answer.as_ref().ok().and_then(|json| json["tail"].as_array().cloned()).unwrap_or_default();
    let mut names: Vec<(String, String)> =
        tail.iter().filter_map(|line| Some((line["tenant"].as_str()?.to_owned(), line["run"].as_str()?.to_owned()))).collect();
    names.dedup();
    names.truncate(RUNS_MAX);
    let view = |(tenant, run): &(String, String)| {
        client::get(server, &format!("/v1/runs/{}?tenant={}", client::encode(run), client::encode(tenant)))
            .ok()
            .map(|view| redactor.run(&view))
    };
    let views: Vec<Value> = names.iter().filter_map(view).collect();
    add("config.json", answer.map(|json| pretty(&json["config"])));
    add("journal.json", Ok(pretty(&tail.iter().map(|line| redactor.record(line)).collect())));
    add("runs.json", Ok(pretty(&Value::Array(views))));
}

/// Samples of an engine that others wrote, without their labels: nobody knows what those say.
fn counters(page: &str) -> String {
    let bare = |line: &str| match (line.find('{'), line.rfind('}')) {
        (Some(open), Some(close)) if open < close => format!("{}{}\n", &line[..open], &line[close + 1..]),
        _ => format!("{line}\n"),
    };
    page.lines().filter(|line| !line.starts_with('#')).map(bare).collect()
}

fn versions(saw: &Saw) -> Value {
    let server = match saw {
        Saw::Kvit(looks) => looks.last().map(|look| look.version.clone()),
        Saw::Engine(_) => None,
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned());
    json!({"kvit": env!("CARGO_PKG_VERSION"), "server": server, "system": std::env::consts::OS, "kernel": release,
           "architecture": std::env::consts::ARCH})
}

fn pretty(json: &Value) -> String {
    format!("{json:#}\n")
}

/// As an archive or as a folder.
fn put(to: &Path, all: &[(String, String)]) -> Result<(), Failure> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let failed = || to.display().to_string();
    if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
        let bytes = super::archive::tar_gz("kvit-incident", all).with_context(failed)?;
        return std::fs::write(to, bytes).with_context(failed).map_err(Failure::Other);
    }
    std::fs::create_dir_all(to).with_context(failed)?;
    for (file, text) in all {
        std::fs::write(to.join(file), text).with_context(failed)?;
    }
    Ok(())
}
