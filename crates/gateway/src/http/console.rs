//! `/console`: a page that draws what the API says. Its files are in the binary as they are in the repository; there is no build step.
//!
//! The files hold nothing of anybody's, so they are answered without a key; what they show they ask for with one.
//!
//! Invariant: the page may load and ask nothing but this server (`Content-Security-Policy`), and nobody may frame it.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::error::ApiError;
use super::{Segment, named};
use crate::calls::Calls;

/// Scripts, styles, pictures and questions of this server's own, and nothing else: no inline script, no form that goes anywhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! file {
    ($name:literal, $kind:expr) => {
        ($name, $kind, include_str!(concat!("../console/", $name)))
    };
}

/// The page, and what it loads.
const PAGE: (&str, &str, &str) = file!("index.html", HTML);
const FILES: [(&str, &str, &str); 16] = [
    file!("console.css", CSS),
    file!("icon.svg", PICTURE),
    file!("api.js", SCRIPT),
    file!("charts.js", SCRIPT),
    file!("detail.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("health.js", SCRIPT),
    file!("kv.js", SCRIPT),
    file!("main.js", SCRIPT),
    file!("map.js", SCRIPT),
    file!("panels.js", SCRIPT),
    file!("runs.js", SCRIPT),
    file!("scale.js", SCRIPT),
    file!("timeline.js", SCRIPT),
    file!("words.js", SCRIPT),
];

/// Whether a path is the page's or one of its files'.
pub(crate) fn is_part(path: &str) -> bool {
    path.strip_prefix("/console").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn routes() -> Router<Arc<Calls>> {
    Router::new().route("/console", get(page)).route("/console/", get(page)).route("/console/{file}", get(file))
}

async fn page() -> Response {
    answer(&PAGE)
}

async fn file(name: Segment) -> Result<Response, ApiError> {
    let name = named(name)?;
    let nothing = || ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", format!("the console has no file `{name}`"));
    FILES.iter().find(|(known, ..)| *known == name).map(answer).ok_or_else(|| nothing().code("unknown_url"))
}

fn answer((_, kind, text): &(&'static str, &'static str, &'static str)) -> Response {
    const NO_REFERRER: (HeaderName, HeaderValue) = (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        // Another release of kvit has other files at the same place.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        NO_REFERRER,
    ];
    (headers, *text).into_response()
}

#[cfg(test)]
mod tests {
    use lifecycle::{Cause, Milestone};
    use observe::RunState;

    use super::*;

    /// The list of words behind a name in the console's script.
    fn list(name: &str) -> Vec<&'static str> {
        let (.., script) = FILES.iter().find(|(file, ..)| *file == "words.js").expect("it is there");
        let (_, rest) = script.split_once(&format!("export const {name} = [")).expect("the list");
        let (inside, _) = rest.split_once(']').expect("its end");
        inside.split(',').map(|word| word.trim().trim_matches('"')).filter(|word| !word.is_empty()).collect()
    }

    #[test]
    fn the_consoles_words_are_the_contracts() {
        assert_eq!(list("CAUSES"), Cause::ALL.iter().map(|cause| cause.as_str()).collect::<Vec<_>>());
        assert_eq!(list("STATES"), RunState::ALL.iter().map(|state| state.as_str()).collect::<Vec<_>>());
        let (.., script) = FILES.iter().find(|(file, ..)| *file == "words.js").expect("it is there");
        let (_, milestones) = script.split_once("export const MILESTONES = {").expect("the table");
        let names: Vec<&str> = milestones.lines().filter_map(|line| line.trim().split_once(": [").map(|(name, _)| name)).collect();
        assert_eq!(names, Milestone::ALL.iter().map(|milestone| milestone.as_str()).collect::<Vec<_>>());
    }

    #[test]
    fn every_file_that_the_page_names_is_there() {
        let texts: Vec<&str> = FILES.iter().map(|(.., text)| *text).chain([PAGE.2]).collect();
        let named = |text: &'static str| {
            let quoted = text.split('"').skip(1).step_by(2).filter_map(|word| word.strip_prefix("./").or(word.strip_prefix("/console/")));
            quoted.map(str::to_owned).collect::<Vec<_>>()
        };
        let all: Vec<String> = texts.iter().flat_map(|text| named(text)).collect();
        assert!(all.len() >= FILES.len(), "{all:?}");
        for file in &all {
            assert!(FILES.iter().any(|(known, ..)| known == file), "the console names `{file}`, and has no such file");
        }
        for (file, ..) in FILES {
            assert!(all.iter().any(|named| named == file), "nothing names `{file}`");
        }
    }

    #[test]
    fn nothing_is_inline_or_from_elsewhere() {
        for (file, _, text) in FILES.iter().chain([&PAGE]) {
            let elsewhere = text
                .match_indices("://")
                .filter(|(at, _)| !text[..*at].ends_with("\"http") || !text[*at..].starts_with("://www.w3.org/2000/svg"));
            assert_eq!(elsewhere.count(), 0, "{file} names another host");
            for inline in [" style=\"", " onclick=\"", "<style", "javascript:", "innerHTML", "eval("] {
                assert!(!text.contains(inline), "{file} has `{inline}`");
            }
        }
    }

    #[test]
    fn only_the_console_is_the_consoles() {
        assert!(is_part("/console") && is_part("/console/main.js") && is_part("/console/"));
        assert!(!is_part("/consoles") && !is_part("/v1/console") && !is_part("/v1/runs"));
    }
}
