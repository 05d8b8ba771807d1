//! Random histories of runs that last, against a model: whatever happens in whatever order to gateway, worker, store and readers, a run has one
//! outcome for ever, every reader sees the same events in the same order, and no run stays without an end.
//!
//! The gateway is the real one with real sockets, its store SQLite, PostgreSQL or the one in memory; its worker is simulated. A life of the
//! gateway ends as by `kill -9`: its runtime is dropped with all that it had in flight. One history is one seed:
//! `KVIT_TEST_SEED=N cargo nextest run -p gateway -E 'test(durable)'` plays that one alone, with every store; `N..M` plays several.
//!
//! What a crash may take is written here, too: of an interactive run the events that were told and not yet written, and, while the store was
//! away or slow, that it was and its outcome. Of a background run nothing that anybody was told.
// contract: C-5 C-7 C-25 C-26

mod directed;
mod elsewhere;
pub mod flaky;
mod forgotten;
pub mod life;
mod model;
mod reader;
mod reading;
mod rng;
mod worker;
mod world;

use flaky::Kind;
use world::World;

/// Histories of the normal tier, of each store.
const SEEDS: u64 = 14;
/// How many times as many are played at the most until each kind of thing came about: whether one does is a matter of the machine's pace, too.
const UNTIL_SEEN: u64 = 6;
/// And of the long one.
const SEEDS_LONG: u64 = 1200;
/// Histories that are played at the same time: most of one is waiting.
const AT_ONCE: u64 = 6;

async fn play(kind: Kind, seeds: u64) {
    let chosen = std::env::var("KVIT_TEST_SEED").ok().and_then(|text| {
        let (from, to) = text.split_once("..").unwrap_or((&text, &text));
        Some(from.parse::<u64>().ok()?..=to.parse::<u64>().ok()?)
    });
    let many = seeds >= SEEDS_LONG;
    let played: Vec<u64> = chosen.clone().unwrap_or(1..=UNTIL_SEEN * seeds).collect();
    let (mut counts, mut last) = (world::Counts::default(), 0);
    for group in played.chunks(AT_ONCE as usize) {
        if chosen.is_none() && last >= seeds && counts.has_all_kinds(many) {
            break;
        }
        last = group[group.len() - 1];
        let mut tasks = Vec::new();
        for &seed in group {
            tasks.push((seed, tokio::spawn(async move { World::play(kind, seed).await })));
        }
        for (seed, task) in tasks {
            match task.await {
                Ok(Some(count)) => counts.add(&count),
                Ok(None) => return println!("skipped: KVIT_TEST_POSTGRES names no PostgreSQL server"),
                Err(why) => panic!("{kind:?}: seed {seed} (KVIT_TEST_SEED={seed}): {why}"),
            }
        }
    }
    println!("{kind:?}, seeds {}..={last}: {counts:?}", played[0]);
    // A test that never saw one of these shows nothing of it.
    assert!(chosen.is_some() || counts.has_all_kinds(many), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_histories_on_the_store_in_memory() {
    play(Kind::Memory, SEEDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_histories_on_sqlite() {
    play(Kind::Sqlite, SEEDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_histories_on_postgres() {
    play(Kind::Postgres, SEEDS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: the long tier"]
async fn long_durable_histories_on_sqlite() {
    play(Kind::Sqlite, SEEDS_LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: the long tier"]
async fn long_durable_histories_on_postgres() {
    play(Kind::Postgres, SEEDS_LONG).await;
}
