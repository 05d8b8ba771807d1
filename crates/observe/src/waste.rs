//! The two views of waste, and what an answer costs.
//!
//! The first is a ratio over a window: what was computed after disconnects over all that was computed in the same interval. The second looks at
//! runs that were cancelled or expired: what was generated for them beside what was delivered, at a named point, and those apart whose callers
//! got nothing. Both are needed: a server can waste nothing after disconnects and still work mostly for callers who do not wait.
//!
//! Invariant: numerator and denominator are of one interval and one cut; what cannot be said (0 of 0, a price that nobody named) is `null`.
// contract: C-12

use std::time::Duration;

use lifecycle::OutcomeKind;
use serde::Serialize;

use crate::exposition::seconds;
use crate::history::{Ended, Tally};

/// Where tokens count as delivered. No server knows more.
pub const OBSERVATION_POINT: &str = "handed to the connection of its caller";

/// What work costs, in whatever money the operator counts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Prices {
    /// An hour of the device; 0 if nobody named it.
    pub device_hour: f64,
    /// A million tokens computed, prompts included, where the device's time is not known; 0 if nobody named it.
    pub million_tokens: f64,
}

/// Both views, of the last window and since the process began.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WasteView {
    /// Always `waste`.
    pub object: &'static str,
    /// Length of a window.
    pub window_s: f64,
    /// Where tokens count as delivered.
    pub observation_point: &'static str,
    /// The last window, up to now.
    pub window: PeriodView,
    /// The last three whole windows, newest first; fewer if the process is younger.
    pub windows: Vec<RatioView>,
    /// Since the process began.
    pub total: PeriodView,
}

/// One interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PeriodView {
    /// Work after disconnects over all work.
    pub ratio: RatioView,
    /// Runs that somebody no longer wanted.
    pub cancelled: EndedView,
    /// Runs whose time ran out.
    pub expired: EndedView,
    /// What was spent, and for how many answers.
    pub cost: CostView,
}

/// Work after disconnects, over all work of the same interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct RatioView {
    /// Tokens generated.
    pub tokens: u64,
    /// Of them, after their run was abandoned.
    pub after_disconnect: u64,
    /// Of these, tokens of runs that were abandoned before their first one.
    pub before_first_token: u64,
    /// Of all tokens, the part that was generated for nobody.
    pub ratio: Option<f64>,
    /// Prompt positions computed.
    pub prompt_tokens: u64,
    /// Of them, after their run was abandoned.
    pub prompt_after_disconnect: u64,
    /// The part of them that was computed for nobody.
    pub prompt_ratio: Option<f64>,
    /// Steps that computed for abandoned runs, counted once a run.
    pub steps_after_disconnect: u64,
}

/// Runs that ended without an answer: what was made beside what was handed over.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct EndedView {
    /// How many.
    pub runs: u64,
    /// Tokens generated for those that are settled.
    pub generated: u64,
    /// Of them, tokens delivered.
    pub delivered: u64,
    /// Those whose callers got nothing.
    pub zero_delivery: ZeroDeliveryView,
}

/// Runs that were computed for and of which no token was delivered.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ZeroDeliveryView {
    /// How many.
    pub runs: u64,
    /// Tokens generated for them.
    pub generated: u64,
    /// Prompt positions computed for them.
    pub prompt_tokens: u64,
}

/// What was spent in the interval on everything, what nobody got included.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CostView {
    /// Runs that completed.
    pub completed: u64,
    /// The device's time in steps; `null` where the worker is in another process.
    pub device_seconds: Option<f64>,
    /// Tokens computed, prompts included.
    pub tokens: u64,
    /// By the configured price; `null` if none holds.
    pub money: Option<f64>,
    /// Each of them over the completed answers; `null` while there is none.
    pub per_answer: PerAnswerView,
}

/// The cost of one completed answer.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PerAnswerView {
    /// The device's time.
    pub device_seconds: Option<f64>,
    /// Tokens computed.
    pub tokens: Option<f64>,
    /// Money.
    pub money: Option<f64>,
}

impl WasteView {
    pub(crate) fn new(window: Duration, latest: &Tally, windows: &[Tally], total: &Tally, prices: &Prices) -> WasteView {
        // Where no step was ever done, the worker is elsewhere.
        let is_here = total.steps > 0;
        WasteView {
            object: "waste",
            window_s: window.as_secs_f64(),
            observation_point: OBSERVATION_POINT,
            window: PeriodView::of(latest, prices, is_here),
            windows: windows.iter().map(RatioView::of).collect(),
            total: PeriodView::of(total, prices, is_here),
        }
    }
}

impl PeriodView {
    fn of(tally: &Tally, prices: &Prices, is_here: bool) -> PeriodView {
        let ended = |kind: OutcomeKind| EndedView::of(&tally.ended[kind as usize]);
        PeriodView {
            ratio: RatioView::of(tally),
            cancelled: ended(OutcomeKind::Cancelled),
            expired: ended(OutcomeKind::Expired),
            cost: CostView::of(tally, prices, is_here),
        }
    }
}

/// A part of a whole; `None` of nothing.
fn part(of: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| of as f64 / whole as f64)
}

impl RatioView {
    pub(crate) fn of(tally: &Tally) -> RatioView {
        let work = &tally.work;
        RatioView {
            tokens: work.generated,
            after_disconnect: work.after.total(),
            before_first_token: work.after.before_first_token(),
            ratio: part(work.after.total(), work.generated),
            prompt_tokens: work.prompt,
            prompt_after_disconnect: work.prompt_after,
            prompt_ratio: part(work.prompt_after, work.prompt),
            steps_after_disconnect: work.steps_after.total(),
        }
    }

    /// The worse of both ratios; 0 where nothing was computed.
    pub(crate) fn worst(&self) -> f64 {
        self.ratio.unwrap_or(0.0).max(self.prompt_ratio.unwrap_or(0.0))
    }
}

impl EndedView {
    fn of(ended: &Ended) -> EndedView {
        let zero = &ended.zero_delivery;
        EndedView {
            runs: ended.runs,
            generated: ended.work.generated,
            delivered: ended.work.delivered,
            zero_delivery: ZeroDeliveryView { runs: ended.zero_delivery_runs, generated: zero.generated, prompt_tokens: zero.prompt },
        }
    }
}

impl CostView {
    fn of(tally: &Tally, prices: &Prices, is_here: bool) -> CostView {
        let completed = tally.ended[OutcomeKind::Completed as usize].runs;
        let device_seconds = is_here.then(|| seconds(tally.busy_us));
        let tokens = tally.work.generated + tally.work.prompt;
        let by_device = device_seconds.filter(|_| prices.device_hour > 0.0).map(|s| s / 3600.0 * prices.device_hour);
        let by_tokens = (prices.million_tokens > 0.0).then(|| tokens as f64 / 1e6 * prices.million_tokens);
        let money = by_device.or(by_tokens);
        let each = |sum: Option<f64>| sum.filter(|_| completed > 0).map(|sum| sum / completed as f64);
        let per_answer = PerAnswerView { device_seconds: each(device_seconds), tokens: each(Some(tokens as f64)), money: each(money) };
        CostView { completed, device_seconds, tokens, money, per_answer }
    }
}
