//! The accounts of the states that sound cores reach, for whoever judges accounts: none of them is a fault.
//!
//! Invariant: each is the account of a state that the explorer reaches too, in the same order.
// contract: C-15

use std::collections::{HashSet, VecDeque};

use lifecycle::Sound;
use lifecycle::message::Snapshot;

use super::setup::Setup;
use super::world::{Scene, World};

/// Shows the account, with every block, of the nearest states of a setup, so many at most. How many that were.
pub fn accounts(setup: &Setup, states: usize, each: &mut dyn FnMut(&Snapshot)) -> usize {
    let root = World::<Sound>::new(&Scene::new(setup.clone()));
    let mut seen = HashSet::from([root.fingerprint()]);
    let mut next = VecDeque::from([root]);
    while let Some(world) = next.pop_front() {
        each(&world.cut);
        for action in world.choices() {
            let mut then = world.fork();
            then.apply(action);
            if seen.len() < states && seen.insert(then.fingerprint()) {
                next.push_back(then);
            }
        }
    }
    seen.len()
}
