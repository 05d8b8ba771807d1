//! One case for each way a block may come back too early, twice, or never.

use kv::{BlockId, BlockState, Generation, Lease, Owner, Pool, Refused, Retired};
use lifecycle::StepId;

const A: Owner = Owner(1);
const B: Owner = Owner(2);
const C: Owner = Owner(3);

pub fn take(pool: &mut Pool, owner: Owner) -> Lease {
    pool.allocate(owner).expect("a block is available")
}

/// A block that the index has, held by `owner`.
pub fn filled(pool: &mut Pool, parent: kv::NodeId, tokens: &[u32], owner: Owner) -> (kv::NodeId, Lease) {
    let node = pool.begin(parent, tokens, owner).expect("nobody has it");
    let lease = take(pool, owner);
    assert!(pool.commit(node, &lease));
    (node, lease)
}

fn states(pool: &Pool) -> (u32, u32, u32, u32, u32) {
    assert_eq!(pool.audit(), Ok(()));
    let a = pool.account();
    (a.free, a.active, a.cached, a.draining, a.quarantined)
}

// contract: C-16
// field: F-39
#[test]
fn a_block_is_not_handed_out_before_the_newest_fence_of_all_its_owners() {
    let mut pool = Pool::new(1, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[7], A);
    let b = pool.acquire(node, B).expect("ready");
    assert_eq!(pool.retire(a, Some(StepId(6))), Retired::Shared { owners: 1 });
    // The last to leave names an older step: the newer one counts.
    assert_eq!(pool.retire(b, Some(StepId(5))), Retired::Draining { until: StepId(6) });
    assert_eq!(pool.fence_completed(StepId(5)), 0);
    let exhausted = pool.allocate(C).expect_err("step 6 may still touch the only block");
    assert_eq!((exhausted.draining, exhausted.oldest, pool.available()), (1, Some(StepId(6)), 0));
    assert_eq!(pool.fence_completed(StepId(6)), 1);
    assert_eq!((states(&pool), pool.available()), ((0, 0, 1, 0, 0), 1));
    assert_eq!(take(&mut pool, C).generation(), Generation(2));
}

// contract: C-16
#[test]
fn a_newer_fence_counts_also_when_it_comes_after_an_older_one() {
    let mut pool = Pool::new(1, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[7], A);
    let b = pool.acquire(node, B).expect("ready");
    assert_eq!(pool.retire(a, Some(StepId(5))), Retired::Shared { owners: 1 });
    assert_eq!(pool.retire(b, Some(StepId(6))), Retired::Draining { until: StepId(6) });
    assert_eq!(pool.fence_completed(StepId(5)), 0);
    assert!(pool.allocate(C).is_err(), "step 6 may still touch the only block");
    assert_eq!((pool.fence_completed(StepId(6)), states(&pool)), (1, (0, 0, 1, 0, 0)));
}

// contract: C-16
#[test]
fn a_completed_step_holds_nothing_back_and_completes_all_before_it() {
    let mut pool = Pool::new(3, 1);
    let (a, b, c) = (take(&mut pool, A), take(&mut pool, A), take(&mut pool, A));
    assert_eq!(pool.retire(a, Some(StepId(2))), Retired::Draining { until: StepId(2) });
    assert_eq!(pool.retire(b, Some(StepId(4))), Retired::Draining { until: StepId(4) });
    assert_eq!(pool.fence_completed(StepId(3)), 1);
    assert_eq!(pool.retire(c, Some(StepId(3))), Retired::Free);
    assert_eq!(states(&pool), (2, 0, 0, 1, 0));
}

// contract: C-16
// field: F-36
#[test]
fn late_and_doubled_completions_change_nothing_and_are_counted() {
    let mut pool = Pool::new(1, 1);
    assert_eq!(pool.fence_completed(StepId(3)), 0);
    assert_eq!(pool.account().late_completions, 0, "that one was in time, though no block waited");
    let a = take(&mut pool, A);
    pool.retire(a, Some(StepId(5)));
    for late in [3, 2, 0] {
        assert_eq!(pool.fence_completed(StepId(late)), 0);
    }
    assert_eq!(pool.quarantine(StepId(3)), 0);
    pool.note_late_completion();
    assert_eq!((states(&pool), pool.account().late_completions), ((0, 0, 0, 1, 0), 5));
    assert_eq!(pool.fence_completed(StepId(5)), 1);
    assert_eq!(pool.fence_completed(StepId(5)), 0);
    assert_eq!(pool.account().late_completions, 6);
}

// contract: C-16
// field: F-40
#[test]
fn an_exhausted_pool_says_what_comes_back_by_itself() {
    let mut pool = Pool::new(2, 1);
    let (a, _held) = (take(&mut pool, A), take(&mut pool, B));
    let exhausted = pool.allocate(C).expect_err("both are held");
    assert_eq!((exhausted.draining, exhausted.oldest), (0, None), "waiting does not help: choose a victim");
    pool.retire(a, Some(StepId(1)));
    assert_eq!(pool.allocate(C).expect_err("one drains").draining, 1);
    pool.fence_completed(StepId(1));
    assert_eq!(take(&mut pool, C).block(), BlockId(0));

    // A fence on a block that has another owner brings nothing back either.
    let mut pool = Pool::new(1, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[1], A);
    let _b = pool.acquire(node, B).expect("ready");
    pool.retire(a, Some(StepId(1)));
    let exhausted = pool.allocate(C).expect_err("B holds it");
    assert_eq!((exhausted.draining, exhausted.oldest), (0, None));
}

// contract: C-17
// field: F-62, F-64
#[test]
fn stale_foreign_and_double_releases_change_nothing_and_are_counted_apart() {
    let mut pool = Pool::new(2, 1);
    let old = take(&mut pool, A);
    let (block, generation) = (old.block(), old.generation());
    assert_eq!(pool.release(block, generation, B, None), Err(Refused::Foreign));
    assert_eq!(pool.retire(old, None), Retired::Free);
    assert_eq!(pool.release(block, generation, A, None), Err(Refused::Double));
    assert_eq!(states(&pool), (2, 0, 0, 0, 0));

    let new = take(&mut pool, A);
    assert_eq!((new.block(), new.generation()), (block, Generation(2)));
    assert_eq!(pool.release(block, generation, A, None), Err(Refused::Stale { current: Generation(2) }), "the same owner, an old hand-out");
    assert_eq!(pool.release(block, Generation(3), A, None), Err(Refused::Stale { current: Generation(2) }));
    assert_eq!(pool.release(BlockId(2), Generation(1), A, None), Err(Refused::UnknownBlock));
    assert_eq!(pool.release(BlockId(1), Generation(0), A, None), Err(Refused::Foreign), "never handed out");
    assert_eq!(pool.release(block, Generation(2), A, None), Ok(Retired::Free));
    // The ownership went by name: the lease is worth nothing now, and taking it back is no second release.
    assert_eq!(pool.retire(new, None), Retired::Refused(Refused::Double));
    let a = pool.account();
    assert_eq!((a.stale_releases, a.foreign_releases, a.double_releases), (3, 2, 2));
    assert_eq!((states(&pool), pool.owned_by(A)), ((2, 0, 0, 0, 0), 0));
}

// contract: C-17
#[test]
fn only_the_last_owners_to_leave_are_told_from_foreign_ones() {
    let mut pool = Pool::new(1, 1);
    let root = pool.root("t", "m", "");
    let (node, first) = filled(&mut pool, root, &[0], Owner(0));
    let generation = first.generation();
    pool.retire(first, None);
    for owner in 1..=4 {
        let lease = pool.acquire(node, Owner(owner)).expect("ready");
        pool.retire(lease, None);
    }
    assert_eq!(pool.release(BlockId(0), generation, Owner(1), None), Err(Refused::Double));
    assert_eq!(pool.release(BlockId(0), generation, Owner(0), None), Err(Refused::Foreign));
    // A new hand-out has no past.
    let next = take(&mut pool, Owner(9));
    assert_eq!(pool.release(BlockId(0), next.generation(), Owner(4), None), Err(Refused::Foreign));
}

// contract: C-18
// field: F-47, F-61
#[test]
fn ending_a_run_takes_its_own_ownership_and_no_other() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[1], A);
    let (block, generation) = (a.block(), a.generation());
    let b = pool.acquire(node, B).expect("ready");
    let c = pool.acquire(node, C).expect("ready");
    assert!(pool.acquire(node, B).is_none(), "one owner holds a block once");
    assert_eq!(pool.retire(b, None), Retired::Shared { owners: 2 });
    assert_eq!(pool.release(block, generation, B, None), Err(Refused::Double));
    let view = pool.blocks().find(|v| v.block == block).expect("it is there");
    assert_eq!((view.state, view.owners), (BlockState::Active, vec![A, C]));
    assert_eq!((pool.owned_by(A), pool.owned_by(B), pool.owned_by(C)), (1, 0, 1));
    assert_eq!(pool.retire(a, None), Retired::Shared { owners: 1 });
    assert_eq!(pool.retire(c, None), Retired::Cached);
    assert_eq!(states(&pool), (1, 0, 1, 0, 0));
}

// field: F-58, F-60
#[test]
fn after_many_runs_with_sharing_the_account_is_the_baseline() {
    let mut pool = Pool::new(8, 1);
    let root = pool.root("t", "m", "");
    for run in 0..1_000u64 {
        let owner = Owner(run);
        let (first, second) = ([(run % 3) as u32], [10 + (run % 5) as u32]);
        let mut leases = Vec::new();
        let mut at = root;
        for tokens in [&first[..], &second[..]] {
            let (node, lease) = match pool.lookup(at, tokens) {
                Some(found) => (found.node, pool.acquire(found.node, owner).expect("all are ready")),
                None => filled(&mut pool, at, tokens, owner),
            };
            leases.push(lease);
            at = node;
        }
        leases.push(take(&mut pool, owner));
        assert_eq!(pool.account().active, 3);
        leases.into_iter().for_each(|lease| {
            pool.retire(lease, Some(StepId(run + 1)));
        });
        pool.fence_completed(StepId(run + 1));
        assert_eq!((pool.available(), pool.owned_by(owner), pool.check()), (8, 0, Ok(())));
    }
    assert_eq!(pool.audit(), Ok(()));
}

// field: F-59
#[test]
fn a_failed_growth_leaves_the_earlier_blocks_owned() {
    let mut pool = Pool::new(2, 1);
    let held = [take(&mut pool, A), take(&mut pool, A)];
    assert!(pool.allocate(A).is_err());
    assert_eq!((pool.owned_by(A), states(&pool)), (2, (0, 2, 0, 0, 0)));
    for lease in held {
        assert_eq!(pool.retire(lease, None), Retired::Free);
    }
}

// field: F-34
#[test]
fn an_owner_that_never_had_a_block_leaves_without_a_trace() {
    let mut pool = Pool::new(2, 1);
    let before = pool.account();
    pool.abandon(A);
    assert_eq!((pool.account(), pool.owned_by(A), pool.audit()), (before, 0, Ok(())));
}

#[test]
fn a_dropped_lease_frees_nothing_and_is_found() {
    let mut pool = Pool::new(1, 1);
    drop(take(&mut pool, A));
    assert_eq!((pool.owned_by(A), states(&pool)), (1, (0, 1, 0, 0, 0)));
}

// contract: C-15, C-16
#[test]
fn what_a_lost_step_may_touch_is_quarantined_until_a_reset() {
    let mut pool = Pool::new(4, 1);
    let root = pool.root("t", "m", "");
    let (older, at, newer) = (take(&mut pool, A), take(&mut pool, A), take(&mut pool, A));
    let (node, shared) = filled(&mut pool, root, &[1], A);
    pool.retire(older, Some(StepId(4)));
    pool.retire(at, Some(StepId(5)));
    pool.retire(newer, Some(StepId(6)));
    // It drained behind step 5 and has an owner again.
    pool.retire(shared, Some(StepId(5)));
    let again = pool.acquire(node, B).expect("complete content may be read while it drains");
    assert_eq!(states(&pool), (0, 1, 0, 3, 0));

    assert_eq!(pool.quarantine(StepId(5)), 3);
    assert_eq!(states(&pool), (0, 1, 0, 1, 2));
    assert_eq!(pool.lookup(root, &[1]), None, "nobody else may have it");
    assert_eq!(pool.fence_completed(StepId(5)), 0, "a word that comes after all changes nothing");
    assert_eq!(pool.quarantine(StepId(5)), 0);
    assert_eq!(pool.account().late_completions, 2);
    assert_eq!(pool.retire(again, None), Retired::Quarantined);
    assert_eq!(pool.fence_completed(StepId(6)), 1, "the block of step 4 only");
    assert_eq!(states(&pool), (1, 0, 0, 0, 3));
    let last = take(&mut pool, C);
    assert!(pool.allocate(C).is_err());
    // Step 6 is done, so by number step 5 is; but it was lost.
    assert_eq!(pool.retire(last, Some(StepId(5))), Retired::Quarantined);

    assert_eq!(pool.device_reset(StepId(6)), 4);
    assert_eq!(states(&pool), (4, 0, 0, 0, 0));
    let fresh = take(&mut pool, C);
    assert_eq!(pool.retire(fresh, Some(StepId(5))), Retired::Free, "the reset ended step 5");
}

// contract: C-16, C-18
#[test]
fn a_quarantined_lease_takes_the_block_along_when_the_last_owner_leaves() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[1], A);
    let b = pool.acquire(node, B).expect("ready");
    assert_eq!(pool.quarantine_lease(a), Retired::Shared { owners: 1 });
    assert_eq!((pool.lookup(root, &[1]), pool.acquire(node, C).is_none()), (None, true));
    let view = pool.blocks().next().expect("block 0");
    assert_eq!((view.state, view.condemned, view.owners), (BlockState::Active, true, vec![B]));
    // It may not enter the index again, nor wait for a fence instead.
    let second = pool.begin(root, &[1], B).expect("the node is gone");
    assert!(!pool.commit(second, &b));
    assert_eq!(pool.retire(b, Some(StepId(9))), Retired::Quarantined);
    assert_eq!(pool.fence_completed(StepId(9)), 0);
    assert_eq!(states(&pool), (1, 0, 0, 0, 1));

    let named = take(&mut pool, A);
    pool.release(named.block(), named.generation(), A, None).expect("it stands");
    assert_eq!(pool.quarantine_lease(named), Retired::Refused(Refused::Double), "a lease that no longer stands condemns nothing");
    assert_eq!(states(&pool), (1, 0, 0, 0, 1));
}

// contract: C-15
#[test]
fn a_reset_ends_every_step_up_to_the_newest_and_empties_the_index() {
    let mut pool = Pool::new(3, 1);
    let root = pool.root("t", "m", "");
    let (node, held) = filled(&mut pool, root, &[1], A);
    let (_, cached) = filled(&mut pool, node, &[2], A);
    let drains = take(&mut pool, B);
    pool.retire(cached, None);
    pool.retire(drains, Some(StepId(8)));
    assert_eq!(pool.device_reset(StepId(8)), 0);
    assert_eq!((states(&pool), pool.owned_by(A)), ((2, 1, 0, 0, 0), 1));
    assert_eq!((pool.acquire(node, B).is_none(), pool.begin(root, &[1], A).is_err()), (true, true), "old ids find nothing");
    assert_eq!(pool.fence_completed(StepId(8)), 0);
    assert_eq!(pool.account().late_completions, 1);
    assert_eq!(pool.retire(held, Some(StepId(8))), Retired::Free);
}

// contract: C-16
#[test]
fn steps_lost_too_long_ago_to_remember_stay_distrusted() {
    let mut pool = Pool::new(2, 1);
    for step in 1..=70 {
        pool.quarantine(StepId(2 * step));
        pool.fence_completed(StepId(2 * step + 1));
    }
    let (forgotten, between) = (take(&mut pool, A), take(&mut pool, A));
    assert_eq!(pool.retire(between, Some(StepId(101))), Retired::Free, "a step that completed, between two lost ones");
    assert_eq!(pool.retire(forgotten, Some(StepId(2))), Retired::Quarantined);
    assert_eq!(pool.device_reset(StepId(141)), 1);
    let fresh = take(&mut pool, A);
    assert_eq!(pool.retire(fresh, Some(StepId(2))), Retired::Free, "the reset ended it");
}

#[test]
fn an_empty_pool_is_exhausted_and_adds_up() {
    let mut pool = Pool::new(0, 0);
    assert!(pool.allocate(A).is_err());
    assert_eq!((states(&pool), pool.block_tokens(), pool.total()), ((0, 0, 0, 0, 0), 1, 0));
}

// contract: C-16
#[test]
fn what_drains_is_no_capacity() {
    let mut pool = Pool::new(3, 1);
    let root = pool.root("t", "m", "");
    let (_, cached) = filled(&mut pool, root, &[7], A);
    let (draining, kept) = (take(&mut pool, A), take(&mut pool, B));
    let _ = pool.retire(cached, None);
    let _ = pool.retire(draining, Some(StepId(1)));
    assert_eq!((states(&pool), pool.available(), pool.capacity()), ((0, 1, 1, 1, 0), 1, 1));
    pool.fence_completed(StepId(1));
    assert_eq!((pool.available(), pool.capacity()), (2, 2));
    let _ = pool.retire(kept, None);
}

// contract: C-15
#[test]
fn a_block_is_owned_within_a_set_when_it_has_owners_and_all_are_in_it() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[7], A);
    let block = a.block();
    let within = |pool: &Pool, owners: &[Owner]| pool.is_owned_within(block, &owners.iter().copied().collect());
    assert!(within(&pool, &[A]) && within(&pool, &[A, B]) && !within(&pool, &[B]) && !within(&pool, &[]));
    let b = pool.acquire(node, B).expect("ready");
    assert!(within(&pool, &[A, B]) && within(&pool, &[A, B, C]) && !within(&pool, &[A]) && !within(&pool, &[B, C]));
    let _ = pool.retire(a, None);
    assert!(within(&pool, &[B]) && !within(&pool, &[A]));
    let _ = pool.retire(b, Some(StepId(1)));
    assert!(!within(&pool, &[A, B]), "what drains has no owner");
    assert!(!pool.is_owned_within(BlockId(9), &[A].into()), "the pool has no such block");
}

// contract: C-17
#[test]
fn a_copy_of_a_pool_goes_its_own_way_with_the_forks_of_its_leases() {
    let mut pool = Pool::new(2, 1);
    let (a, b) = (take(&mut pool, A), take(&mut pool, B));
    let mut copy = pool.clone();
    let (a_there, b_there) = (a.fork(), b.fork());
    assert_eq!((a_there.block(), a_there.generation(), a_there.owner()), (a.block(), a.generation(), a.owner()));
    assert_eq!(copy.retire(a_there, None), Retired::Free);
    assert_eq!((states(&pool), states(&copy)), ((0, 2, 0, 0, 0), (1, 1, 0, 0, 0)));
    assert_eq!(pool.retire(b, Some(StepId(1))), Retired::Draining { until: StepId(1) });
    assert_eq!(copy.retire(b_there, None), Retired::Free);
    assert_eq!((states(&pool), states(&copy)), ((0, 1, 0, 1, 0), (2, 0, 0, 0, 0)));
    assert_eq!(pool.retire(a, None), Retired::Free);
}
