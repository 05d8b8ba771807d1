//! Latencies by bucket, each bucket with the last run that fell into it.
//!
//! Invariant: counts and sums are exact; an exemplar costs a comparison an observation and is replaced at most once a second, so what is
//! observed a token stays as cheap as an addition.
// contract: C-1

use std::time::Duration;

use lifecycle::{RunId, Time};

/// Upper bounds of the histograms' buckets in microseconds: 100 µs (an in-process hop) to 60 s (a long prefill on a busy CPU).
pub(crate) const BOUNDS_US: [u64; 18] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
    30_000_000, 60_000_000,
];

/// One a bound, and one for what is above all of them.
pub(crate) const BUCKETS: usize = BOUNDS_US.len() + 1;

/// How long a bucket's exemplar stands before the next observation replaces it, in microseconds.
const EXEMPLAR_STANDS_US: u64 = 1_000_000;

/// A run that fell into a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Exemplar {
    pub run: RunId,
    pub us: u64,
    pub at: Time,
}

/// A latency histogram. Sums are kept in whole microseconds, so they are exact.
#[derive(Clone, Default, Debug)]
pub(crate) struct Histogram {
    pub counts: [u64; BUCKETS],
    pub sum_us: u64,
    exemplars: Option<Box<[Option<Exemplar>; BUCKETS]>>,
}

impl Histogram {
    /// Counts `span` as a run's, seen at `at`.
    pub(crate) fn observe(&mut self, span: Duration, run: &RunId, at: Time) {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.counts[bucket] += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        let last = self.exemplar(bucket).map(|last| last.at.0);
        if last.is_none_or(|last| at.0 >= last + EXEMPLAR_STANDS_US) {
            self.show(bucket, Exemplar { run: run.clone(), us, at });
        }
    }

    #[cold]
    fn show(&mut self, bucket: usize, exemplar: Exemplar) {
        self.exemplars.get_or_insert_default()[bucket] = Some(exemplar);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    #[inline]
    pub(crate) fn exemplar(&self, bucket: usize) -> Option<&Exemplar> {
        self.exemplars.as_ref()?[bucket].as_ref()
    }
}

/// The `q`-quantile in microseconds, as Prometheus' `histogram_quantile` reckons it: linear inside a bucket, and the highest bound for what
/// is above it. `None` without an observation.
pub(crate) fn quantile(counts: &[u64; BUCKETS], q: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return None;
    }
    let rank = q * total as f64;
    let mut below = 0;
    for (at, count) in counts.iter().enumerate() {
        if (below + count) as f64 >= rank && *count > 0 {
            let Some(upper) = BOUNDS_US.get(at) else { break };
            let lower = if at == 0 { 0 } else { BOUNDS_US[at - 1] };
            return Some(lower as f64 + (upper - lower) as f64 * (rank - below as f64) / *count as f64);
        }
        below += count;
    }
    BOUNDS_US.last().map(|us| *us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_linear_inside_its_bucket_and_never_above_the_last_bound() {
        let mut counts = [0; BUCKETS];
        assert_eq!(quantile(&counts, 0.95), None);
        counts[3] = 10; // 500 to 1,000 µs
        assert_eq!(quantile(&counts, 0.5), Some(750.0));
        counts[BUCKETS - 1] = 90;
        assert_eq!(quantile(&counts, 0.95), Some(60_000_000.0));
    }

    #[test]
    fn an_exemplar_stands_for_a_second() {
        let mut histogram = Histogram::default();
        let id = |text: &str| RunId::parse(text).expect("a valid id");
        for (us, run) in [(0, "first"), (999_999, "soon"), (1_000_000, "later")] {
            histogram.observe(Duration::from_micros(100), &id(run), Time(us));
            let shown = histogram.exemplar(0).map(|e| e.run.as_str().to_owned());
            assert_eq!(shown.as_deref(), Some(if us < 1_000_000 { "first" } else { "later" }));
        }
        assert_eq!((histogram.count(), histogram.sum_us), (3, 300));
    }
}
