//! Where an upstream is: the part of its URL that all its paths have in common.
//!
//! Invariant: holds no secret, so it can be logged; a path put behind it makes a valid request target.

use std::fmt;

use http::Uri;

/// `https://host:port/prefix`, without a slash at its end and without the `/v1` that all paths begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Base {
    /// Whether it is spoken to under TLS.
    pub tls: bool,
    /// Name or address of the host, without the brackets of an IPv6 address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What stands before `/v1/...`: nothing, or `/like/this`.
    pub prefix: String,
}

impl Base {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence that follows the URL.
    pub fn read(url: &str) -> Result<Base, String> {
        let uri: Uri = url.parse().map_err(|_| "is no URL".to_owned())?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("begins with neither http:// nor https://".to_owned()),
        };
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("has a user or a password in it; give the key as key_file".to_owned());
        }
        if uri.query().is_some() {
            return Err("has a query".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("names no host".to_owned());
        }
        let port = match (authority.port_u16(), authority.as_str().strip_prefix(authority.host()).unwrap_or_default()) {
            (Some(0), _) => return Err("has port 0".to_owned()),
            (Some(port), _) => port,
            (None, "") => [80, 443][usize::from(tls)],
            (None, _) => return Err("has a port that is none".to_owned()),
        };
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
        Ok(Base { tls, host: host.to_owned(), port, prefix: prefix.to_owned() })
    }

    /// What stands in the `host` header.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == [80, 443][usize::from(self.tls)] { host } else { format!("{host}:{}", self.port) }
    }

    /// The request target of a path.
    pub(crate) fn target(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", ["http", "https"][usize::from(self.tls)], self.authority(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_paths_have_in_common() {
        for (url, shown, target) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "/v1/models"),
            ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", "/v1/models"),
            ("https://api.example.com/v1", "https://api.example.com", "/v1/models"),
            ("https://example.com:443/openai/", "https://example.com/openai", "/openai/v1/models"),
            ("http://[::1]:9/a/v1", "http://[::1]:9/a", "/a/v1/models"),
        ] {
            let base = Base::read(url).expect(url);
            assert_eq!((base.to_string().as_str(), base.target("/v1/models").as_str()), (shown, target));
        }
        let base = Base::read("http://[::1]").expect("an address");
        assert_eq!((base.host.as_str(), base.port), ("::1", 80));
    }

    #[test]
    fn what_is_no_base() {
        for url in
            ["", "host:80", "ftp://a", "http://", "http://u:secret@a", "http://a?b=c", "http://a:0", "http://a:99999", "http://a:", "/v1"]
        {
            let why = Base::read(url).expect_err(url);
            assert!(!why.contains("secret"), "{why}");
        }
    }
}
