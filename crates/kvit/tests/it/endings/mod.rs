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

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lifecycle::OutcomeKind;

use asks::{Isolated, Names};
use row::{SMALL_POOL, World};
use stand::{Loaded, Setup, Stand};
use table::{Ending, Never, Phase, Row};

/// Longest wait for anything that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens of the tiny model that are never chosen; the first comes after its vocabulary.
const MARKERS: u32 = 1024;
/// Positions of a sequence of the tiny model.
const CONTEXT: u32 = 2048;
/// Turns of a conversation that takes the tokeniser some time, and how many such conversations keep it busy for longer than a deadline.
const MANY_TURNS: usize = 10_000;
const LONG_PROMPTS: u32 = 3;
/// A deadline's length in the first try of a row; doubled in each further one.
const FIRST_TRY: Duration = Duration::from_millis(200);
const TRIES: u32 = 6;

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
fn run_rows(world: &World, model: &Loaded, rows: &[Row]) {
    let mut stands: HashMap<Kind, Stand> = HashMap::new();
    for row in rows {
        match row.ending {
            Ending::DeviceStep | Ending::DeviceHung | Ending::DeviceLost => world.device_error(row),
            Ending::WorkerLost => world.worker_lost(row),
            Ending::WorkerError => world.worker_error(row),
            Ending::Invalid | Ending::OverLimit | Ending::QueueFull | Ending::CannotFit => world.rejected(row),
            _ => {}
        }
        if matches!(row.ending.kind(), OutcomeKind::Failed | OutcomeKind::Rejected) {
            continue;
        }
        let held = (0..TRIES).any(|attempt| {
            let patience = FIRST_TRY * 2u32.pow(attempt);
            let name = format!("{row}-{attempt}");
            let kind = Kind::of(row, patience);
            if row.ending == Ending::Shutdown {
                return world.run(row, &mut Stand::start(kind.setup(model)), &name, patience);
            }
            let stand = stands.entry(kind).or_insert_with(|| Stand::start(kind.setup(model)));
            world.run(row, stand, &name, patience)
        });
        assert!(held, "{row}: no time was enough");
    }
}

#[test]
fn every_ending_in_every_phase() {
    let model = Loaded::tiny();
    let world = World {
        model: model.clone(),
        isolated: Isolated::new(&model),
        names: Names::new(model::tiny::VOCAB, MARKERS),
        preempted_at: Default::default(),
    };
    let mut never: BTreeMap<Never, u32> = BTreeMap::new();
    let mut rows = Vec::new();
    let only = std::env::var("ENDINGS").unwrap_or_default();
    for row in Row::all() {
        match row.never() {
            Some(why) => *never.entry(why).or_default() += 1,
            None => rows.push(row),
        }
    }
    rows.retain(|row| row.to_string().contains(&only));
    let held = AtomicU32::new(0);
    let (world, model) = (&world, &model);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let mine: Vec<Row> = rows.iter().copied().enumerate().filter(|(i, _)| i % 4 == part).map(|(_, row)| row).collect();
            let held = &held;
            scope.spawn(move || {
                run_rows(world, model, &mine);
                held.fetch_add(mine.len() as u32, Ordering::Relaxed);
            });
        }
    });
    let held = held.into_inner();
    println!("{held} rows held, {} stated impossible: {never:?}", never.values().sum::<u32>());
    assert_eq!(held as usize, rows.len());
}
