//! The three faults, each by what only it shows.
//!
//! Invariant: what is on its way is no fault: a cancel and a fence have their patience, and only what cannot mend itself needs none.
// contract: C-9 C-15 C-16 C-20
// field: F-42 F-45 F-58 F-68

use super::look::{LeftRun, Look, WorkerLook};
use super::{Finding, RunName, Seen, Verdict, count, long};

/// Runs that are named in a sentence.
const NAMED_MAX: usize = 5;

/// An account that does not add up, capacity that nobody owns, a probe that does not get what is called free.
pub(super) fn accounting_defect(seen: &Seen<'_>) -> Option<Finding> {
    let mut evidence = Vec::new();
    for (worker, account) in seen.accounts() {
        let of = seen.of(worker);
        if !account.conserved {
            evidence.push(format!(
                "{of}free {} + active {} + cached {} + draining {} + quarantined {} is not the pool's {}.",
                account.free, account.active, account.cached, account.draining, account.quarantined, account.total
            ));
        }
        if let Some(unowned) = account.unowned.filter(|n| *n > 0) {
            let all = count(account.active.into(), "active block");
            let live = count(account.live(), "live attempt");
            evidence.push(format!("{of}{unowned} of the {all} belong to none of the {live} in the same cut: nobody will give them back."));
        }
        if let Some(disputed) = account.disputed.filter(|n| *n > 0) {
            evidence.push(format!("{of}live attempts hold {} that the pool does not count as theirs.", count(disputed, "block")));
        }
        if account.forsaken > 0 {
            evidence.push(format!("{of}{} kept for attempts, and there is no attempt.", are(account.forsaken.into(), "entry", "entries")));
        }
        if let Some((old, before)) = seen.before(worker, 0).filter(|(_, before)| before.total != account.total) {
            let ago = long(seen.now.at_ms - old.at_ms);
            evidence.push(format!("{of}the pool has {} blocks, and {ago} ago the same life of it had {}.", account.total, before.total));
        }
    }
    if seen.now.defects > 0 {
        evidence.push(format!("{} journalled within the last window.", are(seen.now.defects, "defect was", "defects were")));
    }
    if let Some(probe) = seen.probe.filter(|probe| probe.unsaid.is_none()) {
        if probe.starved > 0 {
            let after = long(probe.patience_ms);
            let runs = count(probe.starved.into(), "probing run");
            evidence.push(format!("{runs} got no blocks within {after}, while the account called {} free or cached.", probe.available));
        }
        if probe.back == Some(false) {
            evidence.push("Blocks that a probing run had held are neither free nor cached after it.".to_owned());
        }
    }
    let next = [
        "Keep the evidence: `kvit diagnose --bundle FILE.tar.gz`, `kvit kv --blocks`, the log.",
        "Restart the worker when its runs have ended: nothing else gives such blocks back.",
        "Report it with the bundle: it is a bug of kvit's.",
    ];
    Finding::seen(Verdict::AccountingDefect, evidence, &next)
}

fn are(n: u64, one: &str, several: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {several}") }
}

/// Fences that do not complete.
pub(super) fn draining_stuck(seen: &Seen<'_>) -> Option<Finding> {
    let (mut evidence, mut runs, mut since) = (Vec::new(), Vec::new(), None);
    for (worker, account) in seen.accounts() {
        let of = seen.of(worker);
        if let Some(why) = &account.device_lost {
            evidence.push(format!("{of}the device is lost ({why}): no step completes any more."));
        }
        if account.quarantined > 0 {
            let blocks = count(account.quarantined.into(), "block");
            evidence
                .push(format!("{of}{blocks} quarantined: the step that may still touch them is lost, and their fence never completes."));
        }
        let waiting = waiting(account.draining, account.stopping);
        if account.steps_in_flight == 0 && !waiting.is_empty() {
            evidence.push(format!("{of}behind a fence: {waiting}; and no step is in flight that could complete it."));
        }
        evidence.extend(still(seen, worker).map(|still| format!("{of}{still}")));
    }
    for worker in seen.now.workers.iter().filter(|worker| worker.runs > 0 && is_long_silent(seen, worker)) {
        let of = seen.of(worker);
        let runs = count(worker.runs.into(), "run");
        evidence
            .push(format!("{of}the worker is {} and has {runs}: what they hold comes back when it goes on, or never.", worker.presence));
    }
    let ended = |left: &&LeftRun| left.ended && left.waits_ms > seen.now.patience_ms;
    let late: Vec<&LeftRun> = seen.now.left.iter().filter(ended).collect();
    if let Some(oldest) = late.iter().map(|left| left.waits_ms).max() {
        evidence.push(format!("{}: ended, and the fence has not completed for up to {}.", named(&late), long(oldest)));
        since = Some(seen.now.at_ms.saturating_sub(oldest));
        runs.extend(late.iter().map(|left| name(left)));
    }
    runs.extend(seen.now.left.iter().filter(|left| is_with_silent(seen.now, left)).map(name));
    let next = [
        "Is the worker's process stopped, starved of processor time or hung in a kernel? Let it go on, or end it: its next life has all blocks.",
        "If it runs: `kvit_steps_total` tells whether the device does steps. If none is done, restart the worker.",
        "`kvit kv --blocks` names the fences; `kvit runs --state stopping` the runs.",
    ];
    let mut found = Finding::seen(Verdict::DrainingStuck, evidence, &next)?.about(runs);
    (found.boundary, found.since_ms) = (Some("engine-allocator".to_owned()), since);
    Some(found)
}

/// What waits for a fence, in words; empty if nothing does.
fn waiting(draining: u32, stopping: u32) -> String {
    let blocks = (draining > 0).then(|| count(draining.into(), "block"));
    let runs = (stopping > 0).then(|| count(stopping.into(), "ended attempt"));
    blocks.into_iter().chain(runs).collect::<Vec<_>>().join(" and ")
}

/// The same step was the newest for longer than the patience, and something waits for it.
fn still(seen: &Seen<'_>, worker: &WorkerLook) -> Option<String> {
    let account = worker.account.as_ref()?;
    let (old, before) = seen.before(worker, seen.now.patience_ms)?;
    let stands = account.steps_in_flight > 0 && before.steps_in_flight > 0 && account.step == before.step;
    let waits = account.draining + account.stopping > 0;
    let ago = long(seen.now.at_ms - old.at_ms);
    let waiting = waiting(account.draining, account.stopping);
    (stands && waits).then(|| format!("step {} is still not done after {ago}; behind its fence: {waiting}.", account.step))
}

/// Nobody has heard of it for a while, and its life is not known to be over.
fn is_silent(worker: &WorkerLook) -> bool {
    matches!(worker.presence.as_str(), "silent" | "refused") && !worker.forwards
}

/// For longer than the patience: so long a run that nobody wants waits for it, or so long ago it was silent, too.
fn is_long_silent(seen: &Seen<'_>, worker: &WorkerLook) -> bool {
    let patience_ms = seen.now.patience_ms;
    let waits = |left: &LeftRun| left.waits_ms > patience_ms && left.worker.as_ref() == Some(&worker.name);
    let was = |look: &Look| {
        let same = |w: &&WorkerLook| w.name == worker.name && w.life == worker.life;
        look.at_ms.saturating_add(patience_ms) < seen.now.at_ms && look.workers.iter().find(same).is_some_and(is_silent)
    };
    is_silent(worker) && (seen.now.left.iter().any(waits) || seen.looks.iter().any(was))
}

fn is_with_silent(look: &Look, left: &LeftRun) -> bool {
    let has = |worker: &&WorkerLook| left.worker.as_deref() == Some(worker.name.as_str());
    look.workers.iter().find(has).is_some_and(is_silent)
}

/// Work that no live caller waits for, and the boundary that the word of it has not crossed.
pub(super) fn never_cancelled(seen: &Seen<'_>) -> Option<Finding> {
    let now = seen.now;
    let mut evidence = Vec::new();
    let is_it = |left: &&LeftRun| !left.ended && left.waits_ms > now.patience_ms && !is_with_silent(now, left);
    let late: Vec<&LeftRun> = now.left.iter().filter(is_it).collect();
    let oldest = late.iter().max_by_key(|left| left.waits_ms);
    if let Some(oldest) = oldest {
        let wasted: u64 = late.iter().map(|left| left.tokens_after).sum();
        let (at, since) = (&oldest.boundary, long(oldest.waits_ms));
        evidence.push(format!("{}: no caller, and the word of it has not crossed {at} for up to {since}.", named(&late)));
        evidence.push(format!("{} generated for them since their callers left.", are(wasted, "token was", "tokens were")));
        evidence.extend(grown(seen));
    }
    let orphaned: u32 = seen.accounts().map(|(_, account)| account.orphaned).sum();
    if orphaned > 0 && now.orphans_oldest_ms > now.orphaned_ms {
        let since = long(now.orphans_oldest_ms);
        evidence.push(format!("{} of attempts that no gateway claims, the oldest for {since}.", count(orphaned.into(), "block")));
    }
    let boundary = oldest.map_or("gateway-worker", |left| left.boundary.as_str()).to_owned();
    let mut found = Finding::seen(Verdict::UpstreamNeverCancelled, evidence, steps(&boundary))?.about(late.iter().map(|left| name(left)));
    found.since_ms = oldest.map(|left| now.at_ms.saturating_sub(left.waits_ms));
    found.boundary = Some(boundary);
    Some(found)
}

/// Tokens that were generated for a run between the first look and now, though nobody wanted it at either.
fn grown(seen: &Seen<'_>) -> Option<String> {
    let first = seen.looks.first().filter(|first| first.at_ms < seen.now.at_ms)?;
    let more = |left: &LeftRun| {
        let before = first.left.iter().find(|old| (&old.tenant, &old.run) == (&left.tenant, &left.run))?;
        left.tokens_after.checked_sub(before.tokens_after)
    };
    let grown: u64 = seen.now.left.iter().filter_map(more).sum();
    (grown > 0).then(|| format!("{} of them between the first look and the last, {} apart.", grown, long(seen.now.at_ms - first.at_ms)))
}

fn steps(boundary: &str) -> &'static [&'static str] {
    match boundary {
        "client-gateway" => &[
            "The gateway knows that the caller is gone and has sent no cancel: look for its errors in the log, and whether it is starved.",
            "`kvit trace RUN` shows what it has done since.",
        ],
        "gateway-worker" => &[
            "Does anything stand between gateway and worker that may lose messages? The gateway repeats the cancel; `kvit trace RUN` shows how often.",
            "`POST /v1/runs/RUN/cancel` says whether the worker answers; when its lease is over it ends such runs by itself.",
            "In front of another make's engine: `kvit verify` tells whether it notices a departure at all.",
        ],
        _ => &[
            "The worker has the cancel and its engine has not applied it: the engine's thread is starved; give it a core.",
            "`kvit trace RUN` shows the steps that were computed since.",
        ],
    }
}

fn name(left: &LeftRun) -> RunName {
    RunName { tenant: left.tenant.clone(), run: left.run.clone() }
}

/// Runs in a sentence.
fn named(runs: &[&LeftRun]) -> String {
    let names: Vec<&str> = runs.iter().take(NAMED_MAX).map(|left| left.run.as_str()).collect();
    let more = if runs.len() > NAMED_MAX { format!(" and {} more", runs.len() - NAMED_MAX) } else { String::new() };
    let word = if runs.len() == 1 { "run" } else { "runs" };
    format!("{word} {}{more}", names.join(", "))
}
