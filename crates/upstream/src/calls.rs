//! What an event of a chat says beside its text: parts of calls and log-probabilities, for whoever reads the answer instead of passing it on.
//!
//! Read apart from what is read of every event (`json`), for it is wanted of few runs and costs more.
//!
//! Invariant: what cannot be read is as if it were not there.

use lifecycle::message::{Called, TokenLogprob};
use serde_json::Value;

/// What one event says of one choice.
#[derive(Default, Debug, PartialEq)]
pub(crate) struct More {
    pub(crate) calls: Vec<Called>,
    pub(crate) logprobs: Vec<TokenLogprob>,
}

/// Reads it.
pub(crate) fn read(json: &[u8], index: u32) -> More {
    let Some(event) = gateway::mended(json) else { return More::default() };
    let is_it = |choice: &&Value| choice["index"].as_u64().unwrap_or(0) == u64::from(index);
    let Some(choice) = event["choices"].as_array().and_then(|choices| choices.iter().find(is_it)) else { return More::default() };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    More {
        calls: list(&choice["delta"]["tool_calls"]).iter().map(part).collect(),
        logprobs: list(&choice["logprobs"]["content"]).iter().map(logprob).collect(),
    }
}

fn part(call: &Value) -> Called {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let function = &call["function"];
    Called {
        place: call["index"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        id: text(&call["id"]),
        name: text(&function["name"]),
        arguments: match &function["arguments"] {
            Value::String(part) => part.clone(),
            // Some give them read.
            read @ Value::Object(_) => read.to_string(),
            _ => String::new(),
        },
    }
}

fn logprob(entry: &Value) -> TokenLogprob {
    let (bytes, logprob) = token(entry);
    let top = entry["top_logprobs"].as_array().into_iter().flatten().map(token);
    TokenLogprob {
        token: TokenLogprob::UNNAMED,
        bytes,
        logprob,
        top: top.map(|(bytes, logprob)| (TokenLogprob::UNNAMED, bytes, logprob)).collect(),
    }
}

fn token(entry: &Value) -> (Vec<u8>, f32) {
    let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
    let bytes = entry["bytes"].as_array().and_then(|all| all.iter().map(byte).collect::<Option<Vec<u8>>>());
    let bytes = bytes.unwrap_or_else(|| entry["token"].as_str().unwrap_or_default().as_bytes().to_vec());
    (bytes, entry["logprob"].as_f64().map_or(f32::NEG_INFINITY, |logprob| logprob as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(place: u32, id: Option<&str>, name: Option<&str>, arguments: &str) -> Called {
        Called { place, id: id.map(str::to_owned), name: name.map(str::to_owned), arguments: arguments.to_owned() }
    }

    /// As vLLM, llama.cpp, SGLang and Ollama write them.
    #[test]
    fn parts_of_calls_in_each_engines_form() {
        for (delta, calls) in [
            (
                r#"{"content":null,"tool_calls":[{"id":"t1","type":"function","index":0,"function":{"name":"f"}}]}"#,
                vec![called(0, Some("t1"), Some("f"), "")],
            ),
            (r#"{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\""}}]}"#, vec![called(1, None, None, "{\"a\"")]),
            (
                r#"{"tool_calls":[{"id":null,"index":0,"type":"function","function":{"name":null,"arguments":": 1}"}}]}"#,
                vec![called(0, None, None, ": 1}")],
            ),
            (
                r#"{"content":"","tool_calls":[{"id":"a","index":0,"function":{"name":"f","arguments":{"a":1}}},{"id":"b"}]}"#,
                vec![called(0, Some("a"), Some("f"), "{\"a\":1}"), called(0, Some("b"), None, "")],
            ),
            (r#"{"tool_calls":null}"#, vec![]),
            (r#"{"tool_calls":7}"#, vec![]),
            ("null", vec![]),
        ] {
            let event = format!(r#"{{"choices":[{{"index":1,"delta":{{}}}},{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#);
            assert_eq!(read(event.as_bytes(), 0), More { calls, logprobs: vec![] }, "{delta}");
        }
        for none in ["", "[]", "{}", r#"{"choices":[]}"#, r#"{"choices":7}"#] {
            assert_eq!(read(none.as_bytes(), 0), More::default(), "{none}");
        }
    }

    #[test]
    fn log_probabilities_by_bytes_or_by_text() {
        let event = r#"{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[
            {"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-1.5,"bytes":null}]},{"token":"c"}]}}]}"#;
        let said = read(event.as_bytes(), 0).logprobs;
        let unnamed = TokenLogprob::UNNAMED;
        let first = TokenLogprob { token: unnamed, bytes: b"a".to_vec(), logprob: -0.5, top: vec![(unnamed, b"b".to_vec(), -1.5)] };
        assert_eq!(said, [first, TokenLogprob { token: unnamed, bytes: b"c".to_vec(), logprob: f32::NEG_INFINITY, top: vec![] }]);
    }
}
