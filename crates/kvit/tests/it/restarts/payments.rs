//! Declared tools of background runs against a scripted payment service, which counts calls and keys over all lives of the server.
//!
//! Invariant: what may be sent only once is sent at most once whatever is killed, and what is sent again has the same key.
// contract: C-27

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use lifecycle::{EffectState, OutcomeKind};

use super::Kept;
use super::callers::Gone;
use super::ledger::Ledger;
use super::wire::ask;
use crate::outside::{Call, Payments};
use crate::server::PATIENCE;

/// The tool that is not safe to repeat.
pub const ONCE: &str = "once";
/// The tool that is.
pub const AGAIN: &str = "again";

/// Mostly paid, at once or so late that a crash comes between; now and then refused, or failed in a way that says nothing.
pub fn script(number: usize) -> (u16, Duration) {
    let status = match number % 12 {
        5 => 402,
        8 => 503,
        _ => 200,
    };
    (status, Duration::from_millis([0, 10, 120, 0, 40][number % 5]))
}

/// What must hold of the calls at any time.
pub fn check(ledger: &Ledger, payments: &Payments) {
    let declared = ledger.declarations();
    let mut of_key: HashMap<String, (String, String)> = HashMap::new();
    for ((run, tool), calls) in payments.by_tool() {
        let keys: BTreeSet<&str> = calls.iter().map(|call| call.key.as_str()).collect();
        if keys.len() != 1 {
            ledger.wrong(format!("{run}: `{tool}` was called with {} keys: {calls:?}", keys.len()));
        }
        if tool == ONCE && calls.len() > 1 {
            ledger.wrong(format!("{run}: `{tool}` was called {} times: {calls:?}", calls.len()));
        }
        if !declared.get(&run).is_some_and(|tools| tools.contains(&tool.as_str())) {
            ledger.wrong(format!("{run}: `{tool}` was called and nobody had declared it"));
        }
        let key = calls[0].key.clone();
        if let Some(other) = of_key.insert(key, (run.clone(), tool)) {
            ledger.wrong(format!("{run}: has the key of {other:?}"));
        }
    }
}

/// Waits until every run that was asked for with tools, and that the server knows, has an end, and each of its effects a settled state.
pub fn settle(port: u16, ledger: &Ledger, seed: u64) -> Result<(), Gone> {
    let since = Instant::now();
    let mut open: Vec<(String, &[&str])> = ledger.declarations().into_iter().map(|(id, tools)| (id, tools as _)).collect();
    while !open.is_empty() {
        let mut left = Vec::new();
        for (id, tools) in open {
            let answer = ask(port, "GET", &format!("/v1/runs/{id}"), "", None).ok_or(Gone)?;
            let status = answer.status;
            let run = answer.json().ok_or(Gone)?;
            // Nobody was told that it was accepted, and it was not.
            if status == 404 && ledger.get(&id, |_| ()).is_none() {
                continue;
            }
            let is_settled = |state: &str| matches!(state, "committed" | "failed" | "unknown");
            let effects = run["effects"].as_array();
            let settled = effects.is_some_and(|all| all.iter().all(|effect| effect["state"].as_str().is_some_and(is_settled)));
            // Those of a run that a crash cut off before they were noted are noted when it completes.
            let is_due = run["outcome"]["kind"] == "completed" && effects.is_some_and(|all| all.len() < tools.len());
            if !ledger.looked(&id, status, &run) || !settled || is_due {
                left.push((id, tools));
            }
        }
        open = left;
        assert!(since.elapsed() < PATIENCE * 3, "seed {seed}: not settled: {} runs, of them {:?}", open.len(), open.first());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What must hold of the effects in the store and of the calls for them, once all is over; in figures.
pub fn judge(ledger: &Ledger, payments: &Payments, kept: &[Kept]) -> String {
    check(ledger, payments);
    let declared = ledger.declarations();
    let mut calls = payments.by_tool();
    let (in_all, keys) = (calls.values().map(Vec::len).sum::<usize>(), calls.len());
    let most = calls.values().map(Vec::len).max().unwrap_or(0);
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for Kept { run, effects } in kept {
        let id = run.key.run.as_str();
        let noted: BTreeSet<&str> = effects.iter().map(|effect| effect.key.as_str()).collect();
        let tools = declared.get(id).copied().unwrap_or_default();
        let due: BTreeSet<String> = tools.iter().map(|tool| format!("tool:{tool}")).collect();
        let is_known = ledger.get(id, |_| ()).is_some();
        // The tools are noted before a caller is told; a run that a crash cut off before has them when it completes.
        let is_completed = run.outcome.as_ref().is_some_and(|outcome| outcome.kind() == OutcomeKind::Completed);
        if noted.len() != effects.len() || ((is_known || is_completed) && !due.iter().map(String::as_str).eq(noted.iter().copied())) {
            ledger.wrong(format!("{id}: declared {due:?}, and the store has {noted:?}"));
        }
        let is_wanted = ledger.get(id, |known| !known.unwanted).unwrap_or(true);
        for effect in effects {
            let tool = effect.key.strip_prefix("tool:").unwrap_or_default().to_owned();
            *states.entry(format!("{tool} {}", effect.state.as_str())).or_default() += 1;
            ledger.effect(id, &effect.key, effect.state.as_str(), "the store");
            let of_this = calls.remove(&(id.to_owned(), tool)).unwrap_or_default();
            if let Some(why) = contradiction(effect.state, &of_this, is_completed, is_wanted) {
                ledger.wrong(format!("{id}: {} is {}, {why}: {of_this:?}", effect.key, effect.state.as_str()));
            }
        }
    }
    for (run, tool) in calls.keys() {
        ledger.wrong(format!("{run}: `{tool}` was called, and the store has no such effect"));
    }
    for state in [format!("{ONCE} committed"), format!("{AGAIN} committed")] {
        assert!(states.contains_key(&state), "some are {state}: {states:?}");
    }
    format!("{in_all} calls with {keys} keys, of one effect up to {most}; {states:?}")
}

/// Why what the store says of an effect cannot be, after these calls.
fn contradiction(state: EffectState, calls: &[Call], is_completed: bool, is_wanted: bool) -> Option<&'static str> {
    let answered = |status: u16| calls.iter().any(|call| call.status == status);
    match state {
        _ if !is_completed && !calls.is_empty() => Some("and its run did not complete"),
        EffectState::Intended | EffectState::Submitted => Some("which is not settled"),
        EffectState::Committed if !answered(200) => Some("and nothing was paid"),
        EffectState::Failed if answered(200) || answered(503) => Some("and it may have been paid"),
        EffectState::Failed if calls.is_empty() && is_completed && is_wanted => Some("and nobody had asked for its end"),
        _ => None,
    }
}
