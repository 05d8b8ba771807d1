//! `kvit kv`: where every block is, as one cut of the worker's account.

use serde_json::Value;

use crate::cli::KvArgs;
use crate::failure::Failure;
use crate::{client, out};

/// The account's states, in the order of its equation. `orphaned` is a part of `active` and stands under it.
const STATES: [&str; 6] = ["free", "active", "orphaned", "cached", "draining", "quarantined"];

/// Prints the account, with `--blocks` every block too, or the JSON.
///
/// # Errors
/// No server.
pub fn run(args: &KvArgs) -> Result<(), Failure> {
    let path = if args.blocks { "/v1/kv/blocks" } else { "/v1/kv" };
    let json = client::get(&args.ask.server, path)?;
    if args.ask.json {
        return out::json(&json);
    }
    let workers = match json["workers"].as_array() {
        Some(workers) => workers.as_slice(),
        None => std::slice::from_ref(&json),
    };
    let shown: Vec<String> = workers.iter().map(|w| worker(w, args.blocks, out::width())).collect();
    out::line(&shown.join("\n\n"))
}

fn number(json: &Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or(0)
}

fn worker(kv: &Value, blocks: bool, width: usize) -> String {
    if kv["answered"] == false {
        return format!("worker {}: does not answer", kv["worker"].as_str().unwrap_or("?").escape_debug());
    }
    let total = number(kv, "total");
    let conserved = match kv["conserved"].as_bool() {
        Some(true) => "conserved",
        _ => "NOT CONSERVED: the states do not add up to the total",
    };
    let name = kv["worker"].as_str().map(|w| format!("worker {w}: ")).unwrap_or_default();
    let mut text = format!("{name}{total} blocks of {} tokens at step {}, {conserved}\n", number(kv, "block_tokens"), number(kv, "step"));
    for state in STATES {
        let n = number(kv, state);
        let share = if total == 0 { 0.0 } else { n as f64 / total as f64 };
        let label = if state == "orphaned" { "  orphaned" } else { state };
        let room = width.saturating_sub(32).clamp(10, 60);
        text += format!("  {label:<12} {n:>8} {:>5.1} %  {}", share * 100.0, bar(n, share, room)).trim_end();
        text.push('\n');
    }
    let runs = &kv["runs"];
    let (queued, running, stopping) = (number(runs, "queued"), number(runs, "running"), number(runs, "stopping"));
    text += &format!("  runs: {queued} queued, {running} running, {stopping} stopping\n");
    let mib = number(kv, "reserved_bytes") as f64 / f64::from(1 << 20);
    let [stale, foreign, double] = ["stale_releases", "foreign_releases", "double_releases"].map(|name| number(kv, name));
    let late = number(kv, "late_completions");
    text +=
        &format!("  refused releases: {stale} stale, {foreign} foreign, {double} double; {late} late completions; {mib:.0} MiB reserved");
    if let Some(why) = kv["device_lost"].as_str() {
        text += &format!("\n  THE DEVICE IS LOST ({}): every run fails until the server is started again", why.escape_debug());
    }
    if blocks {
        text += &list(kv);
    }
    text
}

/// A bar that shows at least one mark for what is not zero.
fn bar(n: u64, share: f64, room: usize) -> String {
    let marks = (share * room as f64).round() as usize;
    "#".repeat(if n > 0 { marks.max(1) } else { 0 })
}

fn list(kv: &Value) -> String {
    let blocks: &[Value] = kv["blocks"].as_array().or(kv["data"].as_array()).map_or(&[], Vec::as_slice);
    let mut text = format!("\n  {:>7}  {:>10}  {:<11}  {:>8}  owners", "block", "generation", "state", "fence");
    for block in blocks {
        let owners: Vec<&str> = block["owners"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fence = block["fence"].as_u64().map_or_else(|| "-".to_owned(), |f| f.to_string());
        let (id, generation) = (number(block, "block"), number(block, "generation"));
        let state = block["state"].as_str().unwrap_or("-");
        text += format!("\n  {id:>7}  {generation:>10}  {state:<11}  {fence:>8}  {}", owners.join(" ")).trim_end();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account() -> Value {
        json!({"object": "kv", "step": 1067, "block_tokens": 16, "total": 4096, "free": 4000, "active": 60, "orphaned": 0, "cached": 36,
               "draining": 0, "quarantined": 0, "conserved": true, "runs": {"queued": 0, "running": 2, "stopping": 1},
               "stale_releases": 3, "foreign_releases": 2, "double_releases": 1, "late_completions": 0, "reserved_bytes": 1509949440u64})
    }

    #[test]
    fn the_account_shows_every_state_with_its_share() {
        let text = worker(&account(), false, 80);
        assert!(text.starts_with("4096 blocks of 16 tokens at step 1067, conserved\n"), "{text}");
        let row = |state: &str| text.lines().find(|l| l.trim_start().starts_with(state)).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row("free")[1..4], ["4000", "97.7", "%"]);
        assert_eq!(row("cached")[1..], ["36", "0.9", "%", "#"], "what is not zero has a mark");
        assert_eq!(row("draining")[1..], ["0", "0.0", "%"]);
        assert!(
            text.contains("runs: 0 queued, 2 running, 1 stopping")
                && text.contains("3 stale, 2 foreign, 1 double;")
                && text.contains("1440 MiB")
        );
    }

    #[test]
    fn a_worker_that_does_not_answer_has_no_account() {
        let kv = json!({"object": "kv", "incarnation": null, "worker": "b", "answered": false});
        assert_eq!(worker(&kv, true, 80), "worker b: does not answer");
    }

    #[test]
    fn an_account_that_does_not_add_up_shouts() {
        let mut kv = account();
        kv["conserved"] = json!(false);
        assert!(worker(&kv, false, 80).contains("NOT CONSERVED"));
    }

    #[test]
    fn a_lost_device_is_said_with_its_reason_on_one_line() {
        let mut kv = account();
        kv["device_lost"] = json!(null);
        assert!(!worker(&kv, false, 80).contains("LOST"));
        kv["device_lost"] = json!("it fell\noff");
        assert!(
            worker(&kv, false, 80).ends_with("\n  THE DEVICE IS LOST (it fell\\noff): every run fails until the server is started again")
        );
    }

    #[test]
    fn blocks_show_generation_owners_and_fence() {
        let mut kv = account();
        kv["blocks"] = json!([{"block": 17, "generation": 42, "state": "active", "owners": ["r/1", "s/1"], "fence": 1066},
                              {"block": 18, "generation": 0, "state": "free", "owners": [], "fence": null}]);
        let text = worker(&kv, true, 80);
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["17", "42", "active", "1066", "r/1", "s/1"]) && rows.contains(&vec!["18", "0", "free", "-"]), "{text}");
    }
}
