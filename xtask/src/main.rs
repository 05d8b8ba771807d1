//! Developer commands: `cargo xtask test` and its parts.
//!
//! Invariant: whatever a command starts it also ends, by process id, whether it succeeds or not.

mod bench;
mod gateway;
mod nextest;
mod proof;
mod sdk;
mod stacks;
mod test;
mod tidy;
mod upstreams;

use std::process::ExitCode;

use xtask::{packages, postgres, process, prometheus, root};

const USAGE: &str = "usage: cargo xtask COMMAND

  test [--long]   everything that must hold before a change lands; --long adds what takes minutes
  sdk [KIND ...]  only the tests with real clients against a started server: python, node, browser, upstream, or all
  sdk upstream [--litellm] [--litellm-cancel] [--write]
                  the clients through a gateway to the real engine that KVIT_TEST_UPSTREAM names (its key in KVIT_TEST_KEY_FILE), or to
                  LiteLLM before it, or before a scripted one where none is named; --write: into docs/upstreams.md
  tidy            only the house's rules: sizes, headers, imports, contract clauses
  with-postgres CMD [ARGS]   a command with a PostgreSQL server, which ends with it, in KVIT_TEST_POSTGRES
  bench [ARGS]    kvit against llama.cpp (bench/llama_cpp.py)
  gateway [--write] [ARGS]
                  what a token costs kvit's gateway and others in front of one scripted upstream (bench/gateway); --write: into
                  docs/gateway-bench.md
  stacks [NAME ...] [--engine llamacpp|vllm|scripted] [--quick] [--twice] [--server-cmd 'COMMAND'] [--write] [ARGS]
                  kvit verify in front of proxies, routers and gateways (bench/stacks); --write: the matrix into docs/stacks.md
  upstreams [--engine llama|vllm] [--server-cmd 'COMMAND'] [--write] [ARGS]
                  runs left in every phase in front of a real engine, as a table (bench/upstreams.py); --write: into docs/upstreams.md
  upstreams --against KIND,... [--peer-cmd 'COMMAND'] [...]
                  the same callers before kvit and other gateways, side by side, as a table (bench/upstream_beside.py)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => test::run(false),
        ["test", "--long"] => test::run(true),
        ["sdk", kinds @ ..] => sdk::only(kinds),
        ["tidy"] => tidy::run(),
        ["with-postgres", words @ ..] => postgres::with(words),
        ["bench", rest @ ..] => bench::run(rest),
        ["gateway", rest @ ..] => gateway::run(rest),
        ["stacks", rest @ ..] => stacks::run(rest),
        ["upstreams", rest @ ..] => upstreams::run(rest),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
