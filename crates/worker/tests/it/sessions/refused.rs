//! What a worker does not take: other versions, older lives, late connections, frames that are none, attempts that cannot be.
// contract: C-2, C-3

use std::time::Duration;

use lifecycle::message::{Down, Prompt, Submit};
use lifecycle::params::Params;
use lifecycle::session::Hello;
use lifecycle::{Cause, Incarnation};
use protocol::{Opening, VERSIONS, worker_v1 as wire};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

use super::gateway::client;
use super::{Gateway, Host, Setup};
use crate::harness::{greedy, id};

fn hello(life: u128, session: u64) -> Hello {
    Hello {
        gateway: "g".into(),
        incarnation: Incarnation(life),
        session,
        resume: None,
        received: 0,
        lease: Duration::from_secs(1),
        stamp: lifecycle::Time(1),
    }
}

/// What becomes of a stream on which these are said.
fn said(host: &Host, messages: Vec<wire::Down>) -> Status {
    host.rt.block_on(async {
        let (say, down) = tokio::sync::mpsc::unbounded_channel();
        messages.into_iter().for_each(|message| say.send(message).expect("its stream is there"));
        let mut client = client(host.addr).await.expect("it listens");
        let mut stream = match client.session(UnboundedReceiverStream::new(down)).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return status,
        };
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok("it ended in good order"),
                Err(status) => return status,
            }
        }
    })
}

fn opening(versions: &[u32], hello: Hello) -> wire::Down {
    wire::Down::from(&Opening { versions: versions.to_vec(), hello })
}

#[test]
fn a_gateway_of_another_version_is_told_what_both_speak() {
    let host = Host::new(&Setup::default());
    let status = said(&host, vec![opening(&[7, 9], hello(1, 1))]);
    let words = "no common protocol version: the gateway speaks 7, 9; the worker speaks 1";
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, words));
    assert!(host.sessions().gateways.is_empty());
}

#[test]
fn an_older_life_and_an_older_connection_are_refused_and_counted() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 5, setup.session);
    gateway.submit("r", &[1, 2], greedy(30));
    for (life, session) in [(4, 9), (5, 1)] {
        let status = said(&host, vec![opening(VERSIONS, hello(life, session))]);
        assert_eq!(status.code(), Code::Aborted, "{status:?}");
    }
    assert_eq!(gateway.released("r").outcome.map(|o| o.cause), Some(Cause::Length));
    let stale = host.journal.count(|r| matches!(r.event, lifecycle::event::Event::StaleMessage));
    assert_eq!((host.sessions().stale, stale), (2, 2));
}

#[test]
fn a_stream_that_breaks_the_rules_ends_and_says_why() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let head = wire::Head { from: vec![1; 16], to: vec![2; 16], tenure: 1, ..wire::Head::default() };
    let frame = |head| wire::Down { kind: Some(wire::down::Kind::Frame(wire::DownFrame { head: Some(head), message: None })) };
    let too_large = opening(VERSIONS, Hello { gateway: "g".repeat(9 << 20).into(), ..hello(1, 9) });
    let cases = [
        (vec![frame(head.clone())], Code::InvalidArgument, "no Hello"),
        (vec![wire::Down { kind: None }], Code::InvalidArgument, "Down.kind"),
        (vec![too_large], Code::OutOfRange, "message"),
        (vec![opening(VERSIONS, hello(1, 1)), opening(VERSIONS, hello(1, 2))], Code::InvalidArgument, "second Hello"),
        (vec![opening(VERSIONS, hello(1, 3)), frame(wire::Head { from: vec![1], ..head })], Code::InvalidArgument, "Head.from"),
    ];
    for (messages, code, words) in cases {
        let status = said(&host, messages);
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(words), "{status:?}");
    }
    // The sessions that were open for a moment are over.
    let mut gateway = Gateway::connected(&host, "g", 2, setup.session);
    gateway.submit("r", &[1, 2], greedy(3));
    assert_eq!(gateway.released("r").outcome.map(|o| o.cause), Some(Cause::Length));
    host.assert_at_rest();
}

#[test]
fn a_stream_without_a_hello_is_ended() {
    let mut setup = Setup::default();
    setup.grpc.hello_timeout = Duration::from_millis(100);
    let status = said(&Host::new(&setup), vec![]);
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "no Hello came in time (hello_timeout_ms)"));
}

#[test]
fn only_so_many_sessions_and_gateways_are_served() {
    let mut setup = Setup::default();
    setup.grpc.sessions_max = 3;
    setup.session.gateways_max = 2;
    let host = Host::new(&setup);
    let open: Vec<Gateway> = ["a", "b"].map(|name| Gateway::connected(&host, name, 1, setup.session)).into();
    let refused = Gateway::new(&host, "c", 1, setup.session).connect().expect_err("there is no room");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("session_gateways_max") || refused.message().contains("2 gateways"), "{refused:?}");
    drop(open);
}

#[test]
fn an_attempt_that_is_refused_before_the_engine_knows_it_leaves_nothing() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    let submit = |name: &str, worker, number, params| {
        let (attempt, prompt) = (id(name), Prompt::Tokens(vec![1]));
        Down::Submit(Box::new(Submit { attempt, worker, number, model: "".into(), prompt, params, deadlines: Vec::new() }))
    };
    gateway.say(submit("elsewhere", Incarnation(6), 1, greedy(3)));
    assert_eq!(gateway.released("elsewhere").outcome.map(|o| o.cause), Some(Cause::WorkerLost));
    gateway.say(submit("odd", Incarnation(7), 2, Params { n: 99, ..greedy(3) }));
    assert_eq!(gateway.released("odd").outcome.map(|o| o.cause), Some(Cause::Invalid));
    gateway.say(submit("fine", Incarnation(7), 3, greedy(3)));
    assert_eq!(gateway.released("fine").outcome.map(|o| o.cause), Some(Cause::Length));
    gateway.say(submit("fine", Incarnation(7), 3, greedy(3)));
    gateway.until("the repeated submit to be counted", |_| host.sessions().stale == 1);
    gateway.until("everything to be acknowledged", |_| host.sessions().gateways[0].waiting == 0);
    host.assert_at_rest();
}
