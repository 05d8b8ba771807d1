//! What a drawing reads off a run's JSON.

use lifecycle::Milestone;
use serde_json::Value;

/// Where a milestone is reached. No milestone is reached at the client, whose doing is seen from the gateway only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lane {
    Gateway,
    Worker,
}

/// A run's JSON, of whatever shape.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a>(pub(super) &'a Value);

impl<'a> Facts<'a> {
    pub(super) fn at(self, pointer: &str) -> Option<&'a Value> {
        self.0.pointer(pointer)
    }

    pub(super) fn text(self, pointer: &str) -> String {
        match self.at(pointer) {
            Some(Value::String(text)) => clean(text),
            Some(Value::Number(number)) => number.to_string(),
            _ => "-".to_owned(),
        }
    }

    pub(super) fn count(self, pointer: &str) -> u64 {
        self.at(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    pub(super) fn stamp(self, milestone: Milestone) -> Option<f64> {
        self.at("/milestones")?.get(milestone.as_str())?.as_f64()
    }

    /// Every milestone that was reached, in order of time; what falls on the same microsecond stays in the contract's order.
    pub(super) fn stamps(self) -> Vec<(f64, Milestone)> {
        let mut stamps: Vec<_> = Milestone::ALL.iter().filter_map(|m| Some((self.stamp(*m)?, *m))).collect();
        stamps.sort_by(|a, b| a.0.total_cmp(&b.0));
        stamps
    }

    /// When anybody first knew that the run was no longer wanted.
    pub(super) fn abandoned(self) -> Option<f64> {
        let first = [Milestone::DisconnectObserved, Milestone::DeadlineFired, Milestone::CancelApplied];
        first.into_iter().filter_map(|m| self.stamp(m)).min_by(f64::total_cmp)
    }

    /// Whether something was computed in vain.
    pub(super) fn wasted(self) -> bool {
        ["/tokens/after_disconnect", "/tokens/prompt_computed_after_disconnect", "/steps/after_disconnect"]
            .iter()
            .any(|at| self.count(at) > 0)
    }

    /// Causes that lost.
    pub(super) fn superseded(self) -> Vec<String> {
        self.at("/superseded").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(clean).collect()
    }

    /// What a disconnect meant for it and who came back, where that was more than `cancel`.
    pub(super) fn policy(self) -> Option<String> {
        let policy = self.at("/on_disconnect").and_then(Value::as_str).map(clean).filter(|policy| policy != "cancel")?;
        let (begun, resumed) = (self.count("/graces/begun"), self.count("/graces/resumed"));
        let times = |n: u64| if n == 1 { "once".to_owned() } else { format!("{n} times") };
        let back = if resumed == 0 { "nobody came back".to_owned() } else { format!("somebody came back {}", times(resumed)) };
        let left = if begun == 0 { String::new() } else { format!("; its readers left {}, {back}", times(begun)) };
        Some(format!("{policy} on a disconnect{left}"))
    }

    /// How the caller went, in a word (`closed`, `reset`, `lost`, `stalled`); `None` if it stayed.
    pub(super) fn leaving(self) -> Option<String> {
        self.stamp(Milestone::DisconnectObserved)?;
        let causes = std::iter::once(self.text("/outcome/cause")).chain(self.superseded());
        let gone = |cause: String| cause.strip_prefix("client_").filter(|word| *word != "deadline").map(str::to_owned);
        causes.filter_map(gone).next()
    }

    /// The lane where a milestone happens. A deadline fires where it was watched: at the gateway, which then has an observation of it.
    pub(super) fn lane(self, milestone: Milestone) -> Lane {
        use Milestone as M;
        match milestone {
            M::Accepted | M::DisconnectObserved | M::CancelSent | M::CancelAcknowledged | M::Settled => Lane::Gateway,
            M::DeadlineFired => match self.at("/boundaries/0/observed").and_then(Value::as_f64) {
                Some(observed) if self.stamp(milestone) == Some(observed) => Lane::Gateway,
                _ => Lane::Worker,
            },
            M::Queued | M::BlocksAllocated | M::PrefillStart | M::FirstToken => Lane::Worker,
            M::CancelReceived | M::CancelApplied | M::LastCompute | M::FenceCompleted | M::Released => Lane::Worker,
        }
    }
}

/// A text from elsewhere without what could steer a terminal.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
