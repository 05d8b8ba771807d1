//! Endings: every cause of the contract in every phase of a run, on the real gateway and the real worker over real sockets, put together
//! as `kvit serve` does it. Only the device has a gate before it, so that a phase is reached and kept by counting steps.
//!
//! Invariant: every (ending, phase, n, shape) is a row that ran, or says in a word why it cannot be.
// contract: C-4, C-5, C-6, C-7, C-12, C-13, C-14, C-15, C-16, C-18, C-19, C-20, C-22, C-24, C-31
// field: F-01, F-03, F-13, F-17, F-21, F-34, F-41, F-61, F-63, F-68, F-82

mod asks;
mod caller;
mod faults;
mod gate;
mod row;
mod stand;
mod table;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lifecycle::Cause;

use asks::Names;
use row::{SMALL_POOL, World};
use stand::{Loaded, Setup, Stand};
use table::{Ending, Never, Phase, Row};

/// Longest wait for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens of the tiny model that are never chosen; the first comes after its vocabulary.
const MARKERS: u32 = 1024;
/// Turns of a conversation that takes the tokeniser some time, and how many such conversations keep it busy for longer than a deadline.
const MANY_TURNS: usize = 10_000;
const LONG_PROMPTS: u32 = 3;
/// Tries of a row whose end comes by time, each with twice as much of it.
const TRIES: u32 = 6;
/// Tokens of SmolLM2 that mark runs: rare ones, which these prompts never bring up.
const REAL_MARKERS: (u32, u32) = (48_000, 1000);

/// A kind of server that rows can share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Kind {
    /// Blocks, where the pool is small.
    small: Option<u32>,
    gateway_deadline: Option<Duration>,
    queue_deadline: Option<Duration>,
    unread_max: Option<Duration>,
}

impl Kind {
    fn of(row: &Row, patience: Duration) -> Kind {
        Kind {
            small: (row.phase == Phase::Preempted).then_some(SMALL_POOL),
            gateway_deadline: (row.ending == Ending::GatewayDeadline).then_some(patience),
            queue_deadline: (row.ending == Ending::QueueDeadline && row.phase != Phase::Tokenising).then_some(patience),
            unread_max: (row.ending == Ending::Stalled).then_some(patience),
        }
    }

    fn setup(self, model: &Loaded) -> Setup {
        let mut setup = Setup::new(model);
        setup.blocks = self.small.unwrap_or(setup.blocks);
        let gateway = &mut setup.gateway;
        gateway.gateway_deadline = self.gateway_deadline.unwrap_or(gateway.gateway_deadline);
        gateway.queue_deadline = self.queue_deadline.unwrap_or(gateway.queue_deadline);
        if let Some(unread_max) = self.unread_max {
            (gateway.unread_max, gateway.send_buffer_bytes, gateway.head_bytes_max) = (unread_max, 4096, 8192);
        }
        setup
    }
}

/// Runs rows one after the other; servers are kept for those that can share them.
fn run_rows(world: &World, rows: &[Row]) {
    let mut stands: HashMap<Kind, Stand> = HashMap::new();
    for row in rows {
        match row.ending {
            Ending::DeviceStep | Ending::DeviceHung | Ending::DeviceLost => world.device_error(row),
            Ending::WorkerLost => world.worker_lost(row),
            Ending::WorkerError => world.worker_error(row),
            Ending::Invalid | Ending::OverLimit | Ending::QueueFull | Ending::CannotFit => world.rejected(row),
            Ending::DeadlineUnreachable => in_time(world, row, |_, patience| world.deadline_unreachable(row, patience)),
            _ => run_in_time(world, row, &mut stands),
        }
    }
}

/// Tries a row until its time was enough, each time under another name.
fn in_time(world: &World, row: &Row, mut holds: impl FnMut(String, Duration) -> bool) {
    let held = (0..TRIES).any(|attempt| holds(format!("{row}-{attempt}"), world.first_try * 2u32.pow(attempt)));
    assert!(held, "{row}: no time was enough");
}

fn run_in_time(world: &World, row: &Row, stands: &mut HashMap<Kind, Stand>) {
    in_time(world, row, |name, patience| {
        let kind = Kind::of(row, patience);
        if row.ending == Ending::Shutdown {
            return world.run(row, &mut Stand::start(kind.setup(&world.model)), &name, patience);
        }
        let stand = stands.entry(kind).or_insert_with(|| Stand::start(kind.setup(&world.model)));
        world.run(row, stand, &name, patience)
    });
}

/// Runs rows on so many threads; says how many held.
fn run_table(world: &World, rows: &[Row], threads: usize) {
    let only = std::env::var("KVIT_TEST_ENDINGS").unwrap_or_default();
    let rows: Vec<Row> = rows.iter().copied().filter(|row| row.to_string().contains(&only)).collect();
    let held = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for part in 0..threads {
            let mine: Vec<Row> = rows.iter().copied().skip(part).step_by(threads).collect();
            let held = &held;
            scope.spawn(move || {
                run_rows(world, &mine);
                held.fetch_add(mine.len(), Ordering::Relaxed);
            });
        }
    });
    let held = held.into_inner();
    println!("{held} rows held, {} stated impossible: {:?}", impossible().values().sum::<usize>(), impossible());
    assert_eq!(held, rows.len());
}

fn rows() -> Vec<Row> {
    Row::all().filter(|row| row.never().is_none()).collect()
}

fn impossible() -> BTreeMap<Never, usize> {
    let mut never = BTreeMap::new();
    Row::all().filter_map(|row| row.never()).for_each(|why| *never.entry(why).or_default() += 1);
    never
}

#[test]
fn every_cause_has_a_row_or_says_why_not() {
    let all: Vec<Row> = Row::all().collect();
    let names: HashSet<String> = all.iter().map(Row::to_string).collect();
    assert_eq!(names.len(), Ending::ALL.len() * Phase::ALL.len() * 4, "each combination once");
    for cause in Cause::ALL {
        let of = |row: &&Row| row.ending.cause() == *cause;
        assert!(all.iter().any(|row| of(&row)), "{cause} is not in the table");
        let runs = rows().iter().any(|row| of(&row));
        let occurs = |row: &Row| !matches!(row.never(), Some(Never::LooksLikeAClose | Never::NoUpstream));
        assert_eq!(runs, all.iter().filter(of).all(occurs), "{cause} has a row, unless it cannot occur here");
        assert_eq!(runs, !matches!(cause, Cause::EdgeTimeout | Cause::UpstreamError), "{cause}");
    }
    for phase in Phase::ALL {
        assert!(rows().iter().any(|row| row.phase == phase), "{phase:?}");
    }
}

fn tiny_world() -> World {
    World::new(Loaded::tiny(), Names::new(model::tiny::VOCAB, MARKERS), Duration::from_millis(200))
}

#[test]
fn every_ending_in_every_phase() {
    run_table(&tiny_world(), &rows(), 4);
}

// contract: C-7
#[test]
fn a_cancel_before_the_worker_is_lost_is_the_outcome() {
    tiny_world().cancelled_and_lost();
}

/// A sample for a model that takes its time: some rows of every ending, phases and shapes mixed.
fn sample() -> Vec<Row> {
    // A stop in a preemption looks for its prompt by trying, which takes the real model minutes.
    let quick = |row: &Row| row.phase != Phase::Preempted || !matches!(row.ending, Ending::StopToken | Ending::StopString);
    let of = |(i, ending): (usize, Ending)| {
        let all: Vec<Row> = rows().into_iter().filter(|row| row.ending == ending && quick(row)).collect();
        // Coprime to the four shapes and the nine phases, so that neighbours in the sample differ in both.
        (0..all.len().div_ceil(18)).map(move |k| all[(i * 7 + k * 19) % all.len()])
    };
    Ending::ALL.into_iter().enumerate().flat_map(of).collect()
}

#[test]
fn the_sample_has_every_ending_that_can_be_and_every_phase() {
    let sample = sample();
    for row in rows() {
        assert!(sample.iter().any(|s| s.ending.cause() == row.ending.cause()), "{:?}", row.ending);
        assert!(sample.iter().any(|s| s.phase == row.phase), "{:?}", row.phase);
    }
    println!("{} rows", sample.len());
}

#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_a_sample_of_endings() {
    let (first, count) = REAL_MARKERS;
    let world = World::new(Loaded::open(&super::server::real_model()), Names::new(first, count), Duration::from_secs(2));
    run_table(&world, &sample(), 2);
}
