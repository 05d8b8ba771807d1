//! What a worker's account looks like while a bug runs: the cuts along the way on which it is caught, and on the fair way after it.
//!
//! Whoever judges accounts can show with them that it judges by what the cores really do, and not by records that somebody made up.
//!
//! Invariant: each cut is the engine's own, with its blocks; nothing is added and nothing left out.
// contract: C-15

use std::panic::{AssertUnwindSafe, catch_unwind};

use lifecycle::Rules;
use lifecycle::message::Snapshot;

use crate::explore::{self, Action, Found, Scene, Setup, World};

/// Steps on the fair way after a bug has shown itself, at most.
const AFTER: usize = 200;

/// The cuts on the way to a counterexample and, as far as the engine goes on with the bug in it, on the fair way to rest.
pub(super) fn cuts<R: Rules>(setup: &Setup, found: &Found) -> Vec<Snapshot> {
    let scene = Scene::new(setup.clone());
    let mut world = World::<R>::new(&scene);
    let mut cuts = Vec::new();
    for action in &found.path {
        if step(&mut world, *action, &mut cuts).is_none() {
            return cuts;
        }
    }
    for _ in 0..AFTER {
        let Some(action) = world.fair() else { break };
        if step(&mut world, action, &mut cuts).is_none() {
            break;
        }
    }
    cuts
}

/// `None` if the engine stops: a core that sees something impossible does.
fn step<R: Rules>(world: &mut World<R>, action: Action, cuts: &mut Vec<Snapshot>) -> Option<()> {
    explore::quietly(|| catch_unwind(AssertUnwindSafe(|| world.apply(action)))).ok()?;
    cuts.push(world.worker.engine.snapshot(true, &|_| false));
    Some(())
}
