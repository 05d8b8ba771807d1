//! What an answer that was not streamed says: usage, ends and text of chat and completions, usage of embeddings and rerank.
//!
//! Invariant: reads what streams are read with; the answer itself is forwarded as it came.

pub use super::json::{Choice, Complaint, Said, Usage};

/// Reads it; `None` if the body is no JSON object, which a caller is still to be sent as it is.
pub fn read(body: &[u8]) -> Option<Said<'_>> {
    Said::read(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_completions_embeddings_rerank() {
        let chat = br#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a","tool_calls":[]},
            "finish_reason":"stop"},{"index":1,"message":{"content":null,"tool_calls":[{"id":"c"}]},"finish_reason":"tool_calls"}],
            "usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}"#;
        let said = read(chat).expect("an answer");
        let ends: Vec<_> = said.choices.iter().map(|c| (c.index, &*c.text, c.generated, c.finish_reason.as_deref())).collect();
        assert_eq!(ends, [(0, "a", true, Some("stop")), (1, "", true, Some("tool_calls"))]);
        assert_eq!(said.usage.and_then(|u| u.completion_tokens), Some(2));
        let said = read(br#"{"choices":[{"text":"b","finish_reason":"length"}]}"#).expect("an answer");
        assert_eq!((&*said.choices[0].text, said.choices[0].finish_reason.as_deref()), ("b", Some("length")));
        let embeddings = br#"{"object":"list","data":[{"index":0,"embedding":[0.5,-1.0]}],"usage":{"prompt_tokens":4,"total_tokens":4}}"#;
        assert_eq!(read(embeddings).and_then(|s| s.usage).and_then(|u| u.total_tokens), Some(4));
        let rerank = br#"{"results":[{"index":1,"relevance_score":0.9}],"usage":{"total_tokens":7}}"#;
        assert_eq!(read(rerank).and_then(|s| s.usage).and_then(|u| u.total_tokens), Some(7));
        assert_eq!(read(b"<html>"), None);
    }
}
