//! A run as `GET /v1/runs/{id}` shows it: the API's field names, and how each is read off the run's fold.
//!
//! Invariant: field names and words here are the public API (dashboards and `kvit verify` read them); fields are added, never renamed.
// contract: C-24 C-28 C-29

use std::time::Duration;

use lifecycle::{Boundary, BoundaryTimes, Cause, Milestone, Milestones, Time};
use serde::{Serialize, Serializer};

use crate::clock::Clock;
use crate::fold::Run;

/// The API's word for where a run is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Accepted and not yet scheduled; being tokenised counts.
    Queued,
    /// Its prompt is being computed.
    Prefilling,
    /// Tokens are being generated.
    Decoding,
    /// Its blocks were taken away to make room; it waits to be recomputed.
    Preempted,
    /// Its session is lost; it keeps its blocks and is not scheduled.
    Suspended,
    /// Its end is wanted or decided; something is still held.
    Stopping,
    /// It has its outcome and nothing is held on a worker.
    Ended,
}

impl RunState {
    /// Every state, in the order of a run's life.
    pub const ALL: [RunState; 7] = [
        RunState::Queued,
        RunState::Prefilling,
        RunState::Decoding,
        RunState::Preempted,
        RunState::Suspended,
        RunState::Stopping,
        RunState::Ended,
    ];

    /// The API's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            RunState::Queued => "queued",
            RunState::Prefilling => "prefilling",
            RunState::Decoding => "decoding",
            RunState::Preempted => "preempted",
            RunState::Suspended => "suspended",
            RunState::Stopping => "stopping",
            RunState::Ended => "ended",
        }
    }

    /// The state with this word.
    pub fn parse(word: &str) -> Option<RunState> {
        Self::ALL.into_iter().find(|s| s.as_str() == word)
    }
}

/// One run. Times are milliseconds since `accepted`, with microseconds as fractions; what has not happened is `None` (`null`).
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunView {
    /// Always `run`.
    pub object: &'static str,
    /// The run's id.
    pub id: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was accepted, in milliseconds of the calendar (since 1970).
    pub created_ms: u64,
    /// The model asked for; empty in the journal of a worker that has no gateway in its process.
    pub model: String,
    /// Where it is.
    pub state: RunState,
    /// Whether nothing of it is left on a worker: the release was journalled, or it never reached one.
    pub released: bool,
    /// Whether the gateway, too, holds nothing of it.
    pub settled: bool,
    /// The current attempt; 0 before the first.
    pub attempt: u32,
    /// The engine of another make that has its newest attempt; `None` where no such engine was sent one.
    pub engine: Option<EngineView>,
    /// How it ended.
    pub outcome: Option<OutcomeView>,
    /// `none`, `partial` or `complete`: what was sent so far, final once the answer is over.
    pub delivery: &'static str,
    /// The cause that readers were told before the outcome was decided, which may have become another; `None` if they were told the outcome, or
    /// nothing yet.
    pub told: Option<&'static str>,
    /// How well the end is proven. `confirmed` once the release is journalled, or once the run is settled without having reached a worker;
    /// `observed` if the engine's own counters or its own end of the answer show it; `best_effort` if its worker was lost, or an engine that
    /// shows nothing was only left; `None` while the run is live, because then there is nothing to prove yet.
    pub guarantee: Option<&'static str>,
    /// Most tokens that can still be computed in vain: 0 once confirmed; for a run whose release nobody can confirm, what its prompt and its
    /// output caps had left when its worker was last heard of (C-28); `None` while the run is live.
    pub waste_bound_tokens: Option<u64>,
    /// Where the run was when abandonment (a disconnect, a cancel by name, a deadline, a shutdown) was first observed.
    pub phase_at_disconnect: Option<&'static str>,
    /// What a disconnect means for it: `cancel`, `grace(MILLISECONDS)` or `continue`; `None` where its gateway is in another process.
    pub on_disconnect: Option<String>,
    /// How often its last reader left and somebody could come back.
    pub graces: GracesView,
    /// When things happened.
    pub milestones: MilestonesView,
    /// How abandonment crossed each hop.
    pub boundaries: [BoundaryView; 2],
    /// Token counts.
    pub tokens: TokensView,
    /// Step counts.
    pub steps: StepsView,
    /// Block counts.
    pub blocks: BlocksView,
    /// Causes that came after another had won, in order of arrival, each once.
    pub superseded: Vec<&'static str>,
}

/// Where an attempt is that an engine of another make was sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EngineView {
    /// What the configuration calls the engine.
    pub upstream: String,
    /// What the engine calls the attempt, in its log too: `X-Request-Id`, and SGLang's `rid`.
    pub request: String,
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OutcomeView {
    /// `completed`, `cancelled`, `expired`, `failed` or `rejected`.
    pub kind: &'static str,
    /// The cause that won.
    pub cause: &'static str,
    /// One sentence for a person.
    pub reason: Option<String>,
}

/// The milestones of C-24. Serialises as a map from each one's word to its milliseconds since `accepted`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MilestonesView {
    stamps: Milestones,
    base: Time,
}

impl MilestonesView {
    /// When a milestone was reached, in milliseconds since `accepted`.
    pub fn ms(&self, milestone: Milestone) -> Option<f64> {
        self.stamps.get(milestone).map(|at| at.ms_since(self.base))
    }
}

impl Serialize for MilestonesView {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Milestone::ALL.iter().map(|m| (m.as_str(), self.ms(*m))))
    }
}

/// How abandonment crossed one hop, in milliseconds since `accepted`.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct BoundaryView {
    /// `client-gateway` or `gateway-worker`.
    pub hop: &'static str,
    /// When this side first knew: at the gateway's edge, or when the gateway turned to the worker.
    pub observed: Option<f64>,
    /// When it was passed on: the cancel sent, or the cancel received by the worker.
    pub forwarded: Option<f64>,
    /// When the far side had nothing left of it: settled, or released.
    pub acknowledged: Option<f64>,
    /// How far these stamps' clocks may be apart; 0 in one process, which has one clock.
    pub clock_error_ms: f64,
}

/// Token counts of a run, over all attempts and sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TokensView {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Of them, those whose K and V came from the prefix index when the run was first given blocks.
    pub cached_prompt: u64,
    /// Generated, those included that were thrown away: whatever was computed shows.
    pub generated: u64,
    /// Handed to the caller's connection.
    pub delivered: u64,
    /// Waste: of the generated ones, every token whose step was done after the first observation of abandonment, taken or thrown away.
    pub after_disconnect: u64,
    /// Of the generated ones, every token that was not done when the cancel had reached the worker: at most one a sequence (C-12).
    pub after_receipt: u64,
    /// Waste: prompt positions (also recomputed ones) whose step was done after it.
    pub prompt_computed_after_disconnect: u64,
    /// Of the generated ones: thrown away, but not because somebody had left. A stop was found while the next step was under way. No part of
    /// `after_disconnect`.
    pub overrun: u64,
}

/// Graces of a run (C-25).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct GracesView {
    /// All of them.
    pub begun: u32,
    /// Those in which somebody came back. What was computed in them is no waste.
    pub resumed: u32,
}

/// Step counts of a run: steps that computed something for it, be it a part of the layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StepsView {
    /// All of them.
    pub total: u64,
    /// Those that were done after the first observation of abandonment.
    pub after_disconnect: u64,
    /// Layers that steps had computed for rows of the run when they dropped them: what a cancel in a prefill chunk wasted. A whole step of
    /// the model is as many layers as it has.
    pub layers_dropped: u64,
}

/// Block counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BlocksView {
    /// Held now.
    pub held: u32,
    /// Most held at once.
    pub peak: u32,
    /// Shared with others at some time.
    pub shared: u32,
}

impl Run {
    /// The moment from which its times are counted.
    pub(crate) fn base(&self) -> Time {
        self.stamps.get(Milestone::Accepted).unwrap_or(self.opened)
    }
}

impl RunView {
    pub(crate) fn of(run: &Run, clock: Clock) -> RunView {
        let base = run.base();
        let released = run.is_released();
        let guarantee = run.guarantee();
        RunView {
            object: "run",
            id: run.key.run.as_str().to_owned(),
            tenant: run.key.tenant.as_str().to_owned(),
            created_ms: clock.calendar_ms(base),
            model: run.model.as_deref().unwrap_or_default().to_owned(),
            state: run.state(),
            released,
            settled: run.is_settled(),
            attempt: run.current().map_or(0, |a| a.number),
            engine: run
                .sent_as
                .as_ref()
                .map(|(upstream, request)| EngineView { upstream: upstream.to_string(), request: request.to_string() }),
            outcome: run.outcome.as_ref().map(|o| OutcomeView {
                kind: o.kind().as_str(),
                cause: o.cause.as_str(),
                reason: o.reason.clone(),
            }),
            delivery: run.delivery().as_str(),
            told: run.told.map(Cause::as_str),
            guarantee: guarantee.map(|g| g.as_str()),
            waste_bound_tokens: run.waste_bound(),
            phase_at_disconnect: run.meter.abandoned().map(|p| p.as_str()),
            on_disconnect: run.graces.policy.map(|policy| policy.to_string()),
            graces: GracesView { begun: run.graces.begun, resumed: run.graces.resumed },
            milestones: MilestonesView { stamps: run.stamps, base },
            boundaries: boundaries(run, base),
            tokens: TokensView::of(run),
            steps: StepsView {
                total: run.meter.waste().steps,
                after_disconnect: run.meter.waste().steps_after.total(),
                layers_dropped: run.layers_dropped,
            },
            blocks: run.blocks,
            superseded: run.superseded.iter().map(|c: &Cause| c.as_str()).collect(),
        }
    }
}

/// Both hops, also for a run that nobody abandoned: then nothing was observed, and `acknowledged`, which belongs to it, is null as well.
fn boundaries(run: &Run, base: Time) -> [BoundaryView; 2] {
    let at = |milestone| run.stamps.get(milestone);
    let hop = |boundary, stamps: [Option<Time>; 3]| {
        // One process, one clock: no error. A worker elsewhere has its own.
        let error = if boundary == Boundary::GatewayWorker { run.clock_error } else { Duration::ZERO };
        let mut times = BoundaryTimes::new(boundary, error);
        [times.observed, times.forwarded, times.acknowledged] = stamps;
        times.acknowledged = times.acknowledged.filter(|_| times.observed.is_some());
        BoundaryView::of(&times, base)
    };
    let to_worker = [at(Milestone::CancelSent), at(Milestone::CancelReceived), at(Milestone::Released)];
    let to_gateway = [run.observed, at(Milestone::CancelSent), at(Milestone::Settled)];
    [hop(Boundary::ClientGateway, to_gateway), hop(Boundary::GatewayWorker, to_worker)]
}

impl BoundaryView {
    fn of(times: &BoundaryTimes, base: Time) -> BoundaryView {
        let ms = |at: Option<Time>| at.map(|t| t.ms_since(base));
        BoundaryView {
            hop: times.boundary.as_str(),
            observed: ms(times.observed),
            forwarded: ms(times.forwarded),
            acknowledged: ms(times.acknowledged),
            clock_error_ms: times.clock_error.as_micros() as f64 / 1000.0,
        }
    }
}

impl TokensView {
    fn of(run: &Run) -> TokensView {
        let waste = run.meter.waste();
        TokensView {
            prompt: run.prompt,
            cached_prompt: run.cached_prompt,
            generated: waste.generated,
            delivered: waste.delivered,
            after_disconnect: waste.after.total(),
            after_receipt: run.after_receipt,
            prompt_computed_after_disconnect: waste.prompt_after,
            overrun: waste.overrun,
        }
    }
}
