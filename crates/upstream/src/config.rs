//! What is said of an upstream by whoever sets kvit up, and every limit of how it is spoken to.
//!
//! Invariant: a wrong word is an error that names it; the key is never shown.
// contract: C-28

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use super::base::Base;
use super::kind::{CancelBy, DeadlineBy, Kind};

/// Longest name of an upstream in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most slots that an upstream may be said to have.
pub const SLOTS_MAX: u32 = 65_536;
/// Most models that an upstream may be said to have.
pub const MODELS_MAX: usize = 256;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps it.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself: for the wire and nothing else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// What is wrong with what was said of an upstream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the upstream `{upstream}`: {what} {why}")]
pub struct ConfigError {
    /// Which upstream, as it was given.
    pub upstream: String,
    /// Which word.
    pub what: &'static str,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

/// One upstream: where it is, what it is, and the limits of how it is spoken to.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// Where it is.
    pub url: Base,
    /// What it is called in logs, metrics and views. Default: host and port.
    pub name: String,
    /// Which engine it is; `None` to look.
    pub kind: Option<Kind>,
    /// Sent as `Authorization: Bearer`, instead of what the caller sent. Default none.
    pub api_key: Option<Secret>,
    /// Certificates (PEM) that are trusted beside the usual authorities. Default none.
    pub ca_file: Option<PathBuf>,
    /// Requests that it is sent at once; `None` to ask it, and if it does not say, the kind's default.
    pub slots: Option<u32>,
    /// Models that it has; empty to ask it.
    pub models: Vec<String>,
    /// Generated tokens of a request that names no number of them; `None` to leave it so. Default none.
    pub cap: Option<u32>,
    /// It heeds `max_tokens` and no newer word for it. Default no.
    pub max_tokens_only: bool,
    /// Runs that fail by it in a row, after which it gets no new ones. Default 5.
    pub failures_max: u32,
    /// How long it gets none then, before one is tried; doubles with each that fails. Default 1 s.
    pub open: Duration,
    /// Longest such time. Default 1 min.
    pub open_max: Duration,
    /// How a cancel is sent; `None` for what its kind can do.
    pub cancel: Option<CancelBy>,
    /// How it is told of the time that a run has left; `None` to look what it takes.
    pub deadline: Option<DeadlineBy>,
    /// From the look-up of its name to a secured connection. Default 5 s.
    pub connect_timeout: Duration,
    /// From a request's first byte to the answer's head, which some engines send with the first token, and all with a whole answer. Default
    /// 10 min, as long as a run may take.
    pub head_timeout: Duration,
    /// Longest time without a byte of an answer: a prefill in a full queue, or an upstream that hangs. Default 5 min.
    pub idle_timeout: Duration,
    /// How long a look at it may take (kind, models, counters), from the request to the last byte. Default 2 s.
    pub look_timeout: Duration,
    /// Largest head of an answer in bytes, at least 8 KiB. Default 64 KiB. Also the most that is read at once.
    pub head_bytes_max: usize,
    /// Longest line of a stream in bytes. Default 1 MiB: a chunk with log-probabilities of many tokens is long.
    pub line_bytes_max: usize,
    /// Longest event of a stream in bytes. Default 2 MiB.
    pub event_bytes_max: usize,
    /// Longest answer in bytes, streamed or not. Default 256 MiB: embeddings of a large batch are long.
    pub answer_bytes_max: u64,
    /// Longest answer to a look, in bytes. Default 4 MiB: counters with many labels are long.
    pub look_bytes_max: u64,
    /// Connections that wait for a next request. Default 64.
    pub idle_connections_max: usize,
    /// How long they do. Default 4 s: common servers close after 5 s, and who closes second never sends into a closed connection.
    pub idle_keep: Duration,
    /// How long its proof is looked for after a cancel, from the first look that can prove it; then its level is `best_effort`. Default 10 s.
    pub observe_for: Duration,
    /// How long a request that was left stays open at most while its engine is told of it by id, where that one forgets ids with their
    /// connections. Default 2 s: several times what such an engine needs to take a request in.
    pub hold: Duration,
    /// Whether an engine whose counters need it is asked for two tokens by which a step is seen to be over. Default yes.
    pub witness: bool,
    /// Time between two looks meanwhile, if the kind allows that. Default 100 ms.
    pub observe_every: Duration,
}

impl UpstreamConfig {
    /// An upstream at this URL with all defaults.
    ///
    /// # Errors
    /// [`ConfigError`]: it is no URL of an upstream.
    pub fn at(url: &str) -> Result<UpstreamConfig, ConfigError> {
        let base = Base::read(url).map_err(|why| ConfigError {
            // A password in it must not come to a log.
            upstream: url.rsplit('@').next().unwrap_or_default().to_owned(),
            what: "the URL",
            why: format!("{why}; it looks like http://127.0.0.1:8000"),
        })?;
        Ok(UpstreamConfig {
            name: base.authority(),
            url: base,
            kind: None,
            api_key: None,
            ca_file: None,
            slots: None,
            models: Vec::new(),
            cap: None,
            max_tokens_only: false,
            failures_max: 5,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(60),
            cancel: None,
            deadline: None,
            connect_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(300),
            look_timeout: Duration::from_secs(2),
            head_bytes_max: 64 << 10,
            line_bytes_max: 1 << 20,
            event_bytes_max: 2 << 20,
            answer_bytes_max: 256 << 20,
            look_bytes_max: 4 << 20,
            idle_connections_max: 64,
            idle_keep: Duration::from_secs(4),
            observe_for: Duration::from_secs(10),
            hold: Duration::from_secs(2),
            witness: true,
            observe_every: Duration::from_millis(100),
        })
    }

    /// Whether its words agree with each other.
    ///
    /// # Errors
    /// [`ConfigError`]: one of them asks for what another rules out.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wants_id = matches!(self.cancel, Some(CancelBy::IdWithProof | CancelBy::IdWithoutProof));
        match self.kind.filter(|kind| wants_id && !kind.has_cancel_by_id()) {
            None => Ok(()),
            Some(kind) => Err(ConfigError {
                upstream: self.url.to_string(),
                what: "cancel",
                why: format!("`id` is nothing that `{kind}` has a call for; say `close`, or leave the word out"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        let mut config = UpstreamConfig::at("http://a").expect("a URL");
        config.api_key = Some(Secret::new("sk-hidden"));
        assert!(!format!("{config:?}").contains("hidden"));
        let error = UpstreamConfig::at("http://me:hidden@a").expect_err("a password");
        assert!(!error.to_string().contains("hidden"), "{error}");
        assert!(error.to_string().contains("key_file"));
    }
}
