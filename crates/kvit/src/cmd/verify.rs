//! `kvit verify`: what the judge found of a stack, as a table for a person and as files for machines.
//!
//! Invariant: exit code 0 says that no cell and no check failed and that something passed; 2 that nothing could be judged.

mod own;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Args;
use gpu::Gpus;
use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Set, Trigger};
use verify::judge::cpu::Processes;
use verify::judge::device::Devices;
use verify::judge::hop::Named;
use verify::judge::profile::Profile;
use verify::judge::report;
use verify::judge::result::{Hop, Judged, Report};
use verify::judge::settings::Settings;
use verify::judge::stack::{Stack, Unjudged};
use verify::judge::tap::TapClient;

use crate::failure::Failure;
use crate::out;

/// `kvit verify URL`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Where the stack is asked, as its callers ask it [default: http://127.0.0.1:8000, or with --check where the report's was].
    pub url: Option<String>,
    /// Judge kvit itself by the same rules: starts `kvit serve`, then `kvit gateway` with a `kvit worker`, on free ports with taps between, and
    /// ends them. Each gets a report of its own; a file to read or write has the stack's name put in, as `now.serve.json` and
    /// `now.gateway.json`.
    #[arg(long = "self", conflicts_with_all = ["url", "engine", "profile", "tap", "hop", "pid", "key_file", "check"])]
    pub own: bool,
    /// Ask the common questions only (the default): under a minute on most stacks.
    #[arg(long, conflicts_with_all = ["full", "cell"])]
    pub quick: bool,
    /// Ask every question that makes sense.
    #[arg(long, conflicts_with = "cell")]
    pub full: bool,
    /// Ask this question, as `early/close/stream`; may be given more than once.
    #[arg(long, value_name = "PHASE/TRIGGER/FORM")]
    pub cell: Vec<Cell>,
    /// The model to ask for; else the first that the stack names. With --self the GGUF file to serve; else the cached default model, fetched if
    /// it is not there.
    #[arg(long, value_name = "NAME|FILE")]
    pub model: Option<String>,
    /// Where the engine's counters are, if they are not where the stack is.
    #[arg(long, value_name = "URL")]
    pub engine: Option<String>,
    /// How the counters are read: kvit, vllm, sglang, llamacpp, tgi, dynamo, a file with a mapping, or none. Else it is looked at.
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// A tap in the stack, by where it reports, in the order of the hops from the caller on; may be given more than once.
    #[arg(long, value_name = "HOST:PORT")]
    pub tap: Vec<String>,
    /// A hop of the stack, in order from the edge to the engine; may be given more than once. Words: kind=, tap=HOST:PORT (in front of it),
    /// log=FILE, config=FILE, version=TEXT, version-by=COMMAND, url=URL; a comma in one is written twice.
    #[arg(long, value_name = "NAME[,WORD=VALUE]", conflicts_with = "tap")]
    pub hop: Vec<Named>,
    /// A process of the engine on this machine; may be given more than once. Else whoever listens at the engine's port, if that is here.
    #[arg(long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// A GPU on which the engine computes, by its number; may be given more than once. Else those on which its processes are found to. In a
    /// container, where the driver knows them by other numbers, GPUs have to be named.
    #[arg(long, value_name = "INDEX")]
    pub gpu: Vec<u32>,
    /// The driver's management library, where it is not found by its name.
    #[arg(long, value_name = "FILE")]
    pub nvml: Option<PathBuf>,
    /// A file with the API key that the stack is asked with.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// A file with certificates (PEM) of authorities that are trusted beside the usual ones, where a URL is `https`.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Settings (TOML): tries, tolerances, limits.
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Times that each question is asked.
    #[arg(long, value_name = "N")]
    pub tries: Option<u64>,
    /// Tokens that a request asks for.
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<u64>,
    /// Idle timeout of the hop in front, in milliseconds: how long it lets a request be silent before it gives it up. Questions of `edge-idle` are
    /// asked with it: do those go on that it gave up?
    #[arg(long, value_name = "MILLISECONDS")]
    pub idle_ms: Option<u64>,
    /// Never look at the engine between a departure and its end.
    #[arg(long)]
    pub passive: bool,
    /// Look at it there, even if that disturbs it.
    #[arg(long, conflicts_with = "passive")]
    pub poll: bool,
    /// Ask each question with looks and without, and tell whether looking changed the answer.
    #[arg(long)]
    pub both_ways: bool,
    /// Ask nothing, and tell whether the hops are still what they were in an earlier report (JSON): exit code 1 says that its evidence is
    /// stale, 2 that nobody can tell.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "full", "cell", "compare", "junit", "html", "both_ways"])]
    pub check: Option<PathBuf>,
    /// Compare with an earlier report (JSON).
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Write the report as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write it as JUnit's XML.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write it as a page of HTML that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Judges a stack, or kvit's own.
///
/// # Errors
/// A wrong option, a stack that cannot be judged, or one that failed.
pub fn run(args: &VerifyArgs, cache: Option<PathBuf>) -> Result<(), Failure> {
    let settings = settings(args)?;
    if args.own {
        return own::run(args, &settings, cache);
    }
    let checked = args.check.as_deref().map(older).transpose()?;
    if let Some(old) = checked.as_ref().filter(|old| old.hops.len() > 1 && args.hop.is_empty()) {
        let names: Vec<String> = old.hops.iter().map(report::clean_name).collect();
        return Err(Failure::Usage(format!("the report is of the hops {}: name them again, each with --hop as then", names.join(", "))));
    }
    let default = checked.as_ref().map_or("http://127.0.0.1:8000", |old| old.target.as_str());
    let target = target(args, args.url.as_deref().unwrap_or(default))?;
    let engine = args.engine.as_deref().map(|url| trusting(args, target_at(url)?)).transpose()?;
    let profile = args.profile.as_deref().map(profile).transpose()?;
    let taps = args.tap.iter().map(|at| TapClient::new(at)).collect::<Result<Vec<_>, _>>().map_err(Failure::Usage)?;
    let old = args.compare.as_deref().map(older).transpose()?;
    let cells = cells(args, &settings);
    let judged = runtime()?.block_on(async {
        let port = engine.as_ref().unwrap_or(&target).port_here().await;
        let looks = args.profile.as_deref() != Some("none");
        let mut stack = Stack::meet(target, args.model.clone(), engine.clone(), profile.flatten(), looks).await?;
        stack.taps = taps;
        stack.name_hops(&args.hop, engine.as_ref()).await.map_err(Unjudged::Hop)?;
        if checked.is_some() {
            return Ok(Met::Hops(stack.way.hops));
        }
        stack.processes = match &*args.pid {
            [] => port.and_then(Processes::listening),
            pids => Some(Processes::of(pids).map_err(Unjudged::Control)?),
        };
        stack.devices = devices(args, stack.processes.as_ref()).map_err(Unjudged::Hop)?;
        verify::judge::run::run(stack, &settings, &cells, told).await.map(|report| Met::Judged(Box::new(report)))
    });
    let report = match judged.map_err(|why: Unjudged| Failure::Usage(why.to_string()))? {
        Met::Judged(report) => report,
        Met::Hops(hops) => return stale(args, &checked.unwrap_or_default(), &hops),
    };
    files(args, &report, &Path::to_path_buf)?;
    show(&report, old.as_ref())?;
    match report.exit_code() {
        0 => Ok(()),
        2 => Err(Failure::Usage("nothing could be judged; what is missing stands above".to_owned())),
        _ => Err(Failure::Other(anyhow::anyhow!("{} failed", report.count("FAIL")))),
    }
}

/// GPUs that the engine computes on. Where nobody named any, a machine without them is no error.
fn devices(args: &VerifyArgs, processes: Option<&Processes>) -> Result<Option<Devices>, String> {
    let gpus = match Gpus::open(args.nvml.as_deref()) {
        Ok(gpus) => Arc::new(gpus),
        Err(_) if args.gpu.is_empty() && args.nvml.is_none() => return Ok(None),
        Err(why) => return Err(why),
    };
    match &*args.gpu {
        [] => Ok(processes.and_then(|processes| Devices::of(gpus, processes))),
        which => Devices::named(gpus, which).map(Some),
    }
}

fn cells(args: &VerifyArgs, settings: &Settings) -> Vec<Cell> {
    match (&*args.cell, args.full) {
        ([], false) => {
            let mut cells = Set::Quick.cells();
            // Whoever says when an edge gives up asks what that does.
            if settings.idle_ms > 0 {
                let idle = |phase| Cell::new(phase, Trigger::EdgeIdle);
                cells.extend([idle(Phase::Prefill), idle(Phase::EarlyDecode).whole()]);
            }
            cells
        }
        ([], true) => Set::Full.cells(),
        (cells, _) => cells.to_vec(),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// The table of a report, and what became better or worse since an earlier one.
fn show(report: &Report, old: Option<&Report>) -> Result<(), Failure> {
    let (width, paint) = (out::width(), report::table::Paint::Plain);
    out::line(report::table::table(report, width, paint).trim_end())?;
    match old {
        Some(old) => out::line(report::compare::text(&report::compare::compare(old, report), width, paint).trim_end()),
        None => Ok(()),
    }
}

/// What came of meeting a stack.
enum Met {
    Judged(Box<Report>),
    /// Nothing was asked of it but what it is.
    Hops(Vec<Hop>),
}

/// Tells which hops are not what they were when a report was made.
fn stale(args: &VerifyArgs, old: &Report, now: &[Hop]) -> Result<(), Failure> {
    let staleness = report::compare::Staleness::of(old, now);
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&staleness).context("the answer cannot be written")?;
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    out::line(staleness.text(out::width()).trim_end())?;
    match staleness.exit_code() {
        0 => Ok(()),
        2 => Err(Failure::Usage("nothing says whether all of the hops are what they were".to_owned())),
        _ => Err(Failure::Other(anyhow::anyhow!("the evidence is stale"))),
    }
}

/// An earlier report.
fn older(file: &Path) -> Result<Report, Failure> {
    report::json::read(&text(file)?).map_err(|e| Failure::Usage(format!("{}: {e}", file.display())))
}

fn told(of: &Judged) {
    eprintln!("{:<10} {}", of.verdict.word(), of.cell);
}

fn text(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string()).map_err(Failure::Other)
}

fn settings(args: &VerifyArgs) -> Result<Settings, Failure> {
    let mut settings = match &args.settings {
        Some(file) => Settings::parse(&text(file)?).map_err(|why| Failure::Usage(format!("{}: {why}", file.display())))?,
        // Under a minute.
        None if args.full => Settings { departures: 48, ..Settings::default() },
        None => Settings { tries: 1, departures: 8, ..Settings::default() },
    };
    if settings.seed == 0 {
        // Prompts that were asked before may be cached, and their ids stand in logs and taps already.
        settings.seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
    }
    settings.tries = args.tries.unwrap_or(settings.tries);
    settings.idle_ms = args.idle_ms.unwrap_or(settings.idle_ms);
    settings.max_tokens = args.max_tokens.unwrap_or(settings.max_tokens);
    if args.passive || args.poll {
        settings.poll = Some(args.poll);
    }
    settings.both_ways |= args.both_ways;
    settings.check().map_err(Failure::Usage)?;
    Ok(settings)
}

fn target_at(url: &str) -> Result<Target, Failure> {
    Target::parse(url).map_err(Failure::Usage)
}

/// With the authorities that were named.
fn trusting(args: &VerifyArgs, mut target: Target) -> Result<Target, Failure> {
    if let Some(file) = &args.ca_file {
        target.trust(file).map_err(Failure::Usage)?;
    }
    Ok(target)
}

fn target(args: &VerifyArgs, url: &str) -> Result<Target, Failure> {
    let mut target = trusting(args, target_at(url)?)?;
    if let Some(file) = &args.key_file {
        target.key(text(file)?.trim()).map_err(|why| Failure::Usage(format!("{}: {why}", file.display())))?;
    }
    Ok(target)
}

/// A profile by its name, `None` for none, or a file's.
fn profile(name: &str) -> Result<Option<Profile>, Failure> {
    if name == "none" {
        return Ok(None);
    }
    if let Some(known) = Profile::named(name) {
        return Ok(Some(known));
    }
    let file = Path::new(name);
    if !file.exists() {
        let known = Profile::built_in().iter().map(|profile| profile.name.clone()).collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("the profile `{name}` is none of {known}, none, and no file")));
    }
    Profile::parse(&text(file)?).map(Some).map_err(|why| Failure::Usage(format!("{name}: {why}")))
}

/// Writes the files that were asked for, each where `at` says.
fn files(args: &VerifyArgs, report: &Report, at: &dyn Fn(&Path) -> PathBuf) -> Result<(), Failure> {
    let write = |file: &Option<PathBuf>, text: &dyn Fn() -> String| match file.as_deref().map(at) {
        Some(file) => std::fs::write(&file, text()).with_context(|| file.display().to_string()).map_err(Failure::Other),
        None => Ok(()),
    };
    write(&args.json, &|| report::json::write(report).unwrap_or_default())?;
    write(&args.junit, &|| report::junit::junit(report))?;
    write(&args.html, &|| report::html::html(report))
}
