//! `kvit waste`: the two views of waste, and what an answer costs.

use serde_json::Value;

use crate::cli::WasteArgs;
use crate::failure::Failure;
use crate::{client, out};

/// Prints both views of the last window and since the start, or the JSON.
///
/// # Errors
/// No server.
pub fn run(args: &WasteArgs) -> Result<(), Failure> {
    let json = client::get(&args.ask.server, "/v1/waste")?;
    if args.ask.json {
        return out::json(&json);
    }
    out::line(&shown(&json))
}

/// A number, or a dash for what is not known.
fn number(value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => whole.to_string(),
        (None, Some(number)) => format!("{number:.4}"),
        _ => "-".to_owned(),
    }
}

fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |part| format!("{:.2} %", part * 100.0))
}

fn shown(waste: &Value) -> String {
    let last = format!("last {} s", waste["window_s"].as_f64().unwrap_or(0.0));
    let mut text = format!("{:<44}  {last:>14}  {:>14}\n", "", "since start");
    let mut row = |name: &str, path: &str, show: fn(&Value) -> String| {
        let of = |period: &str| waste.pointer(&format!("/{period}{path}")).map_or_else(|| "-".to_owned(), show);
        text += &format!("{name:<44}  {:>14}  {:>14}\n", of("window"), of("total"));
    };
    row("tokens generated", "/ratio/tokens", number);
    row("  after a disconnect", "/ratio/after_disconnect", number);
    row("  of all", "/ratio/ratio", percent);
    row("prompt positions computed", "/ratio/prompt_tokens", number);
    row("  after a disconnect", "/ratio/prompt_after_disconnect", number);
    row("  of all", "/ratio/prompt_ratio", percent);
    for kind in ["cancelled", "expired"] {
        row(&format!("{kind} runs"), &format!("/{kind}/runs"), number);
        row("  tokens generated for them", &format!("/{kind}/generated"), number);
        row("  of these, delivered", &format!("/{kind}/delivered"), number);
        row("  runs that delivered nothing", &format!("/{kind}/zero_delivery/runs"), number);
        row("    tokens generated for them", &format!("/{kind}/zero_delivery/generated"), number);
    }
    row("completed answers", "/cost/completed", number);
    row("  device seconds each", "/cost/per_answer/device_seconds", number);
    row("  tokens computed each, prompts included", "/cost/per_answer/tokens", number);
    row("  money each", "/cost/per_answer/money", number);
    let delivered = waste["observation_point"].as_str().unwrap_or("?").escape_debug();
    text += &format!("delivered: {delivered}");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_views_stand_beside_each_other_and_what_is_not_known_is_a_dash() {
        let period = |tokens: u64| {
            let ratio = if tokens > 0 { json!(0.05) } else { Value::Null };
            json!({"ratio": {"tokens": tokens, "after_disconnect": tokens / 20, "ratio": ratio},
                   "cancelled": {"runs": 2, "generated": 40, "delivered": 20, "zero_delivery": {"runs": 1, "generated": 9}},
                   "cost": {"completed": 4, "per_answer": {"device_seconds": 0.25, "tokens": 12.5, "money": null}}})
        };
        let waste = json!({"window_s": 300.0, "observation_point": "handed over", "window": period(0), "total": period(200)});
        let text = shown(&waste);
        let row = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(row("tokens generated"), ["0", "200"]);
        assert_eq!(row("  of all"), ["-", "5.00", "%"]);
        assert_eq!(row("  of these, delivered"), ["20", "20"]);
        assert_eq!(row("  device seconds each"), ["0.2500", "0.2500"]);
        assert_eq!(row("  money each"), ["-", "-"]);
        assert!(text.starts_with(&" ".repeat(44)) && text.contains("last 300 s") && text.ends_with("delivered: handed over"));
    }
}
