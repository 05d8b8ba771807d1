//! One frame in ten dropped, one doubled, one swapped, on both ways: everything arrives once.
// contract: C-2, C-8, C-9

use std::time::Duration;

use lifecycle::Cause;

use super::gateway::Shim;
use super::{Gateway, Host, Setup, alone};
use crate::harness::greedy;

#[test]
fn every_run_over_a_lossy_session_ends_and_is_released_once() {
    let mut setup = Setup { pace: Duration::ZERO, ..Setup::default() };
    setup.session.suspend_after = Duration::from_millis(250);
    let host = Host::new(&setup);
    let mut gateway = Gateway::connected(&host, "g", 1, setup.session);
    gateway.shim = Some(Shim::new(0x5eed));
    let names: Vec<String> = (0..24).map(|i| format!("r{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        gateway.submit(name, &[i as u32 + 1, 7], greedy(60));
        if i % 2 == 1 {
            let before = gateway.tokens(name);
            gateway.until("a word of it", |g| g.tokens(name) > before || g.cause(name).is_some() || g.tokens(&names[0]) > i);
            gateway.cancel(name, Cause::ClientClosed);
        }
    }
    gateway.until("all released", |g| names.iter().all(|name| g.is_released(name)));
    for (i, name) in names.iter().enumerate() {
        let seen = &gateway.seen[name];
        let (tokens, steps) = alone(&[i as u32 + 1, 7], &greedy(60));
        let got = seen.tokens.get(&0).cloned().unwrap_or_default();
        assert_eq!(seen.released, 1, "{name}");
        assert!(tokens.starts_with(&got), "{name}: {got:?} is no beginning of {tokens:?}");
        match seen.outcome.as_ref().map(|o| o.cause) {
            Some(Cause::Length) => assert_eq!((got.len(), host.steps(name)), (tokens.len(), steps), "{name}"),
            Some(Cause::ClientClosed) => assert!(i % 2 == 1, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    let shim = gateway.shim.take().expect("it was there");
    assert!(shim.meddled > 100, "{}", shim.meddled);
    gateway.until("everything to be acknowledged", |_| host.sessions().gateways[0].waiting == 0);
    host.assert_at_rest();
}
