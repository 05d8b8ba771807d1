//! The small HTTP client of the commands that ask a running server.
//!
//! Invariant: every wait and every body has a limit, and each way to fail has its own exit code.

use std::time::Duration;

use serde_json::Value;

use crate::failure::Failure;

/// Longest that a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes: a million blocks with their owners.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// The variable that has the key for a server that wants one.
const API_KEY: &str = "KVIT_API_KEY";

/// The value of `Authorization`, if there is a key to show.
///
/// # Errors
/// `Usage` for what can be no key; it does not say what was given.
pub fn authorization() -> Result<Option<String>, Failure> {
    let Some(key) = std::env::var_os(API_KEY).filter(|key| !key.is_empty()) else { return Ok(None) };
    match key.to_str().filter(|key| key.bytes().all(|byte| byte.is_ascii_graphic())) {
        Some(key) => Ok(Some(format!("Bearer {key}"))),
        None => Err(Failure::Usage(format!("environment: {API_KEY}: has a character that is not visible ASCII"))),
    }
}

/// Asks `GET {server}{path}` for JSON.
///
/// # Errors
/// `Usage` for an address that is none and for a question that the server refuses, `Unreachable` if nobody answers, `NotFound` for 404 and
/// 410, else what the server said.
pub fn get(server: &str, path: &str) -> Result<Value, Failure> {
    let (status, text) = fetch(server, path)?;
    let (base, parsed) = (server.trim_end_matches('/'), serde_json::from_str(&text).ok());
    match (status, parsed) {
        (200, Some(json)) => Ok(json),
        (_, json) => Err(refused(base, path, status, json)),
    }
}

/// Asks `GET {server}{path}` for a text.
///
/// # Errors
/// As `get`.
pub fn text(server: &str, path: &str) -> Result<String, Failure> {
    match fetch(server, path)? {
        (200, text) => Ok(text),
        (status, text) => Err(refused(server.trim_end_matches('/'), path, status, serde_json::from_str(&text).ok())),
    }
}

/// Sends `POST {server}{path}` as the run of this id; the status of the answer, once it is there whole.
///
/// # Errors
/// `Usage` for an address that is none, `Unreachable` if no answer comes in this time.
pub fn post(server: &str, path: &str, id: &str, body: &Value, patience: Duration) -> Result<u16, Failure> {
    let base = base(server)?;
    let mut request = agent(patience).post(format!("{base}{path}")).header("Content-Type", "application/json").header("X-Request-Id", id);
    if let Some(value) = authorization()? {
        request = request.header("Authorization", value);
    }
    let mut response = request.send(body.to_string().as_bytes()).map_err(|e| unreachable(base, &e))?;
    response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string().map_err(|e| unreachable(base, &e))?;
    Ok(response.status().as_u16())
}

/// The address of a server, without a slash at its end.
///
/// # Errors
/// `Usage` for one that is none.
pub fn base(server: &str) -> Result<&str, Failure> {
    let base = server.trim_end_matches('/');
    if base.starts_with("http://") {
        return Ok(base);
    }
    Err(Failure::Usage(format!("server `{server}`: the address must begin with http://")))
}

/// What asks a server, and waits so long for each whole answer.
pub fn agent(patience: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(patience))
        .http_status_as_error(false)
        .proxy(None)
        .user_agent(concat!("kvit/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

fn unreachable(base: &str, e: &ureq::Error) -> Failure {
    Failure::Unreachable(format!("no answer from {base}: {e} (is `kvit serve` running there?)"))
}

/// The status and the text of an answer.
fn fetch(server: &str, path: &str) -> Result<(u16, String), Failure> {
    let base = base(server)?;
    let mut request = agent(TIMEOUT).get(format!("{base}{path}"));
    if let Some(value) = authorization()? {
        request = request.header("Authorization", value);
    }
    let mut response = match request.call() {
        Ok(response) => response,
        Err(e @ (ureq::Error::BadUri(_) | ureq::Error::Http(_))) => return Err(Failure::Usage(format!("server `{server}`: {e}"))),
        Err(e) => return Err(unreachable(base, &e)),
    };
    let text = response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string().map_err(|e| unreachable(base, &e))?;
    Ok((response.status().as_u16(), text))
}

/// What an answer means that is not what was asked for.
fn refused(base: &str, path: &str, status: u16, json: Option<Value>) -> Failure {
    match (status, json) {
        // What was asked for is the command line's.
        (400, Some(json)) if json.pointer("/error/message").is_some() => Failure::Usage(said(Some(json)).unwrap_or_default()),
        (401 | 403, Some(json)) => {
            let said = said(Some(json)).unwrap_or_default();
            Failure::Usage(format!("{base}: {said} (the key is read from {API_KEY})"))
        }
        (404 | 410, json) => Failure::NotFound(said(json).unwrap_or_else(|| format!("{base}{path}: not found"))),
        (_, json) => {
            let said = said(json).unwrap_or_else(|| "the answer is no JSON: is this a kvit server?".to_owned());
            Failure::Other(anyhow::anyhow!("{base}{path}: status {status}: {said}"))
        }
    }
}

/// The sentence in an answer of OpenAI's error shape.
fn said(json: Option<Value>) -> Option<String> {
    json?.pointer("/error/message")?.as_str().map(str::to_owned)
}

/// A text as a path segment or query value: everything but unreserved characters is percent-encoded.
pub fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
