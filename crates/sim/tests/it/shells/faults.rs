//! One fault at a time: cuts shorter and longer than the lease, of one way or both; a worker and a gateway that crash.
// contract: C-3, C-7, C-9, C-10, C-23

use lifecycle::Cause;
use lifecycle::session::SessionConfig;

use super::world::{Plan, Setup, World};
use super::{all_stream, ms, runs};

const CUTS: [&str; 4] = ["hold", "partition", "down", "up"];

fn cut(world: &mut World, kind: &str) {
    let (g, w) = ("gateway-0", "worker-0");
    world.tell(kind);
    match kind {
        "hold" => world.sim.hold(g, w),
        "partition" => world.sim.partition(g, w),
        "down" => world.sim.partition_oneway(g, w),
        _ => world.sim.partition_oneway(w, g),
    }
}

fn heal(world: &mut World) {
    world.tell("heals");
    world.sim.release("gateway-0", "worker-0");
}

#[test]
fn a_cut_shorter_than_the_lease_loses_no_token_and_computes_none_twice() {
    for kind in CUTS {
        let mut world = Setup::new(7, (1, 1), runs(3, 100, 1, 100)).build();
        world.until("they stream", 5_000, all_stream);
        cut(&mut world, kind);
        world.ms(1_500);
        // Nothing is computed for a gateway that is not heard, or that does not hear.
        let before = world.stage.chosen();
        world.ms(500);
        assert_eq!(before, world.stage.chosen(), "{kind}: {}", world.story());
        heal(&mut world);
        world.all_settle(30_000);
        (0..3).for_each(|run| world.check_whole(run));
        assert_eq!(world.stage.chosen_twice(), 0, "{kind}");
        world.rest(1_000);
    }
}

/// What is lost on a connection that carries one way only never comes, however well the network is. The worker goes on speaking, so the gateway
/// has to see that it is not heard: it does long before the lease is over, or the worker's HTTP/2 gives the connection up.
#[test]
fn a_connection_that_carries_nothing_down_is_given_up_although_it_carries_up() {
    let mut setup = Setup::new(7, (1, 1), runs(3, 100, 1, 100));
    setup.session = SessionConfig { lease: ms(4_000), ..setup.session };
    let mut world = setup.build();
    world.until("they stream", 5_000, all_stream);
    cut(&mut world, "down");
    world.ms(200);
    heal(&mut world);
    let quiet = quiet_ms(&world);
    world.until("another connection", 2 * quiet + 500, |stage| stage.tries("gateway-0>worker-0") == 2);
    world.all_settle(10_000);
    (0..3).for_each(|run| world.check_whole(run));
    assert_eq!(world.stage.chosen_twice(), 0);
}

fn quiet_ms(world: &World) -> u64 {
    world.stage.wire.quiet_max.as_millis() as u64
}

#[test]
fn a_cut_longer_than_the_lease_ends_every_run_once_on_both_sides() {
    for kind in CUTS {
        let mut setup = Setup::new(9, (1, 1), runs(3, 100, 1, 400));
        setup.session = SessionConfig { lease: ms(2_000), ..setup.session };
        let mut world = setup.build();
        world.until("they stream", 5_000, all_stream);
        cut(&mut world, kind);
        world.until("the worker has given them up", 3_000, |stage| {
            stage.worker(0).is_some_and(|cut| cut.snapshot.orphaned_attempts == 3 && cut.snapshot.attempts.is_empty())
        });
        world.ms(2_000);
        heal(&mut world);
        world.all_settle(30_000);
        for run in 0..3 {
            let outcome = &world.stage.run(run).outcomes;
            assert!(matches!(outcome[..], [Cause::WorkerLost | Cause::Orphaned]), "{kind}, run {run}: {outcome:?}");
        }
        world.rest(1_000);
        assert_eq!(world.stage.worker(0).map(|cut| cut.snapshot.orphaned_attempts), Some(3), "{kind}");
    }
}

/// By a process that ends, whose kernel says so, and by a power cut, after which nobody says anything.
#[test]
fn of_a_worker_that_crashes_every_run_has_an_outcome_and_its_next_life_is_taken() {
    for power in [false, true] {
        let mut plans = runs(12, 50, 2, 100);
        plans.push(Plan { gateway: 0, at: ms(6_000), cancel: None, cap: 10 });
        plans.push(Plan { gateway: 0, at: ms(6_000), cancel: None, cap: 10 });
        let mut world = Setup::new(11, (2, 2), plans).build();
        world.until("they stream", 5_000, |stage| (0..12).all(|run| stage.run(run).tokens.len() >= 5));
        if power {
            world.sim.partition("worker-0", "gateway-0");
            world.sim.partition("worker-0", "gateway-1");
        }
        world.sim.crash("worker-0");
        world.tell("worker-0 crashes");
        world.ms(700);
        if power {
            world.sim.release("worker-0", "gateway-0");
            world.sim.release("worker-0", "gateway-1");
        }
        world.sim.bounce("worker-0");
        world.all_settle(20_000);
        let (mut lost, mut whole) = (0, 0);
        for run in 0..14 {
            let seen = world.stage.run(run);
            match seen.outcomes[..] {
                [Cause::WorkerLost] => lost += u32::from(seen.settled == [false]),
                _ => whole += 1,
            }
            if seen.outcomes != [Cause::WorkerLost] {
                world.check_whole(run);
            }
        }
        assert!(lost > 0 && lost + whole == 14, "{lost} {whole}\n{}", world.story());
        for gateway in ["gateway-0", "gateway-1"] {
            assert!(world.stage.was_here(gateway, 0, 2), "{gateway}\n{}", world.story());
        }
        world.rest(1_000);
    }
}

#[test]
fn of_a_gateway_that_crashes_every_run_is_orphaned_and_released() {
    for again in [false, true] {
        let mut plans = runs(8, 50, 2, 700);
        plans.push(Plan { gateway: 0, at: ms(3_000), cancel: None, cap: 10 });
        let mut world = Setup::new(13, (2, 1), plans).build();
        world.until("they stream", 5_000, |stage| (0..8).all(|run| stage.run(run).tokens.len() >= 5));
        let orphaned = |world: &World| world.stage.worker(0).map_or(0, |cut| cut.snapshot.orphaned_attempts);
        world.sim.crash("gateway-0");
        world.tell("gateway-0 crashes");
        if again {
            world.ms(500);
            assert_eq!(orphaned(&world), 0);
            world.sim.bounce("gateway-0");
            // Its next life is asked, and says that they are not its own.
            world.until("they are disclaimed", 1_000, |stage| stage.worker(0).is_some_and(|cut| cut.snapshot.orphaned_attempts == 4));
        } else {
            world.ms(9_000);
            assert_eq!(orphaned(&world), 0, "{}", world.story());
            world.until("the lease is over", 1_500, |stage| stage.worker(0).is_some_and(|cut| cut.snapshot.orphaned_attempts == 4));
        }
        let theirs = |run: &usize| run % 2 == 1 || (*run == 8 && again);
        world.until("the others' runs end", 30_000, |stage| (0..9).filter(theirs).all(|run| stage.is_settled(run)));
        (0..9).filter(theirs).for_each(|run| world.check_whole(run));
        assert!((0..8).filter(|run| !theirs(run)).all(|run| world.stage.run(run).outcomes.is_empty()));
        world.rest(1_000);
    }
}
