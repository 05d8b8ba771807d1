//! The gRPC front door's messages: a request as `lifecycle` knows it, and events on their way to the caller.
//!
//! Invariant: a request is checked here by the same ranges as one that came over HTTP.

use lifecycle::message::{Delta, Prompt, TokenLogprob, Usage};
use lifecycle::params::{Params, Sampling};
use lifecycle::{Delivery, OnDisconnect, Outcome, RunId};
use prost::Message;

use crate::params::alternatives;
use crate::runs_v1::{self as wire, generate_event::Event};
use crate::{Error, field};

/// A request for a run.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateAsk {
    /// The model's name.
    pub model: String,
    /// What to continue.
    pub prompt: Prompt,
    /// How. Without `seed` its seed is 0, and the gateway draws one.
    pub params: Params,
    /// The seed that the caller gave.
    pub seed: Option<u64>,
    /// The id that the run is to have.
    pub run: Option<RunId>,
    /// What a disconnect means for it, if the caller says so.
    pub on_disconnect: Option<OnDisconnect>,
}

impl TryFrom<wire::GenerateRequest> for GenerateAsk {
    type Error = Error;

    fn try_from(request: wire::GenerateRequest) -> Result<GenerateAsk, Error> {
        let given = request.params.unwrap_or_default();
        let seed = given.seed;
        let params = Params::try_from(given)?;
        params.check()?;
        Ok(GenerateAsk {
            model: field::number(request.model, "GenerateRequest.model")?,
            prompt: field::need(request.prompt, "GenerateRequest.prompt")?.into(),
            params,
            seed,
            run: request.run.map(|run| run_id(&run, "GenerateRequest.run")).transpose()?,
            on_disconnect: request.on_disconnect.map(|text| policy(&text)).transpose()?,
        })
    }
}

impl wire::GenerateRequest {
    /// The same bytes for the same request: a map has no order of its own on the wire, and the id is not what is asked for.
    pub fn canonical(&self) -> Vec<u8> {
        let mut rest = wire::GenerateRequest { run: None, ..self.clone() };
        let bias = rest.params.as_mut().map(|params| std::mem::take(&mut params.logit_bias)).unwrap_or_default();
        let mut bias: Vec<(u32, f32)> = bias.into_iter().collect();
        bias.sort_unstable_by_key(|entry| entry.0);
        let mut bytes = rest.encode_to_vec();
        for (token, value) in bias {
            bytes.extend(token.to_be_bytes());
            bytes.extend(value.to_bits().to_be_bytes());
        }
        bytes
    }
}

impl TryFrom<wire::Params> for Params {
    type Error = Error;

    /// What is absent has the HTTP API's default.
    fn try_from(given: wire::Params) -> Result<Params, Error> {
        let (usual, seed) = (Params::default(), given.seed.unwrap_or_default());
        let mut logit_bias: Vec<(u32, f32)> = given.logit_bias.into_iter().collect();
        logit_bias.sort_unstable_by_key(|bias| bias.0);
        let sampling = Sampling {
            temperature: given.temperature.unwrap_or(usual.sampling.temperature),
            top_k: given.top_k,
            top_p: given.top_p.unwrap_or(usual.sampling.top_p),
            min_p: given.min_p,
            presence_penalty: given.presence_penalty,
            frequency_penalty: given.frequency_penalty,
            repetition_penalty: given.repetition_penalty.unwrap_or(usual.sampling.repetition_penalty),
            logit_bias,
            seed,
            logprobs: given.logprobs.map(|k| alternatives(k, "Params.logprobs")).transpose()?,
            min_tokens: given.min_tokens,
        };
        Ok(Params {
            sampling,
            max_tokens: given.max_tokens,
            n: given.n.unwrap_or(usual.n),
            stop: given.stop,
            stop_token_ids: given.stop_token_ids,
            ignore_eos: given.ignore_eos,
            cache_salt: given.cache_salt.into(),
            priority: given.priority,
        })
    }
}

fn run_id(text: &str, field: &'static str) -> Result<RunId, Error> {
    field::id(RunId::parse(text), field)
}

fn policy(text: &str) -> Result<OnDisconnect, Error> {
    text.parse().map_err(|problem| Error::Policy { field: "GenerateRequest.on_disconnect", problem })
}

impl wire::GenerateEvent {
    /// The first event.
    pub fn accepted(run: &RunId) -> wire::GenerateEvent {
        wire::GenerateEvent { event: Some(Event::Accepted(wire::Accepted { run: run.as_str().to_owned() })) }
    }

    /// More of an answer.
    pub fn delta(delta: &Delta) -> wire::GenerateEvent {
        wire::GenerateEvent { event: Some(Event::Delta(delta.into())) }
    }

    /// The last event.
    pub fn ended(outcome: &Outcome, usage: Usage, delivery: Delivery) -> wire::GenerateEvent {
        let usage = wire::Usage { prompt: usage.prompt, cached_prompt: usage.cached_prompt, generated: usage.generated };
        let delivery = wire::Delivery::from(delivery).into();
        wire::GenerateEvent { event: Some(Event::Ended(wire::Ended { outcome: Some(outcome.into()), usage: Some(usage), delivery })) }
    }
}

macro_rules! by_name {
    ($($request:ident)+) => {$(
        impl wire::$request {
            /// Whose run: its id, checked.
            ///
            /// # Errors
            /// It is absent or cannot be an id.
            pub fn run_id(&self) -> Result<RunId, Error> {
                run_id(&self.run, concat!(stringify!($request), ".run"))
            }
        }
    )+};
}
by_name! { CancelRequest GetRequest WatchRequest }

impl From<&Delta> for wire::Delta {
    fn from(delta: &Delta) -> wire::Delta {
        wire::Delta {
            sequence: delta.sequence,
            text: delta.text.clone(),
            tokens: delta.tokens.clone(),
            logprobs: delta.logprobs.iter().map(wire::Logprob::from).collect(),
            finish: delta.finish.map(|cause| wire::Cause::from(cause).into()),
        }
    }
}

impl From<&TokenLogprob> for wire::Logprob {
    fn from(entry: &TokenLogprob) -> wire::Logprob {
        let alternative =
            |(token, bytes, logprob): &(u32, Vec<u8>, f32)| wire::Alternative { token: *token, bytes: bytes.clone(), logprob: *logprob };
        wire::Logprob {
            token: entry.token,
            bytes: entry.bytes.clone(),
            logprob: entry.logprob,
            top: entry.top.iter().map(alternative).collect(),
        }
    }
}

impl From<&Outcome> for wire::Outcome {
    fn from(outcome: &Outcome) -> wire::Outcome {
        wire::Outcome {
            kind: wire::OutcomeKind::from(outcome.kind()).into(),
            cause: wire::Cause::from(outcome.cause).into(),
            reason: outcome.reason.clone(),
        }
    }
}

/// The state with the API's word, for a `Run`; `None` if there is no such word.
pub fn run_state(word: &str) -> Option<wire::RunState> {
    let known = !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') && word != "unspecified";
    known.then(|| wire::RunState::from_str_name(&format!("RUN_STATE_{}", word.to_ascii_uppercase()))).flatten()
}
