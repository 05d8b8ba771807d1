//! How many tokens an answer took, as engines say it: OpenAI's `usage`, and llama.cpp's `timings`, which are there whether or not somebody asked.
//!
//! Invariant: what is no count is as if it were not there.

use serde::Deserialize;

use super::json::{Number, Object};

/// Tokens, where the upstream says how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Those of them that were in a cache.
    pub cached_tokens: Option<u64>,
    /// Generated ones.
    pub completion_tokens: Option<u64>,
    /// Those of them that were thoughts.
    pub reasoning_tokens: Option<u64>,
    /// Of both.
    pub total_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct RawUsage {
    prompt_tokens: Number,
    completion_tokens: Number,
    total_tokens: Number,
    prompt_tokens_details: Object<Details>,
    completion_tokens_details: Object<Details>,
}

/// What llama.cpp says of an answer's tokens where nobody asked for its usage. It counts those of the prompt that were in its cache apart.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Timings {
    pub(crate) prompt_n: Number,
    pub(crate) cache_n: Number,
    pub(crate) predicted_n: Number,
}

impl Timings {
    /// The same, as others say it.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let prompt_tokens = self.prompt_n.0.map(|computed| computed.saturating_add(self.cache_n.0.unwrap_or(0)));
        let usage = Usage { prompt_tokens, cached_tokens: self.cache_n.0, completion_tokens: self.predicted_n.0, ..Usage::default() };
        (usage != Usage::default()).then_some(usage)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    cached_tokens: Number,
    reasoning_tokens: Number,
}

impl From<RawUsage> for Usage {
    fn from(raw: RawUsage) -> Usage {
        Usage {
            prompt_tokens: raw.prompt_tokens.0,
            cached_tokens: raw.prompt_tokens_details.0.and_then(|d| d.cached_tokens.0),
            completion_tokens: raw.completion_tokens.0,
            reasoning_tokens: raw.completion_tokens_details.0.and_then(|d| d.reasoning_tokens.0),
            total_tokens: raw.total_tokens.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::Said;
    use super::*;

    fn said(json: &str) -> Said<'_> {
        Said::read(json.as_bytes()).expect("an object")
    }

    #[test]
    fn what_llama_cpp_says_of_its_tokens_stands_for_a_usage_that_is_not_there() {
        let timings = r#""timings":{"cache_n":30,"prompt_n":3,"prompt_ms":58.7,"predicted_n":5,"predicted_per_second":27.7}"#;
        let usage = |json: String| said(&json).usage.map(|usage| (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens));
        let ends = r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
        let whole = r#""choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}]"#;
        for answer in [ends, whole] {
            assert_eq!(usage(format!("{{{answer},{timings}}}")), Some((Some(33), Some(30), Some(5))), "{answer}");
            let both = format!(r#"{{{timings},{answer},"usage":{{"prompt_tokens":9}}}}"#);
            assert_eq!(usage(both), Some((Some(9), None, None)), "{answer}");
        }
        assert_eq!(usage(r#"{"timings":{"prompt_n":4,"predicted_n":-1}}"#.to_owned()), Some((Some(4), None, None)));
        for none in [r#"{"timings":{}}"#, r#"{"timings":null}"#, r#"{"timings":[1]}"#, r#"{"timings":{"prompt_n":"x"}}"#] {
            assert_eq!(usage(none.to_owned()), None, "{none}");
        }
    }

    #[test]
    fn usage_with_details() {
        let json = r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,
            "prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":2}}}"#;
        let all = Usage {
            prompt_tokens: Some(10),
            cached_tokens: Some(8),
            completion_tokens: Some(5),
            reasoning_tokens: Some(2),
            total_tokens: Some(15),
        };
        assert_eq!(said(json).usage, Some(all));
    }
}
