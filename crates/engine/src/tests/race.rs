//! Five want to end one attempt at once, in every order and at every moment: one outcome, one release, and the first to be applied wins.
// contract: C-4, C-6, C-8, C-20
// field: F-28, F-29, F-31, F-47

use lifecycle::{Cause, Time};
use proptest::prelude::*;

use super::simulated::{World, id};
use crate::device::DeviceError;
use crate::{Input, Submission};

/// Who wants the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Racer {
    Closed,
    ByName,
    Deadline,
    StopString,
    Device,
}

const DEADLINE: Time = Time(10_000);

fn run(world: &mut World, racer: Racer) -> Cause {
    match racer {
        Racer::Closed => world.cancel("racer", Cause::ClientClosed),
        Racer::ByName => world.cancel("racer", Cause::CancelRequested),
        Racer::Deadline => {
            world.now = world.now.max(DEADLINE);
            world.apply(Input::Tick);
        }
        Racer::StopString => world.apply(Input::Stop { attempt: id("racer"), sequence: 0 }),
        Racer::Device => {
            world.fill();
            if let Some(done) = world.device.fail_step(DeviceError::Step("simulated".into())) {
                world.apply(Input::StepDone(done));
            }
        }
    }
    match racer {
        Racer::Closed => Cause::ClientClosed,
        Racer::ByName => Cause::CancelRequested,
        Racer::Deadline => Cause::ClientDeadline,
        Racer::StopString => Cause::Stop,
        Racer::Device => Cause::DeviceError,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn released_is_said_once_whoever_wins(
        order in Just(vec![Racer::Closed, Racer::ByName, Racer::Deadline, Racer::StopString, Racer::Device]).prop_shuffle(),
        before in 0usize..12,
        between in prop::collection::vec(0usize..3, 5),
        neighbour in any::<bool>(),
    ) {
        let mut world = World::small(60);
        if neighbour {
            world.submit("neighbour", &[7; 9], 12);
        }
        let s = Submission { stop_tokens: vec![], max_tokens: Some(40), deadlines: vec![(DEADLINE, Cause::ClientDeadline)], ..world.submission("racer") };
        world.start(s, &[3; 30]);
        for _ in 0..before {
            world.step();
        }
        let mut winner = None;
        for (racer, steps) in order.iter().zip(between) {
            let cause = run(&mut world, *racer);
            let seen = world.seen("racer");
            if winner.is_none() && !seen.ended.is_empty() {
                winner = Some(cause);
            }
            prop_assert!(seen.ended.len() <= 1);
            for _ in 0..steps {
                world.step();
            }
        }
        world.finish(200);
        let seen = world.seen("racer");
        prop_assert_eq!(seen.ended.len(), 1);
        prop_assert_eq!(Some(seen.ended[0].cause), winner, "the first to be applied wins");
        prop_assert_eq!((seen.released.len(), seen.released_events), (1, 1));
        for won in &seen.acknowledged {
            prop_assert!(won.is_none() || *won == winner, "whoever comes late hears what won");
        }
        world.assert_at_rest();
    }
}
