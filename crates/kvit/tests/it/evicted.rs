//! A run that was evicted from memory: the server says so, and `kvit trace` says it in the server's words.
// contract: C-29

use serde_json::{Value, json};

use super::{kvit, said};
use crate::server::{Server, chat_body, tiny_model};

#[test]
fn an_evicted_run_is_said_to_be_evicted_and_an_unknown_one_is_not() {
    let server = Server::start(&tiny_model(), &["--journal-runs", "1", "--journal-evicted", "1", "--log", "error"]);
    let ask = |id: &str| {
        let (status, error) = server.json("GET", &format!("/v1/runs/{id}"));
        (status, error["error"]["code"].as_str().unwrap_or("none").to_owned())
    };
    let answer = |id: &str| {
        let (status, _, _) = server.request("POST", "/v1/chat/completions", Some(id), Some(&chat_body("Hi", 2, false)));
        assert_eq!(status, 200);
        server.settled(id);
    };
    answer("first");
    assert_eq!(ask("first"), (200, "none".into()));
    assert_eq!(ask("nobody"), (404, "run_not_found".into()));
    answer("second");
    assert_eq!(ask("first"), (410, "run_evicted".into()));
    assert_eq!(server.json("POST", "/v1/runs/first/cancel").0, 410, "it cannot be cancelled, and it is over");
    let (_, head, _) = server.request("GET", "/v1/runs/first", None, None);
    assert!(
        head.contains("\r\nx-request-id: first\r\n") || head.ends_with("\r\nx-request-id: first"),
        "it is still an answer about it: {head}"
    );
    let listed: Vec<Value> = server.json("GET", "/v1/runs").1["data"].as_array().expect("a list").clone();
    assert_eq!(listed.iter().map(|run| &run["id"]).collect::<Vec<_>>(), [&json!("second")]);

    let address = format!("http://127.0.0.1:{}", server.port);
    let trace = |id: &str| {
        let cache = tempfile::tempdir().expect("a folder");
        said(kvit(cache.path(), &["trace", id, "--server", &address]).output().expect("kvit runs"))
    };
    let gone = trace("first");
    assert_eq!((gone.code, gone.out.as_str()), (3, ""), "{}", gone.err);
    assert!(gone.err.contains("run `first` was evicted from memory") && gone.err.contains("journal_runs, 1"), "{}", gone.err);

    // One more, and the ring of ids forgets the first: now nobody can tell it from one that never was, and that is what is said.
    answer("third");
    assert_eq!((ask("second"), ask("first")), ((410, "run_evicted".into()), (404, "run_not_found".into())));
    let forgotten = trace("first");
    assert_eq!(forgotten.code, 3);
    assert!(
        forgotten.err.contains("unknown here, or evicted longer ago") && forgotten.err.contains("journal_evicted, 1"),
        "{}",
        forgotten.err
    );
    assert!(server.terminate());
}
