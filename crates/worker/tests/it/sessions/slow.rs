//! A gateway that never reads: it is suspended at its outbox's limit, and its neighbour notices nothing.
// contract: C-10, C-14

use std::time::Duration;

use super::{Gateway, Host, Setup, alone, both};
use crate::harness::greedy;

const PROMPT: [u32; 4] = [8, 2, 8, 4];

#[test]
fn a_gateway_that_never_reads_is_suspended_and_a_neighbour_is_unharmed() {
    let mut setup = Setup::default();
    // Only what it leaves unread can suspend it.
    setup.session.suspend_after = Duration::from_secs(20);
    setup.session.lease = Duration::from_secs(60);
    setup.session.outbox_max = 40;
    setup.session.window = 16;
    setup.grpc.outlet_max = 4;
    let host = Host::new(&setup);
    let mut deaf = Gateway::new(&host, "deaf", 1, setup.session);
    deaf.reads = false;
    deaf.connect().expect("it is taken");
    let mut well = Gateway::connected(&host, "well", 1, setup.session);
    deaf.submit("unread", &[1, 2, 3], greedy(450));
    well.submit("read", &PROMPT, greedy(300));
    both(&mut deaf, &mut well, "the neighbour's end", |_, well| well.is_released("read"));
    let seen = well.seen["read"].clone();
    assert_eq!((seen.tokens[&0].clone(), host.steps("read")), alone(&PROMPT, &greedy(300)));
    assert_eq!((host.suspended("unread"), host.suspended("read")), (1, 0));
    // The limit, what the step in flight had for it, and what was said beside steps.
    let waiting = host.sessions().gateways.iter().find(|g| g.gateway.as_ref() == "deaf").map(|g| g.waiting);
    assert!(waiting.is_some_and(|n| (41..=44).contains(&n)), "{waiting:?}");
    assert!(host.steps_while_suspended("unread") <= 1);
    // It learns to read: everything is there.
    deaf.reads = true;
    deaf.connect().expect("it is taken again");
    let seen = deaf.released("unread");
    assert_eq!((seen.tokens[&0].clone(), host.steps("unread")), alone(&[1, 2, 3], &greedy(450)));
    both(&mut deaf, &mut well, "acknowledgements", |_, _| host.sessions().gateways.iter().all(|g| g.waiting == 0));
    host.assert_at_rest();
}
