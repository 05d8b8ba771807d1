//! `kvit runs`: which runs there are, newest first.

use serde_json::Value;

use super::past::Past;
use crate::cli::RunsArgs;
use crate::failure::Failure;
use crate::{client, out};

/// Prints a table of runs, or the JSON.
///
/// # Errors
/// No server or no journal, or a filter that it does not know.
pub fn run(args: &RunsArgs) -> Result<(), Failure> {
    let json = match &args.journal {
        Some(dir) => Past::read(dir, 0)?.runs(args)?,
        None => asked(args)?,
    };
    if args.ask.json {
        return out::json(&json);
    }
    let runs: &[Value] = json["data"].as_array().map_or(&[], Vec::as_slice);
    let more = json["has_more"].as_bool().unwrap_or(false);
    out::line(&table(runs, more))
}

/// What the server answers.
fn asked(args: &RunsArgs) -> Result<Value, Failure> {
    let mut path = format!("/v1/runs?limit={}", args.limit);
    for (name, value) in [("state", &args.state), ("outcome", &args.outcome), ("cause", &args.cause)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", client::encode(value));
        }
    }
    client::get(&args.ask.server, &path)
}

fn table(runs: &[Value], more: bool) -> String {
    if runs.is_empty() {
        return "no runs".to_owned();
    }
    let id_width = runs.iter().filter_map(|r| r["id"].as_str()).map(str::len).max().unwrap_or(2).max(3);
    let row = |cells: [&str; 6]| {
        let [id, state, end, released, generated, delivered] = cells;
        format!("{id:<id_width$}  {state:<10}  {end:<28}  {released:<8}  {generated:>9}  {delivered:>9}\n")
    };
    let mut text = row(["run", "state", "outcome", "released", "generated", "delivered"]);
    for run in runs {
        let word = |v: &Value| v.as_str().unwrap_or("-").to_owned();
        let count = |v: &Value| v.as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string());
        let end = match run["outcome"]["kind"].as_str() {
            Some(kind) => format!("{kind} ({})", word(&run["outcome"]["cause"])),
            None => "-".to_owned(),
        };
        let released = run["released"].as_bool().map_or("-", |released| if released { "yes" } else { "no" });
        let (generated, delivered) = (count(&run["tokens"]["generated"]), count(&run["tokens"]["delivered"]));
        text += &row([&word(&run["id"]), &word(&run["state"]), &end, released, &generated, &delivered]);
    }
    text += if more { "there are more; ask for them with --limit" } else { "" };
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_is_a_row_and_what_is_not_known_is_a_dash() {
        let runs = [
            json!({"id": "a~2", "state": "ended", "released": true, "outcome": {"kind": "cancelled", "cause": "client_closed"},
                   "tokens": {"generated": 19, "delivered": 18}}),
            json!({"id": "b", "state": "queued", "released": false, "outcome": null}),
            json!({"id": "c", "state": null, "released": null, "outcome": null}),
        ];
        let text = table(&runs, true);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["a~2", "ended", "cancelled", "(client_closed)", "yes", "19", "18"]);
        assert_eq!(lines[2], ["b", "queued", "-", "no", "-", "-"]);
        assert_eq!(lines[3], ["c", "-", "-", "-", "-", "-"], "at another gateway");
        assert!(text.ends_with("there are more; ask for them with --limit"));
        assert_eq!(table(&[], false), "no runs");
    }
}
