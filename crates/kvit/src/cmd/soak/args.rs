//! What `kvit soak` can be told, and the words for phases and departures.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Where a run is when its caller goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Phase {
    /// Sent, and gone at once.
    Dispatch,
    /// It waits behind a full engine.
    Queued,
    /// Its prompt is being computed.
    Prefill,
    /// The response has begun, no token has come.
    BeforeFirstToken,
    /// A few tokens have come.
    EarlyDecode,
    /// More than half of the tokens have come.
    LateDecode,
}

/// How a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Departure {
    /// Closes its connection, with nothing unread where that can be had.
    Close,
    /// Resets its connection.
    Reset,
    /// Cancels the run by name, and hears how it ended.
    Cancel,
}

/// The word of a value, as it is typed.
pub fn word<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}

/// `kvit soak`
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// The server to soak, which must have no other client meanwhile. Without it: `KVIT_SERVER`, else http://127.0.0.1:8000.
    #[arg(value_name = "URL", conflicts_with = "serve")]
    pub url: Option<String>,
    /// Start a server of its own on a free port, and end it afterwards; options for it follow after `--`.
    #[arg(long)]
    pub serve: bool,
    /// Model file of that server; without it the cached default model.
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub model: Option<PathBuf>,
    /// Cancels one after the other. A run that ends before its caller goes does not count.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
    pub sequential: u64,
    /// Cancels by many callers at once.
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    pub concurrent: u64,
    /// Callers at once in the concurrent part.
    #[arg(long, value_name = "NUMBER", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub in_flight: u16,
    /// Cancels before the second look, so that pools, buffers and the journal are filled. Without it: 300; with --serve half as many again
    /// as that server's journal keeps runs.
    #[arg(long, value_name = "NUMBER")]
    pub warm_up: Option<u64>,
    /// Tokens that each run asks for.
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    pub tokens: u32,
    /// Tokens of each prompt.
    #[arg(long, value_name = "NUMBER", default_value_t = 256, value_parser = clap::value_parser!(u32).range(8..=100_000))]
    pub prompt_tokens: u32,
    /// Phases in which callers go, mixed evenly.
    #[arg(long, value_name = "PHASE,...", value_delimiter = ',', value_enum,
          default_values_t = [Phase::Dispatch, Phase::Queued, Phase::Prefill, Phase::BeforeFirstToken, Phase::EarlyDecode, Phase::LateDecode])]
    pub phases: Vec<Phase>,
    /// Ways in which callers go, mixed evenly.
    #[arg(long, value_name = "WAY,...", value_delimiter = ',', value_enum,
          default_values_t = [Departure::Close, Departure::Reset, Departure::Cancel])]
    pub departures: Vec<Departure>,
    /// Decides what is mixed how; the same number gives the same requests in the same order.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Growth of resident memory in the second half of a part that still counts as none. The allocator gives memory back in its own time,
    /// and a few MiB more or less between two looks are its doing; what a leak of one run would have to hold to be found is printed.
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rss_tolerance_mib: u32,
    /// Longest wait for the server to be at rest, and for anything that a caller waits for.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub patience_ms: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Options of the server that --serve starts.
    #[arg(last = true, value_name = "SERVE OPTION", requires = "serve")]
    pub serve_options: Vec<String>,
}
