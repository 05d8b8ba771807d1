//! `kill -9` of the whole of `kvit serve` at random moments under load, again and again on one store: nothing that a caller was told is
//! untrue afterwards. Every run that was acknowledged is known; an outcome that was told stays; background runs go on to their own end and say
//! again what they had said; what was read by its caller only ends with `worker_lost`; a key has one completed run; no payment is made twice; and
//! no block is missing.
//!
//! `KVIT_TEST_RESTARTS_SEED` repeats a plan (not the moments: those are the machine's), `KVIT_TEST_RESTARTS` says how many lives.
// contract: C-5, C-7, C-15, C-25, C-26, C-27

mod callers;
mod ledger;
mod payments;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use callers::{Caller, Dice, Gone, KEYS, follow, look};
use ledger::Ledger;
use lifecycle::{OutcomeKind, Tenant};
use store::{Effect, RunQuery, StoreConfig, StoredRun};

use crate::outside::Payments;
use crate::server::{PATIENCE, Server, lasting_model, rest};

/// Callers at a time.
const CALLERS: u64 = 10;
/// Longest life in milliseconds, from the moment that it listens.
const LIFE_MAX_MS: u64 = 1200;
/// Runs of the store that are read at once.
const PAGE: usize = 500;

/// No commit is too late here: what a run may go on without while the store is away is another test's.
const OPTIONS: [&str; 8] = ["--log", "error", "--store-patience-ms", "60000", "--max-running", "6", "--threads", "1"];

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// What outlasts every life of the server.
struct World {
    store: PathBuf,
    ledger: Ledger,
    payments: Payments,
    /// Where the payment service listens.
    port: u16,
}

/// A run of the store with its effects.
struct Kept {
    run: StoredRun,
    effects: Vec<Effect>,
}

fn start(world: &World) -> Server {
    let urls = format!("http://127.0.0.1:{}/pay", world.port);
    let outside = ["--tool-urls", &urls, "--tool-timeout-ms", "500", "--store-poll-ms", "50"];
    let place = world.store.to_str().expect("a path");
    Server::start(&lasting_model(), &[&OPTIONS[..], &outside, &["--store", place]].concat())
}

#[test]
fn whatever_was_told_is_true_after_a_dozen_crashes() {
    lives(number("KVIT_TEST_RESTARTS", 12));
}

#[test]
#[ignore = "minutes: the long tier"]
fn long_whatever_was_told_is_true_after_two_hundred_crashes() {
    lives(number("KVIT_TEST_RESTARTS", 200));
}

fn lives(lives: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a calendar");
    let seed = number("KVIT_TEST_RESTARTS_SEED", u64::from(now.subsec_nanos()));
    println!("{lives} lives, KVIT_TEST_RESTARTS_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let (payments, port) = Payments::scripted(payments::script);
    let world = World { store: folder.path().join("runs.db"), ledger: Ledger::default(), payments, port };
    let ledger = &world.ledger;
    let empty = start(&world);
    let baseline = rest(&empty.kv());
    drop(empty);
    for life in 0..lives {
        one_life(&world, seed, life);
        payments::check(ledger, &world.payments);
        ledger.check(&format!("life {life} of seed {seed}"));
        if life % 20 == 19 {
            println!("life {}: {}; {} calls for payments", life + 1, ledger.figures(), world.payments.total());
        }
    }
    let server = start(&world);
    to_the_end(&server, ledger, seed);
    let since = Instant::now();
    while rest(&server.kv()) != baseline {
        assert!(since.elapsed() < PATIENCE, "seed {seed}: {} was {baseline:?}", server.kv());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.terminate(), "a stop in good order");
    let kept = kept(&world.store);
    judge(ledger, &kept);
    let paid = payments::judge(ledger, &world.payments, &kept);
    ledger.check(&format!("at the end of seed {seed}"));
    let attempts = kept.iter().filter(|kept| kept.run.attempt > 1).count();
    let most = kept.iter().map(|kept| kept.run.attempt).max().unwrap_or(0);
    println!("{}; {} runs in the store, {attempts} of them computed again, up to {most} attempts; {paid}", ledger.figures(), kept.len());
    assert!(attempts > 0, "some runs were taken over");
}

/// The server lives for a random time, with callers who never rest, and somebody who looks at what earlier lives left.
fn one_life(world: &World, seed: u64, life: u64) {
    let ledger = &world.ledger;
    let mut dice = Dice::of(seed, life << 8);
    let server = start(world);
    // Now and then at once: while it takes over.
    let length = if dice.roll(5) == 0 { dice.roll(30) } else { dice.roll(LIFE_MAX_MS) };
    let open = ledger.ids(|known| known.outcome.is_none());
    let under_way = AtomicUsize::new(ledger.ids(|known| known.lasts && known.outcome.is_none()).len());
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let name = format!("c{life:04}-{caller}");
            let dice = Dice::of(seed, (life << 8) + caller + 1);
            let caller = Caller { port: server.port, ledger, dice, name, asked: 0, under_way: &under_way, payments: world.port };
            scope.spawn(move || caller.go());
        }
        let port = server.port;
        scope.spawn(move || open.iter().try_for_each(|id| look(port, ledger, id).map(drop)).err());
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(length));
            drop(server); // SIGKILL
        });
    });
}

/// Every run that was acknowledged comes to an end now that the server is left in peace, and all who ask are told the same.
fn to_the_end(server: &Server, ledger: &Ledger, seed: u64) {
    let lives = |told: Result<bool, Gone>| told.unwrap_or_else(|Gone| panic!("seed {seed}: the server is gone"));
    let since = Instant::now();
    let mut open = ledger.ids(|_| true);
    while !open.is_empty() {
        open.retain(|id| !lives(look(server.port, ledger, id)));
        assert!(since.elapsed() < PATIENCE * 3, "seed {seed}: without an end: {} runs, of them {:?}", open.len(), open.first());
    }
    lives(payments::settle(server.port, ledger, seed).map(|()| true));
    for id in ledger.ids(|known| known.kept) {
        lives(follow(server.port, ledger, &id, 0, None).map(|()| true));
        let last = ledger.get(&id, |known| known.events.keys().last().copied()).flatten().unwrap_or(0);
        lives(follow(server.port, ledger, &id, last / 2, None).map(|()| true));
    }
}

/// Everything that is in the store, when nobody has it open.
fn kept(place: &Path) -> Vec<Kept> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = StoreConfig::at(place.to_str().expect("a path").to_owned());
        let store = store::open(&config).await.expect("the store opens");
        let mut all: Vec<Kept> = Vec::new();
        loop {
            let query =
                RunQuery { ended: false, outcome: None, cause: None, after: all.last().map(|kept| kept.run.key.run.clone()), limit: PAGE };
            let page = store.runs(&Tenant::default(), &query).await.expect("the store answers");
            if page.is_empty() {
                return all;
            }
            for run in page {
                // A list is without what was asked for.
                let whole = store.run(&run.key).await.expect("the store answers").expect("it is listed");
                let effects = store.effects(&run.key).await.expect("the store answers");
                all.push(Kept { run: whole, effects });
            }
        }
    })
}

/// What must hold of the runs in the store and of what callers know.
fn judge(ledger: &Ledger, kept: &[Kept]) {
    let mut of_key: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for Kept { run, .. } in kept {
        let id = run.key.run.as_str();
        let Some(outcome) = &run.outcome else {
            ledger.wrong(format!("{id}: has no outcome in the store"));
            continue;
        };
        let (kind, cause) = (outcome.kind(), outcome.cause.as_str());
        let asked = String::from_utf8_lossy(run.request.as_deref().unwrap_or_default()).into_owned();
        let key = (0..KEYS).find(|key| asked.contains(&format!("Key {key}, the same words")));
        if let Some(key) = key.filter(|_| kind == OutcomeKind::Completed) {
            of_key.entry(key).or_default().push(id);
        }
        let Some((lasts, was_cut, unwanted)) = ledger.get(id, |known| (known.lasts, known.was_cut, known.unwanted)) else { continue };
        ledger.ended(id, cause, "the store");
        let expected: &[&str] = match (lasts, was_cut, unwanted) {
            (true, _, false) => &["length"],
            (true, _, true) => &["length", "cancel_requested"],
            (false, true, false) => &["worker_lost"],
            (false, _, false) => &["length", "worker_lost"],
            (false, _, true) => &["length", "worker_lost", "client_closed", "client_reset", "cancel_requested"],
        };
        if !expected.contains(&cause) {
            ledger.wrong(format!("{id}: ended with {cause}, not one of {expected:?}"));
        }
    }
    for (key, ids) in of_key.iter().filter(|(_, ids)| ids.len() > 1) {
        ledger.wrong(format!("key {key} has the completed runs {ids:?}"));
    }
    let known: std::collections::HashSet<&str> = kept.iter().map(|kept| kept.run.key.run.as_str()).collect();
    for id in ledger.ids(|_| true).iter().filter(|id| !known.contains(id.as_str())) {
        ledger.wrong(format!("{id}: was acknowledged and is not in the store"));
    }
}
