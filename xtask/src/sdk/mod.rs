//! The tests with real client libraries: one started server, which Python's clients, Node's and a browser leave in every way they can.
//!
//! A kind of client that fails, or cannot be installed, does not hide the others.

mod browser;
mod cells;
mod node;
mod python;
mod upstream;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::process::{Running, command, run as run_command};
use crate::test::{Count, kvit, model};

/// How long the server may take from start to its `listening on` line: a debug build packs the weights, on a busy machine.
const START: Duration = Duration::from_secs(120);

/// What the tests run against.
struct Server<'a> {
    /// Where the started one listens.
    address: &'a str,
    /// The model, for tests whose server needs options of its own.
    model: &'a Path,
}

/// Those that run through a gateway to engines of others.
const UPSTREAM: &str = "upstream";

/// A kind of client: what it is called, and what installs what it needs and runs its tests.
type Kind = (&'static str, fn(&Server) -> anyhow::Result<Count>);

const KINDS: [Kind; 4] = [("python", python::run), ("node", node::run), ("browser", browser::run), (UPSTREAM, upstream::run)];

/// `cargo xtask sdk [KIND ...]`, or `cargo xtask sdk upstream [OPTION ...]` in front of a real engine, a gateway of others, or both.
///
/// # Errors
/// As `run`, and if a test failed.
pub fn only(kinds: &[&str]) -> anyhow::Result<()> {
    let kinds = match kinds {
        [UPSTREAM, options @ ..] if options.iter().all(|word| word.starts_with("--")) => {
            if upstream::real(&upstream::Asked::read(options)?)? {
                return Ok(());
            }
            &[UPSTREAM]
        }
        kinds => kinds,
    };
    if let Some(unknown) = kinds.iter().find(|name| KINDS.iter().all(|(known, _)| known != *name)) {
        bail!("there is no kind of client `{unknown}`: {}", KINDS.map(|(name, _)| name).join(", "));
    }
    let count = run(&model()?, kinds)?;
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed > 0 { bail!("the clients' tests failed") } else { Ok(()) }
}

/// Starts a server with the model, runs the tests of the named kinds of client against it (of all, if none is named), and ends it.
///
/// # Errors
/// The server does not start or does not end well.
pub fn run(model: &Path, kinds: &[&str]) -> anyhow::Result<Count> {
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    let mut serve = command(kvit());
    // A store of its own, so that a kvit that somebody runs here is not disturbed.
    let runs = crate::root().join("target").join(format!("sdk-runs-{}", std::process::id()));
    std::fs::create_dir_all(&runs).with_context(|| runs.display().to_string())?;
    serve.args(["serve", "--log", "warn", "--port", "0", "--store"]).arg(runs.join("runs.db")).arg("--model").arg(model);
    let (server, address) = Running::start(&mut serve, "listening on ", START)?;
    let mut total = Count::default();
    for (name, tests) in KINDS.iter().filter(|(name, _)| kinds.is_empty() || kinds.contains(name)) {
        match tests(&Server { address: &address, model }) {
            Ok(count) if count == Count::default() => {
                eprintln!("xtask: {name}: no test ran");
                total.failed += 1;
            }
            Ok(count) => total += count,
            Err(error) => {
                eprintln!("xtask: {name}: {error:#}");
                total.failed += 1;
            }
        }
    }
    let ended = server.end();
    std::fs::remove_dir_all(&runs).with_context(|| runs.display().to_string())?;
    ended?;
    Ok(total)
}

/// Whether what was installed at a stamp is what is asked for now.
fn installed(stamp: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(stamp).is_ok_and(|had| had == wanted)
}
