//! What became of a gateway's spans, as `GET /metrics` shows it.
//!
//! Invariant: totals since the process began; every span of a run that was to be exported is in one of them once it is not on its way any more.

use crate::exposition::Text;

/// The totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exported {
    /// Spans that a collector took.
    pub exported: u64,
    /// Spans that it refused.
    pub rejected: u64,
    /// Spans that were sent as often as is tried, and not taken.
    pub failed: u64,
    /// Spans that were not sent: too many waited, or the process ended.
    pub dropped: u64,
}

pub(crate) fn expose(text: &mut Text, spans: &Exported) {
    let results = [("exported", spans.exported), ("rejected", spans.rejected), ("failed", spans.failed), ("dropped", spans.dropped)];
    let mut f = text.counter("kvit_otlp_spans_total", "Spans of settled runs by what became of their export over OTLP.");
    for (result, count) in results {
        f.sample(&[("result", result)], count);
    }
}
