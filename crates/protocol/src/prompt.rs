//! Prompts: the same three kinds on both wires, and those for engines of others in what is kept.
//!
//! Invariant: a prompt is passed on as it came, and never shown.

use lifecycle::message::{ChatMessage, Forward, Prompt};

use crate::worker_v1 as wire;

impl From<&Prompt> for wire::submit::Prompt {
    fn from(prompt: &Prompt) -> Self {
        match prompt {
            Prompt::Chat(turns) => {
                let turn = |t: &ChatMessage| wire::Turn { role: t.role.clone(), content: t.content.clone() };
                Self::Chat(wire::Chat { turns: turns.iter().map(turn).collect() })
            }
            Prompt::Text(text) => Self::Text(wire::Text { text: text.clone() }),
            Prompt::Tokens(ids) => Self::Tokens(wire::Tokens { ids: ids.clone() }),
            Prompt::Forward(forward) => {
                Self::Forward(wire::Forward { path: forward.path.to_string(), body: forward.body.to_vec(), stream: forward.stream })
            }
            Prompt::Worded(fields) => Self::Worded(wire::Worded { fields: fields.to_vec() }),
        }
    }
}

macro_rules! read {
    ($module:ident, $choice:path $(, $more:pat => $other:expr)*) => {
        impl From<$choice> for Prompt {
            fn from(prompt: $choice) -> Prompt {
                type Choice = $choice;
                match prompt {
                    Choice::Chat(chat) => {
                        let turn = |t: crate::$module::Turn| ChatMessage { role: t.role, content: t.content };
                        Prompt::Chat(chat.turns.into_iter().map(turn).collect())
                    }
                    Choice::Text(text) => Prompt::Text(text.text),
                    Choice::Tokens(tokens) => Prompt::Tokens(tokens.ids),
                    $($more => $other,)*
                }
            }
        }
    };
}

fn forward(forward: wire::Forward) -> Prompt {
    Prompt::Forward(Forward { path: forward.path.into(), body: forward.body.into(), stream: forward.stream })
}

read!(
    worker_v1,
    crate::worker_v1::submit::Prompt,
    wire::submit::Prompt::Forward(asked) => forward(asked),
    wire::submit::Prompt::Worded(asked) => Prompt::Worded(asked.fields.into())
);
read!(runs_v1, crate::runs_v1::generate_request::Prompt);
