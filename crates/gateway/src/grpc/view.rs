//! A run's record as a message: field for field what `GET /v1/runs/{id}` shows.
//!
//! Invariant: what is `null` there is absent here, and every word has its number.

use lifecycle::{Cause, Delivery, Guarantee, Milestone, OutcomeKind, Phase};
use observe::{RunView, view::MilestonesView};
use protocol::{run_state, runs_v1 as wire};
use store::StoredRun;

/// A word as its number. A word that nobody knows would be 0; a test goes through all there are.
macro_rules! number {
    ($type:ident, $word:expr) => {
        $type::parse($word).map_or(0, |word| wire::$type::from(word).into())
    };
}

/// The message.
pub(super) fn run(view: &RunView) -> wire::Run {
    wire::Run {
        id: view.id.clone(),
        model: view.model.clone(),
        state: run_state(view.state.as_str()).map_or(0, Into::into),
        released: view.released,
        settled: view.settled,
        attempt: view.attempt,
        outcome: view.outcome.as_ref().map(|outcome| wire::Outcome {
            kind: number!(OutcomeKind, outcome.kind),
            cause: number!(Cause, outcome.cause),
            reason: outcome.reason.clone(),
        }),
        delivery: number!(Delivery, view.delivery),
        guarantee: view.guarantee.map(|word| number!(Guarantee, word)),
        waste_bound_tokens: view.waste_bound_tokens,
        phase_at_disconnect: view.phase_at_disconnect.map(|word| number!(Phase, word)),
        milestones: Some(milestones(&view.milestones)),
        boundaries: view.boundaries.iter().map(boundary).collect(),
        tokens: Some(wire::TokenCounts {
            prompt: view.tokens.prompt,
            cached_prompt: view.tokens.cached_prompt,
            generated: view.tokens.generated,
            delivered: view.tokens.delivered,
            after_disconnect: view.tokens.after_disconnect,
            after_receipt: view.tokens.after_receipt,
            prompt_computed_after_disconnect: view.tokens.prompt_computed_after_disconnect,
            overrun: view.tokens.overrun,
        }),
        steps: Some(wire::StepCounts {
            total: view.steps.total,
            after_disconnect: view.steps.after_disconnect,
            layers_dropped: view.steps.layers_dropped,
        }),
        blocks: Some(wire::BlockCounts { held: view.blocks.held, peak: view.blocks.peak, shared: view.blocks.shared }),
        told: view.told.map(|word| number!(Cause, word)),
        engine: view
            .engine
            .as_ref()
            .map(|engine| wire::EngineRequest { upstream: engine.upstream.clone(), request: engine.request.clone() }),
        superseded: view.superseded.iter().map(|word| number!(Cause, word)).collect(),
    }
}

/// A run of another gateway, or of an earlier life of this one, as the store has it: what only its gateway knew is absent.
pub(super) fn stored(run: &StoredRun) -> wire::Run {
    let outcome = run.outcome.as_ref();
    let state = match (outcome, run.attempt) {
        (Some(_), _) => run_state("ended"),
        (None, 0) => run_state("queued"),
        (None, _) => None,
    };
    let tokens = outcome.map(|_| wire::TokenCounts {
        prompt: run.usage.prompt.into(),
        cached_prompt: run.usage.cached_prompt.into(),
        generated: run.usage.generated.into(),
        ..wire::TokenCounts::default()
    });
    wire::Run {
        id: run.key.run.to_string(),
        model: run.model.clone(),
        state: state.map_or(0, Into::into),
        attempt: run.attempt,
        outcome: outcome.map(|outcome| wire::Outcome {
            kind: number!(OutcomeKind, outcome.kind().as_str()),
            cause: number!(Cause, outcome.cause.as_str()),
            reason: outcome.reason.clone(),
        }),
        delivery: run.delivery.map_or(0, |delivery| number!(Delivery, delivery.as_str())),
        tokens,
        ..wire::Run::default()
    }
}

fn boundary(boundary: &observe::view::BoundaryView) -> wire::Boundary {
    wire::Boundary {
        hop: boundary.hop.to_owned(),
        observed: boundary.observed,
        forwarded: boundary.forwarded,
        acknowledged: boundary.acknowledged,
        clock_error_ms: boundary.clock_error_ms,
    }
}

fn milestones(view: &MilestonesView) -> wire::Milestones {
    let mut message = wire::Milestones::default();
    for &milestone in Milestone::ALL {
        let field = match milestone {
            Milestone::Accepted => &mut message.accepted,
            Milestone::Queued => &mut message.queued,
            Milestone::BlocksAllocated => &mut message.blocks_allocated,
            Milestone::PrefillStart => &mut message.prefill_start,
            Milestone::FirstToken => &mut message.first_token,
            Milestone::DeadlineFired => &mut message.deadline_fired,
            Milestone::DisconnectObserved => &mut message.disconnect_observed,
            Milestone::CancelSent => &mut message.cancel_sent,
            Milestone::CancelReceived => &mut message.cancel_received,
            Milestone::CancelApplied => &mut message.cancel_applied,
            Milestone::CancelAcknowledged => &mut message.cancel_acknowledged,
            Milestone::LastCompute => &mut message.last_compute,
            Milestone::FenceCompleted => &mut message.fence_completed,
            Milestone::Released => &mut message.released,
            Milestone::Settled => &mut message.settled,
        };
        *field = view.ms(milestone);
    }
    message
}

#[cfg(test)]
mod tests {
    use observe::RunState;

    use super::*;

    #[test]
    fn every_word_has_its_number() {
        assert!(RunState::ALL.iter().all(|state| run_state(state.as_str()).is_some()));
        assert!(Cause::ALL.iter().all(|word| number!(Cause, word.as_str()) != 0));
        assert!(OutcomeKind::ALL.iter().all(|word| number!(OutcomeKind, word.as_str()) != 0));
        assert!(Delivery::ALL.iter().all(|word| number!(Delivery, word.as_str()) != 0));
        assert!(Guarantee::ALL.iter().all(|word| number!(Guarantee, word.as_str()) != 0));
        assert!(Phase::ALL.iter().all(|word| number!(Phase, word.as_str()) != 0));
    }
}
