//! The server that `kvit top` looks at, over connections that are kept: it is asked several things a second.
//!
//! Invariant: every wait and every body has a limit, and what is not an answer is a sentence that says why.

use std::time::Duration;

use serde_json::Value;
use top::{Ask, Trouble};

use crate::client;
use crate::failure::Failure;

/// Longest that a server may take to answer. Keys are heard meanwhile.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes: the map of a big pool, or hundreds of runs.
const BODY_BYTES_MAX: u64 = 64 << 20;

pub(super) struct Remote {
    base: String,
    agent: ureq::Agent,
    authorization: Option<String>,
}

impl Remote {
    /// One for this address, with the key of the environment. Nobody is asked yet.
    ///
    /// # Errors
    /// `Usage` for an address or a key that is none.
    pub(super) fn new(server: &str) -> Result<Remote, Failure> {
        Ok(Remote { base: client::base(server)?.to_owned(), agent: client::agent(TIMEOUT), authorization: client::authorization()? })
    }

    /// The address, without a slash at its end.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    fn answer(&self, path: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Trouble> {
        let unreachable = |e: ureq::Error| Trouble::Unreachable(format!("No answer from {}: {e}.", self.base));
        let mut response = answer.map_err(unreachable)?;
        let status = response.status().as_u16();
        let text = response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string().map_err(unreachable)?;
        let json: Option<Value> = serde_json::from_str(&text).ok();
        let said = json.as_ref().and_then(|json| json.pointer("/error/message")?.as_str()).map(str::to_owned);
        match (status, json, said) {
            (200, Some(json), _) => Ok(json),
            (404 | 410, _, said) => Err(Trouble::Absent(said.unwrap_or_else(|| format!("there is no {path}")))),
            (401, _, said) => Err(Trouble::Refused(format!("{} (the key is read from KVIT_API_KEY)", said.unwrap_or_default()))),
            (_, _, Some(said)) => Err(Trouble::Refused(said)),
            (status, _, None) => Err(Trouble::Refused(format!("status {status} at {path}, and no JSON: is this a kvit server?"))),
        }
    }
}

impl Ask for Remote {
    fn get(&self, path: &str) -> Result<Value, Trouble> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        if let Some(value) = &self.authorization {
            request = request.header("Authorization", value);
        }
        self.answer(path, request.call())
    }

    fn post(&self, path: &str) -> Result<Value, Trouble> {
        let mut request = self.agent.post(format!("{}{path}", self.base));
        if let Some(value) = &self.authorization {
            request = request.header("Authorization", value);
        }
        self.answer(path, request.send_empty())
    }
}
