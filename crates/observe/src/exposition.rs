//! The two text formats of a metrics page: Prometheus' 0.0.4, and OpenMetrics 1.0 with exemplars, from the same families.
//!
//! Written here rather than taken from a client crate: those keep their own counters behind their own locks, and then a page is no
//! consistent cut and every number lives twice.
//!
//! Invariant: what comes out parses: one HELP and one TYPE line a family, its samples together, label values escaped. Both formats have the
//! same samples; what only the one can say (an exemplar) is left out of the other.

use std::fmt::Write;

use crate::metrics::histogram::{BOUNDS_US, Exemplar, Histogram};

/// How a page is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// `text/plain; version=0.0.4`: what everything reads.
    #[default]
    Text,
    /// `application/openmetrics-text; version=1.0.0`, without exemplars: for those who may not know the ids of runs.
    OpenMetrics,
    /// The same with exemplars, which name runs.
    Exemplars,
}

impl Format {
    /// The answer's `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics | Format::Exemplars => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A metrics page in the making.
pub(crate) struct Text {
    out: String,
    format: Format,
    /// What is added to an exemplar's time, in microseconds, to have the time since 1970.
    epoch_us: u64,
}

/// One family of it, to which samples are added.
pub(crate) struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
    format: Format,
    epoch_us: u64,
}

/// Most characters of an exemplar's labels, names and values together, by OpenMetrics.
const EXEMPLAR_CHARS_MAX: usize = 128;
const EXEMPLAR_LABEL: &str = "run_id";

impl Text {
    pub(crate) fn new(format: Format, epoch_us: u64) -> Text {
        Text { out: String::new(), format, epoch_us }
    }

    fn family(&mut self, name: &'static str, help: &'static str, kind: &str) -> Family<'_> {
        debug_assert!(!help.contains(['\n', '\\']), "help texts are constants without anything to escape");
        // OpenMetrics names a counter's family without the suffix of its samples.
        let family = if self.format == Format::Text { name } else { name.strip_suffix("_total").unwrap_or(name) };
        put(&mut self.out, format_args!("# HELP {family} {help}\n# TYPE {family} {kind}\n"));
        Family { out: &mut self.out, name, format: self.format, epoch_us: self.epoch_us }
    }

    /// Begins a family of values that only grow.
    pub(crate) fn counter(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, "counter")
    }

    /// Begins a family of values that go up and down.
    pub(crate) fn gauge(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, "gauge")
    }

    /// Begins a family of histograms.
    pub(crate) fn histogram(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.family(name, help, "histogram")
    }

    /// The page.
    pub(crate) fn finish(mut self) -> String {
        if self.format != Format::Text {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

impl Family<'_> {
    /// Adds one sample.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.line("", labels, None, format_args!("{value}"));
        self.out.push('\n');
    }

    /// Adds one sample that is no whole number.
    pub(crate) fn fraction(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, None, format_args!("{value}"));
        self.out.push('\n');
    }

    /// Adds one histogram, its buckets cumulated; bounds and sum in seconds.
    pub(crate) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut below = 0;
        for (at, count) in histogram.counts.iter().enumerate() {
            below += count;
            let le = BOUNDS_US.get(at).map_or_else(|| "+Inf".to_owned(), |us| self.bound(*us));
            self.line("_bucket", labels, Some(("le", &le)), format_args!("{below}"));
            if let Some(exemplar) = histogram.exemplar(at).filter(|_| self.format == Format::Exemplars) {
                self.exemplar(exemplar);
            }
            self.out.push('\n');
        }
        self.line("_sum", labels, None, format_args!("{}", seconds(histogram.sum_us)));
        self.out.push('\n');
        self.line("_count", labels, None, format_args!("{below}"));
        self.out.push('\n');
    }

    /// A bucket's bound. OpenMetrics wants every bound to be written as a fraction.
    fn bound(&self, us: u64) -> String {
        match self.format {
            Format::Text => seconds(us).to_string(),
            Format::OpenMetrics | Format::Exemplars => format!("{:?}", seconds(us)),
        }
    }

    // contract: C-1
    fn exemplar(&mut self, exemplar: &Exemplar) {
        let run = exemplar.run.as_str();
        if EXEMPLAR_LABEL.len() + run.chars().count() > EXEMPLAR_CHARS_MAX {
            return;
        }
        let at = seconds(exemplar.at.0.saturating_add(self.epoch_us));
        put(self.out, format_args!(" # {{{EXEMPLAR_LABEL}=\""));
        escape(self.out, run);
        put(self.out, format_args!("\"}} {} {at:.3}", seconds(exemplar.us)));
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], last: Option<(&str, &str)>, value: std::fmt::Arguments<'_>) {
        put(self.out, format_args!("{}{suffix}", self.name));
        let mut open = '{';
        for (name, text) in labels.iter().copied().chain(last) {
            put(self.out, format_args!("{open}{name}=\""));
            escape(self.out, text);
            self.out.push('"');
            open = ',';
        }
        put(self.out, format_args!("{} {value}", if open == ',' { "}" } else { "" }));
    }
}

pub(crate) fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(c),
        }
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String cannot fail");
}
