//! A hop as the command line names it: `--hop NAME[,WORD=VALUE]…`, in order from the edge to the engine.
//!
//! Invariant: a text that is no hop is refused with the word that is wrong and the words that there are; nothing is opened or asked here.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

use super::tap::TapClient;
use super::target::Target;

/// Most hops of a stack.
pub const HOPS_MAX: usize = 32;
/// Longest name, in characters.
const NAME_MAX: usize = 64;
/// What stands at the two ends of the boundaries, and is no hop's name.
const ENDS: [&str; 2] = ["client", super::boundary::WORK];
const WORDS: &str = "kind, tap, log, config, version, version-by, url";

/// Kinds that pass requests on.
const PROXIES: [&str; 10] =
    ["nginx", "haproxy", "envoy", "caddy", "litellm", "vllm-router", "sglang-router", "asgi", "production-stack", "llamacpp-router"];
/// Kinds that compute, or that may do both.
const ENGINES: [&str; 9] = ["kvit", "vllm", "sglang", "llamacpp", "tgi", "dynamo", "ollama", "generic-prometheus", "unknown"];

/// The kind by its plain name, if it is known: `fastapi` is `asgi`.
pub fn kind(text: &str) -> Option<&'static str> {
    let plain = match text {
        "uvicorn" | "starlette" | "fastapi" | "hypercorn" | "gunicorn" => "asgi",
        "openresty" => "nginx",
        "llama.cpp" | "llama-server" => "llamacpp",
        "litellm-cancel" => "litellm",
        other => other,
    };
    PROXIES.into_iter().chain(ENGINES).find(|known| *known == plain)
}

/// Whether hops of this kind pass requests on and compute none.
pub fn is_proxy(kind: &str) -> bool {
    PROXIES.contains(&kind)
}

/// How a hop's release is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Release {
    /// As it was said.
    Text(String),
    /// A program and its arguments, which prints it.
    Program(Vec<String>),
}

/// A hop.
#[derive(Clone, Debug)]
pub struct Named {
    /// What it is called in reports.
    pub name: String,
    /// What it is, if that was said, or is its name.
    pub kind: Option<String>,
    /// The tap in front of it.
    pub tap: Option<TapClient>,
    /// Its access log.
    pub log: Option<PathBuf>,
    /// Its configuration, of which its fingerprint has the digest.
    pub config: Vec<PathBuf>,
    /// Its release.
    pub release: Option<Release>,
    /// Where it is itself.
    pub url: Option<Target>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let parts = parts(text);
        let (name, words) = parts.split_first().ok_or("it has no name")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            return Err(format!("`{name}` is no name of a hop: 1 to {NAME_MAX} of A-Z a-z 0-9 . _ -, then its words behind commas"));
        }
        if ENDS.contains(&name.as_str()) {
            return Err(format!("`{name}` is what one end of the boundaries is called: name the hop otherwise"));
        }
        let mut hop = Named { name: name.clone(), kind: None, tap: None, log: None, config: Vec::new(), release: None, url: None };
        let mut had = BTreeSet::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(format!("`{word}` has no `=`: words are {WORDS}, and a comma in a value is written twice"));
            };
            if value.is_empty() {
                return Err(format!("`{key}=` has no value"));
            }
            // Two ways to know one release cannot both be right.
            let once = if key == "version-by" { "version" } else { key };
            if key != "config" && !had.insert(once.to_owned()) {
                return Err(format!("`{once}` is said twice"));
            }
            hop.take(key, value)?;
        }
        hop.kind = hop.kind.or_else(|| kind(&hop.name).map(str::to_owned));
        Ok(hop)
    }
}

impl Named {
    fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "kind" => {
                let known = || PROXIES.into_iter().chain(ENGINES).collect::<Vec<_>>().join(", ");
                self.kind = Some(kind(value).ok_or_else(|| format!("the kind `{value}` is none of {}", known()))?.to_owned());
            }
            "tap" => self.tap = Some(TapClient::new(value)?.of_hop(&self.name)),
            "log" => self.log = Some(value.into()),
            "config" => self.config.push(value.into()),
            "version" => self.release = Some(Release::Text(value.to_owned())),
            "version-by" => self.release = Some(Release::Program(value.split_whitespace().map(str::to_owned).collect())),
            "url" => self.url = Some(Target::parse(value)?),
            other => return Err(format!("`{other}` is no word of a hop: {WORDS}")),
        }
        Ok(())
    }
}

/// What stands between commas; two commas are one that belongs to the text.
fn parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_end = c == ',' && chars.next_if_eq(&',').is_none();
        match parts.last_mut() {
            Some(last) if !is_end => last.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts
}

/// Whether these can stand in one stack.
///
/// # Errors
/// What is wrong.
pub fn check(hops: &[Named]) -> Result<(), String> {
    if hops.len() > HOPS_MAX {
        return Err(format!("{} hops are named; {HOPS_MAX} can be", hops.len()));
    }
    let mut had = BTreeSet::new();
    match hops.iter().find(|hop| !had.insert(&hop.name)) {
        Some(hop) => Err(format!("two hops are named `{}`: a name says which is meant", hop.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Named, String> {
        text.parse()
    }

    #[test]
    fn all_words_of_a_hop() {
        let hop =
            parse("edge,kind=nginx,tap=http://127.0.0.1:9101,log=/l,config=/a,,b,config=/c,version-by=nginx -v,url=http://127.0.0.1:80")
                .expect("a hop");
        assert_eq!((hop.name.as_str(), hop.kind.as_deref()), ("edge", Some("nginx")));
        assert_eq!((hop.log, hop.config), (Some("/l".into()), vec![PathBuf::from("/a,b"), "/c".into()]));
        assert_eq!(hop.release, Some(Release::Program(vec!["nginx".to_owned(), "-v".to_owned()])));
        assert!(hop.tap.is_some() && hop.url.is_some_and(|url| url.authority == "127.0.0.1:80"));
        let hop = parse("fastapi,version=0.139 beta,,1").expect("a hop");
        assert_eq!((hop.kind.as_deref(), hop.release), (Some("asgi"), Some(Release::Text("0.139 beta,1".to_owned()))));
        assert_eq!(parse("mine").expect("a hop").kind, None);
    }

    #[test]
    fn what_is_no_hop_is_refused_by_the_word_that_is_wrong() {
        for (text, says) in [
            ("", "`` is no name"),
            ("a b", "`a b` is no name"),
            ("client", "one end of the boundaries"),
            ("a,lgo=x", "`lgo` is no word of a hop: kind, tap, log"),
            ("a,log", "`log` has no `=`"),
            ("a,", "`` has no `=`"),
            ("a,log=", "`log=` has no value"),
            ("a,log=x,log=y", "`log` is said twice"),
            ("a,version=1,version-by=b", "`version` is said twice"),
            ("a,kind=ngnix", "the kind `ngnix` is none of nginx, haproxy"),
            ("a,tap=:::", "no address of a tap"),
            ("a,url=ftp://x", "no URL"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        let hops = ["a", "b", "a"].map(|name| parse(name).expect("a hop"));
        assert!(check(&hops).expect_err("two").contains("two hops are named `a`"));
        assert_eq!(check(&hops[..2]), Ok(()));
    }
}
