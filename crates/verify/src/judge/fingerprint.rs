//! What a hop is and which release of it, from what it says of itself: a `Server` header, the answer of a path that tells it, the output of
//! its own `--version`; and the digest of its configuration. The asking is done elsewhere.
//!
//! A proxy passes on what it is asked for, so an answer that came through it may be that of the engine behind it. Where the kind is known,
//! what another kind said is not taken for its own.
//!
//! Invariant: what a hop did not say of itself is `None`, never a guess.

use std::fmt::Write;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::result::Hop;

/// Paths that some kind answers with its release, in the order in which they are asked.
pub const PATHS: [&str; 8] =
    ["/version", "/props", "/server_info", "/get_server_info", "/health/readiness", "/info", "/api/version", "/v1/models"];

/// Longest answer that is looked at, in bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest release that is kept, in characters.
const VERSION_CHARS_MAX: usize = 64;

/// What is known of a hop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    /// What it is called in the report.
    pub name: &'a str,
    /// What it is, if somebody said that.
    pub kind: Option<&'a str>,
    /// Its `Server` header.
    pub server: Option<&'a str>,
    /// What it answered: a path and the body, of [`PATHS`].
    pub answers: &'a [(&'a str, &'a str)],
    /// What its own `--version` printed, where that could be run.
    pub printed: Option<&'a str>,
    /// Its configuration, where a file was named.
    pub config: Option<&'a [u8]>,
}

/// A kind and, if that is said, a release.
type Seen = (&'static str, Option<String>);

/// The hop's fingerprint.
pub fn hop(facts: &Facts<'_>) -> Hop {
    let printed = facts.printed.and_then(printed);
    let answered = facts.answers.iter().filter_map(|(path, body)| answer(path, body));
    let all: Vec<Seen> = printed.into_iter().chain(answered).chain(facts.server.and_then(server)).collect();
    let own = |(kind, _): &&Seen| facts.kind.is_none_or(|known| known == *kind);
    let kind = facts.kind.map(str::to_owned).or_else(|| all.first().map(|(kind, _)| (*kind).to_owned()));
    let version = all.iter().filter(own).filter(|(of, _)| kind.as_deref() == Some(*of)).find_map(|(_, version)| version.clone());
    Hop { name: facts.name.to_owned(), kind, version, config_sha256: facts.config.map(sha256) }
}

/// The digest of a configuration, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `nginx/1.22.1`, `Caddy`, `uvicorn`, …
pub fn server(header: &str) -> Option<Seen> {
    let product = header.split_whitespace().next()?;
    let (name, release) = product.split_once('/').map_or((product, None), |(name, release)| (name, Some(release)));
    let kind = match name.to_ascii_lowercase().as_str() {
        "nginx" | "openresty" => "nginx",
        "haproxy" => "haproxy",
        "envoy" | "istio-envoy" => "envoy",
        "caddy" => "caddy",
        "uvicorn" | "hypercorn" | "granian" => "asgi",
        "llama.cpp" => "llamacpp",
        "kvit" => "kvit",
        _ => return None,
    };
    Some((kind, release.and_then(release_of)))
}

/// What `--version` of a program printed.
pub fn printed(text: &str) -> Option<Seen> {
    let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
    let word = |after: &str| line.split_once(after)?.1.split_whitespace().next();
    if line.starts_with("nginx version:") {
        return Some(("nginx", word("nginx/").and_then(release_of)));
    }
    if line.starts_with("HAProxy version") || line.starts_with("HA-Proxy version") {
        return Some(("haproxy", word("version").and_then(release_of)));
    }
    if line.contains("envoy") && line.contains("version:") {
        return Some(("envoy", word("version:").and_then(envoy_release)));
    }
    if line.starts_with("litellm") {
        let last = line.split_whitespace().next_back();
        return Some(("litellm", last.and_then(release_of)));
    }
    if line.starts_with("kvit ") {
        return Some(("kvit", word("kvit ").and_then(release_of)));
    }
    // Caddy prints its release alone, with or without a sum of its module.
    let first = line.split_whitespace().next()?;
    let is_caddy = line.contains(" h1:") || line == first;
    (is_caddy && first.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit())).then(|| ("caddy", release_of(first)))
}

/// What a hop answered at one of [`PATHS`].
pub fn answer(path: &str, body: &str) -> Option<Seen> {
    if body.len() > ANSWER_BYTES_MAX {
        return None;
    }
    let json: Value = serde_json::from_str(body).ok()?;
    let text = |name: &str| json.get(name).and_then(Value::as_str);
    let release = |name: &str| text(name).and_then(release_of);
    match path.trim_end_matches('/') {
        "/health/readiness" if json.get("litellm_version").is_some() => Some(("litellm", release("litellm_version"))),
        "/props" if json.get("total_slots").is_some() || json.get("build_info").is_some() => Some(("llamacpp", release("build_info"))),
        "/server_info" if json.get("command_line_options").is_some() => Some(("envoy", text("version").and_then(envoy_release))),
        "/server_info" | "/get_server_info" if json.get("max_running_requests").is_some() || json.get("tp_size").is_some() => {
            Some(("sglang", release("version")))
        }
        "/info" if text("router").is_some_and(|router| router.starts_with("text-generation")) => Some(("tgi", release("version"))),
        "/info" if json.get("max_concurrent_requests").is_some() && json.get("model_id").is_some() => Some(("tgi", release("version"))),
        "/api/version" => Some(("ollama", release("version")?)).map(|(kind, version)| (kind, Some(version))),
        "/version" if json.as_object().is_some_and(|object| object.len() == 1) => Some(("vllm", Some(release("version")?))),
        "/v1/models" => {
            let owner = json.pointer("/data/0/owned_by").and_then(Value::as_str)?;
            ["vllm", "llamacpp", "sglang", "kvit"].into_iter().find(|kind| *kind == owner).map(|kind| (kind, None))
        }
        _ => None,
    }
}

/// A release as it is kept: of printable characters, and not long.
fn release_of(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches([',', ';', ')']);
    let text = text.strip_prefix('v').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit())).unwrap_or(text);
    let fits = !text.is_empty() && text.chars().count() <= VERSION_CHARS_MAX && text.chars().all(|c| c.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

/// `COMMIT/1.40.0/Clean/RELEASE/BoringSSL`
fn envoy_release(text: &str) -> Option<String> {
    text.split('/').nth(1).and_then(release_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_configuration_is_sha_256() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hop(&Facts { name: "n", config: Some(b""), ..Facts::default() }).config_sha256.map(|hash| hash.len()), Some(64));
    }

    #[test]
    fn a_server_header_names_a_kind_and_maybe_a_release() {
        for (header, kind, version) in [
            ("nginx/1.22.1", "nginx", Some("1.22.1")),
            ("nginx/1.18.0 (Ubuntu)", "nginx", Some("1.18.0")),
            ("nginx", "nginx", None),
            ("Caddy", "caddy", None),
            ("envoy", "envoy", None),
            ("uvicorn", "asgi", None),
            ("llama.cpp", "llamacpp", None),
        ] {
            assert_eq!(server(header), Some((kind, version.map(str::to_owned))), "{header}");
        }
        assert_eq!(server("Apache/2.4"), None);
        assert_eq!(server(""), None);
        assert_eq!(server("nginx/\u{1b}[31m"), Some(("nginx", None)), "what is no plain text is no release");
    }

    #[test]
    fn what_programs_print_of_themselves() {
        for (text, kind, version) in [
            ("nginx version: nginx/1.22.1\n", "nginx", "1.22.1"),
            ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\nStatus: x", "haproxy", "2.6.12-1+deb12u4"),
            ("\nenvoy  version: 1f5a/1.40.0/Clean/RELEASE/BoringSSL\n", "envoy", "1.40.0"),
            ("2.6.2\n", "caddy", "2.6.2"),
            ("v2.8.4 h1:q3pe0=", "caddy", "2.8.4"),
            ("kvit 0.1.0", "kvit", "0.1.0"),
        ] {
            assert_eq!(printed(text), Some((kind, Some(version.to_owned()))), "{text}");
        }
        assert_eq!(printed(""), None);
        assert_eq!(printed("bash: nginx: command not found"), None);
    }

    #[test]
    fn what_is_answered_at_the_paths_that_tell() {
        for (path, body, kind, version) in [
            ("/version", r#"{"version":"0.32.0"}"#, "vllm", Some("0.32.0")),
            ("/props", r#"{"total_slots":2,"build_info":"b10434-9f2a"}"#, "llamacpp", Some("b10434-9f2a")),
            ("/get_server_info", r#"{"tp_size":1,"version":"0.5.3"}"#, "sglang", Some("0.5.3")),
            ("/server_info", r#"{"version":"1f5a/1.40.0/Clean/RELEASE/BoringSSL","command_line_options":{}}"#, "envoy", Some("1.40.0")),
            ("/health/readiness", r#"{"status":"healthy","litellm_version":"1.108.7"}"#, "litellm", Some("1.108.7")),
            ("/info", r#"{"router":"text-generation-router","version":"3.3.5"}"#, "tgi", Some("3.3.5")),
            ("/v1/models", r#"{"data":[{"id":"m","owned_by":"vllm"}]}"#, "vllm", None),
        ] {
            assert_eq!(answer(path, body), Some((kind, version.map(str::to_owned))), "{path}");
        }
        for (path, body) in
            [("/version", "{}"), ("/version", "x"), ("/props", "[]"), ("/info", "{}"), ("/v1/models", "{\"data\":[]}"), ("/", "{}")]
        {
            assert_eq!(answer(path, body), None, "{path} {body}");
        }
    }

    #[test]
    fn what_came_from_behind_a_proxy_is_not_its_own() {
        let behind = [("/version", r#"{"version":"0.32.0"}"#)];
        let facts = Facts { name: "edge", kind: Some("nginx"), server: Some("nginx/1.22.1"), answers: &behind, ..Facts::default() };
        assert_eq!(hop(&facts).version.as_deref(), Some("1.22.1"));
        let facts = Facts { kind: Some("haproxy"), server: None, ..facts };
        assert_eq!((hop(&facts).kind.as_deref(), hop(&facts).version), (Some("haproxy"), None));
        let facts = Facts { kind: None, ..facts };
        assert_eq!((hop(&facts).kind.as_deref(), hop(&facts).version.as_deref()), (Some("vllm"), Some("0.32.0")));
        let nothing = hop(&Facts { name: "x", ..Facts::default() });
        assert_eq!((nothing.kind, nothing.version, nothing.config_sha256), (None, None, None));
    }
}
