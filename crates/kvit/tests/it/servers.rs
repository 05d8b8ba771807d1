//! The commands that ask a server, against a simulated one that answers a fixed text.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use super::{Said, kvit, run, said};

/// Answers one request with this status and body; the request's first line comes back.
fn simulated(status: &'static str, body: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head: Vec<String> = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
        tx.send(head[0].clone()).unwrap();
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
    });
    (address, rx)
}

fn ask(status: &'static str, body: &'static str, args: &[&str]) -> (Said, String) {
    let (address, asked) = simulated(status, body);
    let cache = tempfile::tempdir().unwrap();
    let said = said(kvit(cache.path(), args).env("KVIT_SERVER", address).output().unwrap());
    (said, asked.recv().unwrap())
}

const RUN: &str = r#"{"object":"run","id":"a b","model":"m","state":"ended","released":true,"settled":true,"attempt":1,
 "outcome":{"kind":"cancelled","cause":"client_closed","reason":null},"delivery":"partial","guarantee":"confirmed","waste_bound_tokens":0,
 "phase_at_disconnect":"decode","milestones":{"accepted":0.0,"first_token":21.5,"disconnect_observed":140.2,"released":143.2,"settled":143.3},
 "boundaries":[],"tokens":{"prompt":37,"cached_prompt":16,"generated":19,"delivered":18,"after_disconnect":1,
 "prompt_computed_after_disconnect":0,"overrun":0},"steps":{"total":21,"after_disconnect":1},"blocks":{"held":0,"peak":4,"shared":1},
 "superseded":[]}"#;

#[test]
fn a_run_is_traced_by_its_whole_id() {
    let (said, asked) = ask("200 OK", RUN, &["trace", "a b"]);
    assert_eq!((said.code, asked.as_str()), (0, "GET /v1/runs/a%20b HTTP/1.1"));
    assert!(said.out.contains("client_closed") && said.out.contains("released"), "{}", said.out);
    assert!(!said.out.contains('\u{1b}'), "no colour into a pipe");
    let (said, _) = ask("200 OK", RUN, &["trace", "a b", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said.out).unwrap(), serde_json::from_str::<serde_json::Value>(RUN).unwrap());
}

#[test]
fn an_unknown_run_is_exit_code_3_in_the_servers_words() {
    let (said, _) = ask("404 Not Found", r#"{"error":{"message":"no run 'x'","type":"invalid_request_error"}}"#, &["trace", "x"]);
    assert_eq!((said.code, said.err.as_str()), (3, "kvit: no run 'x'\n"));
}

#[test]
fn no_server_is_exit_code_4_and_says_where_it_was_looked_for() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = run(&["kv", "--server", &format!("http://{closed}")]);
    assert_eq!(said.code, 4);
    assert!(said.err.contains(&closed.to_string()) && said.err.contains("kvit serve"), "{}", said.err);
    assert_eq!(run(&["kv", "--server", "https://localhost"]).code, 2);
    assert_eq!(run(&["kv", "--server", "http://"]).code, 2);
}

#[test]
fn another_kind_of_answer_is_a_failure_with_its_reason() {
    let (said, _) = ask("503 Service Unavailable", r#"{"error":{"message":"the worker does not answer"}}"#, &["kv"]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("503") && said.err.contains("the worker does not answer"), "{}", said.err);
    let (said, _) = ask("200 OK", "<html>", &["kv"]);
    assert_eq!((said.code, said.err.contains("is this a kvit server?")), (1, true), "{}", said.err);
}

#[test]
fn a_question_that_the_server_refuses_is_wrong_usage() {
    let refusal = r#"{"error":{"message":"state: must be one of queued, ended","type":"invalid_request_error"}}"#;
    let (said, asked) = ask("400 Bad Request", refusal, &["runs", "--state", "foo"]);
    assert_eq!((said.code, said.err.as_str()), (2, "kvit: state: must be one of queued, ended\n"));
    assert_eq!(asked, "GET /v1/runs?limit=20&state=foo HTTP/1.1");
}

#[test]
fn filters_and_block_lists_are_asked_for() {
    let list = r#"{"object":"list","data":[{"id":"r","state":"ended","released":true}],"has_more":false}"#;
    let (said, asked) = ask("200 OK", list, &["runs", "--outcome", "cancelled", "--cause", "client_closed", "--limit", "5"]);
    assert_eq!((said.code, asked.as_str()), (0, "GET /v1/runs?limit=5&outcome=cancelled&cause=client_closed HTTP/1.1"));
    assert!(said.out.lines().nth(1).is_some_and(|l| l.starts_with("r  ")), "{}", said.out);
    let kv = r#"{"object":"kv","total":2,"free":2,"conserved":true,"blocks":[{"block":0,"generation":7,"state":"free","owners":[],"fence":null}]}"#;
    let (said, asked) = ask("200 OK", kv, &["kv", "--blocks"]);
    assert_eq!((said.code, asked.as_str()), (0, "GET /v1/kv/blocks HTTP/1.1"));
    assert!(said.out.contains("2 blocks") && said.out.lines().last().is_some_and(|l| l.contains('7') && l.ends_with('-')), "{}", said.out);
}
