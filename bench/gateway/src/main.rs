//! The load of `cargo xtask gateway` ([docs/gateway-bench.md](../../../docs/gateway-bench.md)): an upstream that answers as it was scripted,
//! and callers that count and time what arrives.
//!
//! Each side is one thread on one epoll, so that it costs little beside the gateway that is measured. Both run on one machine and read one
//! clock: the upstream writes into every token when it was sent, and the caller takes the difference.
//!
//! Invariant: a stream that does not come as scripted (its status, its number of tokens, its proper end) is counted as failed, never as quick.

mod answer;
mod caller;
mod clock;
mod poll;
mod script;
mod sender;
mod upstream;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The scripted upstream and the callers of `cargo xtask gateway`.
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, Subcommand)]
enum Side {
    /// An OpenAI-compatible server whose streams follow the script in their prompt; ends with its standard input.
    Upstream {
        /// To listen on, on loopback; 0 picks a free one, which the line `listening on` names.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// Callers of one port on loopback; they say what they do in lines of JSON.
    Caller(caller::Options),
}

fn main() -> ExitCode {
    let done = match Options::parse().side {
        Side::Upstream { port } => upstream::run(port),
        Side::Caller(options) => caller::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
