//! What is no fault, and what nobody can say.
//!
//! Invariant: nothing is called harmless that was not seen; who did not answer is not called well.
// contract: C-15

use super::account::AccountLook;
use super::look::WorkerLook;
use super::{Finding, Seen, Verdict, count, mib};

/// Less of the pool than this part, and runs are short of it.
const SHORT: f64 = 0.1;
/// More of the pool than this part in the prefix index, and it is full of prefixes.
const FULL: f64 = 0.5;
/// Memory counts as kept if less than this part of what came back left the process.
const KEPT: f64 = 0.5;
/// Less than this came back: no memory need have moved for it.
const BYTES_MIN: u64 = 1 << 20;

fn part(n: u64, of: u32) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / f64::from(of) }
}

/// Who did not answer, or is not there to be asked.
pub(super) fn silent(seen: &Seen<'_>) -> Option<Finding> {
    let workers = &seen.now.workers;
    let mut evidence: Vec<String> = Vec::new();
    let answers = |worker: &WorkerLook| worker.account.is_some() || is_engine(worker);
    if !workers.iter().any(answers) {
        evidence.push(if workers.is_empty() { "There is no worker." } else { "No worker answered." }.to_owned());
    }
    // Of one that was never met, or whose life is over, there is nothing to be known.
    let is_there = |worker: &WorkerLook| !matches!(worker.presence.as_str(), "unknown" | "lost");
    for worker in workers.iter().filter(|worker| !answers(worker) && is_there(worker)) {
        let of = seen.of(worker);
        let runs = count(worker.runs.into(), "run");
        evidence.push(format!("{of}the worker is {} and did not answer with its account; it has {runs}.", worker.presence));
    }
    let next = ["Look again; a worker that is starved answers late.", "`GET /v1/workers` says who is here."];
    Finding::seen(Verdict::CannotTell, evidence, &next)
}

/// An engine of another make that takes runs: it has no account, and nothing is expected of it.
fn is_engine(worker: &WorkerLook) -> bool {
    worker.forwards && matches!(worker.presence.as_str(), "here" | "trial" | "draining")
}

/// Callers wait for all that there is.
pub(super) fn pressure(seen: &Seen<'_>) -> Option<Finding> {
    let mut evidence = Vec::new();
    for (worker, account) in seen.accounts() {
        let of = seen.of(worker);
        let (available, live) = (account.available(), account.live());
        if live > 0 && part(available, account.total) < SHORT {
            let held = account.held();
            let live = count(live, "live attempt");
            evidence.push(format!("{of}{held} of {} blocks are held for {live}; {available} are left.", account.total));
        }
        if account.queued > 0 && account.slots >= account.slots_total && account.slots_total > 0 {
            evidence.push(format!(
                "{of}all {} places are taken, and {} wait.",
                account.slots_total,
                count(account.queued.into(), "attempt")
            ));
        }
    }
    let waiting = seen.now.runs.get("queued").copied().unwrap_or(0);
    let is_full = |worker: &&WorkerLook| worker.slots.is_some_and(|slots| worker.runs >= slots);
    if waiting > 0 && seen.now.workers.iter().any(|worker| worker.slots.is_some()) && seen.now.workers.iter().all(|w| is_full(&w)) {
        evidence.push(format!("Every engine has as many runs as it is given, and {} wait here.", count(waiting, "run")));
    }
    let next = [
        "Nothing is lost: admit fewer runs at once, give the pool more blocks (`kv_blocks`), or add a worker.",
        "`KVCacheUtilization` and the queue of `/metrics` are what an autoscaler should read.",
    ];
    let mut found = Finding::seen(Verdict::PressureFromLiveRuns, evidence, &next)?;
    found.evidence.push(unwanted(seen));
    Some(found)
}

fn unwanted(seen: &Seen<'_>) -> String {
    match seen.now.left_total {
        0 => "Every one of them has a caller, or was told to go on without.".to_owned(),
        n => format!(
            "{} left by their callers, and on their way out.",
            if n == 1 { "1 of them was".to_owned() } else { format!("{n} of them were") }
        ),
    }
}

/// The pool is full of prefixes.
pub(super) fn cache(seen: &Seen<'_>) -> Option<Finding> {
    let full = |account: &AccountLook| {
        let cached = u64::from(account.cached);
        part(cached, account.total) >= FULL || (part(account.free.into(), account.total) < SHORT && cached > account.held())
    };
    let told = |(worker, account): (&WorkerLook, &AccountLook)| {
        let (of, free) = (seen.of(worker), account.free);
        format!(
            "{of}{} of {} blocks are in the prefix index, {} are held by runs, {free} are free.",
            account.cached,
            account.total,
            account.held()
        )
    };
    let mut evidence: Vec<String> = seen.accounts().filter(|(_, account)| full(account)).map(told).collect();
    if evidence.is_empty() {
        return None;
    }
    evidence.push("A cached block is given to whoever needs one, the least recently used first; it delays nobody.".to_owned());
    let next = [
        "Nothing. `kvit_prefix_hits_total` tells whether the cache is worth its place.",
        "`kvit diagnose --probe` shows that new runs get these blocks.",
    ];
    Finding::seen(Verdict::IntentionalCache, evidence, &next)
}

/// What was held came back, and the memory did not.
pub(super) fn kept(seen: &Seen<'_>) -> Option<Finding> {
    if !seen.now.has_pool {
        return None;
    }
    let most = seen.looks.iter().max_by_key(|look| look.held())?;
    let (then, now) = (most.process?.resident_bytes, seen.now.process?.resident_bytes);
    let block_bytes = seen.accounts().map(|(_, account)| account.block_bytes()).max()?;
    let back = most.held().saturating_sub(seen.now.held());
    let bytes = back * block_bytes;
    let fell = then.saturating_sub(now);
    if back * 2 < most.held() || bytes < BYTES_MIN || fell as f64 >= bytes as f64 * KEPT {
        return None;
    }
    let mut evidence = vec![
        format!(
            "Runs held {} at the most that was seen and hold {} now: {} came back.",
            count(most.held(), "block"),
            seen.now.held(),
            mib(bytes)
        ),
        format!("The process had {} of memory then and has {} now.", mib(then), mib(now)),
        "The pool is reserved at the start and kept, and what an allocator frees it keeps for what comes next.".to_owned(),
    ];
    evidence.extend(pool(seen));
    let next = [
        "Nothing: judge leaks by who owns blocks, not by the process's memory.",
        "`kvit diagnose --probe` shows that what is free is used again.",
    ];
    Some(Finding::new(Verdict::NoLeakAllocatorKeeps, evidence, &next))
}

/// The pool as an allocator sees it.
fn pool(seen: &Seen<'_>) -> Vec<String> {
    let told = |(worker, account): (&WorkerLook, &AccountLook)| {
        let (of, bytes) = (seen.of(worker), account.reserved_bytes);
        let used = account.touched.map(|n| format!("; {n} of its {} blocks were ever used", account.total)).unwrap_or_default();
        (bytes > 0).then(|| format!("{of}{} are reserved for the pool{used}.", mib(bytes)))
    };
    seen.accounts().filter_map(told).collect()
}

/// Nothing is the matter.
pub(super) fn healthy(seen: &Seen<'_>) -> Finding {
    let live = count(seen.now.live(), "run");
    let mut evidence = vec![format!("{live} live. {}", unwanted(seen))];
    for (worker, account) in seen.accounts() {
        let of = seen.of(worker);
        let AccountLook { total, free, active, cached, draining, .. } = account;
        let owned = match account.unowned {
            Some(_) => format!("; each active one belongs to one of {}", count(account.live(), "live attempt")),
            None => String::new(),
        };
        evidence.push(format!("{of}{total} blocks: {free} free, {active} active, {cached} cached, {draining} draining{owned}."));
    }
    evidence.extend(pool(seen));
    Finding::new(Verdict::Healthy, evidence, &[])
}

/// What these looks cannot show.
pub(super) fn unknown(seen: &Seen<'_>) -> Vec<String> {
    let mut unknown = Vec::new();
    if seen.probe.is_none_or(|probe| probe.unsaid.is_some()) {
        unknown.push("Whether new runs are really given what is called free: flat gauges do not prove it; `--probe` does.".to_owned());
    }
    if seen.looks.len() < 2 {
        unknown.push("What grows or does not move: that takes two looks; `--watch SECONDS` or `--compare A B`.".to_owned());
    }
    let remote = seen.accounts().next().is_some() && !seen.now.has_pool;
    if remote {
        unknown.push("The workers' memory: the pool is in another process, whose allocator is not seen from here.".to_owned());
    }
    if seen.now.workers.iter().any(|worker| worker.forwards) {
        unknown.push(
            "Who owns what in engines of other makes: they have no account. `--profile NAME --server ENGINE` reads their own counters."
                .to_owned(),
        );
    }
    if seen.now.unproven > 0 {
        let runs = count(seen.now.unproven, "run");
        unknown.push(format!("Whether {runs} that ended with no more than the best effort stopped there: nobody has shown it."));
    }
    unknown
}
