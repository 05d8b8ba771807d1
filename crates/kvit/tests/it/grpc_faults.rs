//! gRPC calls that are wrong, and runs that are turned away: each with its status, its word and no trace.
// contract: C-6, C-15, C-22, C-28
// field: F-78

use protocol::runs_v1::generate_request::Prompt;
use protocol::runs_v1::{self as wire, GenerateRequest, Params};
use tonic::Code;

use crate::grpc_client::{Grpc, chat, model, word};
use crate::server::{Server, lasting_model, rest, tiny_model};

#[test]
fn a_bad_request_is_a_status_that_names_what_is_wrong_and_makes_no_run() {
    let server = Server::start(&tiny_model(), &["--log", "error", "--body-bytes-max", "20000"]);
    let (model, caller) = (model(&server), Grpc::to(&server));
    let good = || chat(&model, "hi", 3);
    let params = |change: &dyn Fn(&mut Params)| {
        let mut request = good();
        change(request.params.as_mut().expect("given"));
        request
    };
    let text = |text: String| GenerateRequest { prompt: Some(Prompt::Text(wire::Text { text })), ..good() };
    type Row<'a> = (&'a [(&'a str, &'a str)], GenerateRequest, Code, &'a str);
    let rows: [Row; 20] = [
        (&[], GenerateRequest { model: String::new(), ..good() }, Code::InvalidArgument, "GenerateRequest.model"),
        (&[], GenerateRequest { model: "nobody".into(), ..good() }, Code::NotFound, "`nobody`"),
        (&[], GenerateRequest { prompt: None, ..good() }, Code::InvalidArgument, "GenerateRequest.prompt"),
        (&[], GenerateRequest { prompt: Some(Prompt::Chat(wire::Chat::default())), ..good() }, Code::InvalidArgument, "Chat.turns"),
        (&[], GenerateRequest { run: Some("a b".into()), ..good() }, Code::InvalidArgument, "GenerateRequest.run"),
        (&[], params(&|p| p.temperature = Some(3.0)), Code::InvalidArgument, "temperature"),
        (&[], params(&|p| p.temperature = Some(f32::NAN)), Code::InvalidArgument, "temperature"),
        (&[], params(&|p| p.n = Some(0)), Code::InvalidArgument, "n must be"),
        (&[], params(&|p| p.max_tokens = Some(0)), Code::InvalidArgument, "max_tokens"),
        (&[], params(&|p| p.logit_bias = (0..1025).map(|token| (token, 1.0)).collect()), Code::InvalidArgument, "Params.logit_bias"),
        (&[], params(&|p| p.stop_token_ids = vec![1; 65]), Code::InvalidArgument, "Params.stop_token_ids"),
        (&[], params(&|p| p.cache_salt = "s".repeat(257)), Code::InvalidArgument, "Params.cache_salt"),
        (&[("x-request-id", "a b")], good(), Code::InvalidArgument, "X-Request-Id"),
        (&[("x-request-id", "a")], GenerateRequest { run: Some("b".into()), ..good() }, Code::InvalidArgument, "GenerateRequest.run"),
        (&[("idempotency-key", "")], good(), Code::InvalidArgument, "Idempotency-Key"),
        (&[("x-on-disconnect", "stay")], good(), Code::InvalidArgument, "X-On-Disconnect"),
        (&[], GenerateRequest { on_disconnect: Some("grace".into()), ..good() }, Code::InvalidArgument, "GenerateRequest.on_disconnect"),
        (&[("grpc-timeout", "soon")], good(), Code::InvalidArgument, "grpc-timeout"),
        (&[("grpc-timeout", "0m")], good(), Code::DeadlineExceeded, "deadline"),
        (&[], text("x".repeat(20_001)), Code::ResourceExhausted, "20000 bytes"),
    ];
    for (metadata, request, code, named) in rows {
        let status = caller.generate(metadata, request).err().unwrap_or_else(|| panic!("{named} is refused"));
        assert_eq!(status.code(), code, "{named}: {status:?}");
        assert!(status.message().contains(named), "{named}: {status:?}");
    }
    let wait = wire::CancelRequest { run: "r".into(), wait_ms: Some(60_001) };
    let status = caller.wait(caller.client.clone().cancel(wait)).expect_err("too long");
    assert!(status.code() == Code::InvalidArgument && status.message().contains("wait_ms"), "{status:?}");
    assert_eq!(server.json("GET", "/v1/runs").1["data"].as_array().map(Vec::len), Some(0), "what is refused is no run");
    // A word that the model's template does not know is the worker's to judge; whatever it says, it is no crash.
    let turn = wire::Turn { role: "stranger".into(), content: "hi".into() };
    let odd = GenerateRequest { prompt: Some(Prompt::Chat(wire::Chat { turns: vec![turn] })), ..good() };
    if let Ok(mut call) = caller.generate(&[], odd) {
        caller.read_to_the_end(&mut call).expect("then it is whole");
    }
    let mut call = caller.generate(&[("grpc-timeout", "99999999H")], good()).expect("a far deadline is none");
    caller.read_to_the_end(&mut call).expect("whoever comes next is served");
}

/// Turned away before its first event: a status alone, with its id, so that a client's policy may try again.
#[test]
fn a_run_that_is_turned_away_is_a_status_alone() {
    let words = ["--log", "error", "--max-running", "1", "--queue-limit", "1", "--queue-deadline-ms", "3000", "--kv-blocks", "1200"];
    let server = Server::start(&lasting_model(), &words);
    let (model, baseline) = (model(&server), rest(&server.kv()));
    let caller = Grpc::to(&server);
    let refused = |id: &str, request| caller.generate(&[("x-request-id", id)], request).err().expect("it is turned away");
    let over = refused("over", chat(&model, &"0123456789".repeat(2000), 10));
    assert_eq!(
        (over.code(), over.metadata().get("x-request-id").expect("its id")),
        (Code::InvalidArgument, &"over".parse().expect("ASCII")),
        "{over:?}"
    );
    let mut held = caller.generate(&[("x-request-id", "holder")], chat(&model, "go", 15_000)).expect("it is taken on");
    caller.read_tokens(&mut held, 2);
    let mut queued = caller.generate(&[("x-request-id", "queued")], chat(&model, "hi", 3)).expect("it waits");
    server.wait_run("queued", "queue", |run| run["milestones"]["queued"].is_number());
    let full = refused("full", chat(&model, "hi", 3));
    assert_eq!((full.code(), word(&full)), (Code::Unavailable, "queue_full"), "{full:?}");
    assert_eq!(full.metadata().get("grpc-retry-pushback-ms").expect("when to come again"), "1000");
    assert_eq!(server.settled("full")["outcome"]["cause"], "queue_full");
    // What waited for too long had been taken on: it is told by its last event, and may be asked for again.
    let late = caller.read_to_the_end(&mut queued).expect_err("it is no whole answer");
    assert_eq!((late.code(), word(&late)), (Code::Unavailable, "queue_deadline"), "{late:?}");
    assert_eq!(queued.ended.expect("whoever stays is told").delivery(), wire::Delivery::None);
    drop(held);
    server.settled("holder");
    assert_eq!(rest(&server.kv()), baseline);
}

/// What comes to a service's path and is no gRPC call, and gRPC that asks for what is not here.
#[test]
fn what_is_no_grpc_is_told_so_in_http_and_what_is_not_here_in_grpc() {
    let server = Server::start(&tiny_model(), &["--log", "error"]);
    let path = "/kvit.v1.Runs/Generate";
    assert_eq!(server.request("GET", path, None, None).0, 405);
    assert_eq!(server.request("POST", path, None, Some(&serde_json::json!({}))).0, 415);
    let caller = Grpc::to(&server);
    let unary = |path: &'static str| {
        let mut client = tonic::client::Grpc::new(caller.channel.clone());
        let codec = tonic_prost_codec();
        caller.wait(async move {
            client.ready().await.expect("the connection is there");
            let request = tonic::Request::new(wire::GetRequest { run: "r".into() });
            client.unary::<_, wire::Run, _>(request, http::uri::PathAndQuery::from_static(path), codec).await.map(|_| ())
        })
    };
    for absent in ["/kvit.v1.Runs/Nothing", "/kvit.worker.v1.Session/Snapshot", "/v1/nothing"] {
        assert_eq!(unary(absent).expect_err("it is not here").code(), Code::Unimplemented, "{absent}");
    }
}

fn tonic_prost_codec() -> tonic_prost::ProstCodec<wire::GetRequest, wire::Run> {
    tonic_prost::ProstCodec::default()
}
