//! What it costs an interactive run that it is kept: the same runs against `kvit serve --store none` and `--store FILE`, side by side.
//!
//! `cargo bench -p kvit --bench durability`. Counted, not timed: instructions (by perf where the machine has such counters, else by valgrind's
//! callgrind), system calls (by strace), and the processor's time as the kernel accounts it. The model is tiny, so that what is counted is the
//! server and not the arithmetic. Exits with 1 if an interactive run waited for a disk.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Runs before anything is counted.
const WARM: usize = 20;
/// Runs that are counted, in each of the two ways to ask.
const RUNS: usize = 200;
/// Runs between a change of sides, where both are measured in turns.
const TURN: usize = 50;
/// Tokens of a run.
const TOKENS: usize = 16;
/// Callers at a time: one after the other is the dearest for the store, for nothing is written together.
const CALLERS: [usize; 2] = [1, 8];
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for a tool to find a server's threads.
const ATTACH: Duration = Duration::from_secs(1);
/// Runs by which two counts of callgrind differ: it counts a process from its beginning to its end.
const GRIND_RUNS: usize = 25;
/// And before them.
const GRIND_WARM: usize = 5;
/// How often it counts: threads meet in another order each time.
const GRINDS: usize = 3;
/// System calls that wait for a disk.
const WAITS: [&str; 6] = ["fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync"];

const KVIT: &str = env!("CARGO_BIN_EXE_kvit");

/// A `kvit serve` of its own.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// By `command`, whose arguments so far end with the program.
    fn start(mut command: Command, model: &Path, store: &str) -> Server {
        command.args(["serve", "--port", "0", "--log", "error", "--isa", "scalar", "--threads", "1", "--store", store]);
        let mut child = command.arg("--model").arg(model).stdout(Stdio::piped()).spawn().expect("kvit starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with("listening on "))).expect("it listens");
        std::thread::spawn(move || lines.count());
        let port = line.rsplit(':').next().and_then(|port| port.trim().parse().ok()).expect("a port");
        Server { child, port }
    }

    /// So many runs by so many callers; every answer is read to its end.
    fn runs(&self, runs: usize, callers: usize) {
        std::thread::scope(|scope| {
            for caller in 0..callers {
                scope.spawn(move || (caller..runs).step_by(callers).for_each(|run| one(self.port, run)));
            }
        });
    }

    /// Ends it in good order; whether it did.
    fn end(mut self) -> bool {
        signal("TERM", self.child.id());
        self.child.wait().is_ok_and(|status| status.success())
    }

    /// Microseconds of processor time so far, in user space and in the kernel.
    fn cpu_us(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it lives");
        let fields: Vec<u64> = stat.rsplit(')').next().unwrap_or("").split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        let ticks = rustix::param::clock_ticks_per_second();
        (fields[11] + fields[12]) * 1_000_000 / ticks
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, process: u32) {
    let _ = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
}

fn one(port: u16, run: usize) {
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"Question {run}"}}],"max_tokens":{TOKENS},"temperature":0,"ignore_eos":true,"stream":true}}"#
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length:";
    stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).expect("sent");
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("an answer");
    assert!(all.contains("data: [DONE]"), "{all}");
}

/// The two places, and what is measured at each.
struct Bench {
    folder: PathBuf,
    model: PathBuf,
    places: [String; 2],
}

impl Bench {
    fn start(&self, place: usize) -> Server {
        Server::start(Command::new(KVIT), &self.model, &self.places[place])
    }

    /// Microseconds of processor time a run, both sides in turns.
    fn cpu(&self, callers: usize) -> [f64; 2] {
        let servers = [0, 1].map(|place| self.start(place));
        servers.iter().for_each(|server| server.runs(WARM, callers));
        let mut used = [0; 2];
        // More than elsewhere: the kernel accounts in hundredths of a second.
        for _ in 0..5 * RUNS / TURN {
            for (server, used) in servers.iter().zip(&mut used) {
                let before = server.cpu_us();
                server.runs(TURN, callers);
                *used += server.cpu_us() - before;
            }
        }
        used.map(|us| us as f64 / (5 * RUNS) as f64)
    }

    /// Instructions in user space a run on both sides, as often as they were counted, and by what.
    fn instructions(&self, callers: usize) -> Option<(&'static str, [Vec<f64>; 2])> {
        if let [Some(none), Some(file)] = [0, 1].map(|place| self.by_perf(place, callers)) {
            return Some(("perf", [vec![none], vec![file]]));
        }
        let mut counts = [Vec::new(), Vec::new()];
        for _ in 0..GRINDS {
            for (place, counts) in counts.iter_mut().enumerate() {
                counts.push(self.by_callgrind(place, callers)?);
            }
        }
        Some(("callgrind", counts))
    }

    /// By the difference between lives of `GRIND_RUNS` runs and of twice as many: what a start and an end take is in both.
    fn by_callgrind(&self, place: usize, callers: usize) -> Option<f64> {
        let of = |runs| self.life_of(runs, place, callers).map(|count| count as f64);
        Some((of(2 * GRIND_RUNS)? - of(GRIND_RUNS)?) / GRIND_RUNS as f64)
    }

    /// Instructions of a whole life with so many runs, on a store that is new.
    fn life_of(&self, runs: usize, place: usize, callers: usize) -> Option<u64> {
        let life = tempfile::tempdir_in(&self.folder).ok()?;
        let (out, store) = (life.path().join("callgrind"), life.path().join("runs.db"));
        let store = if self.places[place] == "none" { "none".to_owned() } else { store.display().to_string() };
        Command::new("valgrind").arg("--version").output().ok().filter(|output| output.status.success())?;
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--quiet", "--fair-sched=try"]);
        command.arg(format!("--callgrind-out-file={}", out.display())).arg(KVIT);
        let server = Server::start(command, &self.model, &store);
        server.runs(GRIND_WARM + runs, callers);
        assert!(server.end(), "it ends in good order under callgrind");
        callgrind(&std::fs::read_to_string(&out).ok()?)
    }

    /// Instructions in user space a run, where the machine lets perf count them.
    fn by_perf(&self, place: usize, callers: usize) -> Option<f64> {
        let said = self.counted("perf", &["stat", "-x,", "-e", "instructions:u"], place, callers)?;
        perf(&said).map(|count| count as f64 / RUNS as f64)
    }

    /// System calls a run, by name.
    fn calls(&self, place: usize, callers: usize) -> Option<BTreeMap<String, f64>> {
        let said = self.counted("strace", &["-f", "-c", "-qq"], place, callers)?;
        let line = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let calls: f64 = fields.get(3)?.parse().ok()?;
            Some(((*fields.last()?).to_owned(), calls / RUNS as f64))
        };
        let calls: BTreeMap<String, f64> = said.lines().filter_map(line).filter(|(name, _)| name != "total").collect();
        (!calls.is_empty()).then_some(calls)
    }

    /// What a tool says that looks at a warm server, from outside, while `RUNS` runs are asked for.
    fn counted(&self, tool: &str, args: &[&str], place: usize, callers: usize) -> Option<String> {
        let server = self.start(place);
        server.runs(WARM, callers);
        let out = self.folder.join("counted");
        let _ = std::fs::remove_file(&out);
        let mut command = Command::new(tool);
        command.args(args).args(["-p", &server.child.id().to_string(), "-o"]).arg(&out).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        // It takes a moment to find all threads. One that ends by itself may not look.
        std::thread::sleep(ATTACH);
        if child.try_wait().ok()?.is_none() {
            server.runs(RUNS, callers);
            signal("INT", child.id());
            let _ = child.wait();
        }
        std::fs::read_to_string(&out).ok()
    }
}

/// What `perf stat -x,` says.
fn perf(said: &str) -> Option<u64> {
    said.lines().find(|line| line.contains(",instructions:u,"))?.split(',').next()?.parse().ok()
}

/// What callgrind's file says of the whole life.
fn callgrind(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.strip_prefix("totals: "))?.split_whitespace().next()?.parse().ok()
}

/// The least, the median and the most.
fn spread(counts: &mut [f64]) -> [f64; 3] {
    counts.sort_by(f64::total_cmp);
    [counts[0], counts[counts.len() / 2], counts[counts.len() - 1]]
}

fn row(what: &str, callers: usize, [none, file]: [f64; 2]) {
    let ratio = if none > 0.0 { format!("{:.2}", file / none) } else { "-".to_owned() };
    println!("{what:<28} {callers:>7} {none:>14.1} {file:>14.1} {ratio:>7} {:>14.1}", file - none);
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("tiny.gguf");
    model::tiny::write(&model, &model::tiny::TinySpec::default()).expect("the tiny model");
    let store = folder.path().join("runs.db").display().to_string();
    let bench = Bench { folder: folder.path().to_owned(), model, places: ["none".to_owned(), store] };
    println!("an interactive run of {TOKENS} tokens, tiny model, scalar, 1 thread; {RUNS} runs");
    println!("{:<28} {:>7} {:>14} {:>14} {:>7} {:>14}", "a run", "callers", "--store none", "--store FILE", "ratio", "more");
    let mut waited = false;
    for callers in CALLERS {
        match bench.instructions(callers) {
            Some((tool, mut counts)) => {
                let [none, file] = counts.each_mut().map(|counts| spread(counts));
                row(&format!("instructions ({tool})"), callers, [none[1], file[1]]);
                if counts[0].len() > 1 {
                    println!(
                        "  medians of {GRINDS} times {GRIND_RUNS} runs in user space, from {:.0} to {:.0} and from {:.0} to {:.0}",
                        none[0], none[2], file[0], file[2]
                    );
                }
            }
            None => println!("instructions: perf cannot count them on this machine, and there is no valgrind; see the processor's time"),
        }
        row("processor time, us", callers, bench.cpu(callers));
        let (Some(none), Some(file)) = (bench.calls(0, callers), bench.calls(1, callers)) else {
            println!("system calls: strace is not here, or may not trace");
            continue;
        };
        row("system calls", callers, [none.values().sum(), file.values().sum()]);
        let of = |calls: &BTreeMap<String, f64>, name: &str| calls.get(name).copied().unwrap_or(0.0);
        let mut names: Vec<&String> = file.keys().chain(none.keys()).collect();
        names.sort();
        names.dedup();
        for name in names.into_iter().filter(|name| (of(&file, name) - of(&none, name)).abs() >= 0.5) {
            row(&format!("  {name}"), callers, [of(&none, name), of(&file, name)]);
        }
        let waits = |calls| WAITS.iter().map(|name| of(calls, name)).sum();
        row("  waits for a disk", callers, [waits(&none), waits(&file)]);
        waited |= waits(&file) > 0.0;
    }
    ExitCode::from(u8::from(waited))
}
