//! What a screen needs of a server: to ask it, and to tell why there was no answer.

use serde_json::Value;

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// There is no such thing at this server.
    Absent(String),
    /// Nobody answers.
    Unreachable(String),
    /// It was refused, in the server's words.
    Refused(String),
}

impl Trouble {
    /// In a sentence.
    pub fn text(&self) -> &str {
        let (Trouble::Absent(text) | Trouble::Unreachable(text) | Trouble::Refused(text)) = self;
        text
    }
}

/// A server that can be asked.
pub trait Ask: Send + Sync {
    /// `GET path`.
    ///
    /// # Errors
    /// See `Trouble`.
    fn get(&self, path: &str) -> Result<Value, Trouble>;

    /// `POST path`, without a body.
    ///
    /// # Errors
    /// See `Trouble`.
    fn post(&self, path: &str) -> Result<Value, Trouble>;
}
