//! Whether a block operation's cost depends on the pool's size: the same work on 1,000 and on 1,000,000 blocks, as a ratio.
//!
//! `cargo bench -p kv`. A scan of the pool anywhere would show as a ratio near 1,000; what remains is the cost of colder memory. Exits with 1
//! above [`RATIO_MAX`].

use std::hint::black_box;
use std::time::Instant;

use kv::{Lease, NodeId, Owner, Pool};
use lifecycle::StepId;

/// Cold memory costs some; a scan would cost 1,000 times.
const RATIO_MAX: f64 = 30.0;
const RUNS: u64 = 20_000;
const CHAIN: u32 = 8;

/// One run: shares what it finds of its chain, computes the rest, holds one private block, leaves behind a fence.
fn one_run(pool: &mut Pool, root: NodeId, run: u64, distinct: u64) {
    let owner = Owner(run);
    let mut leases: Vec<Lease> = Vec::new();
    let mut at = root;
    for depth in 0..CHAIN {
        // A linear congruence, so that chains come back in no simple order.
        let prompt = run.wrapping_mul(2_862_933_555_777_941_757) % distinct;
        let tokens = [depth, prompt as u32];
        let node = match pool.lookup(at, &tokens) {
            Some(found) => {
                leases.extend(pool.acquire(found.node, owner));
                found.node
            }
            None => {
                let (Ok(node), Ok(lease)) = (pool.begin(at, &tokens, owner), pool.allocate(owner)) else { break };
                pool.commit(node, &lease);
                leases.push(lease);
                node
            }
        };
        at = node;
    }
    leases.extend(pool.allocate(owner));
    for lease in leases {
        pool.retire(lease, Some(StepId(run)));
    }
    black_box(pool.fence_completed(StepId(run)));
    black_box((pool.account(), pool.check(), pool.owned_by(owner)).1.is_ok());
}

/// Nanoseconds a run on a full pool, the best of five rounds.
fn measure(blocks: u32) -> f64 {
    let mut pool = Pool::new(blocks, 2);
    let root = pool.root("t", "m", "");
    let distinct = u64::from(blocks / CHAIN) * 2;
    let mut run = 0;
    // Until nothing is free but the private block of the run before: from here on allocations evict.
    while pool.account().free > 1 {
        run += 1;
        one_run(&mut pool, root, run, distinct);
    }
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..RUNS {
            run += 1;
            one_run(&mut pool, root, run, distinct);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / RUNS as f64);
    }
    best
}

fn main() {
    // Test runners start benches too, to ask for their tests; there are none.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let (small, large) = (measure(1_000), measure(1_000_000));
    let ratio = large / small;
    println!(
        "one run of {CHAIN} shared blocks and one private: {small:.0} ns with 1,000 blocks, {large:.0} ns with 1,000,000: {ratio:.1} times"
    );
    if ratio > RATIO_MAX {
        eprintln!("more than {RATIO_MAX} times: some block operation depends on the pool's size");
        std::process::exit(1);
    }
}
