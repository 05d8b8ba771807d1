//! Where spans are exported to, and what OpenTelemetry's own variables say of it.
//!
//! Invariant: kvit's own options stand over those variables, all of them; without a collector none of them is read.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use gateway::{OtlpEndpoint, OtlpHeaders};
use serde::Deserialize;

use super::{ConfigError, ServeFlags};

/// A collector's URL, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Collector(Option<OtlpEndpoint>);

impl Collector {
    /// The collector, if one is named.
    pub fn get(&self) -> Option<&OtlpEndpoint> {
        self.0.as_ref()
    }
}

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Collector(None)) } else { text.parse().map(|endpoint| Collector(Some(endpoint))) }
    }
}

impl TryFrom<String> for Collector {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(endpoint) => endpoint.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// OpenTelemetry's variables that are read, and the options that they stand for.
const STANDARD: [(&str, &str); 2] = [("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp_endpoint"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "otlp_protocol")];
/// The one for what `otlp_headers_file` stands for.
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Puts what OpenTelemetry's own variables say below what all of kvit's say.
///
/// # Errors
/// A value that is not of its option's kind. A header's value is not in the message.
pub fn standard(flags: &mut ServeFlags, env: &[(OsString, OsString)]) -> Result<OtlpHeaders, ConfigError> {
    let wrong = |name: &str, why: String| ConfigError::Value { place: "environment".to_owned(), name: name.to_owned(), why };
    let read = |name: &str| {
        let value = env.iter().find(|(n, value)| *n == *name && !value.is_empty());
        value.map(|(_, value)| value.to_str().ok_or_else(|| wrong(name, "is not valid UTF-8".to_owned()))).transpose()
    };
    for (name, option) in STANDARD {
        if !flags.keys().contains(&option)
            && let Some(text) = read(name)?
        {
            flags.set(option, text).unwrap_or(Ok(())).map_err(|why| wrong(name, why))?;
        }
        // Others' variables are none of ours where nothing is exported.
        if flags.otlp_endpoint.as_ref().and_then(Collector::get).is_none() {
            return Ok(OtlpHeaders::default());
        }
    }
    match read(HEADERS)? {
        Some(text) => OtlpHeaders::of_list(text).map_err(|why| wrong(HEADERS, why)),
        None => Ok(OtlpHeaders::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect()
    }

    #[test]
    fn the_standard_variables_stand_below_all_others_and_mean_nothing_without_a_collector() {
        let said = |pairs: &[(&str, &str)]| load(ServeFlags::default(), &env(pairs), None).map_err(|why| why.to_string());
        let endpoint =
            |pairs: &[(&str, &str)]| said(pairs).map(|config| (config.otlp_endpoint.to_string(), config.otlp_protocol.to_string()));
        let text = |endpoint: &str, protocol: &str| Ok((endpoint.to_owned(), protocol.to_owned()));
        let (there, grpc) = (("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:4317"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"));
        assert_eq!(endpoint(&[]), text("none", "http/protobuf"));
        assert_eq!(endpoint(&[there, grpc]), text("http://h:4317", "grpc"));
        assert_eq!(endpoint(&[there, grpc, ("KVIT_OTLP_ENDPOINT", "http://own")]), text("http://own", "grpc"));
        assert_eq!(endpoint(&[there, ("KVIT_OTLP_ENDPOINT", "none")]), text("none", "http/protobuf"));
        assert_eq!(endpoint(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]), text("none", "http/protobuf"));
        let error = endpoint(&[there, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]).unwrap_err();
        assert!(error.starts_with("environment: OTEL_EXPORTER_OTLP_PROTOCOL: "), "{error}");
        let error = said(&[there, ("OTEL_EXPORTER_OTLP_HEADERS", "secret")]).unwrap_err();
        assert!(error.starts_with("environment: OTEL_EXPORTER_OTLP_HEADERS: ") && !error.contains("secret"), "{error}");
        let config = said(&[there, ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20secret")]).unwrap();
        assert_eq!(format!("{:?}", config.otlp_headers), "[\"authorization\"]");
        let error = endpoint(&[("KVIT_OTLP_ENDPOINT", "https://h"), ("KVIT_OTLP_PROTOCOL", "grpc")]).unwrap_err();
        assert!(error.starts_with("otlp_endpoint must be an http URL with gRPC"), "{error}");
    }
}
