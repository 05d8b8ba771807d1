//! How messages that hold somebody's text show themselves in a log: by size alone.
//!
//! Invariant: no prompt, no answer, and nothing from which one could be made again.

use std::fmt;

macro_rules! quiet {
    ($($module:ident::$name:ident { $($field:ident),+ }),+ $(,)?) => {$(
        impl fmt::Debug for crate::$module::$name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(concat!(stringify!($field), ".len"), &self.$field.len()))+.finish()
            }
        }
    )+};
}

quiet! {
    worker_v1::Turn { role, content },
    worker_v1::Text { text },
    worker_v1::Tokens { ids },
    worker_v1::Forward { path, body },
    worker_v1::Worded { fields },
    worker_v1::Called { arguments },
    worker_v1::Logprob { bytes, top },
    worker_v1::Alternative { bytes },
    runs_v1::Turn { role, content },
    runs_v1::Text { text },
    runs_v1::Tokens { ids },
    runs_v1::Delta { text, tokens, logprobs },
    runs_v1::Logprob { bytes, top },
    runs_v1::Alternative { bytes },
}

impl fmt::Debug for crate::worker_v1::Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body.as_ref().map(Vec::len);
        f.debug_struct("Passed").field("tokens", &self.tokens).field("head", &self.head).field("body.len", &body).finish()
    }
}

impl fmt::Debug for crate::worker_v1::Delta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Delta");
        shown.field("attempt", &self.attempt).field("sequence", &self.sequence);
        shown.field("text.len", &self.text.len()).field("tokens.len", &self.tokens.len()).field("finish", &self.finish).finish()
    }
}
