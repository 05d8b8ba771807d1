//! The clients through `kvit gateway` to engines of others: three scripted ones and a kvit over HTTP whenever the tests run, and a real one,
//! named in a variable, by command.
//!
//! Invariant: each engine has a gateway of its own, and both are ended before the next one starts.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use super::{Server, cells, node, python};
use crate::process::{Running, command, run as run_command};
use crate::test::{Count, kvit};

/// Names a real engine.
const VARIABLE: &str = "KVIT_TEST_UPSTREAM";
/// Kinds of the scripted engine.
const SCRIPTED: [&str; 3] = ["vllm", "llamacpp", "sglang"];
/// The kind of a kvit that is reached over HTTP.
const OURS: &str = "kvit";
/// A real engine may be of any kind.
const ANY: &str = "";
/// How long an engine without a model, or a gateway, may take to listen.
const START: Duration = Duration::from_secs(30);
const TESTS: &str = "tests/sdk/upstream";
/// Node's, seen from its folder.
const NODE_TESTS: [&str; 2] = ["upstream/openai.test.mjs", "upstream/ai.test.mjs"];
/// Where the table stands.
const DOCUMENT: &str = "docs/upstreams.md";

/// Runs them in front of each scripted engine, and of the server at an address.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    let mut total = Count::default();
    for kind in SCRIPTED {
        let script = Path::new(TESTS).join("scripted_engine.py");
        let (engine, url) = Running::start(command("python3").arg(script).arg(kind), "listening on ", START)?;
        total += through(&url, kind, None)?;
        engine.end()?;
    }
    total += through(server.address, OURS, None)?;
    Ok(total)
}

/// The real engine that somebody names.
pub(super) fn named() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|url| !url.is_empty())
}

/// Says why no real engine was among them.
pub(super) fn skipped() {
    println!("skipped: {VARIABLE} names no real engine, so the clients had scripted ones and a kvit ({DOCUMENT} says how to start one)");
}

/// Runs them in front of a real engine; `write` puts what came of it into the document.
///
/// # Errors
/// Anything that does not build or start; a test that failed.
pub(super) fn real(url: &str, write: bool) -> anyhow::Result<()> {
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    let file = crate::root().join("target").join(format!("sdk-cells-{}", std::process::id()));
    std::fs::write(&file, "").with_context(|| file.display().to_string())?;
    let count = through(url, ANY, Some(&file));
    let told = std::fs::read_to_string(&file).with_context(|| file.display().to_string());
    let _ = std::fs::remove_file(&file);
    let (count, found) = (count?, cells::read(&told?)?);
    println!("{}\n{} passed, {} failed", found.table(), count.passed, count.failed);
    if count.failed > 0 {
        bail!("not every client works through the gateway");
    }
    if write {
        let path = crate::root().join(DOCUMENT);
        let text = std::fs::read_to_string(&path).with_context(|| DOCUMENT)?;
        std::fs::write(&path, found.put(&text)?).with_context(|| DOCUMENT)?;
    }
    Ok(())
}

/// The tests in front of one engine, through a gateway of their own.
fn through(engine: &str, kind: &str, cells: Option<&Path>) -> anyhow::Result<Count> {
    let mut gateway = command(kvit());
    gateway.args(["gateway", "--log", "warn", "--port", "0", "--store", "none", "--upstream", engine]);
    let (gateway, address) = Running::start(&mut gateway, "listening on ", START)?;
    let binary = kvit().display().to_string();
    let cells = cells.map(|file| file.display().to_string()).unwrap_or_default();
    let variables = [(VARIABLE, engine), ("KVIT_TEST_KIND", kind), ("KVIT_TEST_BINARY", &binary), ("KVIT_TEST_CELLS", &cells)];
    let mut total = Count::default();
    for (name, counted) in [
        ("python", python::tests(&address, &["--confcutdir", TESTS, TESTS], &variables)),
        ("node", node::files(&address, &NODE_TESTS, &variables)),
    ] {
        match counted {
            Ok(count) => total += count,
            Err(error) => {
                eprintln!("xtask: {name}, in front of {engine}: {error:#}");
                total.failed += 1;
            }
        }
    }
    gateway.end()?;
    Ok(total)
}
