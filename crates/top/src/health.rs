//! One glance: is it healthy? Each check says what it looked at, and the worst one speaks; the console judges by the same rules.

use serde_json::Value;

use crate::facts::{age, clean, count, percent, plural};
use crate::look::Look;

/// Above this share of tokens in vain something is wrong; the contract's own alert has the same.
const WASTE_MAX: f64 = 0.01;
/// Fewer tokens than these say nothing about a share.
const TOKENS_MIN: u64 = 500;
/// A cancel that is not acknowledged for so long is no longer on its way.
const LATE_MS: f64 = 2000.0;
/// Firing alerts that are named.
const NAMED_MAX: usize = 2;

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// It was not said.
    Unknown,
    /// Worth a look.
    Warn,
    /// Something is wrong.
    Bad,
}

impl Level {
    /// As JSON has it.
    pub fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Unknown => "unknown",
            Level::Warn => "warn",
            Level::Bad => "bad",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Check {
    pub(crate) label: &'static str,
    pub(crate) level: Level,
    pub(crate) value: String,
    pub(crate) why: Option<String>,
}

/// All of it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Verdict {
    pub(crate) level: Level,
    pub(crate) headline: &'static str,
    pub(crate) because: String,
    pub(crate) checks: Vec<Check>,
}

fn check(label: &'static str, level: Level, value: impl Into<String>, why: Option<String>) -> Check {
    Check { label, level, value: value.into(), why }
}

fn serving(look: &Look) -> Check {
    let all = look.workers.len();
    let here = look.workers.iter().filter(|worker| worker["state"] == "here" && worker["device_lost"].is_null()).count();
    match look.unready.as_deref() {
        None => check("Serving", Level::Unknown, "-", None),
        Some("") if here == all => check("Workers", Level::Ok, format!("{here} of {all}"), None),
        Some("") => {
            check("Workers", Level::Warn, format!("{here} of {all}"), Some(format!("{} not here", plural((all - here) as u64, "worker"))))
        }
        Some(why) => check("Serving", Level::Bad, "no", Some(clean(why))),
    }
}

fn account(look: &Look) -> Vec<Check> {
    if look.is_engines_only() {
        return Vec::new();
    }
    let Some(kv) = &look.kv else { return vec![check("Blocks", Level::Unknown, "-", None)] };
    let number = |name: &str| kv[name].as_u64().unwrap_or(0);
    let mut checks = Vec::new();
    let workers = kv["workers"].as_array().into_iter().flatten();
    if let Some(why) = std::iter::once(kv).chain(workers).find_map(|one| one["device_lost"].as_str()) {
        checks.push(check("Device", Level::Bad, "lost", Some(format!("the device is lost: {}", clean(why)))));
    }
    checks.push(match kv["conserved"] == true {
        true => check("Account", Level::Ok, "adds up", None),
        false => check("Account", Level::Bad, "does not add up", Some("the blocks' account does not add up (C-15)".into())),
    });
    for (name, label, level, what) in [
        ("quarantined", "Quarantined", Level::Bad, "behind a fence that never completes"),
        ("orphaned", "Orphaned", Level::Warn, "of runs that no gateway claims"),
    ] {
        let n = number(name);
        let why = (n > 0).then(|| format!("{} {what}", plural(n, "block")));
        checks.push(check(label, if n > 0 { level } else { Level::Ok }, count(n), why));
    }
    checks
}

fn cancels(look: &Look, now_ms: f64) -> Check {
    let waiting = look.unacknowledged(now_ms);
    let Some((_, oldest)) = waiting.first() else { return check("Unacknowledged", Level::Ok, "0", None) };
    let n = waiting.len() as u64;
    let level = if *oldest > LATE_MS { Level::Bad } else { Level::Warn };
    check("Unacknowledged", level, count(n), Some(format!("{} not acknowledged, the oldest for {}", plural(n, "cancel"), age(*oldest))))
}

/// The share of a period's tokens that nobody wanted any more: of generated ones or of prompts, whichever is worse.
pub(crate) fn share(waste: &Value, period: &str) -> Option<f64> {
    let ratio = &waste[period]["ratio"];
    match (ratio["ratio"].as_f64(), ratio["prompt_ratio"].as_f64()) {
        (None, None) => None,
        (a, b) => Some(a.unwrap_or(0.0).max(b.unwrap_or(0.0))),
    }
}

fn waste(look: &Look) -> Check {
    let Some(waste) = &look.waste else { return check("Waste", Level::Unknown, "-", None) };
    let of = |name: &str| waste["window"]["ratio"][name].as_u64().unwrap_or(0);
    let share = share(waste, "window").unwrap_or(0.0);
    let is_much = share > WASTE_MAX && of("tokens") + of("prompt_tokens") >= TOKENS_MIN;
    let window = waste["window_s"].as_f64().unwrap_or(0.0) * 1000.0;
    let why = is_much.then(|| format!("{} of what was computed in the last {} was for nobody", percent(share), age(window)));
    check("Waste", if is_much { Level::Warn } else { Level::Ok }, percent(share), why)
}

/// The names of the alerts that fire.
pub(crate) fn firing(look: &Look) -> Option<Vec<String>> {
    let alerts = look.alerts.as_ref()?["data"].as_array()?;
    Some(alerts.iter().filter(|alert| alert["state"] == "firing").filter_map(|alert| alert["name"].as_str()).map(clean).collect())
}

fn alerts(look: &Look) -> Check {
    match firing(look) {
        None => check("Alerts", Level::Unknown, "-", None),
        Some(names) if names.is_empty() => check("Alerts", Level::Ok, "none", None),
        Some(names) => {
            let more = if names.len() > NAMED_MAX { format!(" and {} more", names.len() - NAMED_MAX) } else { String::new() };
            let why = format!("alerts fire: {}{more}", names[..names.len().min(NAMED_MAX)].join(", "));
            check("Alerts", Level::Bad, names.len().to_string(), Some(why))
        }
    }
}

/// Judges what is known.
pub(crate) fn judge(look: &Look, now_ms: f64) -> Verdict {
    if let Some(trouble) = &look.trouble {
        let because = clean(trouble.text());
        let headline = match trouble {
            crate::Trouble::Unreachable(_) => "The server cannot be reached",
            _ => "The server refuses to answer",
        };
        return Verdict { level: Level::Bad, headline, because, checks: Vec::new() };
    }
    if look.at_ms == 0.0 {
        return Verdict {
            level: Level::Unknown,
            headline: "Looking",
            because: "The server has not answered yet.".into(),
            checks: Vec::new(),
        };
    }
    let mut checks = vec![serving(look), cancels(look, now_ms)];
    checks.extend(account(look));
    checks.extend([waste(look), alerts(look)]);
    let level = checks.iter().map(|check| check.level).max().unwrap_or(Level::Unknown);
    let mut reasons: Vec<&Check> = checks.iter().filter(|check| check.why.is_some()).collect();
    reasons.sort_by_key(|check| std::cmp::Reverse(check.level));
    let because = match (reasons.is_empty(), level) {
        (true, Level::Ok) => {
            format!("{} live, every cancel acknowledged, every block accounted for.", plural(look.live.len() as u64, "run"))
        }
        (true, _) => "Some of what is looked at has not been answered.".to_owned(),
        (false, _) => {
            let text = reasons.iter().filter_map(|check| check.why.as_deref()).collect::<Vec<_>>().join("; ");
            let mut rest = text.chars();
            rest.next().map(|first| first.to_uppercase().chain(rest).collect::<String>() + ".").unwrap_or_default()
        }
    };
    let headline = match level {
        Level::Ok => "Healthy",
        Level::Unknown => "Not everything is known",
        Level::Warn => "Worth a look",
        Level::Bad => "Something is wrong",
    };
    Verdict { level, headline, because, checks }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn healthy() -> Look {
        Look {
            unready: Some(String::new()),
            workers: vec![json!({"state": "here", "device_lost": null, "slots": null})],
            kv: Some(json!({"conserved": true, "quarantined": 0, "orphaned": 0, "device_lost": null})),
            waste: Some(json!({"window_s": 300.0, "window": {"ratio": {"tokens": 1000, "ratio": 0.002, "prompt_ratio": null}}})),
            alerts: Some(json!({"data": [{"name": "KvitWaste", "state": "ok"}]})),
            at_ms: 1.0,
            ..Look::default()
        }
    }

    fn said(change: impl FnOnce(&mut Look)) -> (Level, String) {
        let mut look = healthy();
        change(&mut look);
        let verdict = judge(&look, 10_000.0);
        (verdict.level, verdict.because)
    }

    #[test]
    fn a_healthy_server_is_healthy_and_says_why() {
        assert_eq!(said(|_| ()), (Level::Ok, "0 runs live, every cancel acknowledged, every block accounted for.".into()));
        assert_eq!(judge(&Look::default(), 0.0).level, Level::Unknown);
    }

    #[test]
    fn each_thing_that_is_wrong_is_said() {
        let stopping = |sent: f64| {
            let milestones = json!({"cancel_sent": sent, "cancel_acknowledged": null});
            json!({"id": "r", "state": "stopping", "created_ms": 1, "milestones": milestones})
        };
        type Change = Box<dyn FnOnce(&mut Look)>;
        let cases: [(Level, &str, Change); 10] = [
            (Level::Bad, "No worker.", Box::new(|l| l.unready = Some("no worker".into()))),
            (Level::Warn, "1 worker not here.", Box::new(|l| l.workers.push(json!({"state": "silent"})))),
            (Level::Bad, "The blocks' account does not add up (C-15).", Box::new(|l| l.kv = Some(json!({"conserved": false})))),
            (Level::Bad, "The device is lost: it fell off.", Box::new(|l| l.kv.as_mut().unwrap()["device_lost"] = json!("it fell\noff"))),
            (Level::Bad, "2 blocks behind a fence that never completes.", Box::new(|l| l.kv.as_mut().unwrap()["quarantined"] = json!(2))),
            (Level::Warn, "1 block of runs that no gateway claims.", Box::new(|l| l.kv.as_mut().unwrap()["orphaned"] = json!(1))),
            (Level::Warn, "1 cancel not acknowledged, the oldest for 0 s.", Box::new(move |l| l.live.push(stopping(9900.0)))),
            (Level::Bad, "1 cancel not acknowledged, the oldest for 9 s.", Box::new(move |l| l.live.push(stopping(100.0)))),
            (
                Level::Warn,
                "3.00 % of what was computed in the last 5 min was for nobody.",
                Box::new(|l| l.waste.as_mut().unwrap()["window"]["ratio"]["prompt_ratio"] = json!(0.03)),
            ),
            (
                Level::Bad,
                "Alerts fire: KvitWaste.",
                Box::new(|l| l.alerts = Some(json!({"data": [{"name": "KvitWaste", "state": "firing"}]}))),
            ),
        ];
        for (level, because, change) in cases {
            assert_eq!(said(change), (level, because.to_owned()));
        }
    }

    #[test]
    fn few_tokens_are_no_share_and_what_is_missing_is_not_fine() {
        assert_eq!(said(|l| l.waste.as_mut().unwrap()["window"]["ratio"] = json!({"tokens": 10, "ratio": 0.5})).0, Level::Ok);
        assert_eq!(said(|l| l.kv = None).0, Level::Unknown);
        let (level, because) = said(|l| l.trouble = Some(crate::Trouble::Unreachable("no answer".into())));
        assert_eq!((level, because.as_str()), (Level::Bad, "no answer"));
    }
}
