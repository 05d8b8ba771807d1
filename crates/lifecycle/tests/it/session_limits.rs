//! A worker's side against a gateway that breaks the rules: it gets nothing twice, and it fills no memory.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::{Down, Prompt, Submit, Up};
use lifecycle::params::Params;
use lifecycle::session::{Echo, Frame, Hello, SessionConfig, WorkerEffect, WorkerSide};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, RunId, RunKey, Tenant, Time};

const WORKER: Incarnation = Incarnation(7);
const NOW: Time = Time(1_000);

fn id(name: &str) -> AttemptId {
    AttemptId { key: RunKey { tenant: Tenant::default(), run: RunId::parse(name).expect("a test's id is valid") }, attempt: 1 }
}

fn submit(name: &str, number: u64) -> Down {
    let (prompt, params) = (Prompt::Tokens(vec![1]), Params::default());
    Down::Submit(Box::new(Submit { attempt: id(name), worker: WORKER, number, model: "".into(), prompt, params, deadlines: Vec::new() }))
}

/// A gateway that says what a test wants.
struct Talker {
    life: Incarnation,
    session: u64,
    tenure: u64,
    number: u64,
}

impl Talker {
    fn new(life: u128) -> Talker {
        Talker { life: Incarnation(life), session: 0, tenure: 0, number: 0 }
    }

    fn open(&mut self, side: &mut WorkerSide) -> Vec<WorkerEffect> {
        self.session += 1;
        let hello = Hello {
            gateway: "g".into(),
            incarnation: self.life,
            session: self.session,
            resume: None,
            received: 0,
            lease: Duration::ZERO,
            stamp: NOW,
        };
        let (welcome, effects) = side.hello(&hello, NOW).expect("it is taken");
        (self.tenure, self.number) = (welcome.tenure, 0);
        effects
    }

    fn say(&mut self, side: &mut WorkerSide, message: Down) -> Vec<WorkerEffect> {
        self.number += 1;
        let echo = Some(Echo { stamp: NOW, held: Duration::ZERO });
        let (from, to, tenure, number) = (self.life, WORKER, self.tenure, self.number);
        let frame = Frame { from, to, tenure, number, received: 0, missing: false, stamp: NOW, echo, message: Some(message) };
        side.hear("g", frame, NOW)
    }
}

fn submitted(effects: &[WorkerEffect]) -> usize {
    effects.iter().filter(|e| matches!(e, WorkerEffect::Submit(_))).count()
}

fn end(side: &mut WorkerSide, name: &str) {
    side.said(Up::Ended { attempt: id(name), outcome: Outcome::of(Cause::Length), usage: Default::default() }, NOW);
    side.said(Up::Released { attempt: id(name), receipt: Default::default() }, NOW);
}

// contract: C-2
#[test]
fn a_submit_that_was_executed_is_not_executed_under_a_new_number_of_its_lane() {
    let mut side = WorkerSide::new(Arc::from("w"), WORKER, SessionConfig::default());
    let mut gateway = Talker::new(1);
    gateway.open(&mut side);
    assert_eq!(submitted(&gateway.say(&mut side, submit("r", 1))), 1);
    end(&mut side, "r");
    let again = gateway.say(&mut side, submit("r", 1));
    assert_eq!((submitted(&again), again.iter().any(|e| matches!(e, WorkerEffect::Stale)), side.stale()), (0, true, 1));
    // Nor in a further tenure of the same life.
    gateway.open(&mut side);
    assert_eq!(submitted(&gateway.say(&mut side, submit("r", 1))), 0);
    assert_eq!(submitted(&gateway.say(&mut side, submit("s", 2))), 1);
}

#[test]
fn of_a_gateway_that_takes_no_answers_nothing_more_is_taken() {
    let config = SessionConfig { outbox_max: 10, ..SessionConfig::default() };
    let mut side = WorkerSide::new(Arc::from("w"), WORKER, config);
    let mut gateway = Talker::new(1);
    gateway.open(&mut side);
    for _ in 0..1000 {
        // Each is acknowledged by a message; it reads none of them.
        gateway.say(&mut side, Down::Cancel { attempt: id("gone"), cause: Cause::ClientClosed, number: 0, observed_ago: Duration::ZERO });
    }
    let waiting = side.gateways()[0].waiting;
    assert!((11..=22).contains(&waiting), "{waiting}");
}

// contract: C-10, C-23
#[test]
fn what_a_suspended_gateway_claims_is_attached_with_it() {
    let config = SessionConfig { outbox_max: 2, ..SessionConfig::default() };
    let mut side = WorkerSide::new(Arc::from("w"), WORKER, config);
    let mut first = Talker::new(1);
    first.open(&mut side);
    first.say(&mut side, submit("r", 1));
    let mut second = Talker::new(2);
    second.open(&mut side);
    for _ in 0..3 {
        second.say(&mut side, Down::Cancel { attempt: id("x"), cause: Cause::ClientClosed, number: 0, observed_ago: Duration::ZERO });
    }
    side.tick(NOW);
    assert_eq!(side.gateways()[0].state, "suspended");
    let claimed = second.say(&mut side, Down::Claim { attempts: vec![id("r")] });
    assert!(!claimed.iter().any(|e| matches!(e, WorkerEffect::Attach(_))), "{claimed:?}");
    assert!(!side.is_orphaned(&id("r")));
}
