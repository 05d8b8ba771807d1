//! What another kvit's record of a run proves.
//!
//! `GET /v1/runs/{id}` and `POST /v1/runs/{id}/cancel` answer with the same: where the run is, whether it is released, how well that is proven,
//! and what was computed of it. What is passed on is no more than that record says, so a chain of kvits proves as much as its last hop does.
//!
//! Invariant: pure; an answer that is not the record of that very run, or disagrees with itself or with what was read of the answer, proves
//! nothing, whatever its status is.
// contract: C-12 C-28 C-29

use lifecycle::message::{Receipt, Reported};
use lifecycle::{Guarantee, StepId};
use serde::Deserialize;

use super::abort::RequestName;

/// What a record says of a run that is over, and believably so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// How well its end is proven, in that kvit's own word.
    pub level: Guarantee,
    /// What it computed.
    pub work: Reported,
    /// What its attempts owned there, at most; they own nothing now if the level is `confirmed`.
    pub receipt: Receipt,
}

/// What an answer is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The run is over there.
    Over(Found),
    /// It is its record, and something of the run is left or may be.
    Live,
    /// It is no record of that run that can be true, for this reason.
    Unfit(&'static str),
}

#[derive(Deserialize)]
struct Record<'a> {
    object: &'a str,
    id: &'a str,
    released: Option<bool>,
    settled: Option<bool>,
    guarantee: Option<&'a str>,
    waste_bound_tokens: Option<u64>,
    outcome: Option<Outcome<'a>>,
    tokens: Option<Tokens>,
    steps: Option<Steps>,
    blocks: Option<Blocks>,
}

#[derive(Deserialize)]
struct Outcome<'a> {
    kind: &'a str,
}

#[derive(Deserialize)]
struct Tokens {
    prompt: u64,
    cached_prompt: u64,
    generated: u64,
    after_disconnect: u64,
    after_receipt: u64,
    prompt_computed_after_disconnect: u64,
}

#[derive(Deserialize)]
struct Steps {
    total: u64,
    after_disconnect: u64,
}

#[derive(Deserialize)]
struct Blocks {
    held: u32,
    peak: u32,
    shared: u32,
}

/// Reads an answer of 200 to a question for the run of this name, of whose answer so many tokens were read here.
pub fn read(answer: &[u8], name: RequestName, shown: u32) -> Read {
    let Ok(record) = serde_json::from_slice::<Record<'_>>(answer) else { return Read::Unfit("it is no record of a run") };
    if record.object != "run" || *record.id != name.to_string() {
        return Read::Unfit("it is not the record of that run");
    }
    // Of a run that another gateway has, not all is known until it is over.
    let (Some(tokens), Some(steps), Some(blocks)) = (record.tokens, record.steps, record.blocks) else { return Read::Live };
    if tokens.after_disconnect > tokens.generated || steps.after_disconnect > steps.total {
        return Read::Unfit("its record of that run disagrees with itself");
    }
    let (Some(outcome), Some(level)) = (record.outcome, record.guarantee) else { return Read::Live };
    let Some(level) = Guarantee::parse(level).filter(|_| !outcome.kind.is_empty()) else {
        return Read::Unfit("its record of that run has words that no kvit has");
    };
    // What was read here was generated there.
    if tokens.generated < u64::from(shown) {
        return Read::Unfit("its record of that run has fewer tokens than were read of its answer");
    }
    let is_released = record.released == Some(true);
    match level {
        Guarantee::Confirmed if !is_released || blocks.held > 0 || record.waste_bound_tokens != Some(0) => {
            return Read::Unfit("its record calls that run confirmed, and not released");
        }
        Guarantee::Confirmed => {}
        _ if record.settled != Some(true) => return Read::Live,
        _ => {}
    }
    let work = Reported {
        prompt: tokens.prompt,
        cached_prompt: tokens.cached_prompt.min(tokens.prompt),
        generated: tokens.generated,
        after: tokens.after_disconnect,
        prompt_after: tokens.prompt_computed_after_disconnect,
        after_receipt: tokens.after_receipt.min(tokens.generated),
        steps: steps.total,
        steps_after: steps.after_disconnect,
        waste_bound: record.waste_bound_tokens,
    };
    let steps = u32::try_from(steps.total).unwrap_or(u32::MAX);
    let receipt = Receipt { blocks_held: 0, blocks_peak: blocks.peak, blocks_shared: blocks.shared, steps, fence: StepId(0) };
    Read::Over(Found { level, work, receipt })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NAME: RequestName = RequestName(0xfeed);

    /// A record as a kvit gives it, changed.
    fn record(change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let mut record = json!({
            "object": "run", "id": NAME.to_string(), "tenant": "default", "state": "ended", "released": true, "settled": true, "attempt": 1,
            "outcome": {"kind": "cancelled", "cause": "cancel_requested", "reason": null}, "guarantee": "confirmed", "waste_bound_tokens": 0,
            "tokens": {"prompt": 9, "cached_prompt": 2, "generated": 7, "delivered": 6, "after_disconnect": 1, "after_receipt": 1,
                "prompt_computed_after_disconnect": 3, "overrun": 0},
            "steps": {"total": 8, "after_disconnect": 1, "layers_dropped": 4}, "blocks": {"held": 0, "peak": 5, "shared": 2},
        });
        change(&mut record);
        record.to_string().into_bytes()
    }

    fn changed(path: &str, to: &Value) -> Read {
        read(&record(|record| *record.pointer_mut(path).expect(path) = to.clone()), NAME, 6)
    }

    #[test]
    fn a_record_of_a_released_run_is_a_proof_and_brings_its_counts() {
        let Read::Over(found) = read(&record(|_| {}), NAME, 7) else { panic!("it is over") };
        assert_eq!(found.level, Guarantee::Confirmed);
        let work = Reported {
            prompt: 9,
            cached_prompt: 2,
            generated: 7,
            after: 1,
            prompt_after: 3,
            after_receipt: 1,
            steps: 8,
            steps_after: 1,
            waste_bound: Some(0),
        };
        assert_eq!(found.work, work);
        assert_eq!(found.receipt, Receipt { blocks_held: 0, blocks_peak: 5, blocks_shared: 2, steps: 8, fence: StepId(0) });
    }

    // A run that is released and whose caller is not yet told is proven all the same.
    #[test]
    fn a_weaker_level_is_passed_on_as_it_is_once_it_is_final() {
        for level in ["observed", "best_effort", "unsupported"] {
            let weak = |settled: bool| {
                record(|record| {
                    (record["released"], record["settled"], record["guarantee"]) = (json!(false), json!(settled), json!(level));
                    record["waste_bound_tokens"] = json!(41);
                })
            };
            let Read::Over(found) = read(&weak(true), NAME, 0) else { panic!("it is over") };
            assert_eq!((found.level.as_str(), found.work.waste_bound), (level, Some(41)));
            assert_eq!(read(&weak(false), NAME, 0), Read::Live);
        }
        assert!(matches!(changed("/settled", &json!(false)), Read::Over(_)), "its release is journalled");
    }

    #[test]
    fn what_is_not_over_is_live() {
        for (path, to) in [("/outcome", Value::Null), ("/guarantee", Value::Null), ("/tokens", Value::Null), ("/blocks", Value::Null)] {
            assert_eq!(changed(path, &to), Read::Live, "{path}");
        }
    }

    // contract: C-29
    #[test]
    fn whoever_says_yes_to_anything_or_contradicts_itself_proves_nothing() {
        let unfit = |read: Read, what: &str| assert!(matches!(read, Read::Unfit(_)), "{what}: {read:?}");
        for answer in ["", "{}", "null", "[]", "ok", r#"{"object":"run"}"#, r#"{"success":true}"#, "<html>"] {
            unfit(read(answer.as_bytes(), NAME, 0), answer);
        }
        // It repeats the name and makes up the rest.
        let echo = json!({"object": "run", "id": NAME.to_string(), "released": true, "guarantee": "confirmed"}).to_string();
        assert_eq!(read(echo.as_bytes(), NAME, 0), Read::Live, "it never shows that it is over");
        unfit(read(&record(|_| {}), RequestName(0xfeee), 0), "another run's");
        unfit(read(&record(|_| {}), NAME, 8), "it has generated less than was read");
        for (path, to) in [
            ("/object", json!("response")),
            ("/id", json!(format!("{NAME}~2"))),
            ("/released", json!(false)),
            ("/released", Value::Null),
            ("/blocks/held", json!(1)),
            ("/waste_bound_tokens", json!(1)),
            ("/waste_bound_tokens", Value::Null),
            ("/guarantee", json!("sure")),
            ("/outcome/kind", json!("")),
            ("/tokens/after_disconnect", json!(8)),
            ("/tokens/generated", json!(-1)),
            ("/steps/after_disconnect", json!(9)),
        ] {
            unfit(changed(path, &to), path);
        }
    }
}
