//! Prompts: the same three kinds on both wires.
//!
//! Invariant: a prompt is passed on as it came, and never shown.

use lifecycle::message::{ChatMessage, Prompt};

macro_rules! prompts {
    ($module:ident, $choice:path) => {
        impl From<&Prompt> for $choice {
            fn from(prompt: &Prompt) -> Self {
                use crate::$module::{Chat, Text, Tokens, Turn};
                match prompt {
                    Prompt::Chat(turns) => {
                        let turn = |t: &ChatMessage| Turn { role: t.role.clone(), content: t.content.clone() };
                        Self::Chat(Chat { turns: turns.iter().map(turn).collect() })
                    }
                    Prompt::Text(text) => Self::Text(Text { text: text.clone() }),
                    Prompt::Tokens(ids) => Self::Tokens(Tokens { ids: ids.clone() }),
                }
            }
        }
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
                }
            }
        }
    };
}

prompts!(worker_v1, crate::worker_v1::submit::Prompt);
prompts!(runs_v1, crate::runs_v1::generate_request::Prompt);
