//! Meeting the engine, whether it is there, and whether it is still the one that was met.
//!
//! Behind a URL another process may be than a moment ago, of another release, with other models, or of another kind. So whoever was doubted is
//! met anew before it is called back, and one that nobody doubts is asked now and then for what tells it from another.
//!
//! Invariant: it is called here only after it answered who it is, and what failed is not tried with somebody's run.
// contract: C-10 C-29

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gateway::{Here, LinkEvent};
use lifecycle::message::ModelInfo;
use lifecycle::{Make, Offer, Shows};

use super::{Met, Shared, held};
use crate::abort::Aborter;
use crate::breaker::Breaker;
use crate::client::{CallError, NotSent};
use crate::config::UpstreamConfig;
use crate::detect::{Detected, detect, is_as_met};
use crate::kind::{CancelBy, Freshness, Kind};

/// First wait before an engine that does not answer is asked again; doubles.
const AGAIN: Duration = Duration::from_millis(250);
/// Longest.
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// How often an engine that nobody has doubted is looked at.
const EVERY: Duration = Duration::from_secs(10);
/// Context of a model that does not say.
const CONTEXT: u32 = 1 << 20;

pub(super) async fn watch(shared: &Arc<Shared>) {
    let mut met = first(shared).await;
    let mut offered = offer(&shared.config, Some(&met), None);
    let (name, models) = (shared.config.name.as_str(), offered.models.len());
    tracing::info!(upstream = %name, kind = met.kind.name(), why = %met.why, models, "met");
    shared.tell(LinkEvent::Here(Here { incarnation: shared.life, offer: offered.clone(), name: name.into() }));
    loop {
        // Somebody who doubts it, or would like to know, wakes this.
        let woken = tokio::time::timeout(EVERY, shared.doubt.notified()).await.is_ok();
        if !shared.doubted.load(Ordering::Acquire) && is_as_before(shared, &met).await {
            // However many runs fail, it is not asked for each.
            tokio::time::sleep(AGAIN * u32::from(woken)).await;
            continue;
        }
        shared.doubt();
        // What is decided under the lock is told under it, so that no later word is told before.
        let (found, mut breaker) = again(shared).await;
        let is_another = shared.refused.swap(false, Ordering::AcqRel) || found.is_another(&met);
        meet(shared, &found, is_another);
        let offer = offer(&shared.config, Some(&found), Some(&offered));
        if is_another {
            breaker.forget();
        }
        breaker.try_one();
        let is_trial = breaker.is_trial();
        shared.doubted.store(false, Ordering::Release);
        let (models, why) = (offer.models.len(), &found.why);
        tracing::info!(upstream = %name, kind = found.kind.name(), %why, models, is_another, is_trial, "answers again");
        if offer != offered {
            shared.tell(LinkEvent::Offers(offer.clone()));
        }
        shared.tell(if is_trial { LinkEvent::Trial } else { LinkEvent::Back });
        drop(breaker);
        (met, offered) = (found, offer);
    }
}

/// Asks one that was never met until it answers who it is.
async fn first(shared: &Arc<Shared>) -> Detected {
    let mut wait = AGAIN;
    loop {
        if let Some(found) = ask(shared).await {
            shared.refused.store(false, Ordering::Release);
            meet(shared, &found, true);
            return found;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(AGAIN_MAX);
    }
}

/// Asks one that was doubted until it answers who it is now, and may be tried.
async fn again(shared: &Arc<Shared>) -> (Detected, MutexGuard<'_, Breaker>) {
    let mut wait = AGAIN;
    loop {
        // Looked up at its own line: no lock is held over a wait.
        let open = held(&shared.breaker).open_for(shared.now());
        if let Some(open) = open.filter(|open| !open.is_zero()) {
            tokio::time::sleep(open).await;
            continue;
        }
        let found = if is_there(shared).await { ask(shared).await } else { None };
        if let Some(found) = found {
            let breaker = held(&shared.breaker);
            // It may have opened meanwhile.
            if breaker.open_for(shared.now()).is_none_or(|open| open.is_zero()) {
                return (found, breaker);
            }
        } else {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN_MAX);
        }
    }
}

/// Asks it once who it is. `None` if it does not answer, or has nothing to offer.
async fn ask(shared: &Arc<Shared>) -> Option<Detected> {
    match detect(&shared.client, &shared.config).await {
        Ok(found) if !(found.models.is_empty() && shared.config.models.is_empty()) => return Some(found),
        Ok(found) => tracing::warn!(upstream = %shared.config.name, why = %found.why, "it answers, and names no model yet"),
        Err(why) => shared.not_reached(&why),
    }
    None
}

/// From now on this is what it is. What was learnt of it by trying is forgotten: the engine may have begun anew without looking other than
/// before. What was learnt by its counters is, if it is another.
// contract: C-29
fn meet(shared: &Arc<Shared>, found: &Detected, is_another: bool) {
    let mut capabilities = found.kind.capabilities();
    capabilities.fresh = fresh(found);
    let cancel = told(&shared.config, found);
    let named = shared.config.models.first().or_else(|| found.models.first().map(|model| &model.id));
    let model = named.map_or_else(|| "".into(), |id| id.as_str().into());
    let fresh = capabilities.fresh;
    // First what looks are compared with: one of the engine before must not be taken for one of this.
    shared.met.send_replace(Some(Arc::new(Met { detected: found.clone(), capabilities, model, cancel })));
    if is_another {
        held(&shared.ledger).another(cancel, fresh);
        shared.closed.notify_one();
    }
    *held(&shared.aborter) = Arc::new(Aborter::new(found.kind, cancel));
    shared.takes_no_witness.store(false, Ordering::Release);
    shared.is_litellm.store(false, Ordering::Release);
    shared.unwitnessed.notify_one();
    let asks = !matches!(cancel, CancelBy::Close | CancelBy::Nothing);
    tracing::debug!(upstream = %shared.config.name, asks, "how it is told of cancels");
    if shared.config.cancel == Some(CancelBy::IdWithoutProof) && !asks {
        tracing::warn!(upstream = %shared.config.name, kind = %found.kind, "cancel=id: it has no such call, so it is told by closing alone");
    } else if found.kind == Kind::Kvit && !found.counters {
        tracing::warn!(upstream = %shared.config.name, why = %found.why, "shows no record of a run to us, so it is told by closing alone");
    }
}

/// How it is told of cancels. A kvit that shows no record to us proves nothing by its word: it is only closed.
fn told(config: &UpstreamConfig, found: &Detected) -> CancelBy {
    match found.kind.cancel(config.cancel) {
        CancelBy::IdWithProof if !found.counters => CancelBy::Close,
        by => by,
    }
}

/// What can be seen of it: nothing, where it shows no counters.
// contract: C-29
fn shows(found: &Detected) -> Shows {
    if !found.counters {
        return Shows::NOTHING;
    }
    let proves_within = match found.kind {
        // Its record of a run is of that moment.
        Kind::Kvit => Some(Duration::ZERO),
        _ => fresh(found).map(|fresh| fresh.counted_within),
    };
    Shows { proves_within, ..found.kind.capabilities().shows }
}

/// How fresh its counters are. Of several engines behind one address nobody knows which one a look, or a witness, was at.
fn fresh(found: &Detected) -> Option<Freshness> {
    found.kind.capabilities().fresh.filter(|_| found.counters && found.engines <= 1)
}

/// What it is said to have before it was met, if its models are named.
pub(super) fn expected(config: &UpstreamConfig) -> Option<Offer> {
    (!config.models.is_empty()).then(|| offer(config, None, None))
}

/// What it has: the models that the configuration names, else all that it names itself. One that it has had before is as old as before.
fn offer(config: &UpstreamConfig, detected: Option<&Detected>, before: Option<&Offer>) -> Offer {
    let theirs = detected.map_or(&[][..], |found| &found.models);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let model = |id: &str| {
        let known = theirs.iter().find(|model| model.id == id);
        let created = before.and_then(|offer| offer.models.iter().find(|model| *model.id == *id)).map_or(now, |model| model.created);
        let context = known.and_then(|model| model.context).and_then(|n| u32::try_from(n).ok()).unwrap_or(CONTEXT);
        ModelInfo { id: id.into(), context, default_max_tokens: config.cap.unwrap_or(context).min(context), created }
    };
    let models = match &*config.models {
        [] => theirs.iter().map(|known| model(&known.id)).collect(),
        named => named.iter().map(|id| model(id)).collect(),
    };
    let kind = detected.map(|found| found.kind).or(config.kind).unwrap_or(Kind::OpenAi);
    let slots = config.slots.or(detected.and_then(|found| found.slots)).unwrap_or(kind.capabilities().slots);
    let make = detected.map(|found| Make { kind: found.kind.name(), cancel: told(config, found).as_str(), shows: shows(found) });
    Offer { models, slots: Some(slots), forwards: true, make }
}

/// Whether one that nobody doubts is there and what it was.
async fn is_as_before(shared: &Arc<Shared>, met: &Detected) -> bool {
    // One that is not known to be an engine is asked for nothing but its models.
    (met.kind == Kind::OpenAi || is_there(shared).await) && is_as_met(&shared.client, &shared.config, met).await
}

async fn is_there(shared: &Arc<Shared>) -> bool {
    // Gateways in front of models ask each of them for tokens when they are asked for their health, and SGLang asks itself for some.
    let is_free = shared.capabilities().is_none_or(|met| !matches!(met.detected.kind, Kind::OpenAi | Kind::Sglang));
    for path in ["/health", "/v1/models"].into_iter().skip(usize::from(!is_free)) {
        match shared.client.get(path, shared.limits()).await {
            Ok(answer) if answer.status < 500 && answer.status != 404 => {
                let _ = answer.whole().await;
                return true;
            }
            Ok(answer) if answer.status == 404 => {
                let _ = answer.whole().await;
            }
            Err(why) => {
                shared.not_reached(&why);
                return false;
            }
            Ok(_) => return false,
        }
    }
    // It answers, and has neither.
    true
}

impl Shared {
    /// A question was not answered. That nobody listened says that the process before is over, or about to be.
    fn not_reached(&self, why: &CallError) {
        tracing::debug!(upstream = %self.config.name, %why, "does not answer");
        if let CallError::NotSent(why) = why {
            self.not_sent(why);
        }
    }

    /// There was no way to it.
    pub(super) fn not_sent(&self, why: &NotSent) {
        if why.is_refused() {
            self.refused.store(true, Ordering::Release);
        }
    }
}
