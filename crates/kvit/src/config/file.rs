//! Options from a TOML file: flat keys, each known, each of its option's kind; and behind them the tables of API keys (`keys`)
//! and of webhooks (`webhooks`).
//!
//! Keys are looked through before values, so that a misspelt one is named with its line and the key that was probably meant.

use std::path::Path;

use gateway::{Keys, Webhooks};
use serde::Deserialize;
use toml::de::{DeTable, Deserializer};

use super::{ConfigError, OPTIONS, ServeFlags, keys, nearest, webhooks};

/// Largest configuration file in bytes; a longer one is no configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a file says.
#[derive(Debug, Default)]
pub struct File {
    /// The options in it.
    pub flags: ServeFlags,
    /// The API keys in it.
    pub keys: Keys,
    /// The webhooks in it.
    pub webhooks: Webhooks,
}

/// Reads a file.
///
/// # Errors
/// Unreadable, no TOML, an unknown key, or a value of the wrong kind: each with file and line.
pub fn read(path: &Path) -> Result<File, ConfigError> {
    let shown = path.display().to_string();
    let unreadable = |source| ConfigError::Read { path: shown.clone(), source };
    let len = std::fs::metadata(path).map_err(unreadable)?.len();
    if len > FILE_BYTES_MAX {
        let why = format!("has {len} bytes, at most {FILE_BYTES_MAX} are read");
        return Err(ConfigError::Syntax { place: shown, why });
    }
    parse(&shown, &std::fs::read_to_string(path).map_err(unreadable)?)
}

/// Parses a file's text; `name` stands in the messages.
pub(super) fn parse(name: &str, text: &str) -> Result<File, ConfigError> {
    let place = |at: usize| format!("{name}:{}", text[..at.min(text.len())].matches('\n').count() + 1);
    let spot = |e: &toml::de::Error| place(e.span().map_or(0, |s| s.start));
    let mut table = DeTable::parse(text).map_err(|e| ConfigError::Syntax { place: spot(&e), why: e.message().to_owned() })?;
    for key in table.get_ref().keys() {
        let word = key.get_ref().as_ref();
        if ![keys::TABLE, webhooks::TABLE].contains(&word) && !OPTIONS.iter().any(|o| o.key == word) {
            return Err(ConfigError::Unknown {
                place: place(key.span().start),
                what: "key",
                name: word.to_owned(),
                nearest: nearest(word, OPTIONS.iter().map(|o| o.key).chain([keys::TABLE, webhooks::TABLE])),
            });
        }
    }
    let keys = match table.get_mut().remove(keys::TABLE) {
        Some(tables) => keys::read(&tables, &place)?,
        None => Keys::default(),
    };
    let webhooks = match table.get_mut().remove(webhooks::TABLE) {
        Some(tables) => webhooks::read(&tables, &place)?,
        None => Webhooks::default(),
    };
    let flags = ServeFlags::deserialize(Deserializer::from(table)).map_err(|e| {
        let start = e.span().map_or(0, |s| s.start);
        let line = text[..start.min(text.len())].rfind('\n').map_or(0, |i| i + 1);
        let key = text[line..].split(['=', '\n']).next().unwrap_or_default().trim().to_owned();
        ConfigError::Value { place: place(start), name: key, why: e.message().to_owned() }
    })?;
    Ok(File { flags, keys, webhooks })
}
