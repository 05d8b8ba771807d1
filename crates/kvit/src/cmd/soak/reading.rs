//! One reading of a server: its account of blocks, its gauges, its process. And what it takes to be at rest.
//!
//! Invariant: what the server does not show is absent, never 0.
// contract: C-15

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::http::Watch;
use crate::failure::Failure;

/// Pause between two readings while waiting for rest.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Readings in a row that must agree before the first one of a soak counts: connections that were just closed are still being put away.
const STEADY: u32 = 5;

/// The account's numbers that are read.
const ACCOUNT: [&str; 13] = [
    "total",
    "free",
    "active",
    "orphaned",
    "cached",
    "draining",
    "quarantined",
    "stale_releases",
    "foreign_releases",
    "double_releases",
    "late_completions",
    "reserved_bytes",
    "tombstones",
];

/// How things stand at one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Cancels that were done since the reading of the warm server.
    pub cancels: u64,
    /// `/v1/kv`, summed over workers.
    pub account: BTreeMap<&'static str, u64>,
    /// Whether each worker's account adds up.
    pub conserved: bool,
    /// Blocks that were never handed out: memory that the system has not had to give yet.
    pub untouched: u64,
    /// `/metrics`, series to value.
    pub series: BTreeMap<String, f64>,
}

impl Reading {
    /// Reads all of it.
    ///
    /// # Errors
    /// No answer, or one that is no kvit server's.
    pub fn take(watch: &mut Watch, pid: Option<u32>) -> Result<Reading, Failure> {
        let foreign =
            |path: &str, status: u16| Failure::Other(anyhow!("GET {path}: status {status}, and what came back is no kvit server's answer"));
        let (status, kv) = watch.json("GET", "/v1/kv/blocks")?;
        let workers = kv["workers"].as_array().cloned().unwrap_or_else(|| vec![kv]);
        if status != 200 || workers.iter().any(|w| w["total"].as_u64().is_none()) {
            return Err(foreign("/v1/kv/blocks", status));
        }
        let mut reading = Reading { conserved: workers.iter().all(|w| w["conserved"] == true), ..Reading::default() };
        for worker in &workers {
            for name in ACCOUNT {
                if let Some(n) = worker[name].as_u64() {
                    *reading.account.entry(name).or_default() += n;
                }
            }
            for state in ["queued", "running", "stopping"] {
                *reading.account.entry(state).or_default() += worker["runs"][state].as_u64().unwrap_or(0);
            }
            let blocks = worker["blocks"].as_array().map_or(&[][..], Vec::as_slice);
            reading.untouched += blocks.iter().filter(|b| b["generation"] == 0).count() as u64;
        }
        let (status, page) = watch.ask("GET", "/metrics", "")?;
        if status != 200 {
            return Err(foreign("/metrics", status));
        }
        reading.series = series(&String::from_utf8_lossy(&page));
        if let Some(seen) = pid.and_then(process) {
            reading.series.extend(seen);
        }
        Ok(reading)
    }

    /// A number of the account.
    pub fn block_count(&self, name: &str) -> u64 {
        self.account.get(name).copied().unwrap_or(0)
    }

    /// A series without labels, or the sum of all series of a family; `None` if it is not shown.
    pub fn gauge(&self, family: &str) -> Option<f64> {
        let of = |name: &str| name == family || name.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'));
        let found: Vec<f64> = self.series.iter().filter(|(name, _)| of(name)).map(|(_, v)| *v).collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }

    /// Bytes of the pool that were written to at least once.
    pub fn pool_touched(&self) -> u64 {
        let (total, reserved) = (self.block_count("total"), self.block_count("reserved_bytes"));
        (reserved * (total - self.untouched.min(total))).checked_div(total).unwrap_or(0)
    }

    /// What is still alive, in words; empty at rest.
    pub fn unrest(&self) -> Vec<String> {
        let counts = ["queued", "running", "stopping", "active", "draining", "orphaned"];
        let counted = counts.iter().map(|name| ((*name).to_owned(), self.block_count(name) as f64));
        let live = ["kvit_runs", "kvit_gateway_calls", "kvit_worker_held", "kvit_cancels_unacknowledged"];
        let shown = live.iter().map(|name| ((*name).to_owned(), self.gauge(name).unwrap_or(0.0)));
        counted.chain(shown).filter(|(_, n)| *n != 0.0).map(|(name, n)| format!("{name} {n}")).collect()
    }

    /// Nothing is alive, and the blocks that can be handed out are as many as before.
    fn is_back(&self, before: &Reading) -> bool {
        let sum = |r: &Reading| r.block_count("free") + r.block_count("cached");
        self.unrest().is_empty() && sum(self) == sum(before)
    }

    fn process_counts(&self) -> [f64; 3] {
        ["kvit_tasks", "process_open_fds", "process_threads"].map(|name| self.gauge(name).unwrap_or(0.0))
    }
}

/// Waits for the first reading of a soak: nothing alive, and the process's counts the same for a while.
///
/// # Errors
/// It does not come to rest, so something else uses the server or something hangs.
pub fn first(watch: &mut Watch, pid: Option<u32>, patience: Duration) -> Result<Reading, Failure> {
    let since = Instant::now();
    let mut same = 0;
    let mut last = Reading::take(watch, pid)?;
    loop {
        std::thread::sleep(LOOK_AGAIN);
        let next = Reading::take(watch, pid)?;
        let unrest = next.unrest();
        same = if unrest.is_empty() && next.process_counts() == last.process_counts() { same + 1 } else { 0 };
        if same >= STEADY {
            return Ok(next);
        }
        if since.elapsed() > patience {
            let what = if unrest.is_empty() { "its descriptors or tasks keep changing".to_owned() } else { unrest.join(", ") };
            return Err(Failure::Other(anyhow!(
                "the server does not come to rest within {patience:?} ({what}): a soak must be its only client, and nothing may run before it"
            )));
        }
        last = next;
    }
}

/// Waits, after a warm-up, until nothing is alive and the process's counts are steady, or the patience is over. What is read last is what
/// counts, well or not.
///
/// # Errors
/// The server went away.
pub fn warm(fresh: &Reading, watch: &mut Watch, pid: Option<u32>, patience: Duration) -> Result<Reading, Failure> {
    let since = Instant::now();
    let mut same = 0;
    let mut last = Reading::take(watch, pid)?;
    while same < STEADY && since.elapsed() <= patience {
        std::thread::sleep(LOOK_AGAIN);
        let next = Reading::take(watch, pid)?;
        same = if next.is_back(fresh) && next.process_counts() == last.process_counts() { same + 1 } else { 0 };
        last = next;
    }
    Ok(last)
}

/// Waits until everything is back where it was, or the patience is over; as `warm`.
///
/// # Errors
/// The server went away.
pub fn back_to(warm: &Reading, watch: &mut Watch, pid: Option<u32>, patience: Duration) -> Result<Reading, Failure> {
    let since = Instant::now();
    loop {
        let now = Reading::take(watch, pid)?;
        let no_more = now.process_counts().iter().zip(warm.process_counts()).all(|(now, warm)| *now <= warm);
        if (no_more && now.is_back(warm)) || since.elapsed() > patience {
            return Ok(now);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The samples of a metrics page.
fn series(page: &str) -> BTreeMap<String, f64> {
    let samples = page.lines().filter(|l| !l.starts_with('#'));
    samples.filter_map(|l| l.rsplit_once(' ')).filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// What the system says of a process on this machine: a witness beside the server's own word.
fn process(pid: u32) -> Option<[(String, f64); 3]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
    };
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as f64;
    let named = |name: &str, value: f64| (name.to_owned(), value);
    Some([
        named("process_resident_memory_bytes", number("VmRSS")? * 1024.0),
        named("process_open_fds", fds),
        named("process_threads", number("Threads")?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_summed_and_what_is_not_shown_is_no_zero() {
        let page = "# HELP a b\n# TYPE a gauge\na{x=\"1 2\"} 3\na{x=\"2\"} 4\nab 5\nc 1.5e3\n";
        let reading = Reading { series: series(page), ..Reading::default() };
        assert_eq!((reading.gauge("a"), reading.gauge("ab"), reading.gauge("c")), (Some(7.0), Some(5.0), Some(1500.0)));
        assert_eq!(reading.gauge("b"), None);
    }

    #[test]
    fn rest_names_what_is_alive() {
        let mut reading = Reading::default();
        assert!(reading.unrest().is_empty());
        reading.account.insert("active", 3);
        reading.series.insert("kvit_worker_held{kind=\"owners\"}".into(), 2.0);
        assert_eq!(reading.unrest(), ["active 3", "kvit_worker_held 2"]);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_seen_from_outside() {
        let seen = process(std::process::id()).expect("the system tells");
        assert!(seen.iter().all(|(_, n)| *n >= 1.0), "{seen:?}");
        assert!(process(u32::MAX).is_none());
    }
}
