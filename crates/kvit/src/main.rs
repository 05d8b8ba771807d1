//! The `kvit` binary: command line, configuration and wiring. It decides nothing about a run.
//!
//! What is asked for goes to stdout, what is told along the way to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration,
//! 3 no such run or file, 4 the server cannot be reached, 130 or 143 `serve`, `worker` or
//! `gateway` was ended by a second SIGINT or SIGTERM.

mod cli;
mod client;
mod cmd;
mod config;
mod failure;
mod model_file;
mod out;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kvit: {failure}");
            failure.code()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    let env: Vec<_> = std::env::vars_os().collect();
    config::refuse_unknown(&env)?;
    match cli.command {
        Command::Serve(flags) => {
            let config = config::load(flags.0, &env, cli.config.as_deref())?;
            cmd::serve::run(&config, cli.cache)
        }
        Command::Worker(flags) => {
            let config = config::load(flags.0, &env, cli.config.as_deref())?;
            cmd::worker::run(&config, cli.cache)
        }
        Command::Gateway(flags) => {
            let config = config::load(flags.0, &env, cli.config.as_deref())?;
            cmd::gateway::run(&config)
        }
        Command::Model(command) => cmd::model::run(command, cli.cache),
        Command::Demo(args) => cmd::demo::run(&args, cli.cache),
        Command::Trace(args) => cmd::trace::run(&args),
        Command::Top(args) => cmd::top::run(&args),
        Command::Kv(args) => cmd::kv::run(&args),
        Command::Runs(args) => cmd::runs::run(&args),
        Command::Alerts(args) if args.rules => {
            cmd::alerts::rules(&config::load(config::ServeFlags::default(), &env, cli.config.as_deref())?, args.ask.json)
        }
        Command::Alerts(args) => cmd::alerts::run(&args),
        Command::Waste(args) => cmd::waste::run(&args),
        Command::Diagnose(args) => cmd::diagnose::run(&args),
        Command::Estimate(args) => cmd::estimate::run(&args),
        Command::Sim(args) => cmd::sim::run(&args),
        Command::Museum(args) => cmd::museum::run(&args),
        Command::Soak(args) => cmd::soak::run(&args, cli.config.as_deref(), cli.cache.as_deref()),
        Command::Verify(args) => cmd::verify::run(&args, cli.cache),
        Command::Conformance(args) => cmd::conformance::run(&args),
        Command::Tap(args) => cmd::tap::run(args),
        Command::Bench(cli::BenchCommand::Forward(args)) => cmd::bench::run(&args, cli.cache),
        Command::Key(args) => cmd::key::run(&args),
        Command::Config { json: false } => out::line(config::markdown().trim_end()),
        Command::Config { json: true } => out::json(&config::json()),
    }
}
