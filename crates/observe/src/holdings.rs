//! What the process holds at the moment of a scrape: calls, attempts and what hangs on them, tasks, descriptors, memory.
//!
//! A leak of these shows in no total and in no run's record, only in a number that is not back where it was when nothing is alive. So each
//! table that has an entry a run is counted where it lies, by its own length, and handed in with the scrape.
//!
//! Invariant: gauges only, cut for this scrape; what the system does not tell is left out and never shown as 0.

use crate::exposition::Text;

/// What a gateway's process holds now.
#[derive(Clone, PartialEq, Debug, Default)]
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
    /// What the driver says of the GPUs of this machine; none where there is no driver.
    pub gpus: Vec<Gpu>,
}

/// What the driver says of one GPU: memory as the device has it, whoever holds it, which says nothing of whose a block is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Gpu {
    /// Its number, as `nvidia-smi` counts.
    pub index: u32,
    /// Bytes that are allocated on it, by anybody, and all of them. `None` where the driver does not tell.
    pub memory: Option<(u64, u64)>,
    /// Bytes that the processes hold which compute on it, as far as the driver tells.
    pub computing: Option<u64>,
    /// Part of the driver's last period in which anything was computed on it, 0 to 1.
    pub busy: Option<f64>,
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
    if let Some(process) = holdings.process {
        gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes);
        gauge("process_open_fds", "Number of open file descriptors.", process.open_fds);
        gauge("process_threads", "Number of threads.", process.threads);
    }
    expose_gpus(text, &holdings.gpus);
}

fn expose_gpus(text: &mut Text, gpus: &[Gpu]) {
    let mut gauge = |name, help, of: &dyn Fn(&Gpu) -> Option<f64>| {
        let told: Vec<_> = gpus.iter().filter_map(|gpu| Some((gpu.index.to_string(), of(gpu)?))).collect();
        if told.is_empty() {
            return;
        }
        let mut family = text.gauge(name, help);
        told.iter().for_each(|(index, value)| family.fraction(&[("gpu", index)], *value));
    };
    let used = "Bytes that are allocated on a GPU of this machine, by anybody, as its driver says (NVML).";
    gauge("kvit_gpu_memory_used_bytes", used, &|gpu| gpu.memory.map(|(used, _)| used as f64));
    gauge("kvit_gpu_memory_total_bytes", "Bytes of memory that the GPU has.", &|gpu| gpu.memory.map(|(_, total)| total as f64));
    let computing = "Bytes that the processes hold which compute on the GPU.";
    gauge("kvit_gpu_processes_memory_bytes", computing, &|gpu| gpu.computing.map(|bytes| bytes as f64));
    let busy = "Part of the driver's last period, up to a second, in which anything was computed on the GPU, by anybody.";
    gauge("kvit_gpu_busy_ratio", busy, &|gpu| gpu.busy);
}
