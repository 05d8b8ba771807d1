//! The front door's messages: defaults, faults and events.

use lifecycle::message::Usage;
use protocol::runs_v1::generate_event::Event;
use protocol::{Error, GenerateAsk, runs_v1 as wire};
use tonic::{Code, Status};

use crate::samples;

fn request(params: wire::Params) -> wire::GenerateRequest {
    let prompt = wire::generate_request::Prompt::Text(wire::Text { text: "Once".into() });
    wire::GenerateRequest { model: "m".into(), prompt: Some(prompt), params: Some(params), run: Some("r1".into()), on_disconnect: None }
}

#[test]
fn what_is_absent_has_the_http_api_s_default() {
    let bare = wire::GenerateRequest { params: None, run: None, ..request(wire::Params::default()) };
    let ask = GenerateAsk::try_from(bare).expect("understood");
    assert_eq!((ask.params, ask.seed, ask.run), (lifecycle::params::Params::default(), None, None));
}

#[test]
fn what_is_given_is_taken() {
    let logit_bias = [(9, 1.0), (7, -1.0)].into_iter().collect();
    let given = wire::Params { temperature: Some(0.0), seed: Some(3), logit_bias, n: Some(2), priority: -1, ..Default::default() };
    let ask = GenerateAsk::try_from(request(given)).expect("understood");
    assert_eq!((ask.params.sampling.temperature, ask.params.sampling.seed, ask.seed), (0.0, 3, Some(3)));
    assert_eq!((ask.params.n, ask.params.priority), (2, -1));
    assert_eq!(ask.params.sampling.logit_bias, [(7, -1.0), (9, 1.0)]);
    assert_eq!(ask.run.expect("given").as_str(), "r1");
}

#[test]
fn a_request_that_is_wrong_says_where() {
    let said = |request: wire::GenerateRequest| {
        let status = Status::from(GenerateAsk::try_from(request).expect_err("wrong"));
        assert_eq!(status.code(), Code::InvalidArgument);
        status.message().to_owned()
    };
    let good = || request(wire::Params::default());
    assert_eq!(said(wire::GenerateRequest { model: String::new(), ..good() }), "GenerateRequest.model is missing");
    assert_eq!(said(wire::GenerateRequest { prompt: None, ..good() }), "GenerateRequest.prompt is missing");
    assert_eq!(said(wire::GenerateRequest { run: Some("..".into()), ..good() }).split(' ').next(), Some("GenerateRequest.run"));
    assert_eq!(said(request(wire::Params { temperature: Some(3.0), ..Default::default() })), "temperature must be between 0 and 2");
    assert_eq!(said(request(wire::Params { logprobs: Some(300), ..Default::default() })), "Params.logprobs must be between 0 and 20");
    assert_eq!(wire::CancelRequest::default().run_id(), Err(Error::Missing { field: "CancelRequest.run" }));
}

/// What an idempotency key is compared by: maps have no order on the wire, and another id asks for the same.
#[test]
fn equal_requests_have_equal_bytes_whatever_their_maps_order_and_their_id() {
    let with = |bias: &[(u32, f32)], seed| request(wire::Params { logit_bias: bias.iter().copied().collect(), seed, ..Default::default() });
    let many: Vec<(u32, f32)> = (0..50).map(|token| (token, token as f32)).collect();
    let turned: Vec<(u32, f32)> = many.iter().rev().copied().collect();
    let one = with(&many, Some(1)).canonical();
    assert_eq!(wire::GenerateRequest { run: None, ..with(&turned, Some(1)) }.canonical(), one);
    for other in [with(&many[1..], Some(1)), with(&many, Some(2)), wire::GenerateRequest { model: "n".into(), ..with(&many, Some(1)) }] {
        assert_ne!(other.canonical(), one);
    }
    let mut changed = many;
    changed[7].1 = -7.0;
    assert_ne!(with(&changed, Some(1)).canonical(), one);
}

#[test]
fn events_say_what_happened() {
    let Some(Event::Delta(shown)) = wire::GenerateEvent::delta(&samples::delta()).event else { panic!("a delta") };
    assert_eq!((shown.text.as_str(), shown.tokens.as_slice(), shown.finish()), (" the", &[31, 32][..], wire::Cause::Length));
    assert_eq!((shown.logprobs[0].logprob, shown.logprobs[0].top[0].token), (-0.25, 32));
    let outcome = lifecycle::Outcome::because(lifecycle::Cause::CancelRequested, "as you wish");
    let ended = wire::GenerateEvent::ended(&outcome, Usage { prompt: 1, cached_prompt: 2, generated: 3 }, lifecycle::Delivery::Partial);
    let Some(Event::Ended(ended)) = ended.event else { panic!("an end") };
    assert_eq!((ended.delivery(), ended.usage.expect("it is there").generated), (wire::Delivery::Partial, 3));
    let outcome = ended.outcome.expect("it is there");
    assert_eq!((outcome.kind(), outcome.cause()), (wire::OutcomeKind::Cancelled, wire::Cause::CancelRequested));
    assert_eq!(outcome.reason.as_deref(), Some("as you wish"));
}
