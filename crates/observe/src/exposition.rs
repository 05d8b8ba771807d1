//! Prometheus' text format, version 0.0.4: comment lines, samples, cumulative buckets.
//!
//! Written here rather than taken from a client crate: those keep their own counters behind their own locks, and then a page is no
//! consistent cut and every number lives twice.
//!
//! Invariant: what comes out parses: one HELP and one TYPE line a family, its samples together, label values escaped.

use std::fmt::Write;

/// A metrics page in the making.
#[derive(Default)]
pub(crate) struct Text {
    out: String,
}

/// One family of it, to which samples are added.
pub(crate) struct Family<'a> {
    out: &'a mut String,
    name: &'static str,
}

impl Text {
    fn family(&mut self, name: &'static str, help: &'static str, kind: &str) -> Family<'_> {
        debug_assert!(!help.contains(['\n', '\\']), "help texts are constants without anything to escape");
        put(&mut self.out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { out: &mut self.out, name }
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
    pub(crate) fn finish(self) -> String {
        self.out
    }
}

impl Family<'_> {
    /// Adds one sample.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.line("", labels, None, format_args!("{value}"));
    }

    /// Adds one histogram: `counts` a bucket, not cumulated, the last for what is above every bound; bounds and sum in microseconds, shown
    /// in seconds.
    pub(crate) fn histogram(&mut self, labels: &[(&str, &str)], bounds_us: &[u64], counts: &[u64], sum_us: u64) {
        let mut below = 0;
        for (at, count) in counts.iter().enumerate() {
            below += count;
            let le = bounds_us.get(at).map_or_else(|| "+Inf".to_owned(), |us| seconds(*us).to_string());
            self.line("_bucket", labels, Some(("le", &le)), format_args!("{below}"));
        }
        self.line("_sum", labels, None, format_args!("{}", seconds(sum_us)));
        self.line("_count", labels, None, format_args!("{below}"));
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
        put(self.out, format_args!("{} {value}\n", if open == ',' { "}" } else { "" }));
    }
}

fn seconds(us: u64) -> f64 {
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
