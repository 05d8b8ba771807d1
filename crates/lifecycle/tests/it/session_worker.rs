//! A worker's side against gateways that a test speaks for: what a look at the clock decides, and when the next is due.
//!
//! Nothing here carries effects out: the test reads them, and says what an engine would say.

use std::time::Duration;

use lifecycle::message::{Down, Prompt, Receipt, Submit, Up, Usage};
use lifecycle::params::Params;
use lifecycle::session::{Echo, Frame, Hello, SessionConfig, WorkerEffect, WorkerSide};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, RunId, RunKey, Tenant, Time};

const WORKER: Incarnation = Incarnation(7);
const NOW: Time = Time(1_000_000);
const MS: Duration = Duration::from_millis(1);

fn id(name: &str) -> AttemptId {
    AttemptId { key: RunKey { tenant: Tenant::default(), run: RunId::parse(name).expect("a test's id is valid") }, attempt: 1 }
}

fn submit(name: &str, number: u64) -> Down {
    let (prompt, params) = (Prompt::Tokens(vec![1]), Params::default());
    Down::Submit(Box::new(Submit { attempt: id(name), worker: WORKER, number, model: "".into(), prompt, params, deadlines: Vec::new() }))
}

/// A cancel from a gateway that did not submit it.
fn cancel(name: &str) -> Down {
    cancel_of(name, 0)
}

fn cancel_of(name: &str, number: u64) -> Down {
    Down::Cancel { attempt: id(name), cause: Cause::ClientClosed, number, observed_ago: MS }
}

fn worker(config: SessionConfig) -> WorkerSide {
    WorkerSide::new("w".into(), WORKER, config)
}

/// A gateway that says what a test wants and acknowledges what it is told to.
struct Talker {
    name: &'static str,
    life: Incarnation,
    session: u64,
    tenure: u64,
    number: u64,
}

impl Talker {
    /// A life of a gateway, in a session from `now` on.
    fn open(side: &mut WorkerSide, name: &'static str, life: u128, now: Time) -> Talker {
        let mut talker = Talker { name, life: Incarnation(life), session: 1, tenure: 0, number: 0 };
        let hello = Hello {
            gateway: name.into(),
            incarnation: talker.life,
            session: 1,
            resume: None,
            received: 0,
            lease: Duration::ZERO,
            stamp: now,
        };
        talker.tenure = side.hello(&hello, now).expect("there is room").0.tenure;
        talker
    }

    fn frame(&self, number: u64, message: Option<Down>, received: u64, now: Time) -> Frame<Down> {
        let echo = Some(Echo { stamp: now, held: Duration::ZERO });
        Frame { from: self.life, to: WORKER, tenure: self.tenure, number, received, missing: false, stamp: now, echo, message }
    }

    /// Says something, and that it has got nothing yet.
    fn say(&mut self, side: &mut WorkerSide, message: Down, now: Time) -> Vec<WorkerEffect> {
        self.number += 1;
        side.hear(self.name, self.frame(self.number, Some(message), 0, now), now)
    }

    /// A sign of life, which acknowledges every message up to this one.
    fn beat(&self, side: &mut WorkerSide, received: u64, now: Time) -> Vec<WorkerEffect> {
        side.hear(self.name, self.frame(0, None, received, now), now)
    }

    fn close(&self, side: &mut WorkerSide) {
        side.closed(self.name, self.session);
    }
}

/// What is done with attempts, in words, and which messages go to whom.
fn words(effects: &[WorkerEffect]) -> Vec<String> {
    let word = |effect: &WorkerEffect| match effect {
        WorkerEffect::Send { gateway, frame, .. } => {
            frame.message.as_ref().map(|message| format!("to {gateway}: {}", named(message))).unwrap_or(format!("to {gateway}"))
        }
        WorkerEffect::Submit(submit) => format!("submit {}", submit.attempt.key.run),
        WorkerEffect::Cancel { attempt, cause, .. } => format!("cancel {} {cause}", attempt.key.run),
        WorkerEffect::Suspend(attempt) => format!("suspend {}", attempt.key.run),
        WorkerEffect::Attach(attempt) => format!("attach {}", attempt.key.run),
        WorkerEffect::Stale => "stale".into(),
    };
    effects.iter().map(word).collect()
}

fn named(message: &Up) -> String {
    match message {
        Up::Ask { attempts } => format!("ask {}", attempts.iter().map(|id| id.key.run.to_string()).collect::<Vec<_>>().join(" ")),
        Up::CancelAcknowledged { attempt, .. } => format!("acknowledged {}", attempt.key.run),
        Up::Ended { attempt, outcome, .. } => format!("ended {} {}", attempt.key.run, outcome.cause),
        Up::Released { attempt, .. } => format!("released {}", attempt.key.run),
        other => format!("{other:?}"),
    }
}

/// The same without frames that hold no message.
fn said(effects: &[WorkerEffect]) -> Vec<String> {
    words(effects).into_iter().filter(|word| !word.starts_with("to ") || word.contains(':')).collect()
}

/// What is done with attempts, and nothing that is said.
fn done(effects: &[WorkerEffect]) -> Vec<String> {
    words(effects).into_iter().filter(|word| !word.starts_with("to ")).collect()
}

fn end(side: &mut WorkerSide, name: &str, now: Time) -> Vec<WorkerEffect> {
    let mut out = side.said(Up::Ended { attempt: id(name), outcome: Outcome::of(Cause::Length), usage: Usage::default() }, now);
    out.extend(side.said(Up::Released { attempt: id(name), receipt: Receipt::default() }, now));
    out
}

fn table(side: &WorkerSide, what: &str) -> u32 {
    side.held().into_iter().find(|(name, _)| *name == what).expect("a table's name").1
}

// contract: C-9, C-10
#[test]
fn a_silent_gateway_is_suspended_then_its_lease_is_over_then_it_is_forgotten() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    assert_eq!(side.next_due(), None);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    a.say(&mut side, submit("r", 1), NOW);
    assert_eq!(side.next_due(), Some(NOW.after(config.heartbeat)));
    a.close(&mut side);
    let mut due = Vec::new();
    for word in ["suspend r", "cancel r orphaned"] {
        let at = side.next_due().expect("it waits for a time");
        assert!(said(&side.tick(Time(at.0 - 1))).is_empty());
        assert_eq!(said(&side.tick(at)), [word], "in one look");
        assert!(said(&side.tick(at)).is_empty(), "once");
        due.push(at);
    }
    due.extend(side.next_due());
    assert_eq!(due, [config.suspend_after, config.lease, config.lease * 2].map(|after| NOW.after(after)));
    side.tick(Time(due[2].0 - 1));
    assert_eq!(table(&side, "gateways"), 1, "it may still learn what became of its attempts");
    assert!(side.tick(due[2]).is_empty());
    assert_eq!((table(&side, "gateways"), side.next_due()), (0, None));
    assert!(side.is_orphaned(&id("r")), "it is the engine's until it is released");
}

// contract: C-23
#[test]
fn a_gateway_that_is_heard_is_asked_what_it_claims_every_so_often() {
    let config = SessionConfig { ask_every: MS * 100, ..SessionConfig::default() };
    let mut side = worker(config);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    let b = Talker::open(&mut side, "b", 2, NOW);
    a.say(&mut side, submit("r", 1), NOW);
    a.say(&mut side, submit("s", 2), NOW);
    let mut asked = 0;
    for ms in [99, 100, 150, 199, 200] {
        let now = NOW.after(MS * ms);
        b.beat(&mut side, 0, now);
        a.beat(&mut side, asked, now);
        let words = said(&side.tick(now));
        if ms % 100 == 0 {
            asked += 1;
            assert_eq!(words, ["to a: ask r s"], "{ms}: and nobody is asked about nothing");
        } else {
            assert!(words.is_empty(), "{ms}: {words:?}");
        }
    }
    // One who is not heard could not answer.
    let late = NOW.after(MS * 200).after(config.suspend_after);
    a.close(&mut side);
    b.beat(&mut side, 0, late);
    assert_eq!(said(&side.tick(late)), ["suspend r", "suspend s"]);
    side.tick(late.after(config.ask_every));
    assert_eq!(table(&side, "unacknowledged"), 1, "the last question that it did not acknowledge, and no other");
}

#[test]
fn a_gateway_may_leave_as_much_unacknowledged_as_the_limit_says_and_no_more() {
    let config = SessionConfig { outbox_max: 2, ..SessionConfig::default() };
    let mut side = worker(config);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    a.say(&mut side, submit("r", 1), NOW);
    for (waiting, state) in [(1, "here"), (2, "here"), (3, "suspended")] {
        a.say(&mut side, cancel("x"), NOW);
        side.tick(NOW);
        assert_eq!((side.gateways()[0].waiting, side.gateways()[0].state), (waiting, state));
    }
    // It goes on when it has acknowledged half.
    assert_eq!(said(&a.beat(&mut side, 1, NOW)), [""; 0]);
    assert_eq!(side.gateways()[0].state, "suspended");
    assert_eq!(said(&a.beat(&mut side, 2, NOW)), ["attach r"]);
}

// contract: C-11
#[test]
fn a_tombstone_is_kept_for_as_long_as_it_says() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    assert_eq!(said(&a.say(&mut side, cancel("early"), NOW)), ["to a: acknowledged early"]);
    let until = NOW.after(config.tombstone_keep);
    side.tick(Time(until.0 - 1));
    assert_eq!(table(&side, "tombstones"), 1);
    side.tick(until);
    assert_eq!(table(&side, "tombstones"), 0);
}

/// Two gateways, each with a new life that submits a run of a name that its former life's attempt still has.
fn behind(side: &mut WorkerSide) -> [Talker; 2] {
    [("a", 1), ("b", 2)].map(|(name, life)| {
        let run = format!("of-{name}");
        Talker::open(side, name, life, NOW).say(side, submit(&run, 1), NOW);
        let mut new = Talker::open(side, name, life + 10, NOW);
        assert_eq!(said(&new.say(side, submit(&run, 1), NOW)), [format!("cancel {run} orphaned")]);
        new
    })
}

// contract: C-2, C-23
#[test]
fn a_submit_that_waits_for_a_release_goes_with_its_gateway_and_with_no_other() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    let [a, b] = behind(&mut side);
    assert_eq!(table(&side, "behind"), 2);
    a.close(&mut side);
    // `a` is never heard again, `b` always.
    for part in 1..=100 {
        let now = NOW.after(config.lease * 2 / 100 * part);
        b.beat(&mut side, 99, now);
        side.tick(now);
    }
    let now = NOW.after(config.lease * 2);
    assert_eq!((table(&side, "gateways"), table(&side, "behind")), (1, 1));
    assert!(end(&mut side, "of-a", now).is_empty(), "nobody waits for it");
    assert_eq!(said(&end(&mut side, "of-b", now)), ["submit of-b"]);
}

// contract: C-23
#[test]
fn a_former_life_is_forgotten_when_all_of_it_is_claimed_and_at_its_lease_s_end() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    let mut old = Talker::open(&mut side, "a", 1, NOW);
    old.say(&mut side, submit("r", 1), NOW);
    old.say(&mut side, submit("s", 2), NOW);
    let mut new = Talker::open(&mut side, "a", 2, NOW);
    let claim = |name: &str| Down::Claim { attempts: vec![id(name)] };
    let mut kept = side.clone();
    assert_eq!(said(&new.say(&mut side, claim("r"), NOW)), ["attach r"]);
    assert_eq!(table(&side, "gateways"), 2, "the former life has an attempt");
    assert_eq!(said(&new.say(&mut side, claim("s"), NOW)), ["attach s"]);
    assert_eq!(table(&side, "gateways"), 1);
    // Nobody claims anything: the lease ends it, and the new life is due for its own reasons only.
    let over = NOW.after(config.lease);
    new.beat(&mut kept, 1, Time(over.0 - 1));
    assert!(said(&kept.tick(Time(over.0 - 1))).iter().all(|word| word.starts_with("to a: ask")));
    assert_eq!((table(&kept, "gateways"), kept.next_due()), (2, Some(over)));
    assert_eq!(said(&kept.tick(over)), ["cancel r orphaned", "cancel s orphaned"]);
    assert_eq!((table(&kept, "gateways"), table(&kept, "owned")), (1, 2));
}

#[test]
fn a_message_is_acknowledged_at_once_by_one_frame_and_a_heartbeat_by_none() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    assert!(a.beat(&mut side, 0, NOW).is_empty(), "else two would keep each other talking");
    assert_eq!(words(&a.say(&mut side, submit("r", 1), NOW)), ["submit r", "to a"]);
    assert!(side.tick(NOW).is_empty(), "once");
    assert_eq!(words(&a.say(&mut side, cancel("x"), NOW)), ["to a: acknowledged x"], "what is said anyway acknowledges as well");
    let heartbeat = NOW.after(config.heartbeat);
    assert!(side.tick(Time(heartbeat.0 - 1)).is_empty());
    assert_eq!(words(&side.tick(heartbeat)), ["to a"]);
}

// contract: C-23
#[test]
fn an_attempt_is_orphaned_if_it_is_disclaimed_or_its_owner_s_life_or_lease_is_over() {
    let mut side = worker(SessionConfig::default());
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    let mut b = Talker::open(&mut side, "b", 2, NOW);
    for (number, run) in [(1, "kept"), (2, "given-up")] {
        a.say(&mut side, submit(run, number), NOW);
    }
    b.say(&mut side, submit("other", 1), NOW);
    let orphaned = |side: &WorkerSide| ["kept", "given-up", "other", "never"].map(|run| side.is_orphaned(&id(run)));
    let attempts = |side: &WorkerSide| side.gateways().iter().map(|cut| (cut.gateway.to_string(), cut.attempts)).collect::<Vec<_>>();
    assert_eq!(orphaned(&side), [false; 4]);
    assert_eq!(attempts(&side), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
    a.say(&mut side, Down::Disclaim { attempts: vec![id("given-up"), id("other")] }, NOW);
    assert_eq!(orphaned(&side), [false, true, false, false], "of its own and of no other's");
    // A new life of it has claimed nothing yet.
    let mut new = Talker::open(&mut side, "a", 3, NOW);
    assert_eq!(orphaned(&side), [true, true, false, false]);
    assert_eq!(attempts(&side), [("a".to_owned(), 0), ("b".to_owned(), 1)]);
    new.say(&mut side, Down::Claim { attempts: vec![id("kept"), id("given-up"), id("other")] }, NOW);
    assert_eq!(orphaned(&side), [false, true, false, false], "an end that is on its way is not taken back");
    assert_eq!(attempts(&side), [("a".to_owned(), 1), ("b".to_owned(), 1)]);
    side.tick(NOW.after(SessionConfig::default().lease));
    assert_eq!(orphaned(&side), [true, true, true, false]);
}

// contract: C-2
#[test]
fn a_further_life_of_a_gateway_holds_nothing_that_the_one_before_it_submitted_in_vain() {
    let mut side = worker(SessionConfig::default());
    let _ = behind(&mut side);
    Talker::open(&mut side, "a", 21, NOW);
    assert_eq!(table(&side, "behind"), 1);
    assert!(end(&mut side, "of-a", NOW).is_empty(), "nobody waits for it");
    assert_eq!(said(&end(&mut side, "of-b", NOW)), ["submit of-b"]);
}

// contract: C-3
#[test]
fn a_frame_of_another_life_or_tenure_or_for_another_life_changes_nothing() {
    let mut side = worker(SessionConfig::default());
    let a = Talker::open(&mut side, "a", 1, NOW);
    let right = a.frame(1, Some(submit("r", 1)), 0, NOW);
    let wrong = [
        Frame { from: Incarnation(2), ..right.clone() },
        Frame { to: Incarnation(8), ..right.clone() },
        Frame { tenure: a.tenure + 1, ..right.clone() },
    ];
    for (count, frame) in (1..).zip(wrong) {
        assert_eq!(words(&side.hear("a", frame, NOW)), ["stale"]);
        assert_eq!(side.stale(), count);
    }
    assert_eq!(words(&side.hear("b", right.clone(), NOW)), ["stale"], "nobody of that name is here");
    assert_eq!(said(&side.hear("a", right, NOW)), ["submit r"]);
}

// contract: C-10
#[test]
fn a_gateway_that_speaks_and_does_not_hear_stays_suspended() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    a.say(&mut side, submit("r", 1), NOW);
    let deaf = |now: Time| Frame { echo: Some(Echo { stamp: NOW, held: now.since(NOW) }), ..a.frame(0, None, 0, now) };
    let mut looks = Vec::new();
    for part in 1..=6 {
        let now = NOW.after(config.suspend_after * part);
        looks.extend(done(&side.hear("a", deaf(now), now)));
        looks.extend(done(&side.tick(now)));
    }
    assert_eq!(looks, ["suspend r"], "once, and it is not attached in between");
    let now = NOW.after(config.suspend_after * 7);
    assert_eq!(said(&a.beat(&mut side, 0, now)), ["attach r"], "it has heard something");
}

// contract: C-10
#[test]
fn what_is_suspended_is_attached_with_its_own_gateway_and_nothing_else_is() {
    let config = SessionConfig::default();
    let mut side = worker(config);
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    let mut b = Talker::open(&mut side, "b", 2, NOW);
    a.say(&mut side, submit("r", 1), NOW);
    a.say(&mut side, submit("over", 2), NOW);
    b.say(&mut side, submit("s", 1), NOW);
    let _ = side.said(Up::Ended { attempt: id("over"), outcome: Outcome::of(Cause::Length), usage: Usage::default() }, NOW);
    let now = NOW.after(config.suspend_after);
    assert_eq!(done(&side.tick(now)), ["suspend r", "suspend s"], "what has ended has nothing to be scheduled");
    assert_eq!(done(&a.beat(&mut side, 0, now)), ["attach r"]);
    assert_eq!(done(&a.beat(&mut side, 0, now)), [""; 0], "once");
    assert_eq!(done(&b.beat(&mut side, 0, now)), ["attach s"]);
    let scheduled: Vec<_> = side.attempts().filter(|(.., suspended)| !suspended).map(|(id, ..)| id.key.run.to_string()).collect();
    assert_eq!(scheduled, ["over", "r", "s"]);
}

// contract: C-1, C-2
#[test]
fn a_cancel_of_a_submit_that_waits_names_it_by_gateway_and_number() {
    let mut side = worker(SessionConfig::default());
    let [mut a, mut b] = behind(&mut side);
    // Another number or another gateway: the attempt that runs is meant.
    assert_eq!(done(&a.say(&mut side, cancel_of("of-a", 9), NOW)), ["cancel of-a client_closed"]);
    assert_eq!(done(&b.say(&mut side, cancel_of("of-a", 1), NOW)), ["cancel of-a client_closed"]);
    assert_eq!(table(&side, "behind"), 2);
    let told = ["to a: acknowledged of-a", "to a: ended of-a client_closed", "to a: released of-a"];
    assert_eq!(said(&a.say(&mut side, cancel_of("of-a", 1), NOW)), told, "it never reached the engine");
    assert_eq!(table(&side, "behind"), 1);
    assert_eq!(done(&end(&mut side, "of-a", NOW)), [""; 0]);
    assert_eq!(done(&end(&mut side, "of-b", NOW)), ["submit of-b"]);
}

// contract: C-11
#[test]
fn a_cancel_leaves_a_tombstone_if_its_submit_may_still_come_and_one_only() {
    let mut side = worker(SessionConfig { tombstones_max: 1, ..SessionConfig::default() });
    let mut a = Talker::open(&mut side, "a", 1, NOW);
    a.say(&mut side, submit("r", 3), NOW);
    end(&mut side, "r", NOW);
    let count = |side: &WorkerSide| table(side, "tombstones");
    for number in [1, 3] {
        assert_eq!(said(&a.say(&mut side, cancel_of("r", number), NOW)), ["to a: acknowledged r"]);
        assert_eq!(count(&side), 0, "{number}: it was taken, so it is over");
    }
    for number in [4, 4] {
        assert_eq!(said(&a.say(&mut side, cancel_of("s", number), NOW)), ["to a: acknowledged s"], "there is room for what is there");
        assert_eq!(count(&side), 1);
    }
    assert_eq!(said(&a.say(&mut side, cancel_of("t", 5), NOW)), [""; 0], "there is room for no other");
    assert_eq!(done(&a.say(&mut side, submit("s", 4), NOW)), ["cancel s client_closed", "submit s"]);
    assert_eq!(count(&side), 0);
}
