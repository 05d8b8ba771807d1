//! The beginning of a prompt: runs that begin alike go to the worker that has computed it, if that has not too much to do.
//!
//! Of a conversation it is what stands before the first answer: the instructions and the first words of the user. They stay as they are in every
//! later turn, so a conversation stays where it is, and one document with many questions does, too. A caller that knows better says
//! `prompt_cache_key`.
//!
//! Invariant: nothing of it is kept but 64 bits.

use std::borrow::Cow;

use lifecycle::Affinity;
use lifecycle::message::{Forward, Prompt};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Token ids of a prompt that are looked at, for each byte that would be.
const BYTES_A_TOKEN: usize = 4;

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    messages: Vec<Message<'a>>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt_cache_key: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

impl Message<'_> {
    fn said(&self) -> &[u8] {
        self.content.map_or(&[], |raw| raw.get().as_bytes())
    }
}

/// What stands for the beginning of a prompt, as far as it is in the first `bytes`; `None` for one that has none.
pub(crate) fn of(prompt: &Prompt, bytes: usize) -> Option<Affinity> {
    let spoken = |turns: &[(&str, &[u8])]| {
        let first = turns.iter().position(|(role, _)| *role == "user").map_or(turns.len(), |at| at + 1);
        affinity(turns[..first].iter().map(|(_, text)| *text), bytes)
    };
    match prompt {
        Prompt::Chat(turns) => spoken(&turns.iter().map(|turn| (turn.role.as_str(), turn.content.as_bytes())).collect::<Vec<_>>()),
        Prompt::Text(text) => affinity([text.as_bytes()].into_iter(), bytes),
        Prompt::Tokens(ids) => {
            let beginning: Vec<u8> = ids.iter().take(bytes.div_ceil(BYTES_A_TOKEN)).flat_map(|id| id.to_le_bytes()).collect();
            affinity([&*beginning].into_iter(), bytes)
        }
        Prompt::Forward(Forward { body, .. }) | Prompt::Worded(body) => {
            // What is no such request is the engine's to refuse.
            let body: Body<'_> = serde_json::from_slice(body).ok()?;
            if let Some(key) = body.prompt_cache_key.filter(|key| !key.is_empty()) {
                return Some(Affinity::of([b"key".as_slice(), key.as_bytes()]));
            }
            if body.messages.is_empty() {
                return affinity([body.prompt?.get().as_bytes()].into_iter(), bytes);
            }
            spoken(&body.messages.iter().map(|message| (&*message.role, message.said())).collect::<Vec<_>>())
        }
    }
}

fn affinity<'a>(parts: impl Iterator<Item = &'a [u8]>, bytes: usize) -> Option<Affinity> {
    let mut left = bytes;
    let cut: Vec<&[u8]> = parts
        .map(|part| {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            part
        })
        .take_while(|part| !part.is_empty())
        .collect();
    (!cut.is_empty()).then(|| Affinity::of(cut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::message::ChatMessage;

    fn forward(body: &str) -> Option<Affinity> {
        let body = body.to_owned().into();
        of(&Prompt::Forward(Forward { path: "/v1/chat/completions".into(), body, stream: true }), 64)
    }

    #[test]
    fn a_conversation_keeps_its_beginning_and_another_has_another() {
        let first = r#"{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"}]}"#;
        let later = r#"{"stream":true,"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"hi"},
            {"role":"assistant","content":"hello"},{"role":"user","content":"what now?"}]}"#;
        let other = r#"{"messages":[{"role":"system","content":"be kind"},{"role":"user","content":"ho"}]}"#;
        assert!(forward(first).is_some());
        assert_eq!(forward(first), forward(later));
        assert_ne!(forward(first), forward(other));
        let turns = |texts: &[(&str, &str)]| {
            let turn = |(role, content): &(&str, &str)| ChatMessage { role: (*role).to_owned(), content: (*content).to_owned() };
            of(&Prompt::Chat(texts.iter().map(turn).collect()), 64)
        };
        assert_eq!(turns(&[("user", "a"), ("assistant", "b"), ("user", "c")]), turns(&[("user", "a")]));
        assert_ne!(turns(&[("system", "a"), ("user", "b")]), turns(&[("system", "ab")]));
    }

    #[test]
    fn a_long_document_with_many_questions_is_one_beginning() {
        let document = "word ".repeat(100);
        let ask = |question: &str| of(&Prompt::Text(format!("{document}{question}")), 64);
        assert_eq!(ask("who?"), ask("when?"));
        let ids: Vec<u32> = (0..200).collect();
        assert_eq!(of(&Prompt::Tokens(ids.clone()), 64), of(&Prompt::Tokens(ids[..100].to_vec()), 64));
        assert_ne!(of(&Prompt::Tokens(ids[..10].to_vec()), 64), of(&Prompt::Tokens(ids[..9].to_vec()), 64));
    }

    #[test]
    fn the_callers_own_key_comes_first_and_what_has_no_beginning_has_none() {
        let keyed = |text: &str| forward(&format!(r#"{{"prompt_cache_key":"k","messages":[{{"role":"user","content":"{text}"}}]}}"#));
        assert_eq!(keyed("a"), keyed("b"));
        for none in ["", "[]", "{}", r#"{"messages":7}"#, r#"{"input":"x"}"#, r#"{"messages":[]}"#, "\u{0}"] {
            assert_eq!(forward(none), None, "{none}");
        }
        assert_eq!(of(&Prompt::Text(String::new()), 64), None);
        assert_eq!(of(&Prompt::Text("x".into()), 0), None);
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}"#;
        assert!(forward(parts).is_some());
    }
}
