//! What a caller may ask of a generation: sampling, caps and stops. Checked here, once, for every front door.

use std::sync::Arc;

/// How one token is chosen from the logits. Everything that decides a token is in here and in the token history: the choice is a pure
/// function of (logits, history, these, index), so a recomputed attempt chooses the same tokens (C-14).
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set with this probability mass; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this fraction of the best one's probability; 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from the logit of every token that was generated before.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated before.
    pub frequency_penalty: f32,
    /// Divides (positive) or multiplies (negative) the logits of tokens in prompt and answer; 1 does nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens; sorted by token.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed. Sequence `s` draws its `i`-th token from (seed, s, i) alone.
    pub seed: u64,
    /// How many alternatives to report beside the chosen token's log-probability; `None` reports nothing.
    pub logprobs: Option<u8>,
    /// End-of-turn tokens that may not be chosen before this many tokens were generated.
    pub min_tokens: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
            min_tokens: 0,
        }
    }
}

/// Everything about a generation that is not its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to generate a sequence; `None` leaves it to the worker's cap.
    pub max_tokens: Option<u32>,
    /// Number of answers.
    pub n: u32,
    /// Texts that end an answer; not part of it.
    pub stop: Vec<String>,
    /// Tokens that end an answer beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Go on over the model's own end-of-turn tokens.
    pub ignore_eos: bool,
    /// Keeps prefixes of different salts apart.
    pub cache_salt: Arc<str>,
    /// Smaller runs first; equal values run in order of arrival.
    pub priority: i32,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            sampling: Sampling::default(),
            max_tokens: None,
            n: 1,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            cache_salt: "".into(),
            priority: 0,
        }
    }
}

/// Most answers a run may ask for.
pub const N_MAX: u32 = 16;
/// Most stop strings a run may give.
pub const STOPS_MAX: usize = 16;
/// Longest stop string in bytes.
pub const STOP_MAX_LEN: usize = 256;
/// Most alternatives a token's log-probability may list.
pub const LOGPROBS_MAX: u8 = 20;

/// A parameter that is out of its range: which, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{param} must be {allowed}")]
pub struct ParamError {
    /// The parameter's name on the wire.
    pub param: &'static str,
    /// The range in words.
    pub allowed: &'static str,
}

impl Params {
    /// Checks every range; the first parameter that is out of it is named.
    pub fn check(&self) -> Result<(), ParamError> {
        let s = &self.sampling;
        let within = |x: f32, lo: f32, hi: f32| x.is_finite() && x >= lo && x <= hi;
        let table: [(bool, &'static str, &'static str); 13] = [
            (within(s.temperature, 0.0, 2.0), "temperature", "between 0 and 2"),
            (within(s.top_p, 0.0, 1.0) && s.top_p > 0.0, "top_p", "above 0 and at most 1"),
            (within(s.min_p, 0.0, 1.0), "min_p", "between 0 and 1"),
            (within(s.presence_penalty, -2.0, 2.0), "presence_penalty", "between -2 and 2"),
            (within(s.frequency_penalty, -2.0, 2.0), "frequency_penalty", "between -2 and 2"),
            (within(s.repetition_penalty, 0.0, 10.0) && s.repetition_penalty > 0.0, "repetition_penalty", "above 0 and at most 10"),
            (s.logit_bias.iter().all(|b| within(b.1, -100.0, 100.0)), "logit_bias", "values between -100 and 100"),
            (s.logprobs.is_none_or(|k| k <= LOGPROBS_MAX), "top_logprobs", "between 0 and 20"),
            (self.max_tokens != Some(0), "max_tokens", "at least 1"),
            ((1..=N_MAX).contains(&self.n), "n", "between 1 and 16"),
            (self.stop.len() <= STOPS_MAX, "stop", "at most 16 strings"),
            (self.stop.iter().all(|t| !t.is_empty() && t.len() <= STOP_MAX_LEN), "stop", "strings of 1 to 256 bytes"),
            (self.max_tokens.is_none_or(|m| s.min_tokens <= m), "min_tokens", "at most max_tokens"),
        ];
        match table.iter().find(|row| !row.0) {
            Some(&(_, param, allowed)) => Err(ParamError { param, allowed }),
            None => Ok(()),
        }
    }
}
