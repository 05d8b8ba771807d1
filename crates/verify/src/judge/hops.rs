//! What each hop is right now: its release and the digest of its configuration, so that a report says what it is of, and a later look says
//! whether that is still so.
//!
//! Invariant: what could not be found out is not there; nothing is guessed, and no hop is asked for more than what it tells anybody.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::boundary::Way;
use super::cpu::Processes;
use super::fingerprint::{self, Facts, PATHS};
use super::hop::{Named, Release, is_proxy};
use super::result::Hop;
use super::target::Target;

/// Longest configuration that is hashed, over all files of a hop, in bytes.
pub const CONFIG_BYTES_MAX: u64 = 64 << 20;
/// Longest that a program may take to print its release.
const PRINT_TIME: Duration = Duration::from_secs(10);
/// Most that is read of what it prints, in bytes.
const PRINT_BYTES_MAX: u64 = 64 << 10;
/// How long a hop may take to answer one question about itself.
const ASK_TIME: Duration = Duration::from_secs(3);

/// Programs that print their release, by kind, and with which argument.
const PRINTERS: [(&str, &str); 5] =
    [("nginx", "-v"), ("haproxy", "-v"), ("envoy", "--version"), ("caddy", "version"), ("kvit", "--version")];

/// The hops as they are now. `profile` is what the engine is by its counters, or `none`.
///
/// # Errors
/// A file that cannot be read, or a program that says nothing; by which hop.
pub async fn meet(named: &[Named], stack: &Target, engine: &Target, profile: &str) -> Result<Way, String> {
    let mut hops = Vec::new();
    for (at, hop) in named.iter().enumerate() {
        let is_last = at + 1 == named.len();
        let is_engine = is_last && !hop.kind.as_deref().is_some_and(is_proxy);
        let url = hop.url.as_ref().or_else(|| if is_engine { Some(engine) } else { (at == 0).then_some(stack) });
        hops.push(print(hop, url, is_engine).await.map_err(|why| format!("--hop {}: {why}", hop.name))?);
    }
    let has_engine = hops.last().is_some_and(|hop| !hop.kind.as_deref().is_some_and(is_proxy));
    if !has_engine {
        let kind = Some(profile).filter(|profile| *profile != "none");
        let name = if named.is_empty() || kind.is_some() { profile } else { "engine" };
        let (server, answers) = asked(engine).await;
        hops.push(of(name, kind, server.as_deref(), &answers, None, None));
    }
    Ok(Way { hops, named: !named.is_empty() })
}

async fn print(hop: &Named, url: Option<&Target>, is_engine: bool) -> Result<Hop, String> {
    let config = digested(&hop.config)?;
    let kind = hop.kind.as_deref().filter(|kind| *kind != "unknown");
    if let Some(Release::Text(text)) = &hop.release {
        return Ok(Hop { name: hop.name.clone(), kind: hop.kind.clone(), version: Some(text.clone()), config_sha256: config });
    }
    if let Some(Release::Program(command)) = &hop.release {
        let text = printed(&command[0], &command[1..]).await?;
        let known = fingerprint::printed(&text).filter(|(of, _)| kind.is_none_or(|kind| kind == *of)).and_then(|(_, version)| version);
        // A program that nobody knows prints what it prints: its first line is its release.
        let line = || text.lines().map(str::trim).find(|line| !line.is_empty()).map(|line| line.chars().take(128).collect());
        let version = known.or_else(line).ok_or_else(|| format!("`{}` printed nothing", command.join(" ")))?;
        return Ok(Hop { name: hop.name.clone(), kind: hop.kind.clone(), version: Some(version), config_sha256: config });
    }
    let (server, mut answers) = match url {
        Some(url) => asked(url).await,
        None => (None, Vec::new()),
    };
    // What an answer says that came through a hop of which nobody knows what it is may be that of one behind it.
    if kind.is_none() && !is_engine {
        answers.clear();
    }
    let own = match (url, kind) {
        (Some(url), Some(kind)) => own_print(url, kind).await,
        _ => None,
    };
    Ok(of(&hop.name, hop.kind.as_deref(), server.as_deref(), &answers, own.as_deref(), config))
}

fn of(
    name: &str,
    kind: Option<&str>,
    server: Option<&str>,
    answers: &[(&'static str, String)],
    printed: Option<&str>,
    config: Option<String>,
) -> Hop {
    let answers: Vec<(&str, &str)> = answers.iter().map(|(path, body)| (*path, body.as_str())).collect();
    let hop = fingerprint::hop(&Facts { name, kind, server, answers: &answers, printed, config: None });
    Hop { config_sha256: config, ..hop }
}

/// One digest over all files, in order: of one file its own.
fn digested(files: &[impl AsRef<Path>]) -> Result<Option<String>, String> {
    let mut all = Vec::new();
    for file in files {
        let file = file.as_ref();
        let wrong = |why: String| format!("its configuration {} {why}; name a file that can be read", file.display());
        let about = std::fs::metadata(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if !about.is_file() || about.len() + all.len() as u64 > CONFIG_BYTES_MAX {
            return Err(wrong(format!("is no file of at most {CONFIG_BYTES_MAX} bytes")));
        }
        all.extend(std::fs::read(file).map_err(|e| wrong(format!("cannot be read: {e}")))?);
    }
    Ok((!files.is_empty()).then(|| fingerprint::sha256(&all)))
}

/// What a hop answers at the paths that tell its release, and its `Server` header.
async fn asked(url: &Target) -> (Option<String>, Vec<(&'static str, String)>) {
    let url = Target { patience: ASK_TIME.min(url.patience), ..url.clone() };
    let (mut server, mut answers) = (None, Vec::new());
    for path in PATHS {
        match url.ask_all(Method::GET, path, Bytes::new()).await {
            Ok((status, said, body)) => {
                server = server.or(said);
                if status == 200 {
                    answers.push((path, body));
                }
            }
            // Who does not answer one of them is not asked for the others.
            Err(_) => break,
        }
    }
    (server, answers)
}

/// What the very program prints that listens there, if it is on this machine and is of this kind by its name.
async fn own_print(url: &Target, kind: &str) -> Option<String> {
    let (_, argument) = PRINTERS.into_iter().find(|(of, _)| *of == kind)?;
    let port = url.port_here().await?;
    let program = Processes::listening(port)?.programs().into_iter().find(|(name, _)| name.starts_with(kind))?.1;
    printed(&program.to_string_lossy(), &[argument]).await.ok()
}

/// What a program prints, on either of its outputs.
async fn printed(program: &str, arguments: &[impl AsRef<std::ffi::OsStr>]) -> Result<String, String> {
    let failed = |why: String| format!("`{program}` cannot say its release: {why}; version=TEXT says it without a program");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    let (mut out, mut err) = (String::new(), String::new());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let all = async {
        if let Some(stdout) = stdout {
            stdout.take(PRINT_BYTES_MAX).read_to_string(&mut out).await?;
        }
        if let Some(stderr) = stderr {
            stderr.take(PRINT_BYTES_MAX).read_to_string(&mut err).await?;
        }
        child.wait().await
    };
    let status = tokio::time::timeout(PRINT_TIME, all).await.map_err(|_| failed(format!("it had not ended after {PRINT_TIME:?}")))?;
    let status = status.map_err(|e| failed(e.to_string()))?;
    if status.success() { Ok(format!("{out}\n{err}")) } else { Err(failed(format!("it ended with {status}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Named {
        text.parse().expect("a hop")
    }

    /// Nobody listens there.
    fn nowhere() -> Target {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        Target::parse(&format!("http://127.0.0.1:{port}")).expect("a URL")
    }

    async fn met(hops: &[&str], profile: &str) -> Result<Way, String> {
        let hops: Vec<Named> = hops.iter().map(|text| named(text)).collect();
        meet(&hops, &nowhere(), &nowhere(), profile).await
    }

    #[tokio::test]
    async fn a_hop_is_what_it_was_said_to_be_and_an_engine_stands_behind_proxies() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("it is written");
            path.to_string_lossy().into_owned()
        };
        let (a, b) = (file("a", "a"), file("b", "bc"));
        let way = met(&[&format!("edge,kind=nginx,version=1.2,config={a},config={b}"), "gate,version-by=echo mine 3"], "vllm").await;
        let hops = way.expect("a way").hops;
        let edge = &hops[0];
        assert_eq!((edge.kind.as_deref(), edge.version.as_deref()), (Some("nginx"), Some("1.2")));
        assert_eq!(edge.config_sha256.as_deref(), Some(fingerprint::sha256(b"abc").as_str()));
        assert_eq!((hops.len(), hops[1].kind.as_deref(), hops[1].version.as_deref()), (2, None, Some("mine 3")), "the last is the engine");
        let names = |way: Way| (way.named, way.hops.into_iter().map(|hop| hop.name).collect::<Vec<_>>());
        assert_eq!(names(met(&["nginx"], "vllm").await.expect("a way")), (true, vec!["nginx".to_owned(), "vllm".to_owned()]));
        assert_eq!(names(met(&["nginx"], "none").await.expect("a way")), (true, vec!["nginx".to_owned(), "engine".to_owned()]));
        assert_eq!(names(met(&[], "none").await.expect("a way")), (false, vec!["none".to_owned()]));
    }

    #[tokio::test]
    async fn what_cannot_be_read_or_run_is_said_with_its_hop() {
        for (hop, says) in [
            ("edge,config=/nowhere/x", "--hop edge: its configuration /nowhere/x cannot be read"),
            ("edge,config=/", "is no file"),
            ("edge,version-by=no-such-program-anywhere", "version=TEXT"),
            ("edge,version-by=false", "it ended with"),
            ("edge,version-by=true", "printed nothing"),
        ] {
            let error = met(&[hop], "none").await.expect_err(hop);
            assert!(error.contains(says) && error.starts_with("--hop edge: "), "{error}");
        }
    }
}
