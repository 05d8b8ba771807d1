//! Gateways that do not come back: the lease, and what a new life claims and disclaims.
// contract: C-3, C-9, C-20, C-23

use std::time::Duration;

use lifecycle::Cause;
use lifecycle::event::Event;
use lifecycle::session::SessionConfig;

use super::{Answers, Gateway, Host, Setup, alone};
use crate::harness::{greedy, id};

const PROMPT: [u32; 4] = [9, 2, 6, 5];

fn short_lease() -> Setup {
    let setup = Setup::default();
    Setup { session: SessionConfig { lease: Duration::from_secs(1), ..setup.session }, ..setup }
}

#[test]
fn the_leases_end_orphans_an_attempt_and_gives_its_blocks_back_and_the_gateway_learns_the_truth() {
    let setup = short_lease();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("r", &PROMPT, greedy(450));
    gateway.until("ten tokens", |g| g.tokens("r") >= 10);
    host.until("its run to be suspended", |host| host.suspended("r") > 0);
    host.until("its lease to be over", |host| host.events("r").contains(&Event::Orphaned));
    host.until("its release", |host| host.snapshot().attempts.is_empty());
    let cut = host.snapshot();
    assert_eq!((cut.active, cut.orphaned, cut.free + cut.cached), (0, 0, cut.total));
    assert!(host.steps_while_suspended("r") <= 1);
    assert!(host.steps("r") < 450);
    // The lanes are kept for one more lease.
    gateway.until("the truth", |g| g.is_released("r") || !g.lost.is_empty());
    if gateway.lost.is_empty() {
        assert_eq!(gateway.cause("r"), Some(Cause::Orphaned));
    }
    host.assert_at_rest();
}

#[test]
fn what_nobody_claims_is_shown_as_orphaned_and_a_disclaim_ends_it() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut old = Gateway::connected(&host, "g", 1, setup.session);
    old.submit("r", &PROMPT, greedy(450));
    old.until("ten tokens", |g| g.tokens("r") >= 10);
    let mut new = Gateway::new(&host, "g", 2, setup.session);
    new.answers = Answers::Nothing;
    new.connect().expect("a new life is taken");
    new.until("the question", |g| g.asked.contains(&id("r")));
    // Nothing follows from a new life alone, nor from its silence.
    let cut = host.snapshot();
    assert_eq!((cut.attempts[0].state, cut.orphaned), ("suspended", cut.active));
    assert!(cut.orphaned > 0);
    new.say(lifecycle::message::Down::Disclaim { attempts: vec![id("r")] });
    host.until("its end", |host| host.snapshot().attempts.is_empty());
    let orphaned = host.events("r").into_iter().filter(|event| *event == Event::Orphaned).count();
    assert_eq!(orphaned, 1);
    assert!(host.steps_while_suspended("r") <= 1);
    new.until("everything to be acknowledged", |_| host.sessions().gateways.iter().all(|g| g.waiting == 0));
    host.assert_at_rest();
}

#[test]
fn a_new_life_that_does_not_know_the_old_ones_run_ends_it() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut old = Gateway::connected(&host, "g", 1, setup.session);
    old.submit("r", &PROMPT, greedy(450));
    old.until("ten tokens", |g| g.tokens("r") >= 10);
    let mut new = Gateway::new(&host, "g", 2, setup.session);
    new.answers = Answers::Disclaim;
    new.connect().expect("a new life is taken");
    new.until("its end", |_| host.snapshot().attempts.is_empty());
    assert!(host.events("r").contains(&Event::Orphaned));
    // What the old life says now changes nothing.
    old.cancel("r", Cause::ClientClosed);
    old.pump();
    new.until("everything to be acknowledged", |_| host.sessions().gateways.iter().all(|g| g.waiting == 0));
    host.assert_at_rest();
}

#[test]
fn a_new_life_that_claims_goes_on_with_the_run() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut old = Gateway::connected(&host, "g", 1, setup.session);
    old.submit("r", &PROMPT, greedy(300));
    old.until("ten tokens", |g| g.tokens("r") >= 10);
    let mut new = Gateway::new(&host, "g", 2, setup.session);
    new.answers = Answers::Claim;
    new.connect().expect("a new life is taken");
    let seen = new.released("r");
    assert_eq!(seen.outcome.map(|o| o.cause), Some(Cause::Length));
    let (tokens, steps) = alone(&PROMPT, &greedy(300));
    assert!(tokens.ends_with(&seen.tokens[&0]), "the rest of the run");
    assert_eq!(host.steps("r"), steps);
    host.assert_at_rest();
}

#[test]
fn a_new_life_that_submits_the_same_attempt_waits_for_the_old_ones_release() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut old = Gateway::connected(&host, "g", 1, setup.session);
    old.submit("r", &PROMPT, greedy(400));
    old.until("ten tokens", |g| g.tokens("r") >= 10);
    let mut new = Gateway::new(&host, "g", 2, setup.session);
    new.answers = Answers::Nothing;
    new.connect().expect("a new life is taken");
    new.submit("r", &PROMPT, greedy(20));
    let seen = new.released("r");
    assert_eq!((seen.tokens[&0].clone(), seen.outcome.map(|o| o.cause)), (alone(&PROMPT, &greedy(20)).0, Some(Cause::Length)));
    host.assert_at_rest();
}

#[test]
fn a_gateway_that_is_gone_for_good_is_forgotten() {
    let mut setup = short_lease();
    setup.session.lease = Duration::from_millis(300);
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("r", &PROMPT, greedy(450));
    gateway.until("ten tokens", |g| g.tokens("r") >= 10);
    drop(gateway);
    host.until("it to be forgotten", |host| host.sessions().gateways.is_empty());
    assert_eq!(host.sessions().held.iter().map(|(_, n)| n).sum::<u32>(), 0);
    assert_eq!(host.journal.count(|r| matches!(&r.event, Event::Gateway { state: None, .. })), 1);
    host.assert_at_rest();
}

#[test]
fn a_gateway_that_was_stopped_for_so_long_that_it_was_forgotten_begins_anew() {
    let mut setup = short_lease();
    setup.session.lease = Duration::from_millis(300);
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("r", &PROMPT, greedy(450));
    gateway.until("ten tokens", |g| g.tokens("r") >= 10);
    host.until("it to be forgotten", |host| host.sessions().gateways.is_empty());
    // Its connection was there all the time, and is over now.
    gateway.until("it to see that the worker's lease is over", |g| !g.lost.is_empty());
    host.until("its session to be closed", |host| host.journal.count(|r| matches!(r.event, Event::SessionClosed { .. })) > 0);
    gateway.connect().expect("it is taken");
    gateway.submit("s", &PROMPT, greedy(20));
    assert_eq!(gateway.released("s").tokens[&0], alone(&PROMPT, &greedy(20)).0);
    // What was said while it was known may lie in its connection; that is the truth, too.
    assert!(matches!(gateway.cause("r"), None | Some(Cause::Orphaned)), "{:?}", gateway.cause("r"));
    host.assert_at_rest();
}
