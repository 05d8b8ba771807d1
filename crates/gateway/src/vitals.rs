//! What the gateway's process holds now, for `/metrics`: its table, its tasks, and what the system says of memory and descriptors.
//!
//! Invariant: counted where it lies, at the moment of asking; nothing is remembered here.

use observe::{Gpu, Holdings, Process, StoreHoldings};

use crate::calls::Calls;

/// One look at everything.
pub(crate) fn holdings(calls: &Calls) -> Holdings {
    let (live, questions) = {
        let table = calls.lock();
        (table.entries.len(), table.asks.keys().filter(|ask| crate::asks::is_callers(**ask)).count())
    };
    let tasks: usize = calls.runtimes().iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum();
    let store = calls.keeper.as_ref().map(|keeper| StoreHoldings {
        available: keeper.is_available(),
        waiting: keeper.waiting() as u64,
        followed: keeper.hub.len() as u64,
        late: keeper.late.load(std::sync::atomic::Ordering::Relaxed),
    });
    Holdings { calls: live as u64, questions: questions as u64, store, tasks: tasks as u64, process: process(), gpus: gpus(calls) }
}

/// None where there is no driver. What one process holds on several GPUs is told of each.
fn gpus(calls: &Calls) -> Vec<Gpu> {
    let looks = calls.config.gpus.as_ref().map(|gpus| gpus.looks()).unwrap_or_default();
    let gpu = |look: gpu::Look| Gpu {
        index: look.index,
        memory: look.memory.map(|memory| (memory.used, memory.total)),
        computing: look.processes.iter().map(|process| process.used).sum(),
        busy: look.busy,
    };
    looks.into_iter().map(gpu).collect()
}

/// `None` where the system has no such files, or shows one without the lines that are looked for.
fn process() -> Option<Process> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let number = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    // The folder that is being read is open meanwhile, and not counted.
    let open_fds = (std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1);
    Some(Process { resident_bytes: number("VmRSS")? << 10, open_fds, threads: number("Threads")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn descriptors_and_memory_are_the_systems_numbers() {
        let before = process().expect("this system tells");
        let held: Vec<_> = (0..5).map(|_| std::fs::File::open("/dev/null").expect("it opens")).collect();
        let page = vec![1u8; 64 << 20];
        let after = process().expect("this system tells");
        // Other tests of this process open and close too; five at once and 64 MiB stand out.
        assert!(after.open_fds >= before.open_fds + 3, "{before:?} {after:?}");
        assert!(after.resident_bytes >= before.resident_bytes + (32 << 20), "{before:?} {after:?}");
        assert!(after.threads >= 1 && page.len() == 64 << 20 && held.len() == 5);
    }
}
