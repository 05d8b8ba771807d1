//! Parameters between gateway and worker. Their ranges are not looked at here: a caller's fault must end an attempt and not a session.
//!
//! Invariant: every number crosses bit for bit, so that a recomputed attempt chooses the same tokens (C-14).
// contract: C-14

use lifecycle::params::{Params, Sampling};

use crate::{Error, field, worker_v1 as wire};

impl From<&Params> for wire::Params {
    fn from(params: &Params) -> wire::Params {
        wire::Params {
            sampling: Some((&params.sampling).into()),
            max_tokens: params.max_tokens,
            n: params.n,
            stop: params.stop.clone(),
            stop_token_ids: params.stop_token_ids.clone(),
            ignore_eos: params.ignore_eos,
            cache_salt: params.cache_salt.to_string(),
            priority: params.priority,
        }
    }
}

impl TryFrom<wire::Params> for Params {
    type Error = Error;

    fn try_from(wire: wire::Params) -> Result<Params, Error> {
        Ok(Params {
            sampling: field::need(wire.sampling, "Params.sampling")?.try_into()?,
            max_tokens: wire.max_tokens,
            n: field::number(wire.n, "Params.n")?,
            stop: wire.stop,
            stop_token_ids: wire.stop_token_ids,
            ignore_eos: wire.ignore_eos,
            cache_salt: wire.cache_salt.into(),
            priority: wire.priority,
        })
    }
}

impl From<&Sampling> for wire::Sampling {
    fn from(sampling: &Sampling) -> wire::Sampling {
        let bias = |&(token, bias): &(u32, f32)| wire::LogitBias { token, bias: Some(bias) };
        wire::Sampling {
            temperature: Some(sampling.temperature),
            top_k: sampling.top_k,
            top_p: Some(sampling.top_p),
            min_p: Some(sampling.min_p),
            presence_penalty: Some(sampling.presence_penalty),
            frequency_penalty: Some(sampling.frequency_penalty),
            repetition_penalty: Some(sampling.repetition_penalty),
            logit_bias: sampling.logit_bias.iter().map(bias).collect(),
            seed: sampling.seed,
            logprobs: sampling.logprobs.map(u32::from),
            min_tokens: sampling.min_tokens,
        }
    }
}

impl TryFrom<wire::Sampling> for Sampling {
    type Error = Error;

    fn try_from(wire: wire::Sampling) -> Result<Sampling, Error> {
        let bias = |b: wire::LogitBias| Ok((b.token, field::need(b.bias, "LogitBias.bias")?));
        Ok(Sampling {
            temperature: field::need(wire.temperature, "Sampling.temperature")?,
            top_k: wire.top_k,
            top_p: field::need(wire.top_p, "Sampling.top_p")?,
            min_p: field::need(wire.min_p, "Sampling.min_p")?,
            presence_penalty: field::need(wire.presence_penalty, "Sampling.presence_penalty")?,
            frequency_penalty: field::need(wire.frequency_penalty, "Sampling.frequency_penalty")?,
            repetition_penalty: field::need(wire.repetition_penalty, "Sampling.repetition_penalty")?,
            logit_bias: wire.logit_bias.into_iter().map(bias).collect::<Result<_, Error>>()?,
            seed: wire.seed,
            logprobs: wire.logprobs.map(|k| alternatives(k, "Sampling.logprobs")).transpose()?,
            min_tokens: wire.min_tokens,
        })
    }
}

/// What does not fit into the type is beyond any range.
pub(crate) fn alternatives(k: u32, field: &'static str) -> Result<u8, Error> {
    u8::try_from(k).map_err(|_| Error::Range { field, allowed: "between 0 and 20" })
}
