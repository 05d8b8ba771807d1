//! Looking: at kvit by its own answer, at an engine that others wrote by `verify`'s profiles.
//!
//! Invariant: what is read is read once a look; nothing is sent that changes anything.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use observe::diagnose::{EngineLook, Look};
use serde_json::Value;
use verify::judge::cpu::Processes;
use verify::judge::profile::Profile;

use crate::client;
use crate::failure::Failure;

/// What stands before the file of a profile of one's own.
const GENERIC: &str = "generic-prometheus:";

/// How an engine is read; `None` for kvit, which says more itself.
///
/// # Errors
/// No such profile, or a file that is none.
pub fn profile(name: &str) -> Result<Option<Profile>, Failure> {
    if name == "kvit" {
        return Ok(None);
    }
    let file = name.strip_prefix(GENERIC);
    if let (None, Some(known)) = (file, Profile::named(name)) {
        return Ok(Some(known));
    }
    let file = file.unwrap_or(name);
    if !Path::new(file).exists() {
        let known = Profile::built_in().iter().map(|profile| profile.name.clone()).collect::<Vec<_>>().join(", ");
        return Err(Failure::Usage(format!("the profile `{file}` is none of {known}, and no file")));
    }
    let text = std::fs::read_to_string(file).with_context(|| file.to_owned()).map_err(Failure::Other)?;
    Profile::parse(&text).map(Some).map_err(|why| Failure::Usage(format!("{file}: {why}")))
}

/// One look at kvit.
///
/// # Errors
/// No server, or one that does not answer so.
pub fn kvit(server: &str) -> Result<Look, Failure> {
    let mut answer = client::get(server, "/v1/diagnose?look=true")?;
    read(answer["look"].take()).ok_or_else(|| Failure::Other(anyhow!("{server}: the answer has no look: another release of kvit?")))
}

/// A look out of JSON.
pub fn read(look: Value) -> Option<Look> {
    serde_json::from_value::<Look>(look).ok().filter(|look| look.object == "look")
}

/// One look at an engine that others wrote.
///
/// # Errors
/// Nobody answers, or nothing of what the profile names is there.
pub fn engine(server: &str, profile: &Profile) -> Result<EngineLook, Failure> {
    let page = client::text(server, &profile.path)?;
    let look = profile.read(&page);
    if look.running.is_none() && look.generated.is_none() {
        let name = &profile.name;
        return Err(Failure::Usage(format!("{server}{}: nothing there that the profile `{name}` names; is it this engine?", profile.path)));
    }
    Ok(EngineLook {
        at_ms: now_ms(),
        running: look.running,
        waiting: look.waiting,
        kv_used: look.kv_used,
        kv_held: look.kv_held,
        generated: look.generated,
        prompted: look.prompted,
        steps: look.steps,
        resident: port_here(server).and_then(Processes::listening).and_then(|all| all.resident_kib()).map(|kib| kib * 1024.0),
        sums_move_at_end: profile.sums_move_at_end,
    })
}

/// Now, in milliseconds of the calendar.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The port of a server on this machine.
fn port_here(server: &str) -> Option<u16> {
    let authority = server.strip_prefix("http://")?.split('/').next()?;
    let (host, port) = authority.rsplit_once(':')?;
    matches!(host, "127.0.0.1" | "localhost" | "[::1]").then(|| port.parse().ok())?
}
