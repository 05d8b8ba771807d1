//! Processor time of the engine's processes, where they run on this machine: an engine that stops working stops taking it, whatever it says.
//!
//! Only what `/proc` shows anybody is read: nothing is asked of the engine, so looking changes nothing.
//!
//! Invariant: a process that is gone counts nothing; a process that cannot be read makes the whole unknown.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::result::CpuSaw;

/// The kernel's unit of these times: it has been a hundredth of a second on every Linux for user space (proc(5), sysconf(_SC_CLK_TCK)).
const TICK: Duration = Duration::from_millis(10);
/// Time over which a load is measured: a tick is a tenth of it.
pub const WINDOW: Duration = Duration::from_millis(100);
/// Part of the way from the idle to the busy load, under which an engine rests.
const RESTS: f64 = 0.25;
/// Windows behind a departure that say anything: the first has some of the time before it in it.
const TELLING_WINDOWS: usize = 3;
/// Least difference of the two that says anything.
const TELLING: f64 = 0.2;

/// A process and all that come from it.
#[derive(Clone, Debug)]
pub struct Processes {
    roots: Vec<u32>,
}

/// One line of `/proc/PID/stat`: its parent, and the time that it has taken.
fn stat(pid: u32) -> Option<(u32, Duration)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may have any character in it.
    let rest = text.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Counted from the state, which is the third: ppid is the 4th, utime the 14th, stime the 15th.
    let ticks = number(11)? + number(12)?;
    Some((u32::try_from(number(1)?).ok()?, TICK * u32::try_from(ticks).ok()?))
}

fn all() -> Vec<u32> {
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

impl Processes {
    /// These, which must be there.
    ///
    /// # Errors
    /// The first that is not.
    pub fn of(pids: &[u32]) -> Result<Processes, String> {
        match pids.iter().find(|pid| stat(**pid).is_none()) {
            Some(pid) => Err(format!("there is no process {pid} here, or it cannot be read")),
            None => Ok(Processes { roots: pids.to_vec() }),
        }
    }

    /// Who listens on this port of this machine, if anybody does that we may look at.
    pub fn listening(port: u16) -> Option<Processes> {
        let inodes: BTreeSet<String> = ["/proc/net/tcp", "/proc/net/tcp6"].iter().flat_map(|file| listeners(file, port)).collect();
        let has = |pid: &u32| {
            let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|to| {
                to.to_str().and_then(|to| to.strip_prefix("socket:[")?.strip_suffix(']')).is_some_and(|inode| inodes.contains(inode))
            })
        };
        let pids: Vec<u32> = if inodes.is_empty() { Vec::new() } else { all().into_iter().filter(has).collect() };
        // A judge that listens there itself is no engine.
        let roots: Vec<u32> = pids.into_iter().filter(|pid| *pid != std::process::id()).collect();
        (!roots.is_empty()).then_some(Processes { roots })
    }

    /// The programs that they are, by their file's name, and how each can be started again, whatever became of that file since.
    pub fn programs(&self) -> Vec<(String, PathBuf)> {
        let program = |pid: &u32| {
            let link = PathBuf::from(format!("/proc/{pid}/exe"));
            let name = fs::read_link(&link).ok()?.file_name()?.to_str()?.to_owned();
            Some((name, link))
        };
        self.roots.iter().filter_map(program).collect()
    }

    /// They and all that come from them, and the time that each has taken.
    fn family(&self) -> Vec<(u32, Duration)> {
        let stats: Vec<(u32, u32, Duration)> =
            all().into_iter().filter_map(|pid| stat(pid).map(|(parent, taken)| (pid, parent, taken))).collect();
        let mut ours: BTreeSet<u32> = self.roots.iter().copied().collect();
        loop {
            let before = ours.len();
            ours.extend(stats.iter().filter(|(_, parent, _)| ours.contains(parent)).map(|(pid, ..)| *pid).collect::<Vec<_>>());
            if ours.len() == before {
                break;
            }
        }
        stats.into_iter().filter(|(pid, ..)| ours.contains(pid)).map(|(pid, _, taken)| (pid, taken)).collect()
    }

    /// Their numbers, and those of all that come from them.
    pub fn pids(&self) -> Vec<u32> {
        self.family().into_iter().map(|(pid, _)| pid).collect()
    }

    /// Time that they and all that come from them have taken.
    pub fn taken(&self) -> Option<Duration> {
        self.family().into_iter().map(|(_, taken)| taken).reduce(|one, other| one + other)
    }

    /// Memory of their own that they hold, in KiB: without files that are mapped, such as a model's.
    pub fn resident_kib(&self) -> Option<f64> {
        let of = |pid: u32| {
            let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        self.family().into_iter().filter_map(|(pid, _)| of(pid)).reduce(|one, other| one + other)
    }
}

/// Inodes of the sockets that listen on a port, in a table of the kernel's.
fn listeners(file: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let Ok(text) = fs::read_to_string(file) else { return Vec::new() };
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields.get(1)?.rsplit_once(':')?.1;
        let is_it = fields.get(3) == Some(&LISTEN) && u16::from_str_radix(at, 16) == Ok(port);
        is_it.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    };
    text.lines().skip(1).filter_map(of).collect()
}

/// Loads, window by window.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    last: Option<(Instant, Duration)>,
    /// When each window ended, and the busy part of a core in it.
    windows: Vec<(Instant, f64)>,
}

impl Loads {
    /// Takes a reading. A window ends when it is long enough.
    pub fn take(&mut self, now: Instant, taken: Option<Duration>) {
        let Some(taken) = taken else { return };
        match self.last {
            Some((at, before)) if now.duration_since(at) >= WINDOW => {
                let busy = taken.saturating_sub(before).as_secs_f64() / now.duration_since(at).as_secs_f64();
                self.windows.push((now, busy));
                self.last = Some((now, taken));
            }
            Some(_) => {}
            None => self.last = Some((now, taken)),
        }
    }

    /// Takes the load of a window that somebody else measured.
    pub fn told(&mut self, now: Instant, busy: f64) {
        self.windows.push((now, busy));
    }

    /// The greatest of the windows that ended between two moments.
    pub fn most(&self, from: Instant, until: Instant) -> Option<f64> {
        self.windows.iter().filter(|(at, _)| *at > from && *at <= until).map(|(_, busy)| *busy).reduce(f64::max)
    }

    /// The mean of the windows that ended between two moments.
    pub fn mean(&self, from: Instant, until: Instant) -> Option<f64> {
        let within: Vec<f64> = self.windows.iter().filter(|(at, _)| *at > from && *at <= until).map(|(_, busy)| *busy).collect();
        (!within.is_empty()).then(|| within.iter().sum::<f64>() / within.len() as f64)
    }

    /// What they say of a departure at `left`: when the load had fallen to rest for good. `None` if work and rest cannot be told apart.
    pub fn saw(&self, idle: f64, busy: f64, left: Instant) -> Option<CpuSaw> {
        if busy - idle < TELLING {
            return None;
        }
        let limit = idle + RESTS * (busy - idle);
        let after: Vec<&(Instant, f64)> = self.windows.iter().filter(|(at, _)| *at > left).collect();
        if after.len() < TELLING_WINDOWS {
            return None;
        }
        let last_busy = after.iter().rposition(|(_, load)| *load > limit);
        let quiet = match last_busy {
            None => after.first(),
            // The window behind the last busy one, if there is one.
            Some(index) => after.get(index + 1),
        };
        Some(CpuSaw { busy, idle, quiet_ms: quiet.map(|(at, _)| at.duration_since(left).as_secs_f64() * 1e3) })
    }
}

/// Loads that are taken by a thread of their own, for as long as this lives.
pub struct Sampler {
    loads: Arc<Mutex<Loads>>,
    ends: Arc<AtomicBool>,
}

impl Sampler {
    /// Begins to look at what processes take.
    pub fn start(processes: &Processes) -> Sampler {
        let processes = processes.clone();
        Sampler::every(WINDOW / 4, move |loads| {
            let taken = processes.taken();
            loads.take(Instant::now(), taken);
        })
    }

    /// Begins to look so often.
    pub fn every(pause: Duration, mut look: impl FnMut(&mut Loads) + Send + 'static) -> Sampler {
        let sampler = Sampler { loads: Arc::default(), ends: Arc::default() };
        let (loads, ends) = (sampler.loads.clone(), sampler.ends.clone());
        std::thread::spawn(move || {
            let mut own = Loads::default();
            while !ends.load(Ordering::Relaxed) {
                look(&mut own);
                loads.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&own);
                std::thread::sleep(pause);
            }
        });
        sampler
    }

    /// What was taken so far.
    pub fn loads(&self) -> Loads {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_time_and_one_that_is_not_there_is_named() {
        let own = Processes::of(&[std::process::id()]).expect("it is there");
        let before = own.taken().expect("it can be read");
        let mut sum = 0_u64;
        while own.taken().expect("it can be read") < before + TICK * 3 {
            sum = sum.wrapping_add((0..100_000_u64).fold(sum, |sum, n| sum.rotate_left(5) ^ n));
        }
        assert_ne!(sum, 1);
        assert!(Processes::of(&[u32::MAX]).is_err());
        assert!(own.resident_kib().is_some_and(|kib| kib > 0.0) && own.programs().len() == 1);
    }

    #[test]
    fn a_child_counts_with_its_parent_and_a_listener_is_found_by_its_port() {
        let script = "import socket,sys,subprocess\ns=socket.socket();s.bind(('127.0.0.1',0));s.listen()\nprint(s.getsockname()[1],flush=True)\nsys.stdin.read()";
        let Ok(mut child) = std::process::Command::new("python3")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
        else {
            return println!("skipped: python3 is not here");
        };
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().expect("its output")), &mut line).expect("a port");
        let found = Processes::listening(line.trim().parse().expect("a port")).expect("it listens");
        assert_eq!(found.roots, [child.id()]);
        let own = Processes::of(&[std::process::id()]).expect("it is there");
        assert!(own.taken() >= found.taken() && found.taken().is_some());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert_eq!(found.taken(), None, "what is gone counts nothing");
    }

    #[test]
    fn an_engine_rests_from_the_window_behind_its_last_busy_one_on() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let loads = |busy: &[f64]| Loads { last: None, windows: (1..).zip(busy).map(|(n, busy)| (at(n * 100), *busy)).collect() };
        let quiet = |of: &[f64]| loads(of).saw(0.0, 1.0, at(150)).and_then(|saw| saw.quiet_ms);
        assert_eq!(quiet(&[1.0, 1.0, 0.05, 0.0, 0.1]), Some(150.0));
        assert_eq!(quiet(&[1.0, 0.0, 0.0, 0.0]), Some(50.0));
        assert_eq!(quiet(&[1.0, 0.0, 1.0, 0.0]), Some(250.0), "a pause is no end");
        let busy = loads(&[1.0, 1.0, 1.0, 1.0]).saw(0.0, 1.0, at(150)).expect("it is told");
        assert_eq!(busy.quiet_ms, None);
        assert_eq!(loads(&[1.0, 1.0, 0.0]).saw(0.0, 1.0, at(150)), None, "too soon to say");
        assert_eq!(loads(&[0.1, 0.1]).saw(0.0, 0.1, at(0)), None, "work and rest look alike");
        assert_eq!(loads(&[1.0, 0.5, 0.0]).mean(at(150), at(300)), Some(0.25));
    }

    #[test]
    fn a_window_is_as_long_as_it_says() {
        let zero = Instant::now();
        let mut loads = Loads::default();
        for (ms, taken) in [(0, 0), (50, 50), (100, 90), (150, 90), (220, 90)] {
            loads.take(zero + Duration::from_millis(ms), Some(Duration::from_millis(taken)));
        }
        loads.take(zero + Duration::from_millis(400), None);
        assert_eq!(loads.windows.iter().map(|(_, busy)| (busy * 100.0).round()).collect::<Vec<_>>(), [90.0, 0.0]);
    }
}
