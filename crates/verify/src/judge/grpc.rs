//! kvit's gRPC front door (`kvit.v1.Runs`), as a caller meets it: messages in frames, over a connection whose streams the judge holds.
//!
//! The frames are made here and not by a gRPC library: such a one counts a call's deadline itself and resets the call, and then nobody would
//! see whether the stack keeps it.
//!
//! Invariant: what comes is read within a limit, and what is no message of the service is an error and no panic.
// contract: C-29

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use protocol::runs_v1::generate_event::Event;
use protocol::runs_v1::generate_request::Prompt;
use protocol::runs_v1::{Chat, GenerateEvent, GenerateRequest, Params, Turn};
use serde_json::Value;

/// The services that are spoken, by the names that profiles have for them.
pub const SERVICES: [&str; 1] = ["kvit.v1.Runs"];
/// Where a run is asked for.
pub(super) const PATH: &str = "/kvit.v1.Runs/Generate";
/// A frame's head: whether it is compressed, and its length.
const HEAD: usize = 5;
/// Longest message that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// A chat completion's request, as a frame of the service's own.
///
/// # Errors
/// What it lacks.
pub(super) fn request(body: &Value) -> Result<Bytes, String> {
    let turn = |turn: &Value| {
        let text = |name: &str| turn[name].as_str().map(str::to_owned).ok_or_else(|| format!("a turn has no `{name}`"));
        Ok(Turn { role: text("role")?, content: text("content")? })
    };
    let turns = body["messages"].as_array().ok_or("it has no `messages`")?.iter().map(turn).collect::<Result<Vec<_>, String>>()?;
    let number = |name: &str| body[name].as_u64().and_then(|value| u32::try_from(value).ok());
    let params = Params {
        temperature: body["temperature"].as_f64().map(|value| value as f32),
        max_tokens: number("max_tokens"),
        n: number("n"),
        ignore_eos: body["ignore_eos"] == true,
        ..Params::default()
    };
    let model = body["model"].as_str().ok_or("it has no `model`")?.to_owned();
    let message = GenerateRequest { model, prompt: Some(Prompt::Chat(Chat { turns })), params: Some(params), ..GenerateRequest::default() };
    let length = u32::try_from(message.encoded_len()).map_err(|_| "it is too long".to_owned())?;
    let mut frame = BytesMut::with_capacity(HEAD + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(length);
    message.encode(&mut frame).map_err(|e| e.to_string())?;
    Ok(frame.freeze())
}

/// Cuts bytes into messages.
#[derive(Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Takes more bytes, and gives what is whole now. `None` if it is no message of the service.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<Vec<Event>> {
        self.bytes.extend_from_slice(bytes);
        let mut events = Vec::new();
        loop {
            let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD>() else { return Some(events) };
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            if head[0] != 0 || length > MESSAGE_BYTES_MAX {
                return None;
            }
            let Some(message) = rest.get(..length) else { return Some(events) };
            events.extend(GenerateEvent::decode(message).ok()?.event);
            self.bytes.drain(..HEAD + length);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::runs_v1::{Accepted, Delta};
    use serde_json::json;

    use super::*;

    fn frame(event: Event) -> Vec<u8> {
        let message = GenerateEvent { event: Some(event) }.encode_to_vec();
        let length = u32::try_from(message.len()).expect("it is short").to_be_bytes();
        [&[0][..], &length, &message].concat()
    }

    #[test]
    fn a_chat_is_asked_for_as_it_stands() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 9, "ignore_eos": true, "n": 2});
        let bytes = request(&body).expect("a frame");
        assert_eq!((bytes[0], bytes.len() - HEAD), (0, u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize));
        let asked = GenerateRequest::decode(&bytes[HEAD..]).expect("a request");
        let params = asked.params.expect("how");
        assert_eq!((asked.model.as_str(), params.max_tokens, params.n, params.ignore_eos), ("m", Some(9), Some(2), true));
        assert!(matches!(asked.prompt, Some(Prompt::Chat(chat)) if chat.turns[0].content == "Once"));
        assert!(request(&json!({"model": "m"})).expect_err("no turns").contains("messages"));
    }

    #[test]
    fn messages_are_the_same_however_they_are_cut_and_what_is_none_is_told() {
        let events = [
            Event::Accepted(Accepted { run: "r".to_owned() }),
            Event::Delta(Delta { text: "a b".to_owned(), tokens: vec![1, 2], ..Delta::default() }),
        ];
        let stream: Vec<u8> = events.iter().cloned().flat_map(frame).collect();
        for size in [1, 3, 7, 1000] {
            let mut frames = Frames::default();
            let came: Vec<Event> = stream.chunks(size).flat_map(|piece| frames.push(piece).expect("messages")).collect();
            assert_eq!(came, events, "{size}");
        }
        for bad in [&[1, 0, 0, 0, 0][..], &[0, 255, 255, 255, 255], &[0, 0, 0, 0, 2, 0xff, 0xff]] {
            assert!(Frames::default().push(bad).is_none(), "{bad:?}");
        }
    }
}
