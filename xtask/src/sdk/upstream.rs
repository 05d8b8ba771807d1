//! The clients through `kvit gateway` to engines of others: scripted ones and a kvit over HTTP whenever the tests run; by command a real one,
//! named in a variable, and a gateway of others before a scripted or a real one.
//!
//! Invariant: each engine has a gateway of its own, and both are ended before the next one starts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use super::{Server, cells, node, python};
use crate::process::{Running, command, run as run_command};
use crate::test::{Count, kvit};

/// Names a real engine.
const VARIABLE: &str = "KVIT_TEST_UPSTREAM";
/// Names the key that a real engine takes.
const KEY_VARIABLE: &str = "KVIT_TEST_KEY_FILE";
/// Kinds of the scripted engine.
const SCRIPTED: [&str; 4] = ["vllm", "llamacpp", "sglang", OLLAMA];
const OLLAMA: &str = "ollama";
/// Which of them stands behind a gateway of others where no real engine is named.
const BEHIND: &str = "vllm";
/// Gateways of others, as their options call them.
const HOPS: [(&str, &str); 2] = [("--litellm", "litellm"), ("--litellm-cancel", "litellm-cancel")];
/// The kind of a kvit that is reached over HTTP.
const OURS: &str = "kvit";
/// A real engine may be of any kind.
const ANY: &str = "";
/// How long an engine without a model, or a gateway, may take to listen.
const START: Duration = Duration::from_secs(30);
/// How long a gateway of others may take to answer with a token; its first start may install it.
const HOP_START: Duration = Duration::from_secs(330);
const TESTS: &str = "tests/sdk/upstream";
/// Node's, seen from its folder.
const NODE_TESTS: [&str; 2] = ["upstream/openai.test.mjs", "upstream/ai.test.mjs"];
/// Where the table stands.
const DOCUMENT: &str = "docs/upstreams.md";

/// An engine, and how it is reached.
struct Engine<'a> {
    /// What is asked: the engine, or the gateway of others before it.
    url: &'a str,
    /// Which scripted one it is, or which of all engines.
    kind: &'a str,
    /// The file with the key that it takes.
    key: Option<&'a Path>,
    hop: Option<Hop<'a>>,
}

/// A gateway of others, and what stands behind it.
struct Hop<'a> {
    kind: &'a str,
    version: &'a str,
    behind: &'a str,
}

/// What is asked for beside the tests that always run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    hops: Vec<&'static str>,
    write: bool,
}

impl Asked {
    /// Reads the words behind `upstream`.
    pub(super) fn read(words: &[&str]) -> anyhow::Result<Asked> {
        let mut asked = Asked::default();
        for word in words {
            match HOPS.iter().find(|(option, _)| option == word) {
                Some((_, hop)) => asked.hops.push(hop),
                None if *word == "--write" => asked.write = true,
                None => bail!("`sdk upstream` has no option `{word}`: --write, {}", HOPS.map(|(option, _)| option).join(", ")),
            }
        }
        Ok(asked)
    }
}

/// Runs them in front of each scripted engine, and of the server at an address.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    let mut total = Count::default();
    for kind in SCRIPTED {
        let (engine, url) = scripted(kind)?;
        total += through(&Engine { url: &url, kind, key: None, hop: None }, None)?;
        engine.end()?;
    }
    total += through(&Engine { url: server.address, kind: OURS, key: None, hop: None }, None)?;
    println!("skipped: LiteLLM between the gateway and an engine (`cargo xtask sdk upstream {}` has it there)", HOPS[0].0);
    Ok(total)
}

fn scripted(kind: &str) -> anyhow::Result<(Running, String)> {
    let script = Path::new(TESTS).join("scripted_engine.py");
    Running::start(command("python3").arg(script).arg(kind), "listening on ", START)
}

/// The real engine that somebody names.
fn named() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|url| !url.is_empty())
}

/// Says why no real engine was among them.
fn skipped() {
    println!("skipped: {VARIABLE} names no real engine, so the clients had scripted ones and a kvit ({DOCUMENT} says how to start one)");
}

/// Runs what is asked for beside the tests that always run: a real engine, a gateway of others, or both. False if that is nothing.
///
/// # Errors
/// Anything that does not build or start; a test that failed.
pub(super) fn real(asked: &Asked) -> anyhow::Result<bool> {
    let real = named();
    if real.is_none() && asked.hops.is_empty() {
        if asked.write {
            bail!("only what a real engine or gateway did is written down: name one in {VARIABLE}, or say {}", HOPS[0].0);
        }
        skipped();
        return Ok(false);
    }
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    if asked.hops.is_empty() {
        let key = std::env::var_os(KEY_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
        let url = real.as_deref().unwrap_or_default();
        told(&Engine { url, kind: ANY, key: key.as_deref(), hop: None }, asked.write)?;
    }
    for hop in &asked.hops {
        // It has no state of an earlier one's callers.
        let (script, behind) = match &real {
            Some(url) => (None, url.clone()),
            None => scripted(BEHIND).map(|(engine, url)| (Some(engine), url))?,
        };
        let kind = if script.is_some() { BEHIND } else { ANY };
        let key = Scratch::new("key");
        let file = key.0.display().to_string();
        let start = Path::new(TESTS).join("hop.py");
        let (running, said) = Running::start(command("python3").arg(start).args([*hop, &behind, &file]), "listening on ", HOP_START)?;
        let (url, version) = said.split_once(' ').context("hop.py says no version")?;
        let hop = Hop { kind: hop, version, behind: &behind };
        let came = told(&Engine { url, kind, key: Some(&key.0), hop: Some(hop) }, asked.write);
        // Told to end, whatever came of the tests: what it has started would outlive it if it were killed.
        running.end()?;
        script.map_or(Ok(()), Running::end)?;
        came?;
    }
    Ok(true)
}

/// A file under target/ that is removed with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Scratch {
        Scratch(crate::root().join("target").join(format!("sdk-{what}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs them in front of an engine and says what came of it; `write` puts that into the document.
fn told(engine: &Engine, write: bool) -> anyhow::Result<()> {
    let Scratch(file) = &Scratch::new("cells");
    std::fs::write(file, "").with_context(|| file.display().to_string())?;
    let count = through(engine, Some(file))?;
    let found = cells::read(&std::fs::read_to_string(file).with_context(|| file.display().to_string())?)?;
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
fn through(engine: &Engine, cells: Option<&Path>) -> anyhow::Result<Count> {
    let key = engine.key.map(|file| file.display().to_string()).unwrap_or_default();
    let mut upstream = engine.url.to_owned();
    if engine.key.is_some() {
        upstream += &format!(",key_file={key}");
    }
    if engine.kind == OLLAMA {
        upstream += ",max_tokens_only=yes";
    }
    let mut gateway = command(kvit());
    gateway.args(["gateway", "--log", "warn", "--port", "0", "--store", "none", "--upstream", &upstream]);
    let (gateway, address) = Running::start(&mut gateway, "listening on ", START)?;
    let binary = kvit().display().to_string();
    let cells = cells.map(|file| file.display().to_string()).unwrap_or_default();
    let hop = engine.hop.as_ref();
    let variables = [
        (VARIABLE, engine.url),
        ("KVIT_TEST_KIND", engine.kind),
        (KEY_VARIABLE, &key),
        ("KVIT_TEST_HOP", hop.map_or("", |hop| hop.kind)),
        ("KVIT_TEST_HOP_VERSION", hop.map_or("", |hop| hop.version)),
        ("KVIT_TEST_BEHIND", hop.map_or("", |hop| hop.behind)),
        ("KVIT_TEST_BINARY", &binary),
        ("KVIT_TEST_CELLS", &cells),
    ];
    let mut total = Count::default();
    for (name, counted) in [
        ("python", python::tests(&address, &["--confcutdir", TESTS, TESTS], &variables)),
        ("node", node::files(&address, &NODE_TESTS, &variables)),
    ] {
        match counted {
            Ok(count) => total += count,
            Err(error) => {
                eprintln!("xtask: {name}, in front of {}: {error:#}", engine.url);
                total.failed += 1;
            }
        }
    }
    gateway.end()?;
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_are_named() {
        assert_eq!(Asked::read(&[]).expect("nothing"), Asked::default());
        let asked = Asked::read(&["--litellm", "--write", "--litellm-cancel"]).expect("options");
        assert_eq!(asked, Asked { hops: vec!["litellm", "litellm-cancel"], write: true });
        let error = Asked::read(&["--litelm"]).expect_err("no option").to_string();
        assert!(error.contains("`--litelm`") && error.contains("--litellm-cancel"), "{error}");
    }
}
