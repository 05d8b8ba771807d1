//! What is asked of an upstream for a run that did not come as an HTTP request of its own kind: from the Responses API or gRPC.
//!
//! Invariant: a parameter that the upstream's protocol has no word for is refused and not dropped.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lifecycle::message::{Forward, Prompt, Submit};
use lifecycle::params::Params;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::config::UpstreamConfig;
use crate::json::Object;

/// What a byte of a request may take an engine before it counts the request: of llama-server 0.7 µs were measured while builds took both of a
/// machine's cores (`bench/upstream_arrival.py`).
const BYTE: Duration = Duration::from_micros(2);

/// The word that every engine heeds.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Named {
    max_tokens: Option<IgnoredAny>,
}

/// Whether tokens are asked for.
pub(super) fn generates(path: &str) -> bool {
    matches!(path, "/v1/chat/completions" | "/v1/completions")
}

/// A forwarded body, with the upstream's own cap on what is generated where the request names none, and with the request's where it names it
/// by a word that this upstream reads over (C-28). What is no JSON object is the engine's to refuse.
pub(super) fn capped(forward: &Forward, params: &Params, config: &UpstreamConfig) -> Bytes {
    // A cap that is no number is the engine's to refuse, too.
    let named = params.max_tokens.filter(|cap| config.max_tokens_only && *cap < u32::MAX);
    let reads_over = || serde_json::from_slice::<Object<Named>>(&forward.body).is_ok_and(|o| o.0.is_some_and(|o| o.max_tokens.is_none()));
    let cap = if params.max_tokens.is_none() { config.cap } else { named.filter(|_| reads_over()) };
    let (Some(cap), true) = (cap, generates(&forward.path)) else { return forward.body.clone() };
    let text = forward.body.trim_ascii();
    let Some(inner) = text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}")) else { return forward.body.clone() };
    // At the end: of two fields of one name the last one counts, and the first may be there without a number.
    let comma = if inner.trim_ascii().is_empty() { "" } else { "," };
    [b"{".as_slice(), inner, comma.as_bytes(), format!("\"max_tokens\":{cap}}}").as_bytes()].concat().into()
}

/// How many prompts a forwarded completion has. A body that cannot be read has one, whatever the engine makes of it.
pub(super) fn prompts(body: &[u8]) -> u32 {
    let body: Option<Value> = serde_json::from_slice(body).ok();
    gateway::prompts(body.as_ref().and_then(|body| body.get("prompt")))
}

/// How much longer than another request this one needs before an engine counts it: it is read whole, and its texts are cut into tokens, which
/// `bench/upstream_arrival.py` measures. `None` where nobody can say: pictures and sounds may have to be fetched from elsewhere before.
// contract: C-29
pub(super) fn on_its_way(prompt: &Prompt) -> Option<Duration> {
    let bytes = match prompt {
        Prompt::Forward(Forward { body, .. }) | Prompt::Worded(body) => {
            if memchr::memmem::find(body, b"_url\"").is_some() {
                return None;
            }
            body.len()
        }
        Prompt::Chat(turns) => turns.iter().map(|turn| turn.content.len()).sum(),
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(ids) => ids.len(),
    };
    Some(BYTE.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX)))
}

/// The path and the body of a stream.
pub(super) fn request(submit: &Submit, cap: Option<u32>) -> Result<(Arc<str>, Bytes), String> {
    let (params, sampling) = (&submit.params, &submit.params.sampling);
    let mut body = Map::new();
    body.insert("model".into(), json!(&*submit.model));
    let path = match &submit.prompt {
        Prompt::Chat(turns) => {
            let turns: Vec<Value> = turns.iter().map(|turn| json!({"role": turn.role, "content": turn.content})).collect();
            body.insert("messages".into(), json!(turns));
            "/v1/chat/completions"
        }
        Prompt::Text(text) => {
            body.insert("prompt".into(), json!(text));
            "/v1/completions"
        }
        Prompt::Tokens(ids) => {
            body.insert("prompt".into(), json!(ids));
            "/v1/completions"
        }
        Prompt::Worded(fields) => {
            let Ok(Value::Object(fields)) = serde_json::from_slice(fields) else {
                return Err("what is asked is no JSON object".to_owned());
            };
            body.extend(fields);
            "/v1/chat/completions"
        }
        Prompt::Forward(_) => return Err("a forwarded request is sent as it came".to_owned()),
    };
    let is_worded = matches!(submit.prompt, Prompt::Worded(_));
    if sampling.logprobs.is_some() && !is_worded {
        return Err("log-probabilities of this upstream are to be had over HTTP only: its tokens have no numbers here".to_owned());
    }
    let number = |x: f32| json!((f64::from(x) * 1e6).round() / 1e6);
    let mut put = |name: &str, value: Value, unset: bool| {
        if !unset {
            body.insert(name.to_owned(), value);
        }
    };
    put("stream", json!(true), false);
    put("stream_options", json!({"include_usage": true}), false);
    put("n", json!(params.n), params.n == 1);
    put("max_tokens", json!(params.max_tokens.or(cap)), params.max_tokens.or(cap).is_none());
    put("temperature", number(sampling.temperature), false);
    put("top_p", number(sampling.top_p), sampling.top_p >= 1.0);
    put("top_k", json!(sampling.top_k), sampling.top_k == 0);
    put("min_p", number(sampling.min_p), sampling.min_p == 0.0);
    put("presence_penalty", number(sampling.presence_penalty), sampling.presence_penalty == 0.0);
    put("frequency_penalty", number(sampling.frequency_penalty), sampling.frequency_penalty == 0.0);
    put("repetition_penalty", number(sampling.repetition_penalty), (sampling.repetition_penalty - 1.0).abs() < f32::EPSILON);
    put("seed", json!(sampling.seed & 0x7fff_ffff), false);
    put("min_tokens", json!(sampling.min_tokens), sampling.min_tokens == 0);
    put("stop", json!(params.stop), params.stop.is_empty());
    put("stop_token_ids", json!(params.stop_token_ids), params.stop_token_ids.is_empty());
    put("ignore_eos", json!(true), !params.ignore_eos);
    put("priority", json!(params.priority), params.priority == 0);
    let bias: Map<String, Value> = sampling.logit_bias.iter().map(|(token, bias)| (token.to_string(), number(*bias))).collect();
    put("logit_bias", json!(bias), bias.is_empty());
    put("logprobs", json!(true), sampling.logprobs.is_none());
    put("top_logprobs", json!(sampling.logprobs), sampling.logprobs.is_none_or(|top| top == 0));
    Ok((path.into(), Value::Object(body).to_string().into()))
}

#[cfg(test)]
mod tests {
    use lifecycle::{AttemptId, Incarnation, RunId, RunKey, Tenant};

    use super::*;

    #[test]
    fn a_chat_in_openais_own_words_gets_what_every_request_has_and_nothing_else_gets_log_probabilities() {
        let run = RunId::parse("r").expect("an id");
        let attempt = AttemptId { key: RunKey { tenant: Tenant::default(), run }, attempt: 1 };
        let mut params = Params { max_tokens: Some(5), ..Params::default() };
        params.sampling.logprobs = Some(2);
        let submit = |prompt| Submit {
            attempt: attempt.clone(),
            worker: Incarnation(1),
            number: 1,
            model: "m".into(),
            prompt,
            params: params.clone(),
            deadlines: Vec::new(),
        };
        let words = r#"{"messages":[{"role":"tool","tool_call_id":"c","content":"1"}],"tools":[{"type":"function"}]}"#;
        let (path, body) = request(&submit(Prompt::Worded(words.into())), None).expect("a request");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let said = |name: &str| body[name].clone();
        assert_eq!(
            (&*path, said("model"), said("stream"), said("max_tokens")),
            ("/v1/chat/completions", json!("m"), json!(true), json!(5))
        );
        assert_eq!((said("logprobs"), said("top_logprobs"), said("tools")), (json!(true), json!(2), json!([{"type": "function"}])));
        assert_eq!(said("messages")[0]["tool_call_id"], "c");
        for prompt in [Prompt::Text("a".into()), Prompt::Worded("[]".into())] {
            assert!(request(&submit(prompt), None).is_err());
        }
    }

    // contract: C-28
    #[test]
    fn a_cap_is_added_where_there_is_none_and_nothing_else_is_changed() {
        let forward = |path: &str, body: &str| Forward { path: path.into(), body: body.to_owned().into(), stream: false };
        let chat = "/v1/chat/completions";
        let free = Params::default();
        let mut config = UpstreamConfig::at("http://a").expect("a URL");
        config.cap = Some(9);
        for (path, body, becomes) in [
            (chat, r#" {"model":"m","max_tokens":null} "#, r#"{"model":"m","max_tokens":null,"max_tokens":9}"#),
            (chat, "{ }", r#"{ "max_tokens":9}"#),
            (chat, "[1]", "[1]"),
            (chat, "", ""),
            ("/v1/embeddings", r#"{"input":"x"}"#, r#"{"input":"x"}"#),
        ] {
            let capped = capped(&forward(path, body), &free, &config);
            assert_eq!(std::str::from_utf8(&capped), Ok(becomes));
        }
        let body = r#"{"model":"m","max_tokens":3}"#;
        let bound = Params { max_tokens: Some(3), ..Params::default() };
        assert_eq!(capped(&forward(chat, body), &bound, &config), body);
        config.cap = None;
        assert_eq!(capped(&forward(chat, "{}"), &free, &config), "{}");
    }

    // contract: C-28
    #[test]
    fn a_bound_in_a_word_that_is_read_over_is_said_in_the_other_too() {
        let forward = |body: &str| Forward { path: "/v1/chat/completions".into(), body: body.to_owned().into(), stream: false };
        let mut config = UpstreamConfig::at("http://a").expect("a URL");
        let params = |cap| Params { max_tokens: Some(cap), ..Params::default() };
        let newer = r#"{"max_completion_tokens":7}"#;
        assert_eq!(capped(&forward(newer), &params(7), &config), newer);
        config.max_tokens_only = true;
        for (cap, body, becomes) in [
            (7, newer, r#"{"max_completion_tokens":7,"max_tokens":7}"#),
            (7, r#"{"max_tokens":null,"n_predict":7}"#, r#"{"max_tokens":null,"n_predict":7,"max_tokens":7}"#),
            (7, r#"{"max_tokens":3,"max_completion_tokens":7}"#, r#"{"max_tokens":3,"max_completion_tokens":7}"#),
            // Neither is a number: nothing is put in its place.
            (u32::MAX, r#"{"max_completion_tokens":"7"}"#, r#"{"max_completion_tokens":"7"}"#),
            (u32::MAX, r#"{"max_tokens":"7"}"#, r#"{"max_tokens":"7"}"#),
        ] {
            let capped = capped(&forward(body), &params(cap), &config);
            assert_eq!(std::str::from_utf8(&capped), Ok(becomes));
        }
    }
}
