//! What is refused before it is a run: by name, in OpenAI's shape.

use serde_json::Value;

use crate::simulated::{default_stand, stand};
use crate::wire::{ask, chat, get};

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_refused_by_name() {
    let stand = default_stand().await;
    let table: &[(&str, &str)] = &[
        (r#","temperature":3"#, "temperature"),
        (r#","temperature":"hot""#, "temperature"),
        (r#","top_p":0"#, "top_p"),
        (r#","n":0"#, "n"),
        (r#","n":17"#, "n"),
        (r#","n":1.5"#, "n"),
        (r#","max_tokens":0"#, "max_tokens"),
        (r#","max_tokens":-1"#, "max_tokens"),
        (r#","max_completion_tokens":0"#, "max_completion_tokens"),
        (r#","max_completion_tokens":0,"max_tokens":5"#, "max_completion_tokens"),
        (r#","max_completion_tokens":5000000000"#, "max_completion_tokens"),
        (r#","stop":[1]"#, "stop"),
        (r#","stop":"""#, "stop"),
        (r#","top_logprobs":2"#, "top_logprobs"),
        (r#","logprobs":true,"top_logprobs":21"#, "top_logprobs"),
        (r#","logit_bias":{"x":1}"#, "logit_bias"),
        (r#","stream":"yes""#, "stream"),
        (r#","stream_options":{"include_usage":true}"#, "stream_options"),
        (r#","stream":true,"stream_options":{"extra":1}"#, "stream_options.extra"),
        (r#","timeout_ms":0"#, "timeout_ms"),
        (r#","timeout_ms":86400001"#, "timeout_ms"),
        (r#","min_tokens":5,"max_tokens":4"#, "min_tokens"),
        (r#","tools":[{"type":"function"}]"#, "tools"),
        (r#","response_format":{"type":"json_object"}"#, "response_format"),
        (r#","tool_choice":"required""#, "tool_choice"),
        (r#","modalities":["audio"]"#, "modalities"),
        (r#","store":true"#, "store"),
        (r#","what_is_this":1"#, "what_is_this"),
    ];
    for (extra, param) in table {
        let reply = ask(stand.addr, "POST", "/v1/chat/completions", "", &chat(extra)).await;
        let (status, kind, named, _) = reply.error();
        assert_eq!((status, kind, named), (400, "invalid_request_error".into(), Value::from(*param)), "{extra}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_refused_by_name() {
    let stand = default_stand().await;
    let chats: &[(&str, &str)] = &[
        ("{}", "messages"),
        (r#"{"messages":[]}"#, "messages"),
        (r#"{"messages":"hi"}"#, "messages"),
        (r#"{"messages":["hi"]}"#, "messages[0]"),
        (r#"{"messages":[{"content":"x"}]}"#, "messages[0].role"),
        (r#"{"messages":[{"role":"tool","content":"x"}]}"#, "messages[0].role"),
        (r#"{"messages":[{"role":"user"}]}"#, "messages[0].content"),
        (r#"{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}"#, "messages[0].content[0]"),
        (r#"{"messages":[{"role":"assistant","content":"x","tool_calls":[1]}]}"#, "messages[0].tool_calls"),
    ];
    let texts: &[(&str, &str)] = &[
        ("{}", "prompt"),
        (r#"{"prompt":[]}"#, "prompt"),
        (r#"{"prompt":["a","b"]}"#, "prompt"),
        (r#"{"prompt":[[1],[2]]}"#, "prompt"),
        (r#"{"prompt":[1,"a"]}"#, "prompt"),
        (r#"{"prompt":[-1]}"#, "prompt"),
        (r#"{"prompt":"a","echo":true}"#, "echo"),
        (r#"{"prompt":"a","best_of":2}"#, "best_of"),
        (r#"{"prompt":"a","suffix":"b"}"#, "suffix"),
        (r#"{"prompt":"a","logprobs":21}"#, "logprobs"),
        (r#"{"prompt":"a","logprobs":true}"#, "logprobs"),
    ];
    for (path, table) in [("/v1/chat/completions", chats), ("/v1/completions", texts)] {
        for (body, param) in table {
            let (status, _, named, _) = ask(stand.addr, "POST", path, "", body).await.error();
            assert_eq!((status, named), (400, Value::from(*param)), "{body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_says_where() {
    let stand = default_stand().await;
    for (body, part) in [("{\n \"messages\": oops}", "line 2 column"), ("", "line 1 column 0"), ("[]", "must be a JSON object")] {
        let reply = ask(stand.addr, "POST", "/v1/chat/completions", "", body).await;
        assert_eq!(reply.error().0, 400);
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_paths_methods_and_sizes() {
    let stand = stand(gateway::GatewayConfig { body_bytes_max: 1000, ..Default::default() }).await;
    let reply = ask(stand.addr, "POST", "/v1/chat/completions", "", &chat(r#","model":"gpt-9""#)).await;
    assert_eq!((reply.error().0, reply.error().3), (404, "model_not_found".into()));
    assert_eq!(get(stand.addr, "/v1/models/gpt-9").await.error().3, "model_not_found");
    let reply = get(stand.addr, "/v1/nothing").await;
    assert_eq!((reply.error().0, reply.error().3), (404, "unknown_url".into()));
    let reply = get(stand.addr, "/v1/chat/completions").await;
    assert_eq!((reply.error().0, reply.header("allow").as_deref()), (405, Some("POST")));
    let reply = ask(stand.addr, "POST", "/v1/chat/completions", "", &chat(&format!(r#","user":"{}""#, "x".repeat(1000)))).await;
    assert_eq!((reply.error().0, reply.error().3), (413, "body_too_large".into()));
    for bad in ["0", "-1", "soon", "1.5"] {
        let reply = ask(stand.addr, "POST", "/v1/chat/completions", &format!("X-Request-Timeout-Ms: {bad}\r\n"), &chat("")).await;
        assert_eq!((reply.error().0, reply.error().2), (400, "X-Request-Timeout-Ms".into()));
    }
    // An empty model's name means the one there is.
    assert_eq!(ask(stand.addr, "POST", "/v1/chat/completions", "", &chat(r#","model":"","n":99"#)).await.error().2, "n");
}

/// The HTTP library answers these before they are requests: the status is right, the connection closed, and the next caller is served.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_gets_a_status_alone() {
    use tokio::io::AsyncReadExt;
    let stand = stand(gateway::GatewayConfig { head_bytes_max: 8 << 10, ..Default::default() }).await;
    let long = format!("GET /health HTTP/1.1\r\nHost: test\r\nX-Long: {}\r\n\r\n", "x".repeat(100 << 10));
    for (text, status) in [("what is this\r\n\r\n", "400"), ("GET /health HTTP/1.1\r\nno header\r\n\r\n", "400"), (long.as_str(), "431")] {
        let mut socket = tokio::net::TcpStream::connect(stand.addr).await.expect("connect");
        // A head that is refused is not read to its end, so its sender may be cut off: what counts is what it is told.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut socket, text.as_bytes()).await;
        let mut said = Vec::new();
        let _ = crate::simulated::soon("the connection is closed", socket.read_to_end(&mut said)).await;
        let said = String::from_utf8_lossy(&said);
        assert!(said.is_empty() && status == "431" || said.starts_with(&format!("HTTP/1.1 {status} ")), "{said:?}");
    }
    assert_eq!(get(stand.addr, "/health/live").await.status, 200);
}
