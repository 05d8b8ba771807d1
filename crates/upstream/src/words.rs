//! The words by which an upstream is described: each with its value, its default and its sentence, for the parser and for the reference alike.
//!
//! Invariant: every limit of an upstream has a word, and every word is in [`WORDS`].
// contract: C-28

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::config::{ConfigError, MODELS_MAX, NAME_BYTES_MAX, SLOTS_MAX, Secret, UpstreamConfig};

/// Longest key in a file, in bytes.
const KEY_BYTES_MAX: usize = 8192;

/// What is wrong with a word.
type Wrong = (&'static str, String);

/// One word.
pub struct Word {
    /// Its name.
    pub name: &'static str,
    /// Its default, for people.
    pub default: &'static str,
    /// What it does.
    pub about: &'static str,
    set: fn(&mut UpstreamConfig, &str) -> Result<(), String>,
}

fn number<T: FromStr + PartialOrd + std::fmt::Display + Copy>(value: &str, least: T, most: T) -> Result<T, String> {
    let read = value.parse().ok().filter(|n| (least..=most).contains(n));
    read.ok_or_else(|| format!("`{value}` is no number from {least} to {most}"))
}

fn span(value: &str) -> Result<Duration, String> {
    number(value, 1, 86_400_000_u64).map(Duration::from_millis)
}

/// All words that may stand behind an upstream's URL.
pub const WORDS: &[Word] = &[
    Word {
        name: "kind",
        default: "it is looked at",
        about: "Which engine it is: `kvit`, `vllm`, `sglang`, `llamacpp` or `openai`.",
        set: |config, value| value.parse().map(|kind| config.kind = Some(kind)),
    },
    Word {
        name: "name",
        default: "host and port",
        about: "What it is called in logs, metrics and views: 1 to 64 printable ASCII characters.",
        set: |config, value| {
            let plain = |b: u8| b.is_ascii_graphic() && !b"\"\\".contains(&b);
            if value.is_empty() || value.len() > NAME_BYTES_MAX || !value.bytes().all(plain) {
                return Err(format!("has 1 to {NAME_BYTES_MAX} printable ASCII characters, no blank, no quote"));
            }
            value.clone_into(&mut config.name);
            Ok(())
        },
    },
    Word {
        name: "model",
        default: "all that it names",
        about: "A model that is served from it, by its own name; may stand more than once. Needed where it names none.",
        set: |config, value| {
            if value.is_empty() || config.models.len() >= MODELS_MAX {
                return Err(format!("is empty, or there are more than {MODELS_MAX}"));
            }
            if !config.models.iter().any(|known| known == value) {
                config.models.push(value.to_owned());
            }
            Ok(())
        },
    },
    Word {
        name: "slots",
        default: "what it says, else 4 (`llamacpp`) or 256",
        about: "Runs that it is given at once, over all its models; further ones wait in kvit.",
        set: |config, value| number(value, 1, SLOTS_MAX).map(|slots| config.slots = Some(slots)),
    },
    Word {
        name: "cap",
        default: "none",
        about: "`max_tokens` of a chat or completions request that names no such number: it is added to the request, so that what an engine can still waste is bounded.",
        set: |config, value| number(value, 1, 1 << 24).map(|cap| config.cap = Some(cap)),
    },
    Word {
        name: "max_tokens_only",
        default: "no",
        about: "`yes` or `no`: whether it heeds `max_tokens` alone, as Ollama does. A request that is bounded by another word (`max_completion_tokens`, `n_predict`) gets the same number as `max_tokens` then, for what is read over bounds nothing.",
        set: |config, value| yes(value).map(|only| config.max_tokens_only = only),
    },
    Word {
        name: "key_file",
        default: "none",
        about: "A file with the API key that it is sent (`Authorization: Bearer`), in place of the caller's, which is never sent on.",
        set: |config, value| key(Path::new(value)).map(|key| config.api_key = Some(key)),
    },
    Word {
        name: "ca",
        default: "the usual authorities",
        about: "A file with certificates (PEM) that are trusted, too, of an `https` upstream.",
        set: |config, value| {
            config.ca_file = Some(value.into());
            Ok(())
        },
    },
    Word {
        name: "cancel",
        default: "what its kind can do",
        about: "How a cancel is sent: `id` (by id, and closed; `kvit`, `vllm` and `sglang`), `close` (closed and nothing else), or `none`: it is known to go on whatever is done, so it is closed and told nothing.",
        set: |config, value| value.parse().map(|cancel| config.cancel = Some(cancel)),
    },
    Word {
        name: "deadline",
        default: "`kvit` where its models are owned by one, `litellm` where it shows that it is that, else `none`",
        about: "How it is told of the time that a run has left: `kvit` (`X-Request-Timeout-Ms`), `litellm` (`x-litellm-timeout`), or `none`. kvit keeps the deadline whatever is said; a hop that does not notice a close ends it so, half a second later.",
        set: |config, value| value.parse().map(|by| config.deadline = Some(by)),
    },
    Word {
        name: "failures_max",
        default: "5",
        about: "Runs that fail by it in a row, after which it gets none (its circuit is open).",
        set: |config, value| number(value, 1, 1_000_000).map(|n| config.failures_max = n),
    },
    Word {
        name: "open_ms",
        default: "1000",
        about: "How long an open circuit stays open before one run is tried; doubles with each that fails.",
        set: |config, value| span(value).map(|time| config.open = time),
    },
    Word {
        name: "open_max_ms",
        default: "60000",
        about: "Longest such time.",
        set: |config, value| span(value).map(|time| config.open_max = time),
    },
    Word {
        name: "connect_timeout_ms",
        default: "5000",
        about: "From the look-up of its name to a secured connection.",
        set: |config, value| span(value).map(|time| config.connect_timeout = time),
    },
    Word {
        name: "head_timeout_ms",
        default: "600000",
        about: "From a request's first byte to the answer's head, which some engines send with the first token, and all with a whole answer.",
        set: |config, value| span(value).map(|time| config.head_timeout = time),
    },
    Word {
        name: "idle_timeout_ms",
        default: "300000",
        about: "Longest time without a byte of an answer that has begun.",
        set: |config, value| span(value).map(|time| config.idle_timeout = time),
    },
    Word {
        name: "look_timeout_ms",
        default: "2000",
        about: "How long a look at it may take: its kind, its models, its counters, its health.",
        set: |config, value| span(value).map(|time| config.look_timeout = time),
    },
    Word {
        name: "look_bytes_max",
        default: "4194304",
        about: "Longest answer to a look.",
        set: |config, value| number(value, 1024, 1 << 30).map(|bytes| config.look_bytes_max = bytes),
    },
    Word {
        name: "observe_for_ms",
        default: "10000",
        about: "How long the proof of a cancel is looked for, during which its slot stays taken; then the level is `best_effort`. `kvit` is asked for twice as long: it may look for one itself.",
        set: |config, value| span(value).map(|time| config.observe_for = time),
    },
    Word {
        name: "hold_ms",
        default: "2000",
        about: "How long a request that was left stays open at most while its engine is told of it by its id, where that one forgets ids with their connections (`sglang`). Its caller waits for nothing of that.",
        set: |config, value| span(value).map(|time| config.hold = time),
    },
    Word {
        name: "witness",
        default: "yes",
        about: "`yes` or `no`: whether `vllm` is asked for two tokens, and no more at once, where a request was left before it showed any and no caller's own later request shows that a step of the engine is over. Without it such a cancel is `best_effort` on an engine that rests.",
        set: |config, value| yes(value).map(|witness| config.witness = witness),
    },
    Word {
        name: "observe_every_ms",
        default: "100",
        about: "Time between two looks meanwhile; `llamacpp` is looked at every 2 s at most.",
        set: |config, value| span(value).map(|time| config.observe_every = time),
    },
    Word {
        name: "head_bytes_max",
        default: "65536",
        about: "Largest head of an answer.",
        set: |config, value| number(value, 8 << 10, 16 << 20).map(|bytes| config.head_bytes_max = bytes),
    },
    Word {
        name: "line_bytes_max",
        default: "1048576",
        about: "Longest line of a stream.",
        set: |config, value| number(value, 1024, 1 << 30).map(|bytes| config.line_bytes_max = bytes),
    },
    Word {
        name: "event_bytes_max",
        default: "2097152",
        about: "Longest event of a stream.",
        set: |config, value| number(value, 1024, 1 << 30).map(|bytes| config.event_bytes_max = bytes),
    },
    Word {
        name: "answer_bytes_max",
        default: "268435456",
        about: "Longest answer, streamed or not.",
        set: |config, value| number(value, 1024, 1 << 40).map(|bytes| config.answer_bytes_max = bytes),
    },
    Word {
        name: "idle_connections_max",
        default: "64",
        about: "Connections to it that wait for a next request.",
        set: |config, value| number(value, 0, 65_536).map(|n| config.idle_connections_max = n),
    },
    Word {
        name: "idle_keep_ms",
        default: "4000",
        about: "How long they do. Common servers close after 5 s, and who closes second never sends into a closed connection.",
        set: |config, value| span(value).map(|time| config.idle_keep = time),
    },
];

/// `yes` or `no`.
fn yes(value: &str) -> Result<bool, String> {
    match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("`{value}` is neither yes nor no")),
    }
}

/// The key in a file: its one line.
fn key(file: &Path) -> Result<Secret, String> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| format!("`{shown}` cannot be read: {e}"))?;
    let text = text.trim();
    let fits = !text.is_empty() && text.len() <= KEY_BYTES_MAX && text.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| Secret::new(text)).ok_or_else(|| format!("`{shown}` has not one line of 1 to {KEY_BYTES_MAX} visible ASCII characters"))
}

fn known() -> String {
    WORDS.iter().map(|word| word.name).collect::<Vec<_>>().join(", ")
}

fn set(config: &mut UpstreamConfig, text: &str) -> Result<(), Wrong> {
    let (name, value) = text.split_once('=').ok_or_else(|| ("the word", format!("`{text}` is not WORD=VALUE; known are {}", known())))?;
    let word = WORDS.iter().find(|word| word.name == name);
    let word = word.ok_or_else(|| ("the word", format!("`{name}` is unknown; known are {}", known())))?;
    (word.set)(config, value).map_err(|why| (word.name, why))
}

/// `URL[,WORD=VALUE]...`, as in `http://10.0.0.1:8000,kind=vllm,slots=8`. No key: a command line is seen by others.
impl FromStr for UpstreamConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<UpstreamConfig, ConfigError> {
        let mut words = text.split(',');
        let mut config = UpstreamConfig::at(words.next().unwrap_or_default().trim())?;
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            let upstream = config.url.to_string();
            set(&mut config, word).map_err(|(what, why)| ConfigError { upstream, what, why })?;
        }
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kind::{CancelBy, Kind};
    use super::*;

    #[test]
    fn one_line_says_it_all() {
        let config: UpstreamConfig =
            "http://10.0.0.1:8000/v1,kind=vllm,slots=8,name=a1,model=x,model=org/y,model=x, cancel=close ,ca=f.pem,cap=7,open_ms=20,"
                .parse()
                .expect("a line");
        assert_eq!(config.url.to_string(), "http://10.0.0.1:8000");
        assert_eq!((config.kind, config.slots, config.name.as_str()), (Some(Kind::Vllm), Some(8), "a1"));
        assert_eq!((config.models, config.cancel), (vec!["x".to_owned(), "org/y".to_owned()], Some(CancelBy::Close)));
        assert_eq!((config.cap, config.open), (Some(7), Duration::from_millis(20)));
        let config: UpstreamConfig = "https://example.com".parse().expect("a URL");
        assert_eq!((config.name.as_str(), config.kind, config.slots, config.cap), ("example.com", None, None, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what, says) in [
            ("", "the URL", "is no URL"),
            ("localhost:8000", "the URL", "http://"),
            ("http://a,kind=tgi", "kind", "`tgi`"),
            ("http://a,slots=0", "slots", "`0`"),
            ("http://a,slots=many", "slots", "`many`"),
            ("http://a,name=", "name", "1 to 64"),
            ("http://a,name=a b", "name", "no blank"),
            ("http://a,slot=4", "the word", "`slot`"),
            ("http://a,vllm", "the word", "WORD=VALUE"),
            ("http://a,cancel=maybe", "cancel", "`maybe`"),
            ("http://a,kind=llamacpp,cancel=id", "cancel", "`llamacpp` has"),
            ("http://a,cancel=id,kind=openai", "cancel", "say `close`"),
            ("http://a,deadline=soon", "deadline", "`soon`"),
            ("http://a,open_ms=0", "open_ms", "from 1 to"),
            ("http://a,max_tokens_only=maybe", "max_tokens_only", "neither yes nor no"),
            ("http://a,key_file=/nowhere/at/all", "key_file", "cannot be read"),
        ] {
            let error = text.parse::<UpstreamConfig>().expect_err(text);
            assert_eq!(error.what, what, "{text}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    /// What the reference calls a number's default is the default.
    #[test]
    fn the_defaults_are_those_that_are_told() {
        let plain = UpstreamConfig::at("http://a").expect("a URL");
        let numbers = WORDS.iter().filter(|word| word.default.bytes().all(|b| b.is_ascii_digit()));
        let mut seen = 0;
        for word in numbers {
            let mut config = plain.clone();
            assert_eq!((word.set)(&mut config, word.default), Ok(()), "{}", word.name);
            assert_eq!(format!("{config:?}"), format!("{plain:?}"), "{}", word.name);
            seen += 1;
        }
        assert_eq!(seen, 17);
    }

    // contract: C-30
    #[test]
    fn a_key_comes_from_a_file_and_is_never_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        std::fs::write(&file, "sk-hidden\n").expect("a file");
        let line = format!("http://a,key_file={}", file.display());
        let config: UpstreamConfig = line.parse().expect("a line");
        assert_eq!(config.api_key.as_ref().map(Secret::reveal), Some("sk-hidden"));
        assert!(!format!("{config:?}").contains("hidden"));
        for bad in ["", "\n", "two words", "two\nlines", "caf\u{e9}"] {
            std::fs::write(&file, bad).expect("a file");
            let error = line.parse::<UpstreamConfig>().expect_err(bad);
            assert_eq!(error.what, "key_file");
            assert!(bad.trim().is_empty() || !error.to_string().contains(bad.trim()), "{error}");
        }
    }
}
