//! `kvit diagnose`: one verdict on a server, with its evidence and what to do next; of kvit by its own account, of other engines by their counters.
//!
//! The judgement is `observe::diagnose`'s; here it is asked, kept in files, and shown.
//!
//! Invariant: exit code 0 says that nothing has to be done, 1 that a fault was found, 2 that nobody can tell, 4 that nobody answers.

mod archive;
mod ask;
mod bundle;
mod files;
mod probe;
mod redact;
mod show;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use observe::diagnose::{Diagnosis, EngineLook, Look, Probe, Verdict, judge, judge_engine};

use crate::failure::Failure;
use crate::out;

/// Most looks of a watch: it looks each second, of a longer one less often.
const LOOKS_MAX: u64 = 120;

/// `kvit diagnose`
#[derive(Debug, Args)]
pub struct DiagnoseArgs {
    /// The server's address; with --profile the engine's.
    #[arg(long, env = "KVIT_SERVER", value_name = "URL", default_value = "http://127.0.0.1:8000", hide_env = true)]
    pub server: String,
    /// Look again and again for so long, and judge by all of it.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
    /// Write what was seen to a file, for --compare.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Judge by two files that --snapshot wrote, the older one first, and ask nobody.
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["watch", "probe", "snapshot", "profile"])]
    pub compare: Option<Vec<PathBuf>>,
    /// Send four small runs and see whether they get blocks that are called free, and give them back. Their prompts stay in the prefix index
    /// until somebody needs their blocks.
    #[arg(long)]
    pub probe: bool,
    /// Judge an engine that others wrote by its own counters: vllm, sglang, llamacpp, tgi, dynamo, or generic-prometheus:FILE with a mapping
    /// of your own (docs/verify.md).
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// With --profile: how many requests have a caller, by your own knowledge; 0 where you have stopped all of them.
    #[arg(long, value_name = "N")]
    pub callers: Option<u64>,
    /// Write an incident bundle, without prompts, answers, keys, names and addresses: a .tar.gz, or else a folder.
    #[arg(long, value_name = "FILE.tar.gz|DIR")]
    pub bundle: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What was seen, of whichever make.
pub enum Saw {
    /// Of kvit.
    Kvit(Vec<Look>),
    /// Of an engine that others wrote.
    Engine(Vec<EngineLook>),
}

impl Saw {
    /// The verdict on it.
    pub fn judge(&self, callers: Option<u64>, probe: Option<&Probe>) -> Diagnosis {
        match self {
            Saw::Kvit(looks) => judge(looks, probe),
            Saw::Engine(looks) => judge_engine(looks, callers, probe),
        }
    }
}

/// Looks, judges and tells.
///
/// # Errors
/// A wrong option, no server, a fault, or nothing that could be judged.
pub fn run(args: &DiagnoseArgs) -> Result<(), Failure> {
    let (saw, probe) = match &args.compare {
        Some(files) => (files::compared(files)?, None),
        None => gather(args)?,
    };
    let diagnosis = saw.judge(args.callers, probe.as_ref());
    if let Some(file) = &args.snapshot {
        files::write(file, args.profile.as_deref(), &saw)?;
    }
    if let Some(to) = &args.bundle {
        bundle::write(to, args, &saw, probe.as_ref())?;
    }
    match args.json {
        true => out::json(&serde_json::json!(diagnosis))?,
        false => out::line(&show::text(&diagnosis, out::width()))?,
    }
    match diagnosis.verdict {
        Verdict::CannotTell => Err(Failure::Usage("nobody can tell; what is missing stands above".to_owned())),
        verdict if verdict.is_fault() => Err(Failure::Other(anyhow!("{}", verdict.as_str()))),
        _ => Ok(()),
    }
}

/// Looks as often as was asked for, probes if that was asked for, and looks once more.
fn gather(args: &DiagnoseArgs) -> Result<(Saw, Option<Probe>), Failure> {
    match args.profile.as_deref().map(ask::profile).transpose()?.flatten() {
        None => {
            let mut looks = watched(args, || ask::kvit(&args.server))?;
            let probe = match (args.probe, looks.last()) {
                (true, Some(before)) => Some(probe::kvit(&args.server, before)?),
                _ => None,
            };
            if probe.is_some() {
                looks.push(ask::kvit(&args.server)?);
            }
            Ok((Saw::Kvit(looks), probe))
        }
        Some(profile) => {
            let mut looks = watched(args, || ask::engine(&args.server, &profile))?;
            let probe = args.probe.then(|| probe::engine(&args.server)).transpose()?;
            if probe.is_some() {
                looks.push(ask::engine(&args.server, &profile)?);
            }
            Ok((Saw::Engine(looks), probe))
        }
    }
}

fn watched<L>(args: &DiagnoseArgs, mut look: impl FnMut() -> Result<L, Failure>) -> Result<Vec<L>, Failure> {
    let mut looks = vec![look()?];
    let Some(seconds) = args.watch else { return Ok(looks) };
    let (begun, span) = (Instant::now(), Duration::from_secs(seconds));
    let every = Duration::from_secs(1).max(span / LOOKS_MAX as u32);
    while begun.elapsed() < span {
        std::thread::sleep(every.min(span.saturating_sub(begun.elapsed())));
        looks.push(look()?);
    }
    Ok(looks)
}
