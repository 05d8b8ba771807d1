//! What the process holds at the moment of a scrape: calls, attempts and what hangs on them, tasks, descriptors, memory.
//!
//! A leak of these shows in no total and in no run's record, only in a number that is not back where it was when nothing is alive. So each
//! table that has an entry a run is counted where it lies, by its own length, and handed in with the scrape.
//!
//! Invariant: gauges only, cut for this scrape; what the system does not tell is left out and never shown as 0.

use crate::exposition::Text;

/// What a gateway's process holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holdings {
    /// Runs in the call table.
    pub calls: u64,
    /// Questions to the worker that nobody has answered yet; a scrape's own has been.
    pub questions: u64,
    /// The run store, where there is one.
    pub store: Option<StoreHoldings>,
    /// Live tasks of the runtime. A connection is one, so the scrape's own is in it.
    pub tasks: u64,
    /// What the system says of the process. `None` where it says nothing.
    pub process: Option<Process>,
}

/// What waits for the run store, and for news from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreHoldings {
    /// Whether it took what was last written.
    pub available: bool,
    /// Writes that are not committed yet.
    pub waiting: u64,
    /// Runs whose events somebody follows.
    pub followed: u64,
    /// Runs that went on though it had not answered in time; a total.
    pub late: u64,
}

/// What the system says of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Memory in RAM, in bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Threads.
    pub threads: u64,
}

pub(crate) fn expose(text: &mut Text, holdings: &Holdings) {
    let mut gauge = |name, help, value| {
        text.gauge(name, help).sample(&[], value);
    };
    gauge("kvit_gateway_calls", "Runs in the gateway's call table, ended ones that are not settled included.", holdings.calls);
    gauge("kvit_gateway_questions", "Questions to the worker that wait for an answer.", holdings.questions);
    gauge("kvit_tasks", "Live tasks of the runtime; each connection is one, this scrape's included.", holdings.tasks);
    if let Some(store) = holdings.store {
        gauge("kvit_store_available", "1 if the run store took what was last written, else 0.", store.available.into());
        gauge("kvit_store_writes_waiting", "Writes that the run store has not taken yet.", store.waiting);
        gauge("kvit_store_followed", "Runs whose events somebody follows in the run store.", store.followed);
        let late = "Times that an interactive run went on though the run store had not answered in time.";
        text.counter("kvit_store_late_total", late).sample(&[], store.late);
    }
    let mut gauge = |name, help, value| {
        text.gauge(name, help).sample(&[], value);
    };
    let Some(process) = holdings.process else { return };
    gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes);
    gauge("process_open_fds", "Number of open file descriptors.", process.open_fds);
    gauge("process_threads", "Number of threads.", process.threads);
}
