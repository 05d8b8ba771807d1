//! Meeting the engine, and whether it is there.
//!
//! Invariant: it is called here only after it answered, and what failed is not tried with somebody's run.
// contract: C-10

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gateway::{Here, LinkEvent};
use lifecycle::Offer;
use lifecycle::message::ModelInfo;

use super::{Met, Shared, held};
use crate::abort::Aborter;
use crate::config::UpstreamConfig;
use crate::detect::{Detected, detect};
use crate::evidence::Ledger;
use crate::kind::{CancelBy, Kind};

/// First wait before an engine that does not answer is asked again; doubles.
const AGAIN: Duration = Duration::from_millis(250);
/// Longest.
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// How often an engine that nobody has doubted is looked at.
const EVERY: Duration = Duration::from_secs(10);
/// Context of a model that does not say.
const CONTEXT: u32 = 1 << 20;

pub(super) async fn watch(shared: &Arc<Shared>) {
    let detected = meet(shared).await;
    let offer = offer(&shared.config, &detected);
    let (name, models) = (shared.config.name.as_str(), offer.models.len());
    tracing::info!(upstream = %name, kind = detected.kind.name(), why = %detected.why, models, "met");
    shared.tell(LinkEvent::Here(Here { incarnation: shared.life, offer, name: name.into() }));
    loop {
        let woken = tokio::time::timeout(EVERY, shared.doubt.notified()).await.is_ok();
        let doubted = shared.doubted.load(Ordering::Acquire);
        // A call that is older than the last answer means nothing any more.
        if !doubted && (woken || is_there(shared).await) {
            continue;
        }
        shared.doubt();
        let mut wait = AGAIN;
        loop {
            // Looked up at its own line: no lock is held over a wait.
            let open = held(&shared.breaker).open_for(shared.now());
            if let Some(open) = open.filter(|open| !open.is_zero()) {
                tokio::time::sleep(open).await;
            } else if is_there(shared).await {
                // It may have opened meanwhile.
                if held(&shared.breaker).open_for(shared.now()).is_none_or(|open| open.is_zero()) {
                    break;
                }
            } else {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(AGAIN_MAX);
            }
        }
        // What is decided under the lock is told under it, so that no later word is told before.
        let mut breaker = held(&shared.breaker);
        breaker.try_one();
        let is_trial = breaker.is_trial();
        shared.doubted.store(false, Ordering::Release);
        tracing::info!(upstream = %shared.config.name, is_trial, "answers again");
        shared.tell(if is_trial { LinkEvent::Trial } else { LinkEvent::Back });
        drop(breaker);
    }
}

/// Asks until it answers who it is.
async fn meet(shared: &Arc<Shared>) -> Detected {
    let mut wait = AGAIN;
    loop {
        match detect(&shared.client, &shared.config).await {
            Ok(detected) if !(detected.models.is_empty() && shared.config.models.is_empty()) => {
                let mut capabilities = detected.kind.capabilities();
                // Of several engines behind one address nobody knows which one a look, or a witness, was at.
                capabilities.fresh = capabilities.fresh.filter(|_| detected.counters && detected.engines <= 1);
                let cancel = shared.config.cancel.unwrap_or(capabilities.cancel);
                *held(&shared.ledger) = Ledger::new(cancel, capabilities.fresh, shared.config.observe_for);
                *held(&shared.aborter) = Arc::new(Aborter::new(detected.kind));
                let asks = !matches!(cancel, CancelBy::Close | CancelBy::Nothing);
                tracing::debug!(upstream = %shared.config.name, asks, "how it is told of cancels");
                let named = shared.config.models.first().or_else(|| detected.models.first().map(|model| &model.id));
                let model = named.map_or_else(|| "".into(), |id| id.as_str().into());
                shared.met.send_replace(Some(Arc::new(Met { kind: detected.kind, capabilities, model })));
                return detected;
            }
            Ok(found) => tracing::warn!(upstream = %shared.config.name, why = %found.why, "it answers, and names no model yet"),
            Err(why) => tracing::debug!(upstream = %shared.config.name, %why, "does not answer"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(AGAIN_MAX);
    }
}

/// What it has: the models that the configuration names, else all that it names itself.
fn offer(config: &UpstreamConfig, detected: &Detected) -> Offer {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let model = |id: &str| {
        let known = detected.models.iter().find(|model| model.id == id);
        let context = known.and_then(|model| model.context).and_then(|n| u32::try_from(n).ok()).unwrap_or(CONTEXT);
        ModelInfo { id: id.into(), context, default_max_tokens: config.cap.unwrap_or(context).min(context), created }
    };
    let models = match &*config.models {
        [] => detected.models.iter().map(|known| model(&known.id)).collect(),
        named => named.iter().map(|id| model(id)).collect(),
    };
    let slots = config.slots.or(detected.slots).unwrap_or(detected.kind.capabilities().slots);
    Offer { models, slots: Some(slots), forwards: true }
}

async fn is_there(shared: &Arc<Shared>) -> bool {
    // Gateways in front of models ask each of them for tokens when they are asked for their health.
    let is_engine = shared.capabilities().is_none_or(|met| met.kind != Kind::OpenAi);
    for path in ["/health", "/v1/models"].into_iter().skip(usize::from(!is_engine)) {
        match shared.client.get(path, shared.limits()).await {
            Ok(answer) if answer.status < 500 && answer.status != 404 => {
                let _ = answer.whole().await;
                return true;
            }
            Ok(answer) if answer.status == 404 => {
                let _ = answer.whole().await;
            }
            _ => return false,
        }
    }
    // It answers, and has neither.
    true
}
