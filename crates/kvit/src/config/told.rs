//! The configuration as a report for strangers may have it.
//!
//! Invariant: a value is told if its kind is a number, a time, a size or a word of a list; of every other option only whether it is set. Keys
//! and webhooks are only counted.

use super::{OPTIONS, ServeConfig};

/// Kinds of values that can hold nothing of anybody's.
const PLAIN: [&str; 8] = ["NUMBER", "MILLISECONDS", "SECONDS", "BYTES", "PERCENT", "BOOLEAN", "LEVEL", "POLICY"];
/// An option of another kind whose values are words of a list.
const ISA: &str = "isa";

impl ServeConfig {
    /// Each option with what may be told of it.
    pub fn told(&self) -> Vec<(&'static str, String)> {
        let of = |(option, value): (&super::options::OptionDoc, String)| {
            let is_plain = PLAIN.contains(&option.kind) || option.key == ISA;
            let word = if value == (option.default)() { "default" } else { "set" };
            (option.key, if is_plain { value } else { word.to_owned() })
        };
        let options = OPTIONS.iter().zip(self.values()).map(of);
        options.chain([("keys", self.keys.len().to_string()), ("webhooks", self.webhooks.len().to_string())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::config::ServeFlags;

    #[test]
    fn what_may_be_told_names_nobody_and_nothing_of_this_machine() {
        let mut flags = ServeFlags::default();
        let given = [
            ("host", "10.9.8.7"),
            ("model", "/home/alice/secret.gguf"),
            ("store", "postgres://alice:pa55word@db/kvit"),
            ("kv_blocks", "77"),
        ];
        for (key, value) in given {
            flags.set(key, value).expect("an option").expect("its value");
        }
        let told = flags.fill().told();
        let of = |key: &str| told.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str());
        assert_eq!([of("kv_blocks"), of("host"), of("store"), of("keys")], [Some("77"), Some("set"), Some("set"), Some("0")]);
        assert_eq!(of("name"), Some("default"));
        for hidden in ["10.9.8.7", "alice", "secret", "pa55word"] {
            assert!(told.iter().all(|(_, value)| !value.contains(hidden)), "{hidden}");
        }
    }
}
