//! Looking for the proof of cancels in the engine's own counters, only while one is not proven.
//!
//! Invariant: the counters are looked at for no other reason, and no more often than the engine bears.
// contract: C-29

use std::sync::Arc;
use std::time::Duration;

use lifecycle::Guarantee;
use lifecycle::message::Up;

use super::{Shared, held};
use crate::counters;
use crate::evidence::{Level, Look};

/// Longest sleep while something is undecided.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn watch(shared: &Arc<Shared>) {
    let mut last: Option<Duration> = None;
    loop {
        decide(shared);
        let (undecided, from) = {
            let ledger = held(&shared.ledger);
            (ledger.undecided(), ledger.look_from())
        };
        if undecided == 0 {
            shared.closed.notified().await;
            continue;
        }
        let every = shared.every();
        let now = shared.now();
        let at = from.map(|from| from.max(last.map_or(Duration::ZERO, |last| last + every)));
        match at {
            Some(at) if at <= now => {
                last = Some(look(shared).await);
            }
            at => {
                let wait = at.map_or(LOOK_AGAIN, |at| at.saturating_sub(now)).min(LOOK_AGAIN).max(Duration::from_millis(1));
                let _ = tokio::time::timeout(wait, shared.closed.notified()).await;
            }
        }
    }
}

/// Says of each cancel whose proof is there, or will not come, how well it is proven.
fn decide(shared: &Arc<Shared>) {
    let verdicts = held(&shared.ledger).verdicts(shared.now());
    for verdict in verdicts {
        let Some(attempt) = held(&shared.unproven).remove(&verdict.id) else { continue };
        let guarantee = match verdict.level {
            Level::Observed => Guarantee::Observed,
            Level::BestEffort => Guarantee::BestEffort,
            Level::Unsupported => Guarantee::Unsupported,
        };
        tracing::debug!(run = %attempt.key.run, guarantee = guarantee.as_str(), "let go");
        shared.say(Up::LetGo { attempt, guarantee });
    }
}

/// Looks once. When it began.
async fn look(shared: &Arc<Shared>) -> Duration {
    let began = shared.now();
    let Some(met) = shared.capabilities() else { return began };
    let answer = match shared.client.get("/metrics", shared.limits()).await {
        Ok(answer) if answer.status == 200 => answer.whole().await.ok(),
        _ => None,
    };
    let Some(page) = answer.map(|text| String::from_utf8_lossy(&text).into_owned()) else { return began };
    if counters::started(&page) != met.detected.started {
        // It shows nothing of what the one that was met has.
        shared.wonder();
        return began;
    }
    if let Some(present) = counters::read(met.detected.kind, &page).present() {
        held(&shared.ledger).looked(Look { began, ended: shared.now(), present });
    }
    began
}

impl Shared {
    fn every(&self) -> Duration {
        let least = self.capabilities().and_then(|met| met.capabilities.look_every_min).unwrap_or_default();
        self.config.observe_every.max(least)
    }
}
