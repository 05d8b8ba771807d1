//! Runs as a journal's files have them: what `--journal DIR` asks in place of a server.
//!
//! Invariant: each answer is the JSON that the server gives to the same question, as far as the files have it; what is missing in them is said on
//! stderr. Whoever may read the files sees the runs of every tenant.
// contract: C-24

use std::io::ErrorKind;
use std::path::Path;

use lifecycle::{Cause, OutcomeKind, RunId, RunKey};
use observe::{FilesError, Limits, Replayed, RunFilter, RunState};
use serde_json::{Value, json};

use crate::cli::RunsArgs;
use crate::failure::Failure;
use crate::out;

/// Most runs of each life that are kept.
const RUNS_MAX: usize = 1 << 20;
/// The word for every state but the last.
const LIVE: &str = "live";

/// The lives whose records are in a folder, newest first.
pub struct Past(Vec<Replayed>);

impl Past {
    /// Reads a folder, and keeps so many records of each life.
    ///
    /// # Errors
    /// `NotFound` where there is no folder or no record in it, else why it cannot be read.
    pub fn read(dir: &Path, records: usize) -> Result<Past, Failure> {
        let mut lives = observe::replay(dir, Limits { records, runs: RUNS_MAX, ..Limits::default() }).map_err(failed)?;
        lives.reverse();
        for life in &lives {
            life.missing().iter().for_each(|gap| out::note(&format!("kvit: life {}: {gap}", life.life)));
        }
        Ok(Past(lives))
    }

    /// The newest run of this id.
    fn find(&self, id: &str) -> Result<(&Replayed, RunKey), Failure> {
        let none = || Failure::NotFound(format!("run `{id}`: the journal's files have no run of this id"));
        let run = RunId::parse(id).map_err(|_| none())?;
        let (life, keys) =
            self.0.iter().map(|life| (life, life.journal.of_any_tenant(&run))).find(|(_, keys)| !keys.is_empty()).ok_or_else(none)?;
        if let [newest, _, ..] = keys.as_slice() {
            let tenants: Vec<&str> = keys.iter().map(|key| key.tenant.as_str()).collect();
            out::note(&format!(
                "kvit: the tenants {} have a run `{id}`; this is that of {}, the newest",
                tenants.join(", "),
                newest.tenant
            ));
        }
        keys.into_iter().next().map(|key| (life, key)).ok_or_else(none)
    }

    /// As `GET /v1/runs/{id}`.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn run(&self, id: &str) -> Result<Value, Failure> {
        let (life, key) = self.find(id)?;
        Ok(json!(life.journal.run(&key)))
    }

    /// As `GET /v1/runs/{id}/steps`.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn steps(&self, id: &str) -> Result<Value, Failure> {
        let (life, key) = self.find(id)?;
        Ok(json!(life.journal.steps(&key)))
    }

    /// As `GET /v1/runs`, of all tenants, life by life.
    ///
    /// # Errors
    /// `Usage` for a word that is none.
    pub fn runs(&self, args: &RunsArgs) -> Result<Value, Failure> {
        let live = args.state.as_deref() == Some(LIVE);
        let state = if live { None } else { word("state", args.state.as_deref(), &RunState::ALL, RunState::as_str)? };
        let outcome = word("outcome", args.outcome.as_deref(), OutcomeKind::ALL, OutcomeKind::as_str)?;
        let cause = word("cause", args.cause.as_deref(), Cause::ALL, Cause::as_str)?;
        let (mut data, mut has_more) = (Vec::new(), false);
        for life in &self.0 {
            let room = (args.limit as usize).saturating_sub(data.len());
            let page = life.journal.runs_of_all(&RunFilter { state, live, outcome, cause, limit: room, after: None });
            has_more |= page.has_more || page.data.len() > room;
            data.extend(page.data.into_iter().take(room));
        }
        Ok(json!({"object": "list", "data": data, "has_more": has_more}))
    }
}

/// One of the words for it.
fn word<T: Copy>(name: &str, given: Option<&str>, all: &[T], as_str: impl Fn(T) -> &'static str) -> Result<Option<T>, Failure> {
    let Some(text) = given else { return Ok(None) };
    let words = || all.iter().map(|value| as_str(*value)).collect::<Vec<_>>().join(", ");
    let found = all.iter().copied().find(|value| as_str(*value) == text);
    found.map(Some).ok_or_else(|| Failure::Usage(format!("--{name} {text}: must be one of {}", words())))
}

fn failed(error: FilesError) -> Failure {
    match &error {
        FilesError::Empty { .. } => Failure::NotFound(error.to_string()),
        FilesError::Folder { why, .. } if why.kind() == ErrorKind::NotFound => Failure::NotFound(error.to_string()),
        _ => Failure::Other(error.into()),
    }
}
