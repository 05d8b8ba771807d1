//! What an upstream is found to be, and what it is told by name, over a real socket.

use std::time::Duration;

use upstream::abort::{Aborter, Asks, RequestName, Told};
use upstream::client::{CallError, Client, Limits};
use upstream::config::UpstreamConfig;
use upstream::detect::detect;
use upstream::kind::{DeadlineBy, Kind};

use crate::script::*;

fn ok(body: &str) -> Vec<Step> {
    vec![Step::Request, reply("200 OK", "text/plain", body)]
}

fn not_found() -> Vec<Step> {
    vec![Step::Request, reply("404 Not Found", "text/html", "<html>nothing here</html>")]
}

/// One connection, on which it answers in this order and then waits.
async fn answering(answers: Vec<Vec<Step>>) -> (Upstream, UpstreamConfig, Client) {
    let mut steps = answers.concat();
    steps.push(Step::UntilClosed);
    let upstream = Upstream::always(steps).await;
    let mut config = UpstreamConfig::at(&upstream.url()).expect("a URL");
    config.look_timeout = Duration::from_millis(200);
    let client = Client::new(&config).expect("a client");
    (upstream, config, client)
}

fn asked(upstream: &Upstream) -> Vec<String> {
    let requests = upstream.counts.requests.lock().expect("counts");
    requests.iter().filter_map(|r| r.split(' ').nth(1).map(str::to_owned)).collect()
}

#[tokio::test]
async fn vllm_is_asked_no_more_than_it_takes() {
    let models = ok(r#"{"data":[{"id":"smollm2","owned_by":"vllm","max_model_len":4096}]}"#);
    let metrics = ok("vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0.0\n");
    let (upstream, config, client) = answering(vec![models, metrics, ok(r#"{"version":"0.32.0"}"#)]).await;
    let found = soon(detect(&client, &config)).await.expect("an upstream");
    assert_eq!((found.kind, found.counters, found.version.as_deref()), (Kind::Vllm, true, Some("0.32.0")));
    assert_eq!(found.models[0].id, "smollm2");
    assert_eq!(asked(&upstream), ["/v1/models", "/metrics", "/version"]);
    assert_eq!(upstream.accepted(), 1);
}

#[tokio::test]
async fn one_that_answers_nothing_useful_is_generic() {
    let all = std::iter::repeat_with(not_found).take(7).collect();
    let (upstream, config, client) = answering(all).await;
    let found = soon(detect(&client, &config)).await.expect("an upstream");
    assert_eq!((found.kind, found.counters, found.models.len()), (Kind::OpenAi, false, 0));
    assert!(found.why.contains("/v1/models: status 404"), "{}", found.why);
    assert_eq!(
        asked(&upstream),
        ["/v1/models", "/metrics", "/version", "/server_info", "/get_server_info", "/props", "/health/liveliness"]
    );
}

/// It is `openai` like other gateways, and its health is never asked for: that is a completion of each of its models.
#[tokio::test]
async fn litellm_is_known_by_its_word_that_it_is_alive_unless_the_configuration_says_more() {
    let models = ok(r#"{"data":[{"id":"m","object":"model","owned_by":"openai"}]}"#);
    let alive = || ok("\"I'm alive!\"");
    let page = || ok("<html>I'm alive!</html>");
    for (answer, deadline, is_litellm) in
        [(alive(), None, true), (page(), None, false), (not_found(), None, false), (alive(), Some(DeadlineBy::Nothing), false)]
    {
        let (upstream, mut config, client) = answering(vec![models.clone(), answer]).await;
        (config.kind, config.deadline) = (Some(Kind::OpenAi), deadline);
        let found = soon(detect(&client, &config)).await.expect("an upstream");
        assert_eq!((found.kind, found.is_litellm, found.why.contains("LiteLLM")), (Kind::OpenAi, is_litellm, is_litellm));
        let questions = if deadline.is_none() { 2 } else { 1 };
        assert_eq!(asked(&upstream), ["/v1/models", "/health/liveliness"][..questions]);
    }
}

#[tokio::test]
async fn a_slow_one_a_silent_one_and_one_that_is_not_there() {
    let upstream = Upstream::always(vec![Step::Request, Step::UntilClosed]).await;
    let mut config = UpstreamConfig::at(&upstream.url()).expect("a URL");
    config.look_timeout = Duration::from_millis(50);
    let client = Client::new(&config).expect("a client");
    let found = soon(detect(&client, &config)).await.expect("it took the connection");
    assert_eq!(found.kind, Kind::OpenAi);
    upstream.all_closed(&client).await;
    let dripping =
        Upstream::always(vec![Step::Request, Step::Drip("HTTP/1.1 200 OK\r\n\r\n{}{}{}{}{}{}", Duration::from_millis(20))]).await;
    let mut config = UpstreamConfig::at(&dripping.url()).expect("a URL");
    (config.look_timeout, config.kind) = (Duration::from_millis(50), Some(Kind::OpenAi));
    let client = Client::new(&config).expect("a client");
    assert_eq!(soon(detect(&client, &config)).await.map(|found| found.models.len()), Ok(0));
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let config = UpstreamConfig::at(&format!("http://127.0.0.1:{port}")).expect("a URL");
    let client = Client::new(&config).expect("a client");
    assert!(matches!(soon(detect(&client, &config)).await, Err(CallError::NotSent(_))));
}

#[tokio::test]
async fn an_abort_is_sent_by_name_and_not_again_where_there_is_none() {
    let (upstream, config, client) = answering(vec![ok(""), not_found()]).await;
    let limits = Limits { head_timeout: config.look_timeout, idle_timeout: config.look_timeout, answer_bytes_max: 1024 };
    let aborter = Aborter::new(Kind::Vllm, Kind::Vllm.cancel(None));
    let told = |name| aborter.send(&client, RequestName(name), Asks::Chat { n: 1 }, limits);
    assert_eq!(soon(told(7)).await, Told::Taken);
    let sent = upstream.counts.requests.lock().expect("counts")[0].clone();
    assert!(sent.starts_with("POST /inference/v1/abort_requests "), "{sent}");
    assert!(sent.ends_with(r#"{"request_ids":["chatcmpl-00000000000000000000000000000007"]}"#), "{sent}");
    assert_eq!((soon(told(8)).await, soon(told(9)).await), (Told::NotThere, Told::NoId));
    assert_eq!((upstream.requests(), upstream.accepted()), (2, 1));
}
