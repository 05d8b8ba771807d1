//! What has to end, and what must not hold anybody up: connections that come to nothing, refusals, readers that do not read, closing down.
// contract: C-10

use lifecycle::session::SessionConfig;

use super::world::{Plan, Setup};
use super::{all_stream, ms, runs};

const LINK: &str = "gateway-0>worker-0";

/// Its kernel takes the connection, and the process behind it never says a word.
#[test]
fn a_connection_that_is_taken_and_not_answered_is_given_up_and_tried_again() {
    let mut setup = Setup::new(17, (1, 1), runs(2, 10, 1, 10));
    setup.mute = Some(0);
    let mut world = setup.build();
    world.ms(4_000);
    let (tasks, limit) = (world.stage.gateway_tasks(0), world.stage.wire.hello_timeout);
    assert_eq!(world.stage.tries(LINK), 1);
    world.ms(26_000);
    let tries = world.stage.tries(LINK);
    assert!((5..=1 + 30_000 / limit.as_millis() as u32).contains(&tries), "{tries}\n{}", world.story());
    // What was given up is gone: only the newest is there.
    world.until("nothing is left of the others", 2 * limit.as_millis() as u64, |stage| stage.gateway_tasks(0) <= tasks);
    world.stage.mute(0, false);
    world.sim.crash("worker-0");
    world.sim.bounce("worker-0");
    world.all_settle(10_000);
    (0..2).for_each(|run| world.check_whole(run));
}

/// Not even its kernel answers.
#[test]
fn a_connection_that_does_not_come_about_is_given_up_and_tried_again() {
    let mut world = Setup::new(18, (1, 1), runs(2, 10, 1, 10)).build();
    world.sim.hold("gateway-0", "worker-0");
    world.ms(20_000);
    let tries = world.stage.tries(LINK);
    assert!((7..=11).contains(&tries), "{tries}\n{}", world.story());
    world.sim.release("gateway-0", "worker-0");
    world.all_settle(10_000);
    (0..2).for_each(|run| world.check_whole(run));
}

/// They take every place, and none of them begins: each gives its place back when its time is over.
#[test]
fn connections_on_which_nobody_begins_do_not_keep_a_gateway_out() {
    let mut setup = Setup::new(19, (1, 1), vec![Plan { gateway: 0, at: ms(2_000), cancel: None, cap: 10 }]);
    (setup.strangers, setup.grpc.connections_max) = (4, 4);
    let mut world = setup.build();
    // So that they come first.
    world.sim.partition("gateway-0", "worker-0");
    world.ms(200);
    world.sim.release("gateway-0", "worker-0");
    world.ms(2_800);
    assert!(!world.stage.was_here("gateway-0", 0, 1));
    world.all_settle(20_000);
    world.check_whole(0);
    assert_eq!(world.stage.worker_tasks(0).1, 1, "only the gateway's connection is there\n{}", world.story());
}

#[test]
fn a_gateway_that_reads_nothing_holds_up_nobody_and_loses_nothing() {
    let mut setup = Setup::new(20, (2, 1), runs(8, 10, 2, 100));
    setup.wire.events_max = 8;
    let mut world = setup.build();
    world.until("they stream", 5_000, all_stream);
    world.stage.sleep(0, true);
    world.tell("gateway-0 reads nothing");
    // One token a step of 20 ms, as without it.
    world.until("the other's runs end", 2_500, |stage| (0..8).filter(|run| run % 2 == 1).all(|run| stage.is_settled(run)));
    assert!((0..8).filter(|run| run % 2 == 0).all(|run| !world.stage.is_settled(run)));
    world.stage.sleep(0, false);
    world.all_settle(30_000);
    (0..8).for_each(|run| world.check_whole(run));
    assert_eq!(world.stage.chosen_twice(), 0);
}

#[test]
fn a_gateway_that_is_refused_comes_again_and_not_too_often() {
    let mut setup = Setup::new(23, (2, 1), runs(2, 10, 1, 10));
    setup.session = SessionConfig { gateways_max: 1, ..setup.session };
    let mut world = setup.build();
    world.ms(30_000);
    let tries = ["gateway-0>worker-0", "gateway-1>worker-0"].map(|link| world.stage.tries(link));
    let (taken, refused) = (tries[0].min(tries[1]), tries[0].max(tries[1]));
    assert_eq!(taken, 1);
    // Six within the first second, from then on one every half to whole second.
    assert!((30..=66).contains(&refused), "{refused}");
    let (g, known) = (usize::from(tries[1] > 1), world.stage.worker(0).map(|cut| cut.sessions.gateways.len()));
    assert_eq!(known, Some(1));
    world.until("nothing is left of the refused ones", 1_500, |stage| stage.gateway_tasks(g) == 1);
}

#[test]
fn whoever_closes_leaves_no_task_and_no_connection() {
    let mut world = Setup::new(29, (2, 2), runs(8, 10, 2, 20)).build();
    world.all_settle(10_000);
    assert_eq!(world.stage.worker_tasks(0).1, 2);
    world.stage.stop_gateway(0);
    world.until("nothing is left of its links", 1_000, |stage| stage.gateway_tasks(0) == 0 && stage.worker_tasks(0).1 == 1);
    let tries = world.stage.tries("gateway-1>worker-0");
    world.stage.stop_worker(0);
    world.until("nothing is left of the worker", 3_000, |stage| stage.tasks_left(0) == Some(0));
    world.ms(20_000);
    let tries = world.stage.tries("gateway-1>worker-0") - tries;
    assert!((20..=46).contains(&tries), "{tries}");
    assert_eq!(world.stage.tries("gateway-1>worker-1"), 1);
}

/// Cuts of every kind under load, so that buffers are full when connections are given up: nobody can write a word of farewell.
#[test]
fn connections_that_broke_in_any_way_leave_nothing_behind() {
    let mut plans = runs(24, 500, 1, 60);
    plans.push(Plan { gateway: 0, at: ms(60_000), cancel: None, cap: 10 });
    let mut world = Setup::new(31, (1, 1), plans).build();
    world.ms(100);
    let tasks = world.stage.gateway_tasks(0);
    for i in 0..6 {
        world.ms(600);
        match i % 3 {
            0 => world.sim.partition("gateway-0", "worker-0"),
            1 => world.sim.partition_oneway("gateway-0", "worker-0"),
            _ => world.sim.partition_oneway("worker-0", "gateway-0"),
        }
        world.ms(2_400);
        world.sim.release("gateway-0", "worker-0");
    }
    world.until("all that came before is settled", 50_000, |stage| (0..24).all(|run| stage.is_settled(run)));
    world.until("only the newest connection is there", 30_000, |stage| stage.gateway_tasks(0) == tasks && stage.worker_tasks(0).1 == 1);
    world.all_settle(60_000);
}
