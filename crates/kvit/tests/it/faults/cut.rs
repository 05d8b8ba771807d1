//! A session that is cut for two seconds: nothing is computed meanwhile, and no token is lost or computed twice.
// contract: C-9, C-10, C-13

use std::time::{Duration, Instant};

use serde_json::Value;

use super::relay::Relay;
use super::{Probe, alone, ended, finish, gateway, metric, slow_worker, states};
use crate::server::{Caller, Server, chat_body, lasting_model};

const TOKENS: u32 = 120;

/// What must be the same whether a session was lost or not.
fn work(run: &Value) -> (Value, Value, Value) {
    (run["tokens"].clone(), run["steps"].clone(), run["blocks"]["peak"].clone())
}

#[test]
fn a_session_cut_for_two_seconds_loses_no_token_and_wastes_none() {
    let model = lasting_model();
    let texts = alone(&model, &[("Hello", TOKENS)]);
    let worker = slow_worker(&model, &[]);
    let (probe, relay) = (Probe::of(&worker), Relay::to(&worker.address));
    let gateway = gateway(&[&relay.address], &[]);
    let mut caller = Caller::chat(&gateway, "cut", &chat_body("Hello", TOKENS, true));
    let mut text = caller.read_tokens(3);
    relay.cut();
    let since = Instant::now();
    probe.until_run("cut", "suspended");
    let first = probe.until("its last step is over", |cut| cut.held.steps == 0);
    while since.elapsed() < Duration::from_secs(2) {
        let cut = probe.cut();
        assert_eq!((cut.step, cut.attempts[0].state, cut.active), (first.step, "suspended", first.active), "it keeps its blocks and waits");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Its connections are taken and closed: that is no evidence that nobody is there.
    assert_eq!((states(&gateway), &gateway.run("cut")["told"]), (vec!["silent".to_owned()], &Value::Null));
    relay.mend();
    let (rest, error) = finish(&mut caller);
    text.push_str(&rest);
    assert_eq!((text, error), (texts[0].clone(), None));
    let run = gateway.settled("cut");
    assert_eq!((ended(&run), &run["attempt"], &run["guarantee"]), (("completed", "length"), &1.into(), &"confirmed".into()), "{run:#}");
    assert_eq!((&run["tokens"]["after_disconnect"], &run["tokens"]["overrun"]), (&0.into(), &0.into()), "{run:#}");
    assert_eq!((&run["tokens"]["generated"], &run["tokens"]["delivered"]), (&TOKENS.into(), &TOKENS.into()), "{run:#}");
    let cut = probe.until_at_rest();
    assert!(cut.suspensions >= 1 && cut.orphaned_attempts == 0, "{cut:?}");
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
    // The same work as of a run that nothing happened to: in one process, in steps of the same size.
    let single = Server::start(&model, &["--threads", "1", "--step-tokens", "32", "--in-flight", "1", "--log", "error"]);
    assert_eq!(Caller::chat(&single, "whole", &chat_body("Hello", TOKENS, false)).answer().0, 200);
    assert_eq!(work(&run), work(&single.settled("whole")));
}
