//! The prefix index: what is shared, with whom, when, and which cached block goes first.

use kv::prefix::IDLE_ROOTS_MAX;
use kv::{BeginError, BlockId, Found, Lease, NodeId, NodeState, Owner, Pool, Retired};
use lifecycle::StepId;

use crate::cases::{filled, take};

const A: Owner = Owner(1);
const B: Owner = Owner(2);

/// A chain of one-token blocks, all held by `owner`.
fn chain(pool: &mut Pool, from: NodeId, tokens: &[u32], owner: Owner) -> (Vec<NodeId>, Vec<Lease>) {
    let mut at = from;
    let made: Vec<(NodeId, Lease)> = tokens
        .iter()
        .map(|t| {
            let (node, lease) = filled(pool, at, &[*t], owner);
            at = node;
            (node, lease)
        })
        .collect();
    made.into_iter().unzip()
}

fn retire_all(pool: &mut Pool, leases: impl IntoIterator<Item = Lease>) -> Vec<BlockId> {
    leases
        .into_iter()
        .map(|lease| {
            let block = lease.block();
            assert_eq!(pool.retire(lease, None), Retired::Cached);
            block
        })
        .collect()
}

/// The order in which all cached blocks are handed out.
fn eviction_order(pool: &mut Pool) -> Vec<BlockId> {
    assert_eq!(pool.account().free, 0);
    (0..pool.available())
        .map(|_| {
            let block = take(pool, Owner(99)).block();
            assert_eq!(pool.audit(), Ok(()));
            block
        })
        .collect()
}

// contract: C-21
#[test]
fn tenant_model_and_salt_are_compared_whole() {
    let mut pool = Pool::new(1, 1);
    let root = pool.root("ab", "c", "d");
    let (node, _lease) = filled(&mut pool, root, &[1], A);
    for (tenant, model, salt) in [("a", "bc", "d"), ("ab", "cd", ""), ("ab", "c", ""), ("ab", "c", "e"), ("b", "c", "d"), ("ab", "d", "d")]
    {
        let other = pool.root(tenant, model, salt);
        assert_ne!(other, root);
        assert_eq!(pool.lookup(other, &[1]), None);
    }
    assert_eq!(pool.root("ab", "c", "d"), root);
    assert_eq!(pool.lookup(root, &[1]), Some(Found { node, state: NodeState::Ready(BlockId(0)) }));
}

// contract: C-19
#[test]
fn equal_tokens_after_other_tokens_are_another_node() {
    let mut pool = Pool::new(4, 2);
    let root = pool.root("t", "m", "");
    let (one, _a) = filled(&mut pool, root, &[1, 1], A);
    let (two, _b) = filled(&mut pool, root, &[2, 2], A);
    let (after_one, _c) = filled(&mut pool, one, &[3, 3], A);
    assert_eq!(pool.lookup(two, &[3, 3]), None);
    let (after_two, _d) = filled(&mut pool, two, &[3, 3], A);
    assert_ne!(after_one, after_two);
    assert_eq!(pool.lookup(one, &[3, 3]).map(|f| f.node), Some(after_one));
    for other in [&[3, 4][..], &[3], &[3, 3, 3], &[]] {
        assert_eq!(pool.lookup(one, other), None);
    }
}

// contract: C-19
// field: F-43
#[test]
fn nothing_is_served_before_every_layer_of_the_rows_completed() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let node = pool.begin(root, &[1], A).expect("nobody has it");
    let computing = Found { node, state: NodeState::Computing { by: A } };
    assert_eq!(pool.lookup(root, &[1]), Some(computing));
    assert!(pool.acquire(node, B).is_none() && pool.acquire(root, B).is_none());
    assert_eq!(pool.begin(root, &[1], B), Err(BeginError::Exists(computing)));
    let lease = take(&mut pool, A);
    assert!(pool.commit(node, &lease));
    assert_eq!(pool.acquire(node, B).map(|l| l.block()), Some(lease.block()));
    assert!(!pool.commit(node, &lease), "once");
}

// contract: C-19
#[test]
fn only_the_owner_that_computes_a_node_makes_it_ready_and_only_with_a_standing_private_block() {
    let mut pool = Pool::new(4, 1);
    let root = pool.root("t", "m", "");
    let node = pool.begin(root, &[1], A).expect("nobody has it");
    let below = pool.begin(node, &[2], A).expect("nobody has it");
    let (of_a, of_b, gone) = (take(&mut pool, A), take(&mut pool, B), take(&mut pool, A));
    assert!(!pool.commit(node, &of_b), "another's");
    pool.release(gone.block(), gone.generation(), A, None).expect("it stands");
    assert!(!pool.commit(node, &gone), "released by name");
    assert!(!pool.commit(below, &of_a), "its parent is not complete");
    assert!(pool.commit(node, &of_a));
    assert!(!pool.commit(below, &of_a), "the block is another node's already");
    let second = take(&mut pool, A);
    assert!(pool.commit(below, &second));
    assert_eq!((pool.pending(), pool.audit()), (0, Ok(())));
}

// contract: C-19
// field: F-61
#[test]
fn a_follower_takes_over_and_the_first_leaders_equal_block_stays_private() {
    let mut pool = Pool::new(3, 1);
    let root = pool.root("t", "m", "");
    let lost = pool.begin(root, &[1], A).expect("nobody has it");
    let lost_below = pool.begin(lost, &[2], B).expect("built on what A computes");
    let a = take(&mut pool, A);
    pool.abandon(A);
    assert_eq!((pool.lookup(root, &[1]), pool.pending()), (None, 0));
    let (node, b) = filled(&mut pool, root, &[1], B);
    assert!(!pool.commit(lost, &a) && !pool.commit(lost_below, &b));
    // The reference is on the node's own block, and evicting or retiring the duplicate touches nobody.
    let own = b.block();
    assert_eq!(pool.acquire(node, A).map(|l| l.block()), Some(own));
    assert_eq!(pool.retire(a, None), Retired::Free);
    assert_eq!(pool.lookup(root, &[1]), Some(Found { node, state: NodeState::Ready(own) }));
    assert_eq!(pool.audit(), Ok(()));
}

// contract: C-19
#[test]
fn an_owner_whose_last_block_is_retired_computes_nothing_for_others() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let (first, second) = (take(&mut pool, A), take(&mut pool, A));
    pool.begin(root, &[1], A).expect("nobody has it");
    pool.retire(first, None);
    assert_eq!(pool.pending(), 1);
    pool.retire(second, Some(StepId(1)));
    assert_eq!((pool.pending(), pool.lookup(root, &[1])), (0, None));
}

// contract: C-16, C-19
#[test]
fn a_draining_block_is_shared_again_and_keeps_its_fence() {
    let mut pool = Pool::new(1, 1);
    let root = pool.root("t", "m", "");
    let (node, a) = filled(&mut pool, root, &[1], A);
    pool.retire(a, Some(StepId(3)));
    let b = pool.acquire(node, B).expect("complete");
    assert_eq!(pool.account().draining, 0);
    assert_eq!(pool.retire(b, None), Retired::Draining { until: StepId(3) }, "B's leaving does not end what A's step may do");
    let b = pool.acquire(node, B).expect("complete");
    assert_eq!(pool.fence_completed(StepId(3)), 0, "it does not drain, it is owned");
    assert_eq!(pool.retire(b, None), Retired::Cached);
    assert_eq!(pool.audit(), Ok(()));
}

// field: F-63
#[test]
fn chains_go_oldest_first_and_from_the_end_whatever_the_order_of_retiring() {
    for reversed in [false, true] {
        let mut pool = Pool::new(6, 1);
        let root = pool.root("t", "m", "");
        let (_, old) = chain(&mut pool, root, &[1, 2, 3], A);
        let (_, new) = chain(&mut pool, root, &[4, 5, 6], B);
        let mut expected: Vec<BlockId> = old.iter().rev().map(Lease::block).collect();
        expected.extend(new.iter().rev().map(Lease::block));
        for mut leases in [old, new] {
            if reversed {
                leases.reverse();
            }
            retire_all(&mut pool, leases);
        }
        assert_eq!(eviction_order(&mut pool), expected, "reversed: {reversed}");
    }
}

#[test]
fn what_was_used_again_goes_last_and_takes_its_beginning_along() {
    let mut pool = Pool::new(5, 1);
    let root = pool.root("t", "m", "");
    let (nodes, leases) = chain(&mut pool, root, &[1, 2, 3], A);
    let first = retire_all(&mut pool, leases);
    let (_, leases) = chain(&mut pool, root, &[4, 5], B);
    let second = retire_all(&mut pool, leases);
    // The first chain's beginning is used once more, its end is not.
    let again = pool.acquire(nodes[0], B).expect("ready");
    retire_all(&mut pool, [again]);
    assert_eq!(eviction_order(&mut pool), [first[2], first[1], second[1], second[0], first[0]]);
}

#[test]
fn a_lookup_does_not_count_as_use() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let (_, a) = filled(&mut pool, root, &[1], A);
    let (_, b) = filled(&mut pool, root, &[2], A);
    let blocks = retire_all(&mut pool, [a, b]);
    assert!(pool.lookup(root, &[1]).is_some());
    assert_eq!(eviction_order(&mut pool), blocks);
}

// field: F-63
#[test]
fn a_beginning_goes_before_a_used_end_only_when_nothing_else_is_left_and_leaves_no_garbage() {
    let mut pool = Pool::new(4, 1);
    let root = pool.root("t", "m", "");
    let (nodes, mut leases) = chain(&mut pool, root, &[1, 2, 3], A);
    let held = leases.pop().expect("three");
    let (_, other) = filled(&mut pool, root, &[9], B);
    retire_all(&mut pool, leases);
    let other = retire_all(&mut pool, [other]);
    assert_eq!(take(&mut pool, B).block(), other[0], "a leaf first, though it was used last");
    assert_eq!((pool.account().cached, pool.available()), (2, 2));
    // The next victim has a block in use below it: both cached blocks leave, and what is held stays held, private.
    let _ = take(&mut pool, B);
    assert_eq!((pool.account().cached, pool.account().free, pool.available()), (0, 1, 1));
    assert!(nodes.iter().all(|node| pool.acquire(*node, B).is_none()));
    assert_eq!(pool.begin(nodes[2], &[4], A), Err(BeginError::NoParent));
    let _ = take(&mut pool, B);
    assert!(pool.allocate(B).is_err(), "the block in use was not handed out");
    assert_eq!(pool.retire(held, None), Retired::Free);
    assert_eq!(pool.audit(), Ok(()));
}

// Two pools that were told the same do the same, though each map of theirs hashes with its own seed.
#[test]
fn what_leaves_the_index_together_is_handed_out_in_the_same_order_everywhere() {
    let order = || {
        let mut pool = Pool::new(32, 1);
        let root = pool.root("t", "m", "");
        for token in 0..32 {
            let (_, lease) = filled(&mut pool, root, &[token], A);
            retire_all(&mut pool, [lease]);
        }
        pool.device_reset(StepId(0));
        (0..32).map(|_| take(&mut pool, B).block()).collect::<Vec<_>>()
    };
    assert_eq!(order(), order());
}

#[test]
fn nodes_being_computed_are_as_many_as_blocks_at_most() {
    let mut pool = Pool::new(2, 2);
    let root = pool.root("t", "m", "");
    assert_eq!(pool.begin(root, &[1], A), Err(BeginError::NotABlock { given: 1, block_tokens: 2 }));
    assert!(pool.begin(root, &[1, 1], A).is_ok() && pool.begin(root, &[2, 2], A).is_ok());
    assert_eq!(pool.begin(root, &[3, 3], B), Err(BeginError::Full { limit: 2 }));
    pool.abandon(A);
    assert!(pool.begin(root, &[3, 3], B).is_ok());
}

// contract: C-21
#[test]
fn roots_without_nodes_are_dropped_oldest_first_and_those_with_nodes_never() {
    let mut pool = Pool::new(1, 1);
    let kept = pool.root("kept", "m", "");
    let (node, lease) = filled(&mut pool, kept, &[1], A);
    let first = pool.root("0", "m", "");
    for tenant in 1..IDLE_ROOTS_MAX {
        pool.root(&tenant.to_string(), "m", "");
    }
    assert_eq!((pool.root("0", "m", ""), pool.audit()), (first, Ok(())));
    pool.root("one more", "m", "");
    assert_eq!(pool.begin(first, &[1], A), Err(BeginError::NoParent));
    assert_eq!(pool.audit(), Ok(()));
    assert_ne!(pool.root("0", "m", ""), first, "an id is never used again");
    assert_eq!(pool.lookup(kept, &[1]).map(|f| f.node), Some(node));
    // Its last node goes: it is idle like the others now, and the newest of them.
    pool.retire(lease, None);
    let _ = take(&mut pool, B);
    assert_eq!((pool.root("kept", "m", ""), pool.lookup(kept, &[1]), pool.audit()), (kept, None, Ok(())));
    for tenant in 0..IDLE_ROOTS_MAX {
        pool.root(&format!("other {tenant}"), "m", "");
    }
    assert_ne!(pool.root("kept", "m", ""), kept);
}

#[test]
fn blocks_that_wait_for_one_step_go_in_the_order_in_which_they_began_to_wait() {
    let mut pool = Pool::new(2, 1);
    let root = pool.root("t", "m", "");
    let (node, first) = filled(&mut pool, root, &[1], A);
    let (_, second) = filled(&mut pool, root, &[2], A);
    let again = pool.acquire(node, B).expect("ready");
    let blocks = [first.block(), second.block()];
    for lease in [first, second, again] {
        pool.retire(lease, Some(StepId(5)));
    }
    assert_eq!(pool.fence_completed(StepId(5)), 2);
    assert_eq!(eviction_order(&mut pool), blocks);
}
