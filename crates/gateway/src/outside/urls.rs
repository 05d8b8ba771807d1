//! To which URLs kvit sends for its callers: those that begin with what the operator lists, and no others.
//!
//! A URL is taken apart by the same parser that later connects, so that nobody reads it differently. Nothing that one side might resolve and the
//! other not (dots, escapes, back-slashes, a user) may stand in one.
//!
//! Invariant: with an empty list nothing is allowed; a prefix ends at the end of a host and of a path's part.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::Uri;

/// Longest URL in bytes.
const URL_MAX_LEN: usize = 2048;
/// Most prefixes.
const PREFIXES_MAX: usize = 64;

/// The operator's list.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct UrlPrefixes(Arc<[String]>);

impl UrlPrefixes {
    /// Whether this URL begins with one of the list.
    pub(crate) fn allow(&self, url: &str) -> bool {
        let Ok(asked) = plain(url) else { return false };
        self.0.iter().any(|prefix| plain(prefix).is_ok_and(|prefix| begins(&asked, &prefix)))
    }

    /// Whether nothing is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn begins(asked: &Uri, prefix: &Uri) -> bool {
    let origin = |uri: &Uri| (uri.scheme_str().map(str::to_owned), uri.authority().map(|a| a.as_str().to_ascii_lowercase()));
    let rest = asked.path().strip_prefix(prefix.path());
    let is_whole_part = |rest: &str| rest.is_empty() || rest.starts_with('/') || prefix.path().ends_with('/');
    origin(asked) == origin(prefix) && rest.is_some_and(is_whole_part)
}

/// A URL that is read in one way only.
pub(crate) fn plain(url: &str) -> Result<Uri, &'static str> {
    if url.len() > URL_MAX_LEN {
        return Err("must be at most 2048 bytes");
    }
    if url.contains(['\\', '#']) || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("must be a plain http or https URL in ASCII, without a fragment");
    }
    let uri: Uri = url.parse().map_err(|_| "must be a URL")?;
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    if !matches!(uri.scheme_str(), Some("http" | "https")) || authority.is_empty() || authority.contains('@') {
        return Err("must be an http or https URL with a host and without a user");
    }
    if uri.path().contains("//") || uri.path().get(1..).unwrap_or_default().split('/').any(is_odd) {
        return Err("must have a path without . and .., without empty parts, and without escaped dots, slashes and percent signs");
    }
    Ok(uri)
}

/// Whether somebody may read something else than a plain name in this part of a path: a server that decodes once more than another, or that
/// takes what is behind a semicolon for a parameter.
fn is_odd(part: &str) -> bool {
    let part = part.to_ascii_lowercase();
    // An escaped percent sign is the beginning of an escape for whoever decodes twice, however often it is escaped.
    let has_odd_escape = ["%2e", "%2f", "%5c", "%25", "%3b"].iter().any(|odd| part.contains(odd));
    let name = part.split(';').next().unwrap_or_default();
    has_odd_escape || matches!(name, "." | "..")
}

impl FromStr for UrlPrefixes {
    type Err = String;

    /// URLs with commas between them.
    fn from_str(text: &str) -> Result<UrlPrefixes, String> {
        let list: Vec<String> = text.split(',').map(str::trim).filter(|url| !url.is_empty()).map(str::to_owned).collect();
        if list.len() > PREFIXES_MAX {
            return Err(format!("it names {} URLs; at most {PREFIXES_MAX} are allowed", list.len()));
        }
        for url in &list {
            let uri = plain(url).map_err(|why| format!("`{url}` {why}"))?;
            if uri.query().is_some() {
                return Err(format!("`{url}` must not have a query"));
            }
        }
        Ok(UrlPrefixes(list.into()))
    }
}

impl fmt::Display for UrlPrefixes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_is_allowed_however_it_is_written() {
        let list: UrlPrefixes = "https://pay.example/v1, http://127.0.0.1:9000/".parse().expect("a list");
        for url in [
            "https://pay.example/v1",
            "https://PAY.example/v1/charges?x=1",
            "http://127.0.0.1:9000/a/b",
            "http://127.0.0.1:9000/",
            "http://127.0.0.1:9000/a;v=1/b..c",
            "http://127.0.0.1:9000/a%20b?q=%252e",
        ] {
            assert!(list.allow(url), "{url}");
        }
        for url in [
            "https://pay.example/v10",
            "https://pay.example/",
            "http://pay.example/v1",
            "https://pay.example:444/v1",
            "https://pay.example.evil/v1",
            "https://pay.example@evil/v1",
            "https://user@pay.example/v1",
            "https://pay.example/v1/../admin",
            "https://pay.example/v1/%2e%2e/admin",
            "https://pay.example/v1/%2E./admin",
            "https://pay.example/v1\\..\\admin",
            "https://pay.example/v1/..;/admin",
            "https://pay.example/v1/..;a=b/admin",
            "https://pay.example/v1/.;/admin",
            "https://pay.example/v1/..%3b/admin",
            "https://pay.example/v1/..%3Ba/admin",
            "https://pay.example/v1/%252e%252e/admin",
            "https://pay.example/v1/%25252e%25252e/admin",
            "https://pay.example/v1/a%252fb",
            "https://pay.example/v1/..%255cadmin",
            "https://pay.example/v1//admin",
            "http://127.0.0.1:90000/",
            "http://127.0.0.1:9001/",
            "http://localhost:9000/",
            "file:///etc/passwd",
            "//pay.example/v1",
            "https://pay.example/v1#x",
            "https://pay.example/v1 ",
            "",
        ] {
            assert!(!list.allow(url), "{url}");
        }
        assert!(!UrlPrefixes::default().allow("https://pay.example/v1"));
        assert_eq!(list.to_string().parse(), Ok(list));
        for text in ["ftp://x/", "https://x/?q", "https://a@x/", "x"] {
            assert!(text.parse::<UrlPrefixes>().is_err(), "{text}");
        }
    }
}
