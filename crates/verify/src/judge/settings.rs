//! Everything that can be set, with its default: in one TOML file that can stand beside what it judges, or by options of the same names.
//!
//! Invariant: nothing is waited for, sent or kept without a limit from here.
// contract: C-28

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::verdict::Tolerance;

/// How a stack is judged.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Times that each cell is tried.
    pub tries: u64,
    /// Tokens that may be generated for a request after it was left.
    pub tokens: f64,
    /// Prompt tokens that may be computed for it then.
    pub prompt_tokens: f64,
    /// How long its work may go on then: the reclamation interval, in milliseconds.
    pub stop_ms: f64,
    /// Whether a caller that closes its sending side alone, and reads on, may be taken for one that left.
    pub half_close_leaves: bool,
    /// Tokens that a request asks for.
    pub max_tokens: u64,
    /// How long a prompt has to be for its computing to be left: time to its first token, in milliseconds.
    pub prefill_ms: u64,
    /// Longest such prompt, in words.
    pub prompt_words_max: usize,
    /// Most requests at once by which the engine's slots are filled.
    pub fillers_max: usize,
    /// Healthy streams beside departures.
    pub neighbours: usize,
    /// How much slower a neighbour's tokens may come: median gap around departures over the baseline's.
    pub slowdown_max: f64,
    /// How long one question may take in all, in milliseconds.
    pub patience_ms: u64,
    /// Whether the engine is looked at between a departure and its end. Where it is not said: if looking does not disturb it.
    pub poll: Option<bool>,
    /// Whether each cell is tried with looks and without, to see whether looking changes the answer.
    pub both_ways: bool,
    /// Time between two looks, in milliseconds, if the engine's profile allows that.
    pub look_every_ms: u64,
    /// Departures, over several rounds, behind which is looked what each of them leaves in the engine; 0 for none.
    pub departures: u64,
    /// By how much the engine's memory may grow with each of them, in KiB, for as long as they go on.
    pub memory_kib: f64,
    /// Idle timeout of the first hop that has one, in milliseconds: how long it lets a request be silent before it gives it up; 0 if nobody knows.
    pub idle_ms: u64,
    /// Longest wait for the lines of hops' logs when all is over, in milliseconds.
    pub log_wait_ms: u64,
    /// Tokens that the first hop takes from the one behind it, or computes, for a caller that reads nothing: what its own buffers hold, and the
    /// kernel's for a connection that takes little.
    pub unread_tokens: u64,
    /// By what prompts and ids differ from run to run; 0 for another one each time.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let Tolerance { tokens, prompt_tokens, stop_ms, half_close_leaves } = Tolerance::default();
        Settings {
            tries: 3,
            tokens,
            prompt_tokens,
            stop_ms,
            half_close_leaves,
            max_tokens: 256,
            prefill_ms: 600,
            prompt_words_max: 16_384,
            fillers_max: 64,
            neighbours: 2,
            slowdown_max: 2.0,
            patience_ms: 60_000,
            poll: None,
            both_ways: false,
            look_every_ms: 50,
            departures: 12,
            memory_kib: 256.0,
            idle_ms: 0,
            log_wait_ms: 2000,
            unread_tokens: 5000,
            seed: 0,
        }
    }
}

impl Settings {
    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Settings, String> {
        let settings: Settings = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values make sense.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), String> {
        let at_least = |name: &str, value: u64, least: u64| {
            if value < least { Err(format!("{name} is {value}; at least {least} is needed")) } else { Ok(()) }
        };
        at_least("tries", self.tries, 1)?;
        at_least("max_tokens", self.max_tokens, 32)?;
        at_least("prefill_ms", self.prefill_ms, 50)?;
        at_least("fillers_max", self.fillers_max as u64, 1)?;
        at_least("patience_ms", self.patience_ms, 1000)?;
        at_least("look_every_ms", self.look_every_ms, 1)?;
        at_least("unread_tokens", self.unread_tokens, 1)?;
        if self.idle_ms > 0 {
            at_least("idle_ms", self.idle_ms, 100)?;
        }
        if (1..super::cleanup::DEPARTURES_MIN).contains(&self.departures) {
            let least = super::cleanup::DEPARTURES_MIN;
            return Err(format!("departures is {}; at least {least} say anything, and 0 asks for none", self.departures));
        }
        let positive = |name: &str, value: f64| {
            if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(format!("{name} is {value}; it has to be 0 or more")) }
        };
        positive("tokens", self.tokens)?;
        positive("prompt_tokens", self.prompt_tokens)?;
        positive("stop_ms", self.stop_ms)?;
        positive("memory_kib", self.memory_kib)?;
        if self.slowdown_max.is_finite() && self.slowdown_max >= 1.0 {
            Ok(())
        } else {
            Err(format!("slowdown_max is {}; it has to be 1 or more", self.slowdown_max))
        }
    }

    /// What a verdict allows.
    pub const fn tolerance(&self) -> Tolerance {
        Tolerance {
            tokens: self.tokens,
            prompt_tokens: self.prompt_tokens,
            stop_ms: self.stop_ms,
            half_close_leaves: self.half_close_leaves,
        }
    }

    /// See `log_wait_ms`.
    pub const fn log_wait(&self) -> Duration {
        Duration::from_millis(self.log_wait_ms)
    }

    /// See `patience_ms`.
    pub const fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_defaults_and_a_mistake_is_named() {
        assert_eq!(Settings::parse(""), Ok(Settings::default()));
        let own = Settings::parse("tries = 5\nstop_ms = 250\n").expect("settings");
        assert_eq!((own.tries, own.stop_ms), (5, 250.0));
        for (text, says) in [
            ("tries = 0", "tries is 0"),
            ("trys = 5", "trys"),
            ("tries = \"many\"", "tries"),
            ("stop_ms = -1", "stop_ms is -1"),
            ("slowdown_max = 0.5", "slowdown_max"),
            ("max_tokens = 8", "at least 32"),
            ("departures = 7", "departures is 7"),
            ("idle_ms = 20", "idle_ms is 20"),
        ] {
            assert!(Settings::parse(text).expect_err(text).contains(says), "{text}");
        }
    }
}
