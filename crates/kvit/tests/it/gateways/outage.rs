//! The way to PostgreSQL cut: what runs goes on, what must be kept before it is answered is refused, and afterwards everything is there once.
// contract: C-5, C-25, C-26

use super::*;
use crate::faults::{alone, finish};
use crate::server::chat_body;

/// While the store is away: live streams and interactive requests go on, background runs are refused.
fn away(stand: &Stand, cut: impl FnOnce(), mend: impl FnOnce()) {
    const PATIENCE: [&str; 2] = ["--store-patience-ms", "1000"];
    let (a, b) = (stand.gateway_with("a", &PATIENCE), stand.gateway_with("b", &PATIENCE));
    let expected = alone(&lasting_model(), &[("Hello there", 300), ("Hi", 6)]);
    let mut stream = Caller::chat(&a, "stream", &chat_body("Hello there", 300, true));
    let mut text = stream.read_tokens(2);
    let mut before = background(&a, "before", &chat_body("Hello there", 300, true), 2);
    cut();
    text += &stream.read_tokens(3);
    let mut told = Vec::new();
    for _ in 0..3 {
        let answer = a.request("POST", "/v1/chat/completions", Some("asked"), Some(&chat_body("Hi", 6, false)));
        assert_eq!((answer.0, body_of(&answer)["choices"][0]["message"]["content"].as_str()), (200, Some(expected[1].as_str())));
        let id = answer.1.lines().find_map(|line| line.strip_prefix("x-request-id: ")).expect("its id").to_owned();
        assert!(!told.contains(&id), "{id} twice");
        told.push(id);
    }
    for n in 0..3 {
        let refused = a.request_with("POST", "/v1/chat/completions", GOES_ON, Some(&chat_body("Hi", 6, false)));
        assert_eq!(
            (refused.0, body_of(&refused)["error"]["code"].as_str()),
            (503, Some("store_unavailable")),
            "{n}: {}",
            body_of(&refused)
        );
        assert!(refused.1.contains("retry-after: "), "{}", refused.1);
        let asked = json!({"input": "Hi", "max_output_tokens": 6, "background": true});
        let refused = a.request("POST", "/v1/responses", None, Some(&asked));
        assert_eq!((refused.0, body_of(&refused)["error"]["code"].as_str()), (503, Some("store_unavailable")), "{}", body_of(&refused));
    }
    let (rest, error) = finish(&mut stream);
    text += &rest;
    assert_eq!((text.as_str(), error), (expected[0].as_str(), None), "the live stream is whole");
    mend();
    // Nobody took anything over, and everything is there once.
    assert_eq!(finish(&mut before).1, None);
    for server in [&a, &b] {
        for id in told.iter().map(String::as_str).chain(["stream", "before"]) {
            known(server, id);
            assert_eq!(outcome(server, id), is("completed", "length"), "{id}");
        }
    }
    let followed = Follower::of(&b, "before", 0).all();
    assert_eq!(whole_text(&followed), expected[0]);
    assert_eq!(b.run("before")["attempt"], 1);
    // What is asked for now is kept as ever.
    assert_eq!(finish(&mut background(&b, "after", &chat_body("Hi", 6, true), 1)).1, None);
    assert_eq!(outcome(&a, "after"), is("completed", "length"));
}

#[test]
fn a_store_that_cannot_be_reached_for_a_while_loses_and_doubles_nothing() {
    let Some((stand, relay)) = Stand::cabled(1) else { return };
    away(&stand, || relay.refuse(), || relay.listen());
}

#[test]
fn a_store_whose_connections_break_again_and_again_loses_and_doubles_nothing() {
    let Some((stand, relay)) = Stand::cabled(1) else { return };
    away(&stand, || relay.cut(), || relay.mend());
}
