//! Options from the environment, and the refusal of names that nobody reads.
//!
//! Invariant: a variable whose name begins with `KVIT_` is an option, one of the other known names, or an error. `KVIT_TEST_` belongs to
//! the project's own tests.

use std::ffi::OsString;

use super::{ConfigError, OPTIONS, OTHER_VARIABLES, ServeFlags, nearest};

const PREFIX: &str = "KVIT_";
const TESTS: &str = "KVIT_TEST_";
const PLACE: &str = "environment";

/// Every name that means something.
fn known() -> Vec<String> {
    OPTIONS.iter().map(|o| o.variable()).chain(OTHER_VARIABLES.iter().map(|(name, _)| (*name).to_owned())).collect()
}

/// Refuses a `KVIT_` variable that no command reads, whatever the command is: a misspelt one would be ignored in silence.
///
/// # Errors
/// `ConfigError::Unknown` for the first such name, in alphabetical order.
pub fn refuse_unknown(env: &[(OsString, OsString)]) -> Result<(), ConfigError> {
    let known = known();
    let mut names: Vec<String> = env.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    names.sort();
    let stranger = names.iter().find(|name| name.starts_with(PREFIX) && !name.starts_with(TESTS) && !known.contains(name));
    match stranger {
        None => Ok(()),
        Some(name) => Err(ConfigError::Unknown {
            place: PLACE.to_owned(),
            what: "variable",
            name: name.clone(),
            nearest: nearest(name, known.iter().map(String::as_str)),
        }),
    }
}

/// The options that the environment sets. An empty value counts as not set.
///
/// # Errors
/// A value that is not of its option's kind.
pub fn read(env: &[(OsString, OsString)]) -> Result<ServeFlags, ConfigError> {
    refuse_unknown(env)?;
    let mut flags = ServeFlags::default();
    for option in OPTIONS {
        let name = option.variable();
        let Some((_, value)) = env.iter().find(|(n, _)| *n == *name) else { continue };
        let wrong = |why: String| ConfigError::Value { place: PLACE.to_owned(), name: name.clone(), why };
        let text = value.to_str().ok_or_else(|| wrong("is not valid UTF-8".to_owned()))?;
        if !text.is_empty() {
            flags.set(option.key, text).unwrap_or(Ok(())).map_err(wrong)?;
        }
    }
    Ok(flags)
}
