//! Cancels that come early, late, twice, and from a gateway that does not own the attempt.
// contract: C-2, C-8, C-11, C-13

use lifecycle::Cause;
use lifecycle::event::Event;

use super::{Gateway, Host, Setup, both};
use crate::harness::greedy;

const PROMPT: [u32; 3] = [2, 7, 1];

#[test]
fn a_cancel_before_its_submit_from_another_gateway_lets_nothing_be_computed() {
    // With room for tombstones in the engine, and without: then its mark turns the submit away, and nobody may wait for its release.
    for tombstones in [4096, 0] {
        let mut setup = Setup::default();
        setup.engine.tombstones = tombstones;
        let host = Host::new(&setup);
        let mut owner = Gateway::connected(&host, "owner", 1, setup.session);
        let mut other = Gateway::connected(&host, "other", 1, setup.session);
        other.cancel("r", Cause::CancelRequested);
        both(&mut owner, &mut other, "an answer", |_, other| other.seen.get("r").is_some_and(|s| s.acknowledged == [None]));
        owner.submit("r", &PROMPT, greedy(50));
        both(&mut owner, &mut other, "its end at both", |a, b| a.is_released("r") && b.is_released("r"));
        if tombstones > 0 {
            assert_eq!((owner.cause("r"), other.cause("r")), (Some(Cause::CancelRequested), Some(Cause::CancelRequested)));
        } else {
            assert_eq!(owner.cause("r"), Some(Cause::WorkerError));
        }
        assert_eq!((host.steps("r"), owner.tokens("r")), (0, 0));
        host.assert_at_rest();
        assert_eq!(host.snapshot().tombstones, 0);
    }
}

#[test]
fn two_gateways_cancel_one_attempt_and_both_are_told_and_the_first_cause_wins() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut owner = Gateway::connected(&host, "owner", 1, setup.session);
    let mut other = Gateway::connected(&host, "other", 1, setup.session);
    owner.submit("r", &PROMPT, greedy(400));
    both(&mut owner, &mut other, "some tokens", |owner, _| owner.tokens("r") > 5);
    other.cancel("r", Cause::CancelRequested);
    both(&mut owner, &mut other, "an acknowledgement", |_, other| other.seen.get("r").is_some_and(|s| !s.acknowledged.is_empty()));
    owner.cancel("r", Cause::ClientClosed);
    owner.cancel("r", Cause::ClientClosed);
    both(&mut owner, &mut other, "its release at both", |a, b| a.is_released("r") && b.is_released("r"));
    assert_eq!((owner.cause("r"), other.cause("r")), (Some(Cause::CancelRequested), Some(Cause::CancelRequested)));
    assert_eq!((owner.seen["r"].released, other.seen["r"].released), (1, 1));
    assert_eq!(host.events("r").iter().filter(|e| matches!(e, Event::Released { .. })).count(), 1);
    host.assert_at_rest();
}

#[test]
fn cancels_in_the_same_tick_and_after_the_end_do_what_they_should() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("same", &PROMPT, greedy(400));
    gateway.cancel("same", Cause::ClientReset);
    assert_eq!(gateway.released("same").outcome.map(|o| o.cause), Some(Cause::ClientReset));
    gateway.submit("over", &PROMPT, greedy(3));
    assert_eq!(gateway.released("over").outcome.map(|o| o.cause), Some(Cause::Length));
    gateway.cancel("over", Cause::ClientClosed);
    gateway.until("an answer", |g| !g.seen["over"].acknowledged.is_empty());
    assert_eq!(gateway.seen["over"].acknowledged, [None], "it is not known any more, and its submit was taken");
    gateway.until("everything to be acknowledged", |_| host.sessions().gateways[0].waiting == 0);
    host.assert_at_rest();
    assert_eq!(host.snapshot().tombstones, 0, "no tombstone for what was released long ago");
}
