//! `kvit sim`: one seed replayed and told, or many seeds and a closing line.
//!
//! Invariant: exit code 0 says that no clause was broken and that every seed was worth its time.

use clap::{Args, Subcommand};
use sim::simulate::sound::{fail_of, play, run_seeds};
use sim::simulate::{Batch, Failure as Broken, Options};

use crate::failure::Failure;
use crate::out;

/// Lines of a story that are told without `--trace`: the last ones.
const TOLD: usize = 60;

/// `kvit sim`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SimArgs {
    /// Or explore.
    #[command(subcommand)]
    pub command: Option<SimCommand>,
    /// Replay this seed, event by event as it was.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from", "jobs"])]
    pub seed: Option<u64>,
    /// Tell the whole story of that seed.
    #[arg(long, requires = "seed")]
    pub trace: bool,
    /// Play so many seeds.
    #[arg(long, value_name = "NUMBER", required_unless_present = "seed", value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: Option<u64>,
    /// The first of them.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub from: u64,
    /// Threads that play them.
    #[arg(long, value_name = "NUMBER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
}

/// `kvit sim ...`
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Go through every state that two runs, one worker and a bad network can reach, and check the contract in each.
    Explore(super::explore::ExploreArgs),
}

/// Plays what was asked for.
///
/// # Errors
/// A clause was broken, or a seed had too few events or faults.
pub fn run(args: &SimArgs) -> Result<(), Failure> {
    if let Some(SimCommand::Explore(args)) = &args.command {
        return super::explore::run(args);
    }
    match args.seed {
        Some(seed) => one(seed, args.trace),
        None => many(Batch { from: args.from, seeds: args.seeds.unwrap_or(1), jobs: args.jobs.into(), options: Options::default() }),
    }
}

fn one(seed: u64, trace: bool) -> Result<(), Failure> {
    let report = play(seed, &Options { trace, ..Options::default() });
    for line in &report.story {
        out::line(line)?;
    }
    let closing = format!("seed {seed}: {} events, {} faults ({}), hash {:016x}", report.events, report.faults, report.kinds, report.hash);
    match fail_of(seed, &Options::default()) {
        None => out::line(&format!("{closing}, violations 0")),
        Some(broken) => {
            tell(&broken, trace)?;
            out::line(&format!("{closing}, violations 1"))?;
            Err(Failure::Other(anyhow::anyhow!("seed {seed} breaks {}", broken.violation.clause)))
        }
    }
}

fn many(batch: Batch) -> Result<(), Failure> {
    let totals = run_seeds(batch);
    for broken in &totals.failures {
        tell(broken, false)?;
    }
    let met = totals.met;
    out::line(&format!(
        "met: {} runs ({} completed, {} of gateways that died), {} suspended, {} taken up again, {} orphaned, {} lives given up, \
         {} refused, {} told before their outcome, {} further attempts, \
         {} came back, {} graces ran out, {} went on unread, {} words of other lives, {} cancels before their submit, {} tokens",
        met.runs,
        met.completed,
        met.ownerless,
        met.suspended,
        met.attached,
        met.orphaned,
        met.lost,
        met.refused,
        met.dismissed,
        met.again,
        met.came_back,
        met.ran_out,
        met.unread,
        met.stale,
        met.tombstones,
        met.tokens
    ))?;
    out::line(&totals.to_string())?;
    if totals.is_clean() {
        return Ok(());
    }
    Err(Failure::Other(match totals.failures.first() {
        Some(first) => anyhow::anyhow!("clauses are broken; replay the first with `kvit sim --seed {} --trace`", first.seed),
        None => anyhow::anyhow!("a seed had too few events or faults to say anything"),
    }))
}

/// The end of a failure's story, with as few kinds of faults as it takes.
fn tell(broken: &Broken, trace: bool) -> Result<(), Failure> {
    out::line(&format!("seed {} breaks {}: {}", broken.seed, broken.violation.clause, broken.violation.what))?;
    out::line(&format!("it takes these faults: {}; with them alone, {} events:", broken.needs, broken.events))?;
    let from = if trace { 0 } else { broken.story.len().saturating_sub(TOLD) };
    broken.story[from..].iter().try_for_each(|line| out::line(line))
}
