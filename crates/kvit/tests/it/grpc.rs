//! The gRPC front door with a real engine: the same answers as over HTTP, the same runs, and gRPC's own questions.
// contract: C-1, C-6, C-8, C-15, C-26
// field: F-78

use protocol::runs_v1::generate_event::Event;
use protocol::runs_v1::{self as wire, CancelRequest, GetRequest, WatchRequest};
use serde_json::Value;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::grpc_client::{Grpc, chat, model, with, word};
use crate::server::{Server, chat_body, lasting_model, rest, tiny_model};

const QUIET: [&str; 2] = ["--log", "error"];

#[test]
fn an_answer_is_the_one_that_http_gives_and_its_record_is_the_same() {
    let server = Server::start(&tiny_model(), &QUIET);
    let model = model(&server);
    let (_, _, body) = server.request("POST", "/v1/chat/completions", Some("http"), Some(&chat_body("Tell me", 24, false)));
    let over_http: Value = serde_json::from_slice(&body).expect("JSON");
    let caller = Grpc::to(&server);
    let mut call = caller.generate(&[("x-request-id", "grpc")], chat(&model, "Tell me", 24)).expect("it is taken on");
    assert_eq!(call.metadata.get("x-request-id").expect("the run's id"), "grpc");
    let first = caller.event(&mut call).expect("an event");
    assert!(matches!(&first, Some(Event::Accepted(accepted)) if accepted.run == "grpc"), "{first:?}");
    caller.read_to_the_end(&mut call).expect("it is whole");
    assert_eq!(call.text, over_http["choices"][0]["message"]["content"]);
    let ended = call.ended.expect("the last event");
    assert_eq!((ended.delivery(), ended.usage.expect("counts").generated, call.tokens), (wire::Delivery::Complete, 24, 24));
    assert_eq!(ended.outcome.expect("how it ended").cause(), wire::Cause::Length);

    // The record over gRPC, field for field what HTTP shows.
    let run = server.settled("grpc");
    let shown = caller.wait(caller.client.clone().get(GetRequest { run: "grpc".into() })).expect("it is there").into_inner();
    assert_eq!((shown.id.as_str(), shown.model.as_str(), shown.attempt), ("grpc", model.as_str(), 1));
    assert_eq!((shown.state(), shown.released, shown.settled), (wire::RunState::Ended, true, true));
    assert_eq!((shown.delivery(), shown.guarantee()), (wire::Delivery::Complete, wire::Guarantee::Confirmed));
    assert_eq!(shown.waste_bound_tokens, run["waste_bound_tokens"].as_u64());
    let tokens = shown.tokens.expect("counts");
    assert_eq!(Some(tokens.prompt), run["tokens"]["prompt"].as_u64());
    assert_eq!((Some(tokens.delivered), tokens.after_receipt), (run["tokens"]["delivered"].as_u64(), 0));
    let milestones = shown.milestones.expect("milestones");
    assert_eq!(milestones.first_token, run["milestones"]["first_token"].as_f64());
    assert_eq!((milestones.settled, milestones.cancel_sent), (run["milestones"]["settled"].as_f64(), None));
    assert_eq!(Some(shown.blocks.expect("counts").peak.into()), run["blocks"]["peak"].as_u64());
    assert_eq!(Some(shown.steps.expect("counts").total), run["steps"]["total"].as_u64());
    assert_eq!((shown.boundaries.len(), shown.boundaries[1].hop.as_str()), (2, "gateway-worker"));
}

#[test]
fn several_answers_and_log_probabilities_come_as_asked_for() {
    let server = Server::start(&tiny_model(), &QUIET);
    let caller = Grpc::to(&server);
    let mut asked = chat(&model(&server), "Tell me", 5);
    let params = asked.params.as_mut().expect("given");
    (params.n, params.logprobs, params.temperature, params.seed) = (Some(2), Some(2), Some(1.0), Some(7));
    let mut call = caller.generate(&[], asked).expect("it is taken on");
    let (mut finished, mut tokens) = (Vec::new(), [0, 0]);
    while let Some(event) = caller.event(&mut call).expect("it is whole") {
        let Event::Delta(delta) = event else { continue };
        assert!(delta.logprobs.len() == delta.tokens.len() && delta.logprobs.iter().all(|entry| entry.top.len() == 2), "{delta:?}");
        tokens[delta.sequence as usize] += delta.tokens.len();
        if delta.finish.is_some() {
            assert_eq!(delta.finish(), wire::Cause::Length);
            finished.push(delta.sequence);
        }
    }
    finished.sort_unstable();
    assert_eq!((finished, tokens), (vec![0, 1], [5, 5]));
}

#[test]
fn ids_keys_and_a_taken_name_are_as_over_http() {
    let server = Server::start(&lasting_model(), &QUIET);
    let (model, baseline) = (model(&server), rest(&server.kv()));
    let caller = Grpc::to(&server);
    let named = |call: &crate::grpc_client::Call, name: &str| {
        call.metadata.get(name).map(|value| value.to_str().expect("ASCII").to_owned()).unwrap_or_default()
    };
    let metadata = [("x-request-id", "one"), ("idempotency-key", "k"), ("x-on-disconnect", "cancel")];
    let mut one = caller.generate(&metadata, chat(&model, "go", 15_000)).expect("it is taken on");
    caller.read_tokens(&mut one, 2);
    // The same key and the same request, whatever it would be called: the same run.
    let again = wire::GenerateRequest { run: Some("two".into()), ..chat(&model, "go", 15_000) };
    let mut two = caller.generate(&[("idempotency-key", "k")], again).expect("it joins");
    assert_eq!(
        (named(&two, "x-request-id"), named(&two, "x-kvit-requested-id"), named(&two, "x-kvit-joined")),
        ("one".into(), "two".into(), "true".into())
    );
    caller.read_tokens(&mut two, 2);
    let other = caller.generate(&metadata[1..2], chat(&model, "another", 10)).err().expect("the key is in use");
    assert_eq!((other.code(), word(&other)), (Code::InvalidArgument, "idempotency_key_reused"));
    // The same name, and no key: another run.
    let mut three = caller.generate(&metadata[..1], chat(&model, "go on", 3)).expect("it is taken on");
    assert_eq!((named(&three, "x-request-id"), named(&three, "x-kvit-requested-id")), ("one~2".into(), "one".into()));
    caller.read_to_the_end(&mut three).expect("it is whole");
    drop(one);
    caller.read_tokens(&mut two, 20);
    assert_eq!(server.run("one")["outcome"], Value::Null, "one is still there");
    drop(two);
    assert_eq!(server.settled("one")["outcome"]["cause"], "client_reset");
    // No name: a fresh one.
    let mut four = caller.generate(&[], chat(&model, "hi", 3)).expect("it is taken on");
    let Ok(Some(Event::Accepted(accepted))) = caller.event(&mut four) else { panic!("the first event") };
    assert_eq!((accepted.run.len(), accepted.run.clone()), (36, named(&four, "x-request-id")));
    caller.read_to_the_end(&mut four).expect("it is whole");
    assert_eq!(rest(&server.kv()), baseline);
}

#[test]
fn a_run_is_watched_and_cancelled_by_name_and_its_reader_hears_of_it() {
    let server = Server::start(&lasting_model(), &QUIET);
    let (model, baseline) = (model(&server), rest(&server.kv()));
    let (caller, other) = (Grpc::to(&server), Grpc::to(&server));
    let mut call = caller.generate(&[("x-request-id", "r")], chat(&model, "go", 15_000)).expect("it is taken on");
    caller.read_tokens(&mut call, 2);
    let watch = || other.wait(other.client.clone().watch(WatchRequest { run: "r".into() })).expect("it is there").into_inner();
    // One that leaves ends nothing.
    let mut leaves = watch();
    assert!(other.wait(leaves.next()).expect("the run as it is").is_ok());
    drop(leaves);
    let mut watch = watch();
    let mut last = other.wait(watch.message()).expect("a stream").expect("the run as it is");
    assert!(last.state() == wire::RunState::Decoding && !last.settled && last.outcome.is_none(), "{last:?}");
    caller.read_tokens(&mut call, 6);

    let cancel = |wait_ms| CancelRequest { run: "r".into(), wait_ms };
    let run = other.wait(other.client.clone().cancel(cancel(Some(60_000)))).expect("it is there").into_inner();
    assert!(run.released, "{run:?}");
    assert_eq!(run.outcome.as_ref().expect("how it ended").cause(), wire::Cause::CancelRequested);
    let status = caller.read_to_the_end(&mut call).expect_err("it is no whole answer");
    assert_eq!((status.code(), word(&status)), (Code::Cancelled, "cancel_requested"));
    let ended = call.ended.as_ref().expect("whoever stays is told");
    assert_eq!((ended.delivery(), ended.outcome.as_ref().expect("how").kind()), (wire::Delivery::Partial, wire::OutcomeKind::Cancelled));
    let mut changes = 0;
    while let Some(run) = other.wait(watch.message()).expect("it ends well") {
        assert_ne!(run, last, "only what has changed is shown");
        (last, changes) = (run, changes + 1);
    }
    assert!(changes > 0 && last.settled && last.released, "{last:?}");
    assert_eq!(Some(last.tokens.expect("counts").generated), server.run("r")["tokens"]["generated"].as_u64());
    // Again, after the end: the same answer.
    let again = other.wait(other.client.clone().cancel(cancel(None))).expect("it is there").into_inner();
    assert_eq!(again, last);
    assert_eq!(rest(&server.kv()), baseline);
}

#[test]
fn reflection_lists_what_is_served_and_describes_it() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
    let server = Server::start(&tiny_model(), &QUIET);
    let caller = Grpc::to(&server);
    let ask = |question| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
        let mut client = ServerReflectionClient::new(caller.channel.clone());
        let mut answers = caller.wait(client.server_reflection_info(tokio_stream::once(request))).expect("it answers").into_inner();
        let ServerReflectionResponse { message_response, .. } = caller.wait(answers.message()).expect("no error").expect("an answer");
        message_response.expect("of a known kind")
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())) else { panic!("a list") };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(names, ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "kvit.v1.Runs"]);
    let described = ask(MessageRequest::FileContainingSymbol("kvit.v1.Runs.Generate".into()));
    assert!(matches!(described, MessageResponse::FileDescriptorResponse(files) if !files.file_descriptor_proto.is_empty()));
    let old = tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient::new(caller.channel.clone());
    let request = tonic_reflection::pb::v1alpha::ServerReflectionRequest::default();
    let answer = caller.wait({
        let mut old = old;
        async move { old.server_reflection_info(tokio_stream::once(request)).await.map(|_| ()) }
    });
    assert!(answer.is_ok(), "{answer:?}");
}

/// SERVING until a shutdown begins; and neither a watch nor a stream of questions that its caller keeps open holds the shutdown up.
// contract: C-28
#[test]
fn health_is_what_the_readiness_says_and_ends_with_the_server() {
    let server = Server::start(&lasting_model(), &["--log", "error", "--drain-ms", "600000", "--settle-ms", "600000"]);
    let model = model(&server);
    let caller = Grpc::to(&server);
    let check = |service: &str| {
        let request = HealthCheckRequest { service: service.into() };
        caller.wait(HealthClient::new(caller.channel.clone()).check(request)).map(|answer| answer.into_inner().status())
    };
    for known in ["", "kvit.v1.Runs"] {
        assert_eq!(check(known).expect("it is known"), ServingStatus::Serving);
    }
    assert_eq!(check("nobody").expect_err("it is not known").code(), Code::NotFound);
    let request = HealthCheckRequest { service: "kvit.v1.Runs".into() };
    let mut watch = caller.wait(HealthClient::new(caller.channel.clone()).watch(request)).expect("it is known").into_inner();
    let state = |said: Option<HealthCheckResponse>| said.map(|said| said.status());
    assert_eq!(state(caller.wait(watch.message()).expect("a word")), Some(ServingStatus::Serving));

    let mut call = caller.generate(&[("x-request-id", "r")], chat(&model, "go", 15_000)).expect("it is taken on");
    caller.read_tokens(&mut call, 2);
    let mut watched = caller.wait(caller.client.clone().watch(WatchRequest { run: "r".into() })).expect("it is there").into_inner();
    // A caller of reflection that never ends its questions.
    let questions = tokio_stream::pending();
    let mut reflection = tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient::new(caller.channel.clone());
    let mut open = caller.wait(reflection.server_reflection_info(questions)).expect("it answers").into_inner();

    server.signal("TERM");
    assert_eq!(state(caller.wait(watch.message()).expect("a word")), Some(ServingStatus::NotServing));
    assert_eq!(check("").expect("it is known"), ServingStatus::NotServing);
    let refused = caller.generate(&[], chat(&model, "hi", 3)).err().expect("nothing is taken on");
    assert_eq!((refused.code(), word(&refused)), (Code::Unavailable, "shutting_down"));
    assert!(refused.metadata().get("grpc-retry-pushback-ms").is_some());
    caller.read_tokens(&mut call, 4);
    server.signal("TERM");
    let status = caller.read_to_the_end(&mut call).expect_err("it is no whole answer");
    assert_eq!((status.code(), word(&status)), (Code::Unavailable, "shutdown"));
    let mut last = None;
    while let Some(run) = caller.wait(watched.message()).expect("it ends well") {
        last = Some(run);
    }
    assert!(last.is_some_and(|run| run.settled), "the last look shows the end");
    assert_eq!(caller.wait(watch.message()).expect_err("it cannot go on").code(), Code::Unavailable);
    assert_eq!(caller.wait(open.message()).expect("it ends well"), None);
    assert_eq!(server.ended(), Some(143));
}

#[test]
fn an_evicted_run_and_an_unknown_one_are_not_found_and_told_apart() {
    let server = Server::start(&tiny_model(), &["--journal-runs", "1", "--log", "error"]);
    let (model, caller) = (model(&server), Grpc::to(&server));
    for id in ["first", "second"] {
        let mut call = caller.generate(&[("x-request-id", id)], chat(&model, "hi", 2)).expect("it is taken on");
        caller.read_to_the_end(&mut call).expect("it is whole");
        server.settled(id);
    }
    let gone = |run: &str| {
        let client = || caller.client.clone();
        let statuses = [
            caller.wait(client().get(with(&[], GetRequest { run: run.into() }))).err(),
            caller.wait(client().cancel(CancelRequest { run: run.into(), wait_ms: None })).err(),
            caller.wait(client().watch(WatchRequest { run: run.into() })).err(),
        ];
        statuses.map(|status| status.map(|status| (status.code(), word(&status).to_owned())))
    };
    let not_found = |word: &str| [(); 3].map(|()| Some((Code::NotFound, word.to_owned())));
    assert_eq!(gone("first"), not_found("run_evicted"));
    assert_eq!(gone("nobody"), not_found("run_not_found"));
}
