//! Sessions that are lost and come back: nothing is lost, nothing comes twice, nothing is computed meanwhile.
// contract: C-9, C-10

use std::time::Duration;

use lifecycle::Cause;
use lifecycle::event::Event;
use lifecycle::session::PeerState;

use super::{Cable, Gateway, Host, Setup, alone};
use crate::harness::greedy;

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

#[test]
fn a_run_goes_over_the_wire_and_reads_as_in_one_process() {
    let setup = Setup { pace: Duration::ZERO, ..Setup::default() };
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("r", &PROMPT, greedy(60));
    let seen = gateway.released("r");
    let (tokens, steps) = alone(&PROMPT, &greedy(60));
    assert_eq!((&seen.tokens[&0], seen.finish[&0], host.steps("r")), (&tokens, Cause::Length, steps));
    let opened = gateway.opened.as_ref().expect("it is open");
    assert_eq!((&*opened.welcome.worker, &*opened.model.id, opened.version), ("w", "tiny", 1));
    host.assert_at_rest();
}

#[test]
fn a_cable_that_is_pulled_for_a_second_costs_no_token_and_no_step() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let cable = Cable::to(&host);
    let mut gateway = Gateway::new(&host, "g", 1, setup.session);
    gateway.addr = cable.addr;
    gateway.connect().expect("it is taken");
    gateway.submit("r", &PROMPT, greedy(400));
    gateway.until("twenty tokens", |g| g.tokens("r") >= 20);
    cable.pull();
    host.until("the worker to suspend it", |host| host.suspended("r") > 0);
    std::thread::sleep(Duration::from_secs(1));
    let (computed, cut) = (host.steps("r"), host.snapshot());
    assert!(computed < 400, "in mid-decode");
    assert_eq!((cut.attempts[0].state, cut.held.steps), ("suspended", 0));
    assert!(cut.active > 0, "it keeps its blocks");
    cable.plug();
    gateway.hang_up();
    gateway.connect().expect("it is taken again");
    let seen = gateway.released("r");
    let (tokens, steps) = alone(&PROMPT, &greedy(400));
    assert_eq!(seen.tokens[&0], tokens, "none lost, none twice");
    assert_eq!(host.steps("r"), steps, "and none computed twice");
    assert!(host.steps_while_suspended("r") <= 1, "{}: the step in flight", host.steps_while_suspended("r"));
    assert_eq!(gateway.lost, Vec::<&str>::new());
    host.assert_at_rest();
}

#[test]
fn a_gateway_that_is_stopped_and_goes_on_has_lost_nothing() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("r", &PROMPT, greedy(300));
    gateway.until("ten tokens", |g| g.tokens("r") >= 10);
    // Its connection stays open; it says nothing. A machine that stood still may have suspended it before.
    std::thread::sleep(setup.session.suspend_after * 2);
    host.until("its run to be suspended, and the step in flight to be over", |host| {
        let cut = host.snapshot();
        cut.held.steps == 0 && cut.attempts.iter().all(|a| a.state == "suspended")
    });
    let computed = host.steps("r");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(host.steps("r"), computed, "nothing is scheduled");
    let seen = gateway.released("r");
    assert_eq!((seen.tokens[&0].clone(), host.steps("r")), alone(&PROMPT, &greedy(300)));
    assert!(host.steps_while_suspended("r") <= 1);
    host.assert_at_rest();
    let stood: Vec<_> = [PeerState::Here, PeerState::Suspended, PeerState::LeaseOver]
        .into_iter()
        .map(|state| host.journal.count(|r| matches!(&r.event, Event::Gateway { state: Some(s), .. } if *s == state)))
        .collect();
    assert!(stood[0] >= 2 && stood[1] >= 1 && stood[2] == 0, "{stood:?}");
}

#[test]
fn a_newer_connection_takes_the_older_ones_place() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("r", &PROMPT, greedy(200));
    for _ in 0..5 {
        let before = gateway.tokens("r");
        gateway.until("some tokens", |g| g.tokens("r") >= (before + 10).min(200));
        gateway.connect().expect("it is taken");
    }
    let seen = gateway.released("r");
    assert_eq!((seen.tokens[&0].clone(), host.steps("r")), alone(&PROMPT, &greedy(200)));
    assert_eq!(host.journal.count(|r| matches!(r.event, Event::SessionOpened { .. })), 6);
    host.assert_at_rest();
}
