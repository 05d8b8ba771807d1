//! A worker that is told to stop.
// contract: C-5, C-13

use std::time::Duration;

use lifecycle::Cause;
use protocol::{Drained, worker_v1 as wire};
use tonic::Code;

use super::gateway::client;
use super::{Gateway, Host, Setup};
use crate::harness::{greedy, id};

/// Asks for a drain over gRPC, while `gateway` goes on.
fn drain(host: &Host, gateway: &mut Gateway, limit: Duration) -> Drained {
    let addr = host.addr;
    let asked = host.rt.spawn(async move {
        let mut client = client(addr).await.expect("it listens");
        client.drain(wire::DrainRequest { limit_us: limit.as_micros() as u64 }).await.expect("it answers").into_inner()
    });
    gateway.until("the answer", |_| asked.is_finished());
    Drained::try_from(host.rt.block_on(asked).expect("no panic")).expect("it can be read")
}

#[test]
fn a_drain_finishes_what_runs_hands_back_what_waits_and_turns_the_rest_away() {
    let mut setup = Setup::default();
    setup.engine.max_running = 1;
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("runs", &[1, 2, 3], greedy(100));
    gateway.until("a token", |g| g.tokens("runs") > 0);
    gateway.submit("waits", &[4, 5, 6], greedy(100));
    gateway.until("both to be there", |_| host.snapshot().attempts.len() == 2);
    let drained = drain(&host, &mut gateway, Duration::from_secs(60));
    assert_eq!((drained.finished, drained.handed_back, drained.cancelled), (vec![id("runs")], vec![id("waits")], vec![]));
    for (name, cause, tokens) in [("runs", Cause::Length, 100), ("waits", Cause::Shutdown, 0)] {
        let seen = gateway.released(name);
        assert_eq!((seen.outcome.map(|o| o.cause), gateway.tokens(name)), (Some(cause), tokens), "{name}");
    }
    gateway.until("the news", |g| g.drainings == 1);
    gateway.submit("late", &[1], greedy(3));
    assert_eq!(gateway.released("late").outcome.map(|o| o.cause), Some(Cause::Shutdown));
    // A gateway that comes now is told at once.
    let mut second = Gateway::connected(&host, "h", 1, setup.session);
    second.until("the news", |g| g.drainings == 1);
    host.assert_at_rest();
}

#[test]
fn a_drains_limit_cancels_what_still_runs() {
    let setup = Setup::default();
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.submit("runs", &[1, 2, 3], greedy(450));
    gateway.until("a token", |g| g.tokens("runs") > 0);
    let drained = drain(&host, &mut gateway, Duration::ZERO);
    assert_eq!((drained.finished.len(), drained.handed_back.len(), drained.cancelled), (0, 0, vec![id("runs")]));
    assert_eq!(gateway.released("runs").outcome.map(|o| o.cause), Some(Cause::Shutdown));
    // Asked again, it says the same.
    assert_eq!(drain(&host, &mut gateway, Duration::from_secs(1)).cancelled, [id("runs")]);
    host.assert_at_rest();
}

#[test]
fn health_reflection_and_the_account_are_there() {
    let host = Host::new(&Setup::default());
    let (code, reply) = host.rt.block_on(async {
        let mut client = client(host.addr).await.expect("it listens");
        let reply = client.snapshot(wire::SnapshotRequest { blocks: true }).await.expect("it answers").into_inner();
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", host.addr)).expect("an address is one");
        let mut health = tonic_health::pb::health_client::HealthClient::new(channel.connect().await.expect("it listens"));
        let ask = |service: &str| tonic_health::pb::HealthCheckRequest { service: service.into() };
        let status = health.check(ask("kvit.worker.v1.Worker")).await.expect("it is known").into_inner().status;
        assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::Serving as i32);
        (health.check(ask("kvit.nothing")).await.expect_err("there is no such service").code(), reply)
    });
    assert_eq!(code, Code::NotFound);
    let cut = lifecycle::message::From::<lifecycle::message::Snapshot>::try_from(reply).expect("it can be read");
    assert_eq!((cut.message.total, cut.message.blocks.len(), cut.incarnation), (256, 256, host.door.incarnation()));
    assert!(cut.message.is_conserved());
}
