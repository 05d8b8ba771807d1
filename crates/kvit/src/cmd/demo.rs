//! `kvit demo`: starts a server, lets callers leave in every way over real sockets, and shows what became of each.
//!
//! It decides nothing: what it shows is the server's public JSON, and what it states is compared with that.
//!
//! Invariant: the exit code is 0 only if everything stated held, and the server drained and ended well; a scene that this machine cannot
//! play says so and why.

mod caller;
mod scene;
mod scenes;
mod show;
mod stage;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::anyhow;
use serde_json::{Value, json};

use crate::cmd::child::{Log, Server};
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;
use scene::{Played, Scene};
use show::Page;
use stage::Stage;

/// What the server is told beside its model: few places, so that a queue forms, and short patience, so that nobody has to wait long for it.
const OPTIONS: &[(&str, &str)] = &[
    ("max_running", "3"),
    ("unread_max_ms", "900"),
    ("client_lost_after_ms", "2000"),
    ("send_buffer_bytes", "16384"),
    ("drain_ms", "2000"),
    ("log", "warn"),
];

/// `kvit demo`
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// GGUF file to serve; without it the cached default model, fetched if it is not there.
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Threads that compute; without it one a core.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Print one JSON document with every run and account instead of pages.
    #[arg(long)]
    pub json: bool,
}

/// Plays every scene.
///
/// # Errors
/// No model, a server that does not start or end, or a scene that failed.
pub fn run(args: &DemoArgs, cache: Option<PathBuf>) -> Result<(), Failure> {
    let since = Instant::now();
    let model = model_file::resolve(args.model.as_deref(), &Cache::locate(cache)?)?;
    let page = (!args.json).then(|| Page { width: out::width(), colour: out::colour() });
    let server = Server::start("demo", Log::Kept, |command| {
        command.args(["--host", "127.0.0.1", "--model"]).arg(&model);
        command.args(OPTIONS.iter().flat_map(|(key, value)| [format!("--{}", key.replace('_', "-")), (*value).to_owned()]));
        if let Some(threads) = args.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        // Its scenes count on the options above and the defaults.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KVIT_")) {
            command.env_remove(name);
        }
    })?;
    if let Some(page) = page {
        out::line(&page.opening(&opening(&server, &model, since)))?;
    }
    let played = play_all(&server, page)?;
    let ended_well = server.drain()?;
    let (passed, failed) = (played.iter().filter(|p| p.passed()).count(), played.iter().filter(|p| p.failed()).count());
    let seconds = since.elapsed().as_secs_f64();
    match page {
        Some(page) => {
            out::line(&format!("\n{}", page.summary(&played)))?;
            let skipped = match played.len() - passed - failed {
                0 => String::new(),
                n => format!(", {n} skipped"),
            };
            let end = if ended_well { "the server drained and ended well" } else { "THE SERVER DID NOT END WELL" };
            out::line(&format!("\n{passed} of {} scenes passed{skipped} in {seconds:.1} s; {end}", played.len()))?;
        }
        None => out::json(&document(&played, (failed == 0 && ended_well, ended_well, seconds)))?,
    }
    match (failed, ended_well) {
        (0, true) => Ok(()),
        (0, false) => Err(Failure::Other(anyhow!("the server did not end well"))),
        _ => Err(Failure::Other(anyhow!("{failed} of {} scenes failed", played.len()))),
    }
}

fn opening(server: &Server, model: &Path, since: Instant) -> [String; 3] {
    let file = model.file_name().unwrap_or_default().to_string_lossy();
    let options: Vec<String> = OPTIONS.iter().map(|(key, value)| format!("{key} {value}")).collect();
    let ready = since.elapsed().as_secs_f64();
    [
        format!("kvit demo: real sockets, {file}"),
        format!("kvit serve is process {} on {}, ready in {ready:.1} s", server.pid, server.address),
        format!("told {}", options.join(", ")),
    ]
}

fn play_all(server: &Server, page: Option<Page>) -> Result<Vec<Played>, Failure> {
    let stage = Stage::set(server)?;
    let mut played = Vec::new();
    for (i, scene) in scenes::all().into_iter().enumerate() {
        if let Some(page) = page {
            out::line(&page.head(i + 1, &scene))?;
        }
        let one = play(&stage, scene);
        if let Some(page) = page {
            out::line(&page.scene(i + 1, &one))?;
        }
        played.push(one);
    }
    Ok(played)
}

/// A scene that breaks off is one that did not pass; the next is played all the same.
fn play(stage: &Stage<'_>, scene: Scene) -> Played {
    // A scene that broke off may have left callers whose runs are being cancelled.
    let before = stage.account_at_rest().unwrap_or(Value::Null);
    let found = (scene.play)(stage).map_err(|why| format!("{why:#}"));
    let after = stage.account().unwrap_or(Value::Null);
    Played { scene, found, before, after }
}

fn document(played: &[Played], (passed, ended_well, seconds): (bool, bool, f64)) -> Value {
    let scenes: Vec<Value> = played.iter().enumerate().map(|(i, p)| p.json(i + 1)).collect();
    let options: serde_json::Map<String, Value> = OPTIONS.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({"object": "demo", "version": env!("CARGO_PKG_VERSION"), "passed": passed, "seconds": seconds,
           "server": {"options": options, "ended_well": ended_well}, "scenes": scenes})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeFlags;

    #[test]
    fn the_servers_options_are_options_of_serve() {
        let mut flags = ServeFlags::default();
        for (key, value) in OPTIONS {
            assert_eq!(flags.set(key, value), Some(Ok(())), "{key}");
        }
        flags.fill().check().expect("they go together");
    }
}
