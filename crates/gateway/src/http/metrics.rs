//! `/metrics`: the page for Prometheus, in the format that the scraper asks for.
//!
//! Invariant: no run is named to somebody who may not know of it. The page needs no key, so with keys its exemplars are for operators only.
// contract: C-1 C-30

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use observe::{Format, Scrape};

use crate::asks::Cut;
use crate::calls::Calls;

/// `GET /metrics`
pub(crate) async fn page(State(calls): State<Arc<Calls>>, headers: HeaderMap) -> Response {
    let format = format(&headers, calls.config.keys.shows_all(&headers));
    let cuts = calls.snapshots(false).await;
    let workers: Vec<_> = cuts.iter().map(Cut::scraped).collect();
    let holdings = crate::vitals::holdings(&calls);
    let (version, incarnation) = (env!("CARGO_PKG_VERSION"), calls.incarnation);
    let outside = calls.keeper.is_some().then(|| calls.outside.counts.cut());
    let spans = calls.exporter.as_ref().map(|exporter| exporter.cut());
    let (holdings, outside, spans) = (Some(&holdings), outside.as_ref(), spans.as_ref());
    let scrape = Scrape { version, incarnation, workers: &workers, holdings, outside, spans, format };
    ([(header::CONTENT_TYPE, format.content_type())], calls.journal.metrics(&scrape)).into_response()
}

/// What a scraper takes: OpenMetrics if it names it and does not refuse it. Scrapers that know it prefer it.
fn format(headers: &HeaderMap, exemplars: bool) -> Format {
    const OPEN_METRICS: &str = "application/openmetrics-text";
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let is_it = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(OPEN_METRICS));
        let weight = parts.find_map(|p| p.strip_prefix("q=").or(p.strip_prefix("Q="))).map_or(Some(1.0), |q| q.parse::<f32>().ok());
        named && weight.is_some_and(|q| q > 0.0)
    };
    match (accepted.into_iter().any(is_it), exemplars) {
        (false, _) => Format::Text,
        (true, false) => Format::OpenMetrics,
        (true, true) => Format::Exemplars,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn open_metrics_is_for_those_who_ask_for_it() {
        let asked = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).expect("a value"));
            format(&headers, true)
        };
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(asked(prometheus), Format::Exemplars);
        for other in ["*/*", "text/plain;version=0.0.4", "application/openmetrics-text;q=0", "application/openmetrics-text;q=none", ""] {
            assert_eq!(asked(other), Format::Text, "{other}");
        }
        assert_eq!(format(&HeaderMap::new(), true), Format::Text);
    }
}
