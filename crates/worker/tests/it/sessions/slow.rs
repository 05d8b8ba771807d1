//! A gateway that never reads: it is suspended at its outbox's limit, and its neighbour notices nothing.
// contract: C-10, C-14

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lifecycle::message::{Down, Prompt, Submit};
use lifecycle::session::{Frame, Hello};
use lifecycle::{Incarnation, Time};
use protocol::{Opening, VERSIONS, worker_v1 as wire};

use super::gateway::client;
use super::{Gateway, Host, Setup, alone, both};
use crate::harness::{greedy, id};

const PROMPT: [u32; 4] = [8, 2, 8, 4];

#[test]
fn a_gateway_that_never_reads_is_suspended_and_a_neighbour_is_unharmed() {
    let mut setup = Setup::default();
    // Only what it leaves unread can suspend it.
    setup.session.suspend_after = Duration::from_secs(20);
    setup.session.lease = Duration::from_secs(60);
    setup.session.outbox_max = 400;
    setup.session.window = 16;
    setup.grpc.outlet_max = 4;
    let host = Host::new(&setup);
    let mut deaf = Gateway::new(&host, "deaf", 1, setup.session);
    deaf.reads = false;
    deaf.connect().expect("it is taken");
    let mut well = Gateway::connected(&host, "well", 1, setup.session);
    // One neighbour beside it, and one when it is suspended. Neither has as much to be told as an outbox holds (of each step
    // its tokens and its records), however slow this test is.
    deaf.submit("unread", &[1, 2, 3], greedy(450));
    well.submit("beside", &PROMPT, greedy(150));
    both(&mut deaf, &mut well, "the neighbour's end", |_, well| well.is_released("beside"));
    both(&mut deaf, &mut well, "its suspension", |_, _| host.suspended("unread") > 0);
    well.submit("after", &[7, 7], greedy(150));
    both(&mut deaf, &mut well, "the second neighbour's end", |_, well| well.is_released("after"));
    for (name, prompt) in [("beside", &PROMPT[..]), ("after", &[7, 7])] {
        assert_eq!((well.seen[name].tokens[&0].clone(), host.steps(name)), alone(prompt, &greedy(150)), "{name}");
        assert_eq!(host.suspended(name), 0, "{name}");
    }
    assert_eq!(host.suspended("unread"), 1);
    // The limit, what the step in flight had for it, and what was said beside steps.
    let waiting = host.sessions().gateways.iter().find(|g| g.gateway.as_ref() == "deaf").map(|g| g.waiting);
    assert!(waiting.is_some_and(|n| (401..=408).contains(&n)), "{waiting:?}");
    assert!(host.steps_while_suspended("unread") <= 1);
    // It learns to read: everything is there.
    deaf.reads = true;
    deaf.connect().expect("it is taken again");
    let seen = deaf.released("unread");
    assert_eq!((seen.tokens[&0].clone(), host.steps("unread")), alone(&[1, 2, 3], &greedy(450)));
    both(&mut deaf, &mut well, "acknowledgements", |_, _| host.sessions().gateways.iter().all(|g| g.waiting == 0));
    host.assert_at_rest();
}

/// A frame of about 100 KB that belongs to no tenure, so that nothing comes of it.
fn large_frame() -> wire::Down {
    let prompt = Prompt::Text("x".repeat(100_000));
    let submit = Submit {
        attempt: id("large"),
        worker: Incarnation(7),
        number: 1,
        model: "".into(),
        prompt,
        params: greedy(1),
        deadlines: Vec::new(),
    };
    let frame = Frame {
        from: Incarnation(1),
        to: Incarnation(7),
        tenure: 9,
        number: 1,
        received: 0,
        missing: false,
        stamp: Time(1),
        echo: None,
        message: Some(Down::Submit(Box::new(submit))),
    };
    protocol::down(&frame).expect("it can be said")
}

#[test]
fn a_gateway_that_floods_a_worker_is_not_read_beyond_its_share() {
    const FRAMES: usize = 1500;
    let mut setup = Setup::default();
    setup.grpc.inbox_max = 70;
    let host = Host::new(&setup);
    let mut well = Gateway::connected(&host, "well", 1, setup.session);
    well.submit("r", &PROMPT, greedy(200));
    let hello = Hello {
        gateway: "flood".into(),
        incarnation: Incarnation(1),
        session: 1,
        resume: None,
        received: 0,
        lease: Duration::from_secs(1),
        stamp: Time(1),
    };
    let (say, down) = tokio::sync::mpsc::channel(1);
    say.try_send(wire::Down::from(&Opening { versions: VERSIONS.to_vec(), hello })).expect("it has room");
    let addr = host.addr;
    let mut stream = host.rt.block_on(async move {
        let down = tokio_stream::wrappers::ReceiverStream::new(down);
        let mut stream = client(addr).await.expect("it listens").session(down).await.expect("it is taken").into_inner();
        stream.message().await.expect("no error").expect("a welcome");
        stream
    });
    // Now the engine thread takes nothing.
    setup.hold.set.store(true, Ordering::SeqCst);
    well.until("the engine thread to be held up", |_| setup.hold.waits.load(Ordering::SeqCst));
    let said = Arc::new(AtomicUsize::new(0));
    let count = said.clone();
    host.rt.spawn(async move {
        let frame = large_frame();
        while count.load(Ordering::SeqCst) < FRAMES && say.send(frame.clone()).await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    // Until it gets no further: a machine that is slow only makes it less.
    let mut before = usize::MAX;
    while std::mem::replace(&mut before, said.load(Ordering::SeqCst)) != said.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(before < FRAMES / 3, "its share of ten frames, and what windows and buffers hold: {before}");
    setup.hold.set.store(false, Ordering::SeqCst);
    host.until("the rest of it", |host| host.sessions().stale >= FRAMES as u64);
    assert_eq!(well.released("r").tokens[&0], alone(&PROMPT, &greedy(200)).0);
    host.rt.block_on(async move { while let Ok(Some(_)) = stream.message().await {} });
}
