//! Where spans are exported to, how, and within which bounds.
//!
//! Invariant: a header's value is in no log and no message, for it may be a key.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use observe::otlp::Sample;
use observe::otlp::wire::TRACES_PATH;
use serde::Deserialize;

use crate::outside::plain;

/// Most headers.
const HEADERS_MAX: usize = 64;

/// Exporting spans.
#[derive(Clone, Debug)]
pub struct OtlpConfig {
    /// The collector. Default none: no spans are made.
    pub endpoint: Option<OtlpEndpoint>,
    /// How it is spoken to. Default HTTP.
    pub protocol: OtlpProtocol,
    /// What it is told beside the spans, a key for example. Default nothing.
    pub headers: OtlpHeaders,
    /// Which runs are exported. Default all whose callers do not say that theirs are not.
    pub sample: Sample,
    /// Runs that are over and wait to be exported; the spans of a further one are dropped. Default 2048.
    pub queue_max: usize,
    /// Spans sent at once, about: a run's are not taken apart. Default 512.
    pub batch_max: usize,
    /// How long is waited for more of them. Default 1 s.
    pub every: Duration,
    /// How long one sending may take, and all that is left when the process ends. Default 10 s.
    pub timeout: Duration,
    /// How often it is tried. Default 4.
    pub tries_max: u32,
    /// First wait before it is tried again; each further one is twice as long. Default 500 ms.
    pub retry: Duration,
}

impl Default for OtlpConfig {
    fn default() -> Self {
        OtlpConfig {
            endpoint: None,
            protocol: OtlpProtocol::Http,
            headers: OtlpHeaders::default(),
            sample: Sample::Parent(1.0),
            queue_max: 2048,
            batch_max: 512,
            every: Duration::from_secs(1),
            timeout: Duration::from_secs(10),
            tries_max: 4,
            retry: Duration::from_millis(500),
        }
    }
}

impl OtlpConfig {
    /// Checks what must go together.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_tls = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.0.starts_with("https:"));
        if is_tls && self.protocol == OtlpProtocol::Grpc {
            return Err("must be an http URL with gRPC, which is spoken without TLS here; to an https URL speak http/protobuf");
        }
        Ok(())
    }
}

/// A collector's URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtlpEndpoint(String);

impl OtlpEndpoint {
    /// As it is connected to for gRPC.
    pub(super) fn base(&self) -> &str {
        &self.0
    }

    /// Where traces are posted to.
    pub(super) fn traces(&self) -> String {
        let base = self.0.trim_end_matches('/');
        if base.ends_with(TRACES_PATH) { base.to_owned() } else { format!("{base}{TRACES_PATH}") }
    }
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<OtlpEndpoint, String> {
        let uri = plain(text)?;
        match uri.query() {
            None => Ok(OtlpEndpoint(text.to_owned())),
            Some(_) => Err("must have no query".to_owned()),
        }
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a collector is spoken to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf over HTTP.
    Http,
}

impl FromStr for OtlpProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<OtlpProtocol, String> {
        match text {
            "grpc" => Ok(OtlpProtocol::Grpc),
            "http/protobuf" => Ok(OtlpProtocol::Http),
            _ => Err("must be `grpc` or `http/protobuf`".to_owned()),
        }
    }
}

impl TryFrom<String> for OtlpProtocol {
    type Error = String;

    fn try_from(text: String) -> Result<OtlpProtocol, String> {
        text.parse()
    }
}

impl fmt::Display for OtlpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OtlpProtocol::Grpc => "grpc",
            OtlpProtocol::Http => "http/protobuf",
        })
    }
}

/// Headers of every sending.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OtlpHeaders(Vec<(HeaderName, HeaderValue)>);

impl OtlpHeaders {
    /// One a line, as in HTTP: `name: value`. Empty lines and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// A line that is no header, by its number.
    pub fn of_lines(text: &str) -> Result<OtlpHeaders, String> {
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let header = |(at, line): (usize, &str)| {
            line.split_once(':').and_then(|(name, value)| header(name, value)).ok_or_else(|| format!("line {} is no header", at + 1))
        };
        OtlpHeaders::bounded(lines.map(header).collect::<Result<_, _>>()?)
    }

    /// As `OTEL_EXPORTER_OTLP_HEADERS` has them: `name=value`, with commas between them, and what is odd in a value in percent escapes.
    ///
    /// # Errors
    /// One that is no header, by its number.
    pub fn of_list(text: &str) -> Result<OtlpHeaders, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty()).enumerate();
        let header = |(at, part): (usize, &str)| {
            let pair = part.split_once('=').and_then(|(name, value)| header(name, &unescaped(value.trim())?));
            pair.ok_or_else(|| format!("its header {} is none", at + 1))
        };
        OtlpHeaders::bounded(parts.map(header).collect::<Result<_, _>>()?)
    }

    fn bounded(all: Vec<(HeaderName, HeaderValue)>) -> Result<OtlpHeaders, String> {
        if all.len() > HEADERS_MAX { Err(format!("at most {HEADERS_MAX} headers are allowed")) } else { Ok(OtlpHeaders(all)) }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (&HeaderName, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let mut value: HeaderValue = value.trim().parse().ok()?;
    value.set_sensitive(true);
    Some((name.trim().parse().ok()?, value))
}

/// A text with `%20` and the like read.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = std::str::from_utf8(behind.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = behind.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Debug for OtlpHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_base_or_the_whole_place() {
        let traces = |text: &str| text.parse::<OtlpEndpoint>().map(|endpoint| endpoint.traces());
        assert_eq!(traces("http://h:4318").as_deref(), Ok("http://h:4318/v1/traces"));
        assert_eq!(traces("https://h/otlp/").as_deref(), Ok("https://h/otlp/v1/traces"));
        assert_eq!(traces("http://h:4318/v1/traces").as_deref(), Ok("http://h:4318/v1/traces"));
        for bad in ["h:4317", "grpc://h", "http://user@h", "http://h/?a=b", "", "http://"] {
            assert!(traces(bad).is_err(), "{bad}");
        }
        let config = |endpoint: &str, protocol| OtlpConfig { endpoint: endpoint.parse().ok(), protocol, ..OtlpConfig::default() };
        assert!(config("https://h", OtlpProtocol::Grpc).check().is_err() && config("https://h", OtlpProtocol::Http).check().is_ok());
        assert!(config("http://h", OtlpProtocol::Grpc).check().is_ok() && OtlpConfig::default().check().is_ok());
    }

    #[test]
    fn headers_are_read_from_lines_and_from_a_list_and_their_values_are_not_shown() {
        let lines = OtlpHeaders::of_lines("# a key\nAuthorization: Bearer a=b, c\n\nx-scope:1\n").expect("headers");
        let list = OtlpHeaders::of_list("authorization=Bearer%20a%3Db%2C%20c, X-Scope = 1").expect("headers");
        assert_eq!(lines, list);
        assert_eq!(format!("{lines:?}"), "[\"authorization\", \"x-scope\"]");
        assert_eq!(OtlpHeaders::of_lines("a: b\nnonsense secret"), Err("line 2 is no header".to_owned()));
        for bad in ["a", "a=b%2", "a=%zz", "b c=d", "a=%00"] {
            assert_eq!(OtlpHeaders::of_list(bad), Err("its header 1 is none".to_owned()), "{bad}");
        }
        assert!(OtlpHeaders::of_list(&"a=b,".repeat(65)).is_err());
    }
}
