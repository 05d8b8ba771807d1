//! The rules in Prometheus' words: a rule file, whose expressions are made from the configuration.
//!
//! Invariant: every expression is by `instance` and `job`, so that one server's trouble is not thinned by the others; what is compared is of
//! one interval.

use std::fmt::Write;
use std::time::Duration;

use super::{Alert, AlertRules, CYCLES};
use crate::history::WINDOWS;

/// Whose samples belong together.
const BY: &str = "instance, job";

impl AlertRules {
    /// The rule file, as YAML; `window` is the length of a waste window.
    pub fn prometheus(&self, window: Duration) -> String {
        let mut out = "# Made by `kvit alerts --rules`, from the configuration.\ngroups:\n  - name: kvit\n    rules:\n".to_owned();
        for alert in Alert::ALL {
            let (name, severity, summary, runbook) = (alert.name(), alert.severity(), alert.summary(), alert.runbook());
            let expression = self.expression(alert, window).replace('\n', "\n          ");
            let _ = write!(
                out,
                "      - alert: {name}\n        expr: |-\n          {expression}\n        labels:\n          severity: {severity}\n        \
                 annotations:\n          summary: \"{summary}\"\n          runbook: {runbook}\n"
            );
        }
        out
    }

    /// A rule's expression in PromQL: it gives a sample for each server that the alarm is of.
    pub fn expression(&self, alert: Alert, window: Duration) -> String {
        let range = span(window);
        match alert {
            Alert::SlowCancel => self.slow_cancel(&range),
            Alert::Waste => [
                self.waste("kvit_tokens_after_disconnect_total", "kvit_tokens_generated_total", window),
                self.waste("kvit_prompt_tokens_after_disconnect_total", "kvit_prompt_tokens_computed_total", window),
            ]
            .join("\nor\n"),
            Alert::UnacknowledgedCancels => {
                format!("kvit_cancels_unacknowledged_oldest_seconds > {}", self.unacknowledged.as_secs_f64())
            }
            Alert::OrphansNotReaped => format!("kvit_orphaned_oldest_seconds > {}", self.orphaned.as_secs_f64()),
            // A counter that is there from the first scrape on is above 0 without having increased.
            Alert::Defect => format!(
                "sum by ({BY}, kind) (increase(kvit_defects_total[{range}])) > 0\nor\nsum by ({BY}, kind) (kvit_defects_total) > 0 unless sum \
                 by ({BY}, kind) (kvit_defects_total offset {range})"
            ),
            Alert::BlocksWithoutOwner => "kvit_kv_unowned_blocks > 0".to_owned(),
        }
    }

    /// `unless`, and not the larger of two, so that a server that generated nothing is judged by the floor alone.
    fn slow_cancel(&self, range: &str) -> String {
        let p95 = |family: &str| format!("histogram_quantile(0.95, sum by ({BY}, le) (rate({family}_bucket[{range}])))");
        let (cancel, cycle) = (p95("kvit_disconnect_to_cancel_seconds"), p95("kvit_inter_token_seconds"));
        format!("{cancel} > {}\nunless\n{cancel} <= {CYCLES} * {cycle}", self.cancel.as_secs_f64())
    }

    /// Above the threshold in each of the last windows.
    fn waste(&self, after: &str, all: &str, window: Duration) -> String {
        let windows: Vec<String> = (0..WINDOWS)
            .map(|back| {
                let offset = if back == 0 { String::new() } else { format!(" offset {}", span(window * back)) };
                let sum = |family: &str| format!("sum by ({BY}) (increase({family}[{}]{offset}))", span(window));
                format!("100 * {} / {} > {}", sum(after), sum(all), self.waste_percent)
            })
            .collect();
        windows.join("\nand\n")
    }
}

/// A range as Prometheus reads it.
fn span(window: Duration) -> String {
    format!("{}ms", window.as_millis())
}
