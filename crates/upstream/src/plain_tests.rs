//! The quick reader against the lenient one: over chunks as engines write them, spoiled in every way that a stranger thought of.

use proptest::prelude::*;

use super::*;

const ORDINARY: [&str; 10] = [
    r#"{"id":"x","object":"chat.completion.chunk","created":1764500000,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
    r#"{"id":"x","choices":[{"index":0,"delta":{"content":" hi"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}"#,
    r#"{"choices":[{"index":3,"delta":{"content":"a \"line\"\n"},"finish_reason":null}]}"#,
    r#"{"choices":[{"index":0,"delta":{"reasoning_content":"hm","content":null},"finish_reason":null}], "timings" : {"a":[1,-2.5e-3,true]}}"#,
    r#"{"choices":[{"index":0,"text":"π","logprobs":{"tokens":["π"],"token_logprobs":[-0.1]},"finish_reason":""}]}"#,
    r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":null}]}"#,
    r#"{"choices":[{"index":0,"delta":{"refusal":"no"}},{"index":1,"delta":{"content":"b"},"finish_reason":"length"}]}"#,
    r#"{"choices":[{"finish_reason":"length","index":0,"delta":{}}],"timings":{"cache_n":30,"prompt_n":3,"prompt_ms":58.7,"predicted_n":5}}"#,
    r#"{"choices":[],"prompt_token_ids":null}"#,
    r#" { } "#,
];

fn lenient(json: &[u8]) -> Option<Said<'_>> {
    Said::leniently(json)
}

#[test]
fn what_engines_send_with_every_token_is_ordinary() {
    for json in ORDINARY {
        assert_eq!(read(json.as_bytes()), lenient(json.as_bytes()), "{json}");
        assert!(read(json.as_bytes()).is_some(), "{json}");
    }
}

#[test]
fn what_is_not_is_left_to_the_other() {
    for json in [
        r#"{"choices":[],"usage":{"prompt_tokens":1}}"#,
        r#"{"error":{"message":"m"}}"#,
        r#"{"object":"error","message":"m"}"#,
        r#"{"object":"error"}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"\u0041"}}]}"#,
        r#"{"choices":[{"index":1.0,"delta":{"content":"a"}}]}"#,
        r#"{"choices":[{"index":-1,"delta":{"content":"a"}}]}"#,
        r#"{"choices":[{"index":0,"index":0}]}"#,
        r#"{"choices":[],"choices":[]}"#,
        r#"{"object":"","object":""}"#,
        r#"{"usage":null,"usage":null}"#,
        r#"{"timings":null}"#,
        r#"{"timings":{},"timings":{}}"#,
        r#"{"timings":{"prompt_n":1,"prompt_n":1}}"#,
        r#"{"timings":{"cache_n":1.0}}"#,
        r#"{"error":null,"error":null}"#,
        r#"{"choices":[null]}"#,
        r#"{"choices":{}}"#,
        r#"{"choices":[{"delta":7}]}"#,
        r#"{"choices":[],}"#,
        r#"{"a":01}"#,
        r#"{"a":1.}"#,
        r#"{"a":"\x"}"#,
        "{\"a\":\"\n\"}",
        "{} x",
        "[]",
        "",
        r#"{"a":[[[[[[[[[[1]]]]]]]]]]}"#,
    ] {
        assert_eq!(read(json.as_bytes()), None, "{json}");
    }
}

/// A JSON value, often one that a key of a chunk has.
fn value() -> impl Strategy<Value = String> {
    let plain = prop_oneof![
        Just("null".to_owned()),
        Just("\"\"".to_owned()),
        Just("\"stop\"".to_owned()),
        Just("0".to_owned()),
        "-?[0-9]{1,11}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?",
        "\"[a-zé\\\\\"nu0-9/ ]{0,6}\"",
        Just("true".to_owned()),
        Just("\"error\"".to_owned()),
    ];
    plain.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            Just("choices"),
            Just("index"),
            Just("delta"),
            Just("message"),
            Just("text"),
            Just("finish_reason"),
            Just("content"),
            Just("reasoning_content"),
            Just("reasoning"),
            Just("refusal"),
            Just("tool_calls"),
            Just("usage"),
            Just("timings"),
            Just("prompt_n"),
            Just("error"),
            Just("object"),
            Just("code"),
            Just("id"),
            Just("a\\\"b"),
            Just("é"),
        ];
        let member = (key, inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(member, 0..5).prop_map(|members| format!("{{{}}}", members.join(" , "))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn whatever_it_says_the_lenient_reader_says_too(json in value()) {
        if let Some(said) = read(json.as_bytes()) {
            prop_assert_eq!(Some(said), lenient(json.as_bytes()));
        }
        let timed = format!(r#"{{"choices":[],"timings":{json}}}"#);
        if let Some(said) = read(timed.as_bytes()) {
            prop_assert_eq!(Some(said), lenient(timed.as_bytes()));
        }
        let chunk = format!(r#"{{"id":"x","choices":[{{"index":0,"delta":{json}}},{json}],"a":{json}}}"#);
        if let Some(said) = read(chunk.as_bytes()) {
            prop_assert_eq!(Some(said), lenient(chunk.as_bytes()));
        }
    }

    /// A byte of an ordinary chunk is another one, is left out, or is there twice.
    #[test]
    fn a_chunk_that_is_spoiled_is_read_alike(which in 0..ORDINARY.len(), at in any::<prop::sample::Index>(), byte in any::<u8>(), how in 0..3) {
        let mut json = ORDINARY[which].as_bytes().to_vec();
        let at = at.index(json.len());
        match how {
            0 => json[at] = byte,
            1 => _ = json.remove(at),
            _ => json.insert(at, byte),
        }
        if let Some(said) = read(&json) {
            prop_assert_eq!(Some(said), lenient(&json));
        }
    }
}
