//! What is asked for, and what an isolated run answers to it, cold, on a server of its own: to the bit.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use serde_json::{Value, json};

use super::caller::{Caller, Heard};
use super::stand::{Loaded, Setup, Stand};

pub const PATH: &str = "/v1/completions";

/// Tokens of a victim's prompt: six full blocks and a tail, seven chunks.
pub const VICTIM_PROMPT: u32 = 100;
/// Tokens of a neighbour's prompt.
const NEIGHBOUR_PROMPT: u32 = 20;

/// What a request asks for, but for its name and its shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Spec {
    pub prompt: u32,
    /// Another prompt of the same length.
    pub variant: u32,
    pub n: u32,
    pub max: u32,
    /// Drawn and not greedy, so that several answers differ.
    pub hot: bool,
    pub stop: Option<String>,
    pub stop_token: Option<u32>,
}

impl Spec {
    pub fn victim(n: u32, max: u32) -> Spec {
        Spec { prompt: VICTIM_PROMPT, variant: 0, n, max, hot: n > 1, stop: None, stop_token: None }
    }

    pub fn neighbour(max: u32) -> Spec {
        Spec { prompt: NEIGHBOUR_PROMPT, variant: 0, n: 1, max, hot: false, stop: None, stop_token: None }
    }

    fn tokens(&self) -> Vec<u32> {
        (0..self.prompt).map(|i| 40 + (self.prompt * 13 + self.variant * 57 + i * 31 + i * i * 7) % 200).collect()
    }

    /// The request. Of the likeliest forty tokens, none is a marker.
    pub fn body(&self, marker: u32, salt: &str, stream: bool) -> Value {
        let stops: Vec<u32> = std::iter::once(marker).chain(self.stop_token).collect();
        let mut body = json!({"prompt": self.tokens(), "max_tokens": self.max, "n": self.n, "temperature": if self.hot { 0.9 } else { 0.0 },
            "seed": 7, "top_k": 40, "repetition_penalty": 1.5, "ignore_eos": true, "stop_token_ids": stops, "logprobs": 0, "cache_salt": salt, "stream": stream});
        if let Some(stop) = &self.stop {
            body["stop"] = json!(stop);
        }
        body
    }
}

/// Names and markers, each given once.
pub struct Names {
    first_marker: u32,
    markers: u32,
    next: AtomicU32,
}

impl Names {
    pub fn new(first_marker: u32, markers: u32) -> Names {
        Names { first_marker, markers, next: AtomicU32::new(0) }
    }

    /// A token that no model chooses, and that no other live run has.
    pub fn marker(&self) -> u32 {
        self.first_marker + self.next.fetch_add(1, Ordering::Relaxed) % self.markers
    }
}

/// What an isolated run's caller heard, and the tokens that the device chose for each answer.
type Alone = (Heard, Vec<Vec<u32>>);

/// Answers of isolated runs.
pub struct Isolated {
    stand: Mutex<Stand>,
    known: Mutex<HashMap<Spec, Alone>>,
    asked: AtomicU64,
}

impl Isolated {
    pub fn new(model: &Loaded) -> Isolated {
        let stand = Stand::start(Setup { blocks: 256, ..Setup::new(model) });
        Isolated { stand: Mutex::new(stand), known: Mutex::default(), asked: AtomicU64::new(0) }
    }

    /// What it answers, and the tokens that the device chose.
    pub fn of(&self, spec: &Spec, names: &Names) -> Alone {
        let stand = self.stand.lock().expect("no asker panicked");
        if let Some(known) = self.known.lock().expect("no asker panicked").get(spec) {
            return known.clone();
        }
        let id = format!("isolated-{}", self.asked.fetch_add(1, Ordering::Relaxed));
        let marker = names.marker();
        let mut caller = Caller::post(stand.addr, PATH, &id, &spec.body(marker, &id, false));
        let heard = caller.finish();
        assert!(heard.complete, "{spec:?}: {heard:?}");
        assert_eq!(stand.settled(&id).tokens.cached_prompt, 0, "an isolated run finds nothing");
        let chosen = (0..spec.n).map(|s| stand.gate.chosen(marker, s)).collect();
        self.known.lock().expect("no asker panicked").insert(spec.clone(), (heard.clone(), chosen));
        self.known.lock().expect("no asker panicked")[spec].clone()
    }
}

impl Heard {
    /// Whether this is what the whole answer begins with, token by token to the bit.
    pub fn begins(&self, whole: &Heard) -> bool {
        let bits = self.bits.iter().all(|(s, bits)| whole.bits.get(s).is_some_and(|all| all.starts_with(bits)));
        bits && self.text.iter().all(|(s, text)| whole.text.get(s).is_some_and(|all| all.starts_with(text.as_str())))
    }

    /// The answer itself, without how it was told.
    pub fn answer(&self) -> impl PartialEq + std::fmt::Debug + '_ {
        (&self.text, &self.bits, &self.finish)
    }
}
