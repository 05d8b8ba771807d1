//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use lifecycle::Tenant;

use crate::config::{Flags, GATEWAY, SERVE, WORKER};

/// An LLM server in which a caller's leaving really stops the compute and really returns the KV blocks, and can prove it.
#[derive(Debug, Parser)]
#[command(name = "kvit", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 no such run or file, 4 server not reachable, \
                   130 or 143 `serve`, `worker` or `gateway` was ended by a second SIGINT or SIGTERM.")]
pub struct Cli {
    /// TOML file with options of `serve`, `worker` and `gateway`; none is read unless one is named.
    #[arg(long, global = true, env = "KVIT_CONFIG", value_name = "FILE", hide_env = true)]
    pub config: Option<PathBuf>,
    /// Folder for fetched models.
    #[arg(long, global = true, env = "KVIT_CACHE", value_name = "DIR", hide_env = true)]
    pub cache: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over the OpenAI API until SIGINT or SIGTERM.
    Serve(Box<Flags<SERVE>>),
    /// Run a model for gateways in other processes, over gRPC (kvit.worker.v1), until SIGINT or SIGTERM.
    Worker(Box<Flags<WORKER>>),
    /// Serve the OpenAI API for workers in other processes until SIGINT or SIGTERM.
    Gateway(Box<Flags<GATEWAY>>),
    /// Fetch, list and look into model files.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Show on a server of its own what becomes of callers that leave: seven scenes over real sockets, in under a minute.
    Demo(crate::cmd::demo::DemoArgs),
    /// Show runs' timelines: when a caller left, when compute stopped, when the blocks came back.
    Trace(TraceArgs),
    /// Watch a server in the terminal: runs, blocks, waste, and whether anything is wrong.
    Top(TopArgs),
    /// Show where every KV block is.
    Kv(KvArgs),
    /// List runs, newest first.
    Runs(RunsArgs),
    /// Show which alert rules fire (exit code 1 if one does), or write them for Prometheus.
    Alerts(AlertsArgs),
    /// Show what was computed for nobody, and what an answer costs.
    Waste(WasteArgs),
    /// Say what is the matter: one verdict, with its evidence and what to do (exit code 1 for a fault, 2 if nobody can tell).
    Diagnose(Box<crate::cmd::diagnose::DiagnoseArgs>),
    /// Estimate the tokens that are computed in vain while the word of a hang-up travels.
    Estimate(EstimateArgs),
    /// Play gateways and workers on a hostile network, from a seed, and check every clause.
    Sim(crate::cmd::sim::SimArgs),
    /// Show real bugs of other servers, and how these cores are caught when they have them.
    Museum(crate::cmd::museum::MuseumArgs),
    /// Let very many callers come and go in every phase, and tell whether anything is left of them.
    Soak(Box<crate::cmd::soak::SoakArgs>),
    /// Judge a stack, anybody's: does a caller's leaving stop the work, what is wasted, what comes back, and where the signal is lost.
    Verify(Box<crate::cmd::verify::VerifyArgs>),
    /// Judge a worker, anybody's, by the protocol: a scripted gateway, and a case for each promise of session.proto.
    Conformance(ConformanceArgs),
    /// Stand between two hops of a stack, pass bytes unchanged, and tell what passed of each request and who closed when and how.
    Tap(TapArgs),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Make an API key: a random secret, shown once, and the table for the configuration file.
    Key(KeyArgs),
    /// Print the reference of all options (docs/config.md).
    Config {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `kvit model ...`
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Fetch the default model into the cache, unless it is there; prints its path.
    Pull {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the cached models and whether their bytes are the expected ones.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a GGUF file's metadata and tensors.
    Inspect {
        /// The file; without it the cached default model.
        file: Option<PathBuf>,
        /// List every tensor.
        #[arg(long)]
        tensors: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// `kvit key NAME`
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// Who calls with it: 1 to 64 of A-Z a-z 0-9 . _ : ~ -.
    #[arg(value_parser = Tenant::parse)]
    pub name: Tenant,
    /// Whose runs it sees; the same characters.
    #[arg(long, value_name = "TENANT", default_value = "default", value_parser = Tenant::parse)]
    pub tenant: Tenant,
    /// It sees who owns which KV block, whichever tenant's run that is.
    #[arg(long)]
    pub operator: bool,
    /// Print JSON, the secret in it.
    #[arg(long)]
    pub json: bool,
}

/// `kvit bench ...`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// The forward pass alone: prefill of 512 tokens, decode of 1, 4, 8 and 16 sequences.
    Forward(BenchArgs),
}

/// `kvit bench forward`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// GGUF file; without it the cached default model, fetched if it is not there.
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Threads that compute.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Instruction set: auto, amx, avx512, avx2 or scalar.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<crate::config::Isa>,
    /// How often each figure is measured.
    #[arg(long, value_name = "NUMBER", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub repeats: u16,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Where the server is, and how to print.
#[derive(Debug, Args)]
pub struct Ask {
    /// The server's address.
    #[arg(long, env = "KVIT_SERVER", value_name = "URL", default_value = "http://127.0.0.1:8000", hide_env = true)]
    pub server: String,
    /// Print JSON as the server sent it.
    #[arg(long)]
    pub json: bool,
}

/// `kvit trace RUN...`
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The runs' ids, as `X-Request-Id` or `kvit runs` gave them.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<String>,
    /// Write the runs into this file as a trace for Perfetto (ui.perfetto.dev): their phases, milestones and steps, and the blocks meanwhile.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub perfetto: Option<PathBuf>,
    /// Ask no server and read the journal's files in this folder (`journal_dir`), whether their process lives or not.
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Server and form.
    #[command(flatten)]
    pub ask: Ask,
}

/// `kvit top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between two looks at the server.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Print one frame as text, in the terminal's size or that of COLUMNS and LINES, and end.
    #[arg(long)]
    pub once: bool,
    /// Server and form; JSON is of one look.
    #[command(flatten)]
    pub ask: Ask,
}

/// Seconds between two looks.
fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds from 0.2 to 3600".to_owned())
}

/// `kvit kv`
#[derive(Debug, Args)]
pub struct KvArgs {
    /// List every block with its generation, owners and fence.
    #[arg(long)]
    pub blocks: bool,
    /// Server and form.
    #[command(flatten)]
    pub ask: Ask,
}

/// `kvit runs`
#[derive(Debug, Args)]
pub struct RunsArgs {
    /// Only runs in this state: queued, prefilling, decoding, preempted, suspended, stopping or ended.
    #[arg(long)]
    pub state: Option<String>,
    /// Only runs with this outcome: completed, cancelled, expired, failed or rejected.
    #[arg(long)]
    pub outcome: Option<String>,
    /// Only runs that ended for this cause.
    #[arg(long)]
    pub cause: Option<String>,
    /// Most runs to list.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Ask no server and read the journal's files in this folder (`journal_dir`), whether their process lives or not.
    #[arg(long, value_name = "DIR")]
    pub journal: Option<PathBuf>,
    /// Server and form.
    #[command(flatten)]
    pub ask: Ask,
}

/// `kvit alerts`
#[derive(Debug, Args)]
pub struct AlertsArgs {
    /// Print Prometheus' rule file as the configuration makes it, and ask nobody.
    #[arg(long)]
    pub rules: bool,
    /// Server and form.
    #[command(flatten)]
    pub ask: Ask,
}

/// `kvit waste`
#[derive(Debug, Args)]
pub struct WasteArgs {
    /// Server and form.
    #[command(flatten)]
    pub ask: Ask,
}

/// `kvit estimate`
#[derive(Debug, Args)]
pub struct EstimateArgs {
    /// Tokens a second that the run is generating.
    #[arg(long, value_name = "TOKENS/S", allow_negative_numbers = true)]
    pub rate: f64,
    /// Seconds that each hop needs to notice and pass the word on.
    #[arg(long, value_name = "SECONDS,...", value_delimiter = ',', required = true, allow_hyphen_values = true)]
    pub latency: Vec<f64>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kvit conformance ADDR`
#[derive(Debug, Args)]
pub struct ConformanceArgs {
    /// Where the worker listens.
    #[arg(value_name = "HOST:PORT", required_unless_present = "list")]
    pub address: Option<String>,
    /// Only cases whose `group/name` contains this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Leave out the cases that wait for the worker's lease, or until it asks.
    #[arg(long)]
    pub quick: bool,
    /// Also tell the worker to drain, as the last case: it takes nothing afterwards.
    #[arg(long)]
    pub drain: bool,
    /// The lease that the gateway states; the worker's holds if it is longer.
    #[arg(long, value_name = "MS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub lease_ms: u64,
    /// How long what must come may take.
    #[arg(long, value_name = "MS", default_value_t = 15_000, value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub patience_ms: u64,
    /// Name the cases and what each proves, and judge nothing.
    #[arg(long)]
    pub list: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `kvit tap LISTEN UPSTREAM`
#[derive(Debug, Args)]
pub struct TapArgs {
    /// Where it takes connections; port 0 picks a free one and prints it.
    #[arg(value_name = "LISTEN")]
    pub listen: String,
    /// Where it passes them to: HOST:PORT.
    #[arg(value_name = "UPSTREAM")]
    pub upstream: String,
    /// What it is called in reports.
    #[arg(long, value_name = "NAME", default_value = "tap")]
    pub name: String,
    /// Where it is asked what it saw: GET /exchanges?id=ID, GET /exchanges?after=NUMBER, GET /clock. Port 0 picks a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub control: String,
    /// The header that a request is traced by.
    #[arg(long, value_name = "NAME", default_value = "x-request-id")]
    pub trace_header: String,
    /// Where that header is not passed on: how the word in a request's body begins that it is traced by; empty to look for none.
    #[arg(long, value_name = "TEXT", default_value = "verify-")]
    pub trace_text: String,
    /// Most connections at a time; further ones wait in the kernel.
    #[arg(long, value_name = "NUMBER", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections_max: u32,
    /// Most requests that are remembered; the oldest are forgotten first.
    #[arg(long, value_name = "NUMBER", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub exchanges_max: u32,
    /// Longest head of a request or an answer that is read along; a connection with a longer one is passed and only counted.
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub head_bytes_max: u32,
    /// Most pieces of one answer whose times are remembered one by one; of a longer one only every second, fourth, ... is.
    #[arg(long, value_name = "NUMBER", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub marks_max: u32,
}
