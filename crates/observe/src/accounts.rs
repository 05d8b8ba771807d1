//! The families that a worker's cut brings to the metrics page: C-15's account, and what the worker holds for runs.
//!
//! Invariant: of a worker that did not answer nothing is shown but what its gateway knows itself; with one worker no sample names it, with several each does.
// contract: C-15

use lifecycle::message::Snapshot;

use crate::exposition::{Family, Text};
use crate::metrics::WorkerScrape;

/// A cut, and its worker's name where one is needed.
type Account<'a> = (Option<&'a str>, &'a Snapshot);

pub(crate) fn expose(text: &mut Text, workers: &[WorkerScrape<'_>]) {
    let named = |worker: &WorkerScrape<'_>| workers.len() > 1 && !worker.name.is_empty();
    let name = |worker: &WorkerScrape<'_>| if named(worker) { Some(worker.name.to_owned()) } else { None };
    let about = "Whether the worker answered this scrape with its account; of an engine that others wrote, whether it takes runs.";
    let mut up = text.gauge("kvit_worker_up", about);
    for worker in workers {
        sample(&mut up, name(worker).as_deref(), None, u64::from(worker.snapshot.is_some() || worker.takes_runs));
    }
    if workers.is_empty() {
        up.sample(&[], 0);
    }
    let mut runs = text.gauge("kvit_worker_runs", "Runs of this gateway that the worker was given and that are not over.");
    workers.iter().for_each(|worker| sample(&mut runs, name(worker).as_deref(), None, u64::from(worker.runs)));
    let slots: Vec<_> = workers.iter().filter_map(|worker| Some((name(worker), worker.slots?))).collect();
    if !slots.is_empty() {
        let mut family = text.gauge("kvit_worker_slots", "Runs that this gateway gives an engine at once; further ones wait here.");
        slots.iter().for_each(|(name, slots)| sample(&mut family, name.as_deref(), None, u64::from(*slots)));
    }
    let accounts: Vec<Account<'_>> =
        workers.iter().filter_map(|worker| Some((named(worker).then_some(worker.name), worker.snapshot?))).collect();
    if !accounts.is_empty() {
        expose_account(text, &accounts);
        expose_held(text, &accounts);
    }
}

fn sample(family: &mut Family<'_>, worker: Option<&str>, label: Option<(&str, &str)>, value: u64) {
    let labels: Vec<(&str, &str)> = worker.map(|name| ("worker", name)).into_iter().chain(label).collect();
    family.sample(&labels, value);
}

/// One family: of each account one sample a label.
fn spread<const N: usize>(
    mut family: Family<'_>,
    label: &str,
    accounts: &[Account<'_>],
    of: impl Fn(&Snapshot) -> [(&'static str, u64); N],
) {
    for (worker, account) in accounts {
        for (word, value) in of(account) {
            sample(&mut family, *worker, Some((label, word)), value);
        }
    }
}

fn each(mut family: Family<'_>, accounts: &[Account<'_>], of: impl Fn(&Snapshot) -> u64) {
    for (worker, account) in accounts {
        sample(&mut family, *worker, None, of(account));
    }
}

/// C-15's account and what else a worker's cut says.
fn expose_account(text: &mut Text, accounts: &[Account<'_>]) {
    let blocks = text.gauge("kvit_kv_blocks", "Blocks by state; the five states add up to kvit_kv_pool_blocks.");
    spread(blocks, "state", accounts, |s| {
        [("free", s.free), ("active", s.active), ("cached", s.cached), ("draining", s.draining), ("quarantined", s.quarantined)]
            .map(|(state, blocks)| (state, u64::from(blocks)))
    });
    type Of = fn(&Snapshot) -> u64;
    if accounts.iter().any(|(_, s)| unowned(s).is_some()) {
        let about = "Active blocks beyond all that live attempts say they hold: nobody is left to give them back. Expected to stay 0.";
        let mut family = text.gauge("kvit_kv_unowned_blocks", about);
        for (worker, blocks) in accounts.iter().filter_map(|(worker, s)| Some((*worker, unowned(s)?))) {
            sample(&mut family, worker, None, blocks);
        }
    }
    let bytes = text.gauge(
        "kvit_kv_pool_bytes",
        "The pool as an allocator sees it: reserved from the system at the start and kept; of that, allocated (handed out, cached or waiting \
         for a fence) and free.",
    );
    spread(bytes, "state", accounts, |s| {
        let block = s.reserved_bytes.checked_div(u64::from(s.total)).unwrap_or(0);
        let free = block * u64::from(s.free);
        [("reserved", s.reserved_bytes), ("allocated", s.reserved_bytes.saturating_sub(free)), ("free", free)]
    });
    let gauges: [(_, _, Of); 6] = [
        ("kvit_kv_pool_blocks", "Blocks in the pool.", |s| u64::from(s.total)),
        ("kvit_kv_orphaned_blocks", "Of the active blocks: those whose attempt no gateway claims.", |s| u64::from(s.orphaned)),
        ("kvit_kv_block_tokens", "Token positions a block.", |s| u64::from(s.block_tokens)),
        ("kvit_kv_reserved_bytes", "Bytes reserved for the pool.", |s| s.reserved_bytes),
        ("kvit_device_lost", "Whether the device takes no more steps, so that every run fails.", |s| u64::from(s.device_lost.is_some())),
        ("kvit_tombstones", "Attempts remembered as cancelled before their submit.", |s| u64::from(s.tombstones)),
    ];
    for (name, help, of) in gauges {
        each(text.gauge(name, help), accounts, of);
    }
    let attempts = text.gauge("kvit_worker_attempts", "Attempts on the worker by the engine's own account.");
    spread(attempts, "state", accounts, |s| {
        [("queued", s.queued), ("running", s.running), ("stopping", s.stopping)].map(|(state, n)| (state, u64::from(n)))
    });
    let refused = text.counter(
        "kvit_refused_releases_total",
        "Releases that changed nothing, by why: an old generation (stale), an owner that was not listed (foreign) or had left before (double).",
    );
    spread(refused, "why", accounts, |s| [("stale", s.stale_releases), ("foreign", s.foreign_releases), ("double", s.double_releases)]);
    let late = text.counter("kvit_late_completions_total", "Fence messages that named no open step.");
    each(late, accounts, |s| s.late_completions);
    let counters: [(_, _, Of); 3] = [
        ("kvit_worker_orphaned_total", "Attempts that the worker ended because no gateway claimed them.", |s| s.orphaned_attempts),
        ("kvit_worker_suspensions_total", "Times that the worker suspended an attempt because it did not hear its gateway.", |s| {
            s.suspensions
        }),
        ("kvit_worker_stale_messages_total", "Messages of other lives, tenures or sessions that changed nothing there.", |s| {
            s.stale_messages
        }),
    ];
    for (name, help, of) in counters {
        each(text.counter(name, help), accounts, of);
    }
}

/// Blocks that have an owner by the account and that no live attempt says it holds; shared ones are held more than once, so at least so many.
/// `None` of a worker of another make that does not name its attempts.
pub(crate) fn unowned(cut: &Snapshot) -> Option<u64> {
    let attempts = u64::from(cut.queued) + u64::from(cut.running) + u64::from(cut.stopping);
    let held: u64 = cut.attempts.iter().map(|a| u64::from(a.blocks)).sum();
    (cut.attempts.len() as u64 == attempts).then(|| u64::from(cut.active).saturating_sub(held))
}

/// What a worker holds for runs.
fn expose_held(text: &mut Text, accounts: &[Account<'_>]) {
    let held =
        text.gauge("kvit_worker_held", "Entries in the worker's tables that belong to attempts or steps; all 0 when nothing is alive.");
    spread(held, "kind", accounts, |s| s.held.kinds().map(|(kind, entries)| (kind, u64::from(entries))));
    let slots = text.gauge("kvit_worker_sequences_max", "Sequences that the worker can run at once.");
    each(slots, accounts, |s| u64::from(s.held.slots_total));
}
