//! API keys and their tenants, with the real binary, its engine and its account: whose run is whose, and what nobody is told.
// contract: C-1 C-21 C-30

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use protocol::runs_v1::{self as wire, CancelRequest, GetRequest, WatchRequest};
use serde_json::{Value, json};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::{kvit, said};
use crate::grpc_client::{Grpc, chat, with, word};
use crate::server::{Caller, PATIENCE, Server, chat_body, lasting_model};

const ALICE: &str = "secret-of-alice-of-one";
const CAROL: &str = "secret-of-carol-of-one";
const BOB: &str = "secret-of-bob-of-two";
const OPERATOR: &str = "secret-of-the-operator";
const LONG: u32 = 15_000;

/// A file with everybody's keys.
fn file(dir: &Path) -> PathBuf {
    let key =
        |name: &str, tenant: &str, secret: &str| format!("[[key]]\nname = \"{name}\"\ntenant = \"{tenant}\"\nsecret = \"{secret}\"\n");
    let text = [key("alice", "one", ALICE), key("carol", "one", CAROL), key("bob", "two", BOB), key("op", "ops", OPERATOR)].concat();
    let path = dir.join("kvit.toml");
    std::fs::write(&path, format!("log = \"error\"\n{text}operator = true\n")).expect("the file can be written");
    path
}

/// A server with these keys.
fn keyed() -> (Server, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = file(dir.path());
    (Server::start(&lasting_model(), &["--config", path.to_str().expect("a path")]), dir)
}

fn shows(secret: &str) -> String {
    format!("Authorization: Bearer {secret}\r\n")
}

fn ask(server: &Server, secret: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
    let (status, _, body) = server.request_with(method, path, &shows(secret), body);
    (status, String::from_utf8(body).expect("text"))
}

fn get(server: &Server, secret: &str, path: &str) -> Value {
    serde_json::from_str(&ask(server, secret, "GET", path, None).1).expect("JSON")
}

/// Waits until a run that its caller sees is so.
fn wait(server: &Server, secret: &str, id: &str, when: impl Fn(&Value) -> bool) -> Value {
    let since = Instant::now();
    loop {
        let run = get(server, secret, &format!("/v1/runs/{id}"));
        if when(&run) {
            return run;
        }
        assert!(since.elapsed() < PATIENCE, "{run:#}");
    }
}

fn ids(server: &Server, secret: &str) -> Vec<String> {
    let list = get(server, secret, "/v1/runs");
    let ids = list["data"].as_array().expect("a list").iter().filter_map(|run| run["id"].as_str().map(str::to_owned));
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    ids
}

fn live(server: &Server, secret: &str, id: &str) -> Caller {
    let headers = format!("{}Idempotency-Key: k\r\n", shows(secret));
    let mut caller = Caller::post_with(server, "/v1/chat/completions", id, &headers, &chat_body("Go on and on", LONG, true));
    caller.read_tokens(2);
    caller
}

#[test]
fn two_tenants_use_the_same_id_at_the_same_time_and_neither_reaches_the_others_run() {
    let (server, _dir) = keyed();
    // The same id, the same Idempotency-Key, the same body.
    let mut alices = live(&server, ALICE, "same");
    let _bobs = live(&server, BOB, "same");
    let mut carols = Caller::post_with(&server, "/v1/chat/completions", "hers", &shows(CAROL), &chat_body("Something else", LONG, true));
    carols.read_tokens(2);
    assert_eq!((ids(&server, ALICE), ids(&server, BOB)), (vec!["hers".to_owned(), "same".to_owned()], vec!["same".to_owned()]));
    assert_eq!(ids(&server, CAROL), ids(&server, ALICE), "a tenant's callers see its runs");
    assert!(ids(&server, OPERATOR).is_empty(), "lists are the tenant's, whoever asks");

    // What is there for another tenant is as what is nowhere, word for word.
    for (method, path) in [("GET", "/v1/runs/ID"), ("POST", "/v1/runs/ID/cancel"), ("POST", "/v1/runs/ID/cancel?wait_ms=1")] {
        let told = |id: &str| ask(&server, BOB, method, &path.replace("ID", id), None);
        let (foreign, nowhere) = (told("hers"), told("none"));
        assert_eq!((foreign.0, foreign.1.replace("hers", "none")), nowhere, "{path}");
        assert_eq!(foreign.0, 404);
    }
    let after = |id: &str| ask(&server, BOB, "GET", &format!("/v1/runs?after={id}"), None);
    assert_eq!((after("hers").0, after("hers")), (400, after("none")));
    let head = |id: &str| server.request_with("GET", &format!("/v1/runs/{id}"), &format!("{}X-Request-Id: q\r\n", shows(BOB)), None).1;
    let named = |head: &str| head.lines().filter(|line| line.starts_with("x-")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((named(&head("hers")), named(&head("none"))), (vec!["x-request-id: q".to_owned()], vec!["x-request-id: q".to_owned()]));

    // Each cancels its own.
    assert_eq!(ask(&server, BOB, "POST", "/v1/runs/same/cancel", None).0, 200);
    assert_eq!(wait(&server, BOB, "same", |run| run["settled"] == true)["outcome"]["cause"], "cancel_requested");
    alices.read_tokens(3);
    carols.read_tokens(3);
    assert_eq!(get(&server, ALICE, "/v1/runs/same")["outcome"], Value::Null);
    // A taken id is taken within its tenant.
    let (status, head, _) = server.request_with(
        "POST",
        "/v1/chat/completions",
        &format!("{}X-Request-Id: hers\r\n", shows(ALICE)),
        Some(&chat_body("Short", 1, false)),
    );
    assert!(status == 200 && head.contains("x-request-id: hers~2"), "{head}");
    assert_eq!(ask(&server, CAROL, "POST", "/v1/runs/same/cancel", None).0, 200, "a tenant's callers cancel its runs");
    wait(&server, ALICE, "same", |run| run["outcome"]["cause"] == "cancel_requested");
}

#[test]
fn over_grpc_another_tenants_run_is_not_there_either() {
    let (server, _dir) = keyed();
    let caller = Grpc::to(&server);
    let (alice, bob) = (format!("Bearer {ALICE}"), format!("Bearer {BOB}"));
    let model = get(&server, ALICE, "/v1/models")["data"][0]["id"].as_str().expect("a model").to_owned();
    let mut alices = caller.generate(&[("authorization", &alice), ("x-request-id", "same")], chat(&model, "Go", LONG)).expect("a run");
    let mut bobs = caller.generate(&[("authorization", &bob), ("x-request-id", "same")], chat(&model, "Go", LONG)).expect("a run");
    assert_eq!([&alices, &bobs].map(|call| call.metadata.get("x-request-id").expect("an id").clone()), ["same", "same"]);
    caller.read_tokens(&mut alices, 2);
    caller.read_tokens(&mut bobs, 2);
    let _hers = caller.generate(&[("authorization", &alice), ("x-request-id", "hers")], chat(&model, "Go", LONG)).expect("a run");

    let mut client = caller.client.clone();
    let told = |status: Option<tonic::Status>, id: &str| {
        let status = status.expect("refused");
        (status.code(), word(&status).to_owned(), status.message().replace(id, "ID"))
    };
    let as_bob: [(&str, &str); 1] = [("authorization", &bob)];
    for id in ["hers", "none"] {
        let expected = (Code::NotFound, "run_not_found".to_owned(), "no run `ID`".to_owned());
        let got = caller.wait(client.get(with(&as_bob, GetRequest { run: id.into() }))).err();
        assert_eq!(told(got, id), expected);
        let cancelled = caller.wait(client.cancel(with(&as_bob, CancelRequest { run: id.into(), wait_ms: None }))).err();
        assert_eq!(told(cancelled, id), expected);
        let watched = caller.wait(client.watch(with(&as_bob, WatchRequest { run: id.into() }))).err();
        assert_eq!(told(watched, id), expected);
    }
    let cancel = with(&as_bob, CancelRequest { run: "same".into(), wait_ms: None });
    let run = caller.wait(client.cancel(cancel)).expect("it is his").into_inner();
    assert_eq!(run.outcome.expect("an outcome").cause(), wire::Cause::CancelRequested);
    let before = alices.tokens;
    caller.read_tokens(&mut alices, before + 2);
    assert_eq!(get(&server, ALICE, "/v1/runs/hers")["outcome"], Value::Null);
}

#[test]
fn who_shows_no_known_key_is_told_so_and_nothing_else() {
    let (server, _dir) = keyed();
    let body = chat_body("Hello", 1, false);
    let paths = [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/runs"),
        ("GET", "/v1/runs/any"),
        ("POST", "/v1/runs/any/cancel"),
        ("GET", "/v1/kv"),
        ("GET", "/v1/kv/blocks"),
        ("GET", "/v1/workers"),
        ("GET", "/nothing/here"),
        ("GET", "/health/"),
        ("GET", "/metrics/x"),
    ];
    for (method, path) in paths {
        for headers in ["", "Authorization: Bearer secret-of-nobody-at-all\r\n", &format!("Authorization: {ALICE}\r\n")] {
            let headers = format!("{headers}X-Request-Id: q\r\n");
            let (status, head, told) = server.request_with(method, path, &headers, (method == "POST").then_some(&body));
            assert_eq!(status, 401, "{path}");
            assert!(head.contains("www-authenticate: bearer") && head.contains("x-request-id: q"), "{head}");
            let told: Value = serde_json::from_slice(&told).expect("JSON");
            assert_eq!((&told["error"]["code"], &told["error"]["type"]), (&json!("invalid_api_key"), &json!("invalid_request_error")));
            assert!(!told.to_string().contains("secret"), "{told}");
        }
    }
    for path in ["/health", "/health/live", "/health/ready", "/metrics"] {
        assert_eq!(server.request("GET", path, None, None).0, 200, "{path}");
    }
    assert!(ids(&server, ALICE).is_empty(), "nothing was taken on");

    let caller = Grpc::to(&server);
    for metadata in [&[][..], &[("authorization", "Bearer secret-of-nobody-at-all")]] {
        let status = caller.generate(metadata, chat("any", "Hello", 1)).err().expect("refused");
        assert_eq!((status.code(), word(&status)), (Code::Unauthenticated, "invalid_api_key"));
        let status = caller.wait(caller.client.clone().get(with(metadata, GetRequest { run: "any".into() }))).expect_err("refused");
        assert_eq!((status.code(), word(&status)), (Code::Unauthenticated, "invalid_api_key"));
    }
    let mut health = HealthClient::new(caller.channel.clone());
    assert!(caller.wait(health.check(HealthCheckRequest::default())).is_ok());
}

#[test]
fn a_prefix_is_shared_inside_a_tenant_and_not_beyond() {
    let (server, _dir) = keyed();
    let body = chat_body(&"A prompt of some length. ".repeat(20), 1, false);
    let cached = |secret: &str| {
        let (status, text) = ask(&server, secret, "POST", "/v1/chat/completions", Some(&body));
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count")
    };
    assert_eq!(cached(ALICE), 0);
    let own = cached(ALICE);
    assert!(own > 100, "{own}");
    assert_eq!((cached(BOB), cached(CAROL), cached(BOB)), (0, own, own), "bob computed it anew, and then has his own");
}

#[test]
fn blocks_name_their_owners_to_their_tenant_and_to_an_operator() {
    let (server, _dir) = keyed();
    let _runs = (live(&server, ALICE, "same"), live(&server, BOB, "same"));
    let owners = |secret: &str| {
        let blocks = get(&server, secret, "/v1/kv/blocks");
        let owners = blocks["blocks"].as_array().expect("a list").iter().filter_map(|block| block["owners"].as_array()).flatten();
        let mut owners: Vec<String> = owners.filter_map(|owner| owner.as_str().map(str::to_owned)).collect();
        owners.sort();
        owners.dedup();
        owners
    };
    for secret in [ALICE, CAROL, BOB] {
        assert_eq!(owners(secret), ["-", "same/1"], "{secret}");
    }
    assert_eq!(owners(OPERATOR), ["one:same/1", "two:same/1"]);
    // So it is in the map that the console draws.
    let kinds = |secret: &str| {
        let map = get(&server, secret, "/v1/kv/map");
        let kinds = map["kinds"].as_array().expect("kinds").clone();
        let mut owners: Vec<String> = kinds
            .iter()
            .flat_map(|k| k["owners"].as_array().expect("owners").clone())
            .map(|o| o.as_str().expect("a name").to_owned())
            .collect();
        owners.sort();
        owners.dedup();
        owners
    };
    // It is looked at once a second.
    let since = Instant::now();
    while kinds(OPERATOR) != ["one:same/1", "two:same/1"] {
        assert!(since.elapsed() < PATIENCE, "{:?}", kinds(OPERATOR));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(kinds(BOB), ["-", "same/1"]);

    // An operator looks at whom it names, and at all; to everybody else another tenant that is named has nothing.
    let runs = |secret: &str, query: &str| {
        let page = get(&server, secret, &format!("/v1/runs?{query}"));
        let run = |run: &Value| format!("{}:{}", run["tenant"].as_str().expect("a tenant"), run["id"].as_str().expect("an id"));
        let mut runs: Vec<String> = page["data"].as_array().expect("a list").iter().map(run).collect();
        runs.sort();
        runs
    };
    assert_eq!(runs(OPERATOR, "state=live"), [""; 0]);
    assert_eq!(runs(OPERATOR, "state=live&tenant=two"), ["two:same"]);
    assert_eq!(runs(OPERATOR, "state=live&tenant=*"), ["one:same", "two:same"]);
    assert_eq!(runs(ALICE, "state=live&tenant=one"), ["one:same"]);
    assert_eq!(runs(ALICE, "state=live&tenant=two"), [""; 0]);
    for path in ["/v1/runs/same", "/v1/runs/same/steps"] {
        assert_eq!(ask(&server, OPERATOR, "GET", &format!("{path}?tenant=two"), None).0, 200, "{path}");
        assert_eq!(ask(&server, ALICE, "GET", &format!("{path}?tenant=one"), None).0, 200, "{path}");
        assert_eq!(
            ask(&server, ALICE, "GET", &format!("{path}?tenant=two"), None),
            ask(&server, ALICE, "GET", &format!("{path}?tenant=nobody"), None)
        );
        assert_eq!(ask(&server, OPERATOR, "GET", path, None).0, 404, "{path}: it names no tenant");
    }
    assert_eq!(ask(&server, ALICE, "GET", "/v1/runs?tenant=*", None).0, 400, "no tenant is called so");
    // It looks, and touches nothing.
    assert_eq!(ask(&server, OPERATOR, "POST", "/v1/runs/same/cancel", None).0, 404);

    let who = |secret: &str| get(&server, secret, "/v1/caller");
    assert_eq!(who(OPERATOR), json!({"object": "caller", "keys": true, "name": "op", "tenant": "ops", "operator": true}));
    assert_eq!(who(BOB), json!({"object": "caller", "keys": true, "name": "bob", "tenant": "two", "operator": false}));
    let nobody = json!({"object": "caller", "keys": true, "name": null, "tenant": null, "operator": false});
    assert_eq!(who("no-key-of-anybodys"), nobody);
    let (status, _, body) = server.request_with("GET", "/v1/caller", "", None);
    assert_eq!((status, serde_json::from_slice::<Value>(&body).expect("JSON")), (200, nobody));
    // The console's files are nobody's; what it shows is asked for with a key.
    assert_eq!(server.request_with("GET", "/console", "", None).0, 200);
    for path in ["/v1/runs", "/v1/kv/map", "/v1/kv/moments", "/v1/kv/blocks/0", "/v1/runs/same/steps"] {
        assert_eq!(server.request_with("GET", path, "", None).0, 401, "{path}");
    }
}

#[test]
fn without_keys_any_key_does_and_everybody_is_one_tenant() {
    let server = Server::start(&lasting_model(), &["--log", "error"]);
    let (status, _, _) = server.request_with(
        "POST",
        "/v1/chat/completions",
        &format!("{}X-Request-Id: one\r\n", shows("sk-anything")),
        Some(&chat_body("Hello", 1, false)),
    );
    assert_eq!(status, 200);
    assert_eq!(get(&server, "another", "/v1/runs/one")["id"], "one");
    assert_eq!(server.run("one")["id"], "one");
    assert_eq!(server.request_with("GET", "/v1/runs/one", "Authorization: nonsense\r\n", None).0, 200);
}

#[test]
fn a_key_that_was_made_lets_in_and_is_in_no_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = said(kvit(dir.path(), &["key", "alice", "--tenant", "one"]).output().expect("kvit runs"));
    let secret = made.err.lines().find(|line| line.starts_with("kvit-")).expect("a secret").to_owned();
    assert!(made.code == 0 && made.out.starts_with("[[key]]\nname = \"alice\"\ntenant = \"one\"\n"), "{}", made.out);
    assert!(!made.out.contains(&secret) && made.out.contains("secret_sha256"), "{}", made.out);
    let again = said(kvit(dir.path(), &["key", "bob", "--operator", "--json"]).output().expect("kvit runs"));
    let other: Value = serde_json::from_str(&again.out).expect("JSON");
    assert_ne!(other["secret"], json!(secret));
    assert_eq!(said(kvit(dir.path(), &["key", "a b"]).output().expect("kvit runs")).code, 2);

    let (path, log) = (dir.path().join("kvit.toml"), dir.path().join("log"));
    let text = format!("log = \"trace\"\n{}{}", made.out, other["table"].as_str().expect("a table"));
    std::fs::write(&path, text).expect("the file can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
    command.args(["serve", "--port", "0", "--config"]).arg(&path).arg("--model").arg(lasting_model());
    command.stderr(Stdio::from(std::fs::File::create(&log).expect("a log")));
    let server = Server::listening(command);
    let (status, told) = ask(&server, &secret, "POST", "/v1/chat/completions", Some(&chat_body("Hello", 1, false)));
    assert_eq!(status, 200, "{told}");
    let stranger = "secret-of-nobody-at-all";
    assert_eq!(ask(&server, stranger, "GET", "/v1/runs", None).0, 401);
    let grpc = Grpc::to(&server);
    let show = |secret: &str| {
        grpc.wait(grpc.client.clone().get(with(&[("authorization", &format!("Bearer {secret}"))], GetRequest { run: "any".into() })))
    };
    assert_eq!(
        [show(&secret), show(stranger)].map(|told| told.err().map(|status| status.code())),
        [Some(Code::NotFound), Some(Code::Unauthenticated)]
    );

    // The commands that ask a server.
    let address = format!("http://127.0.0.1:{}", server.port);
    let runs = |key: Option<&str>| {
        let mut command = kvit(dir.path(), &["runs", "--server", &address]);
        said(command.envs(key.map(|key| ("KVIT_API_KEY", key))).output().expect("kvit runs"))
    };
    assert_eq!((runs(Some(&secret)).code, runs(other["secret"].as_str()).out.trim()), (0, "no runs"));
    let refused = runs(None);
    assert!(refused.code == 2 && refused.err.contains("KVIT_API_KEY"), "{}", refused.err);
    assert!(!runs(Some(stranger)).err.contains(stranger));
    assert_eq!(runs(Some("with a space")).code, 2);

    drop(grpc);
    assert!(server.terminate());
    let log = std::fs::read_to_string(&log).expect("the log");
    assert!(log.contains("alice"), "it says who asks");
    for secret in [&secret, stranger, &secret["kvit-".len()..], &made.out[made.out.len() - 40..made.out.len() - 8]] {
        assert!(!log.contains(secret), "a secret or a digest is in the log");
    }
}
