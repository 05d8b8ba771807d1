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
    /// Live tasks of the runtime. A connection is one, so the scrape's own is in it.
    pub tasks: u64,
    /// What the system says of the process. `None` where it says nothing.
    pub process: Option<Process>,
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
    let Some(process) = holdings.process else { return };
    gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes);
    gauge("process_open_fds", "Number of open file descriptors.", process.open_fds);
    gauge("process_threads", "Number of threads.", process.threads);
}
