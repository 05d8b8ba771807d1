//! `kvit alerts`: which alert rules fire, and the same rules as a file for Prometheus.
//!
//! Invariant: it succeeds only if the server says that nothing fires.

use std::time::Duration;

use anyhow::anyhow;
use observe::Alert;
use serde_json::{Value, json};

use super::settings;
use crate::cli::AlertsArgs;
use crate::config::ServeConfig;
use crate::failure::Failure;
use crate::{client, out};

/// Prints the rule file that the configuration makes.
///
/// # Errors
/// Nowhere to print to.
pub fn rules(config: &ServeConfig, is_json: bool) -> Result<(), Failure> {
    let (rules, window) = (settings::alerts(config), Duration::from_secs(config.alert_window_s));
    if !is_json {
        return out::line(rules.prometheus(window).trim_end());
    }
    let rule = |alert: Alert| {
        json!({"alert": alert.name(), "expr": rules.expression(alert, window), "labels": {"severity": alert.severity()},
               "annotations": {"summary": alert.summary(), "runbook": alert.runbook()}})
    };
    let rules: Vec<Value> = Alert::ALL.into_iter().map(rule).collect();
    out::json(&json!({"groups": [{"name": "kvit", "rules": rules}]}))
}

/// Asks the server how its rules stand, and prints a table, or the JSON.
///
/// # Errors
/// No server, or a rule that fires.
pub fn run(args: &AlertsArgs) -> Result<(), Failure> {
    let json = client::get(&args.ask.server, "/v1/alerts")?;
    let alerts: &[Value] = json["data"].as_array().map_or(&[], Vec::as_slice);
    match args.ask.json {
        true => out::json(&json)?,
        false => out::line(&table(alerts))?,
    }
    let firing: Vec<&str> = alerts.iter().filter(|a| a["state"] == "firing").filter_map(|a| a["name"].as_str()).collect();
    if firing.is_empty() {
        return Ok(());
    }
    Err(Failure::Other(anyhow!("firing: {}", firing.join(", "))))
}

fn table(alerts: &[Value]) -> String {
    let row = |cells: [&str; 4]| {
        let [state, name, value, threshold] = cells;
        format!("{state:<8}  {name:<26}  {value:>16}  {threshold:>16}\n")
    };
    let mut text = row(["state", "alert", "now", "fires above"]);
    for alert in alerts {
        let word = |name: &str| alert[name].as_str().unwrap_or("-");
        let number = |name: &str| alert[name].as_f64().map_or_else(|| "-".to_owned(), |n| format!("{} {}", rounded(n), word("unit")));
        text += &row([word("state"), word("name"), &number("value"), &number("threshold")]);
        if alert["state"] == "firing" {
            text += &format!("          {}\n          see {}\n", word("summary"), word("runbook"));
        }
    }
    text.trim_end().to_owned()
}

/// To four digits behind the point at most.
fn rounded(number: f64) -> f64 {
    (number * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fires_says_what_it_means_and_where_to_read_on() {
        let alerts = [
            json!({"name": "KvitWaste", "state": "firing", "value": 2.56789, "threshold": 1.0, "unit": "percent", "summary": "Work for nobody.",
                   "runbook": "docs/metrics.md#kvitwaste"}),
            json!({"name": "KvitDefect", "state": "ok", "value": null, "threshold": 0.0, "unit": "count", "summary": "A bug.", "runbook": "x"}),
        ];
        let text = table(&alerts);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["firing", "KvitWaste", "2.5679", "percent", "1", "percent"]);
        assert!(text.contains("\n          Work for nobody.\n          see docs/metrics.md#kvitwaste\n"), "{text}");
        assert_eq!(lines[4], ["ok", "KvitDefect", "-", "0", "count"]);
        assert!(!text.contains("A bug."), "{text}");
    }
}
