//! A gateway's side against a worker that a test speaks for: what it says, when, and what it makes of an answer.

use std::time::Duration;

use lifecycle::message::{Down, Receipt, Up};
use lifecycle::session::{Frame, GatewayEffect, GatewaySide, LinkState, SessionConfig, Welcome};
use lifecycle::{AttemptId, Cause, Incarnation, RunId, RunKey, Tenant, Time};

const ME: Incarnation = Incarnation(9);
const NOW: Time = Time(1_000_000);
const MS: Duration = Duration::from_millis(1);

fn id(name: &str) -> AttemptId {
    AttemptId { key: RunKey { tenant: Tenant::default(), run: RunId::parse(name).expect("a test's id is valid") }, attempt: 1 }
}

fn welcome(worker: &str, life: u128, tenure: u64) -> Welcome {
    Welcome { worker: worker.into(), incarnation: Incarnation(life), tenure, received: 0, lease: Duration::ZERO, stamp: NOW }
}

/// In a session with the life 1 of `w`, everything said.
fn open() -> GatewaySide {
    let mut side = GatewaySide::new("g".into(), ME, SessionConfig::default());
    assert_eq!(side.state(), LinkState::Away);
    let _ = side.hello(NOW);
    assert_eq!(sent(&side.welcome(&welcome("w", 1, 1), NOW)), [0]);
    side
}

fn frame(number: u64, message: Option<Up>) -> Frame<Up> {
    Frame { from: Incarnation(1), to: ME, tenure: 1, number, received: 0, missing: false, stamp: NOW, echo: None, message }
}

fn released(name: &str) -> Option<Up> {
    Some(Up::Released { attempt: id(name), receipt: Receipt::default() })
}

fn cancel(name: &str) -> Down {
    Down::Cancel { attempt: id(name), cause: Cause::ClientClosed, number: 1, observed_ago: MS }
}

/// The numbers of the frames that go out; 0 for one without a message.
fn sent(effects: &[GatewayEffect]) -> Vec<u64> {
    let number = |effect: &GatewayEffect| match effect {
        GatewayEffect::Send(frame) => Some(frame.number),
        _ => None,
    };
    effects.iter().filter_map(number).collect()
}

/// Why life `life` is lost, and why the connection is closed, as far as they are.
fn whys(effects: &[GatewayEffect]) -> Vec<(Option<Incarnation>, &'static str)> {
    let why = |effect: &GatewayEffect| match effect {
        GatewayEffect::Lost { incarnation, why } => Some((Some(*incarnation), *why)),
        GatewayEffect::Close { why } => Some((None, *why)),
        _ => None,
    };
    effects.iter().filter_map(why).collect()
}

// contract: C-10
#[test]
fn a_link_is_silent_after_a_while_here_when_it_is_heard_and_away_when_its_lease_is_over() {
    let mut side = open();
    let config = SessionConfig::default();
    assert_eq!(side.state(), LinkState::Here);
    side.closed();
    // Nothing is to be said on no connection: the next thing is that it is silent, then that it is lost.
    let silent = NOW.after(config.suspend_after);
    assert_eq!(side.next_due(), Some(silent));
    assert!(side.tick(Time(silent.0 - 1)).is_empty() && side.state() == LinkState::Here);
    assert!(matches!(side.tick(silent)[..], [GatewayEffect::Silent]));
    assert_eq!(side.state(), LinkState::Silent);
    let lost = NOW.after(config.lease).after(SessionConfig::clock_error(config.lease));
    assert_eq!(side.next_due(), Some(lost));
    let _ = side.hello(silent);
    let back = side.welcome(&welcome("w", 1, 1), silent);
    assert!(matches!(back[0], GatewayEffect::Back) && side.state() == LinkState::Here, "{back:?}");
    assert_eq!(side.next_due(), Some(silent.after(config.heartbeat)));
    side.closed();
    let lost = lost.after(config.suspend_after);
    assert!(whys(&side.tick(Time(lost.0 - 1))).is_empty());
    assert_eq!(whys(&side.tick(lost)), [(Some(Incarnation(1)), "its lease ran out"), (None, "its lease ran out")]);
    assert_eq!((side.state(), side.next_due()), (LinkState::Away, None));
}

// contract: C-3, C-20
#[test]
fn whose_answer_ends_what_and_why() {
    // Another worker answers at the address of one that has a lease: nothing follows for the first.
    let mut side = open();
    let _ = side.hello(NOW);
    let closed = [(None, "a worker of another name answers; the one before it has a lease")];
    assert_eq!(whys(&side.welcome(&welcome("other", 2, 2), NOW)), closed);
    assert_eq!((side.worker(), side.state()), (Some(Incarnation(1)), LinkState::Here));
    // The same life with another tenure; a newer one; an older one.
    let mut side = open();
    let _ = side.hello(NOW);
    assert_eq!(whys(&side.welcome(&welcome("w", 1, 2), NOW)), [(Some(Incarnation(1)), "the worker holds nothing of us any more")]);
    let _ = side.hello(NOW);
    assert_eq!(whys(&side.welcome(&welcome("w", 5, 3), NOW)), [(Some(Incarnation(1)), "a newer life answers")]);
    let _ = side.hello(NOW);
    assert_eq!(whys(&side.welcome(&welcome("w", 1, 4), NOW)), [(None, "an older life of the worker answers")]);
    assert_eq!((side.worker(), side.stale()), (Some(Incarnation(5)), 1));
}

#[test]
fn a_message_is_acknowledged_by_one_frame_and_a_heartbeat_by_none() {
    let mut side = open();
    assert!(side.hear(frame(0, None), NOW).is_empty(), "else two would keep each other talking");
    assert!(side.tick(NOW).is_empty(), "nothing is due");
    let effects = side.hear(frame(1, released("r")), NOW);
    assert!(matches!(effects[..], [GatewayEffect::Deliver(_), GatewayEffect::Send(_)]), "{effects:?}");
    assert!(side.tick(NOW).is_empty(), "once");
    // What is said anyway acknowledges as well.
    let (was_sent, effects) = side.send(cancel("s"), NOW);
    assert_eq!((was_sent, sent(&effects)), (true, vec![1]));
    let heartbeat = NOW.after(SessionConfig::default().heartbeat);
    assert!(side.tick(Time(heartbeat.0 - 1)).is_empty());
    assert_eq!(sent(&side.tick(heartbeat)), [0]);
}
