//! Webhooks: whom the operator has told of background runs' ends, and the sending of one.
//!
//! At least once, with the same id each time; whoever receives one twice knows by that. What is certain is that it was accepted: any answer of
//! 2xx. 410 ends it at once, everything else is tried again by `schedule`, and given up after `webhook_tries_max`.
//!
//! Invariant: it says which run ended and how, and nothing of what was asked or answered; no secret is printed.
// contract: C-27

use std::fmt;
use std::sync::Arc;

use axum::http::Method;
use lifecycle::{Cause, Outcome, OutcomeKind, RunKey, Tenant};
use serde_json::json;
use sha2::{Digest, Sha256};
use store::{Hook, Survives, Write};

use super::client::{Heard, Outgoing, send};
use super::sign::Secret;
use super::urls::plain;
use super::{count, millis, schedule};
use crate::calls::Calls;
use crate::keeping::{Keeper, now_ms};

/// Most webhooks of one gateway.
const WEBHOOKS_MAX: usize = 256;
/// Most tenants that one names.
const TENANTS_MAX: usize = 256;
/// The status by which a receiver says that it wants none.
const GONE: u16 = 410;

/// Which ends somebody is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HookEvent {
    /// It came to its own end.
    Completed,
    /// It failed, expired or was rejected.
    Failed,
    /// It came to the end of the tokens that it may have.
    Incomplete,
    /// It was cancelled.
    Cancelled,
}

impl HookEvent {
    /// All of them.
    pub const ALL: [HookEvent; 4] = [HookEvent::Completed, HookEvent::Failed, HookEvent::Incomplete, HookEvent::Cancelled];

    /// The word in configuration and body.
    pub const fn as_str(self) -> &'static str {
        match self {
            HookEvent::Completed => "completed",
            HookEvent::Failed => "failed",
            HookEvent::Incomplete => "incomplete",
            HookEvent::Cancelled => "cancelled",
        }
    }

    /// The one of an outcome: OpenAI's words for it.
    pub(crate) fn of(outcome: &Outcome) -> HookEvent {
        match outcome.kind() {
            OutcomeKind::Completed if outcome.cause == Cause::Length => HookEvent::Incomplete,
            OutcomeKind::Completed => HookEvent::Completed,
            OutcomeKind::Cancelled => HookEvent::Cancelled,
            OutcomeKind::Expired | OutcomeKind::Failed | OutcomeKind::Rejected => HookEvent::Failed,
        }
    }
}

/// Somebody who is told.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    url: String,
    secret: Secret,
    tenants: Vec<Tenant>,
    events: Vec<HookEvent>,
}

impl Webhook {
    /// For the ends of these tenants' background runs (of all, if none is named), of these kinds (of all, if none is named).
    ///
    /// # Errors
    /// What is wrong with it, in words without the secret; and which field it is.
    pub fn new(url: &str, secret: &str, tenants: Vec<Tenant>, events: Vec<HookEvent>) -> Result<Webhook, (&'static str, &'static str)> {
        plain(url).map_err(|why| ("url", why))?;
        let secret = Secret::parse(secret).map_err(|why| ("secret", why))?;
        if tenants.len() > TENANTS_MAX {
            return Err(("tenants", "names more than 256"));
        }
        Ok(Webhook { url: url.to_owned(), secret, tenants, events })
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Webhook({})", self.url)
    }
}

/// All of them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Webhooks(Arc<Vec<Webhook>>);

impl Webhooks {
    /// Takes one in.
    ///
    /// # Errors
    /// There are too many, or another one has this URL.
    pub fn add(&mut self, webhook: Webhook) -> Result<(), &'static str> {
        if self.0.len() >= WEBHOOKS_MAX {
            return Err("is one too many: at most 256 are allowed");
        }
        if self.0.iter().any(|other| other.url == webhook.url) {
            return Err("has the URL of another webhook");
        }
        Arc::make_mut(&mut self.0).push(webhook);
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody is told of anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is to be sent of a run's end.
    pub(super) fn of_end(&self, run: &RunKey, door: &str, outcome: &Outcome, created_ms: i64) -> Vec<Hook> {
        let event = HookEvent::of(outcome);
        let asked = |webhook: &&Webhook| {
            (webhook.tenants.is_empty() || webhook.tenants.contains(&run.tenant))
                && (webhook.events.is_empty() || webhook.events.contains(&event))
        };
        self.0.iter().filter(asked).map(|webhook| hook(run, door, (outcome, event), &webhook.url, created_ms)).collect()
    }

    /// To whom.
    pub(super) fn urls(&self) -> Vec<String> {
        self.0.iter().map(|webhook| webhook.url.clone()).collect()
    }

    fn secret(&self, url: &str) -> Option<&Secret> {
        self.0.iter().find(|webhook| webhook.url == url).map(|webhook| &webhook.secret)
    }
}

/// A webhook's body is OpenAI's event, so that its SDKs unwrap it, and beside that kvit's own words for what happened.
fn hook(run: &RunKey, door: &str, (outcome, event): (&Outcome, HookEvent), url: &str, now_ms: i64) -> Hook {
    let id = format!("evt_{}", digest(&[run.tenant.as_str(), run.run.as_str(), &now_ms.to_string(), url]));
    let (family, named) = if door == "responses" { ("response", format!("resp_{}", run.run)) } else { ("run", run.run.to_string()) };
    let body = json!({
        "id": id, "object": "event", "type": format!("{family}.{}", event.as_str()), "created_at": now_ms.div_euclid(1000),
        "data": {"id": named, "run": run.run.as_str(), "tenant": run.tenant.as_str(),
                 "outcome": {"kind": outcome.kind().as_str(), "cause": outcome.cause.as_str()}},
    });
    Hook { id, run: run.clone(), url: url.to_owned(), body: body.to_string().into_bytes(), due_ms: now_ms, tries: 0, last: None }
}

/// A name for these words together.
pub(super) fn digest(words: &[&str]) -> String {
    let mut all = Sha256::new();
    for word in words {
        // With its length, so that no two lists of words are one text.
        all.update((word.len() as u64).to_be_bytes());
        all.update(word);
    }
    all.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Calls {
    /// Tries a webhook that was taken, and notes what came of it.
    pub(super) async fn send_webhook(&self, keeper: &Keeper, hook: Hook) {
        let config = &self.config.outside;
        let (is_over, last) = match config.webhooks.secret(&hook.url) {
            Some(secret) => self.try_webhook(secret, &hook).await,
            // Nobody who knows it took it for long; somebody who does may be there at its next time.
            None => (false, "not configured".to_owned()),
        };
        let waits = (config.webhook_retry, config.webhook_retry_max);
        let again = schedule::wait(&hook.id, hook.tries.saturating_add(1), config.webhook_tries_max, waits).filter(|_| !is_over);
        match (is_over && last == "delivered", again) {
            (true, _) => count(&self.outside.counts.hooks_delivered),
            (false, None) => count(&self.outside.counts.hooks_given_up),
            (false, Some(_)) => count(&self.outside.counts.hooks_failed),
        }
        if last != "delivered" {
            tracing::warn!(run = %hook.run.run, tries = hook.tries + 1, is_given_up = again.is_none(), "a webhook was not delivered: {last}");
        }
        self.tried(keeper, &hook, again.map(|wait| now_ms().saturating_add(millis(wait))), last).await;
    }

    /// Whether it is over with this try, and what came of it.
    async fn try_webhook(&self, secret: &Secret, hook: &Hook) -> (bool, String) {
        let timestamp_s = now_ms().div_euclid(1000);
        let signature = secret.sign(&hook.id, timestamp_s, &hook.body);
        let headers =
            vec![("webhook-id", hook.id.clone()), ("webhook-timestamp", timestamp_s.to_string()), ("webhook-signature", signature)];
        let heard = send(Outgoing {
            method: Method::POST,
            url: hook.url.clone(),
            headers,
            body: hook.body.clone(),
            timeout: self.config.outside.webhook_timeout,
            // Nobody wants to know what it says, only that it answered.
            answer_bytes_max: 0,
        });
        match heard.await {
            Heard::Answer { status: 200..=299, .. } => (true, "delivered".to_owned()),
            Heard::Answer { status, .. } => (status == GONE, format!("answered {status}")),
            Heard::NotSent(why) | Heard::Lost(why) => (false, why.to_owned()),
        }
    }

    /// Notes a try. Should the store not take it, it is tried again when it is due again.
    pub(super) async fn tried(&self, keeper: &Keeper, hook: &Hook, due_ms: Option<i64>, last: String) {
        let write = Write::HookTried { id: hook.id.clone(), due_ms, last };
        if let Err(why) = keeper.store.commit(vec![write], Survives::Process).await {
            tracing::warn!(run = %hook.run.run, %why, "what came of something that was sent is not noted; it may be sent again");
        }
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::RunId;

    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn webhook(url: &str, tenants: &[&str], events: &[HookEvent]) -> Webhook {
        let tenants = tenants.iter().map(|name| Tenant::parse(name).expect("a name")).collect();
        Webhook::new(url, SECRET, tenants, events.to_vec()).expect("a webhook")
    }

    #[test]
    fn each_end_is_told_to_those_who_asked_for_it() {
        let mut webhooks = Webhooks::default();
        webhooks.add(webhook("https://a.example/all", &[], &[])).expect("added");
        webhooks.add(webhook("https://a.example/one", &["one"], &[HookEvent::Failed, HookEvent::Incomplete])).expect("added");
        assert_eq!(webhooks.add(webhook("https://a.example/one", &[], &[])), Err("has the URL of another webhook"));
        let told = |tenant: &str, door: &str, cause: Cause| {
            let run = RunKey { tenant: Tenant::parse(tenant).expect("a name"), run: RunId::parse("r").expect("an id") };
            let hooks = webhooks.of_end(&run, door, &Outcome::of(cause), 1_700_000_000_123);
            let urls: Vec<_> = hooks.iter().map(|hook| hook.url.rsplit('/').next().expect("a path").to_owned()).collect();
            let body: serde_json::Value = serde_json::from_slice(&hooks[0].body).expect("JSON");
            assert_eq!(body["id"], hooks[0].id.as_str());
            assert_eq!(body["created_at"], 1_700_000_000);
            (urls.join(" "), body["type"].as_str().expect("a type").to_owned(), body["data"]["id"].as_str().expect("an id").to_owned())
        };
        let said = |urls: &str, kind: &str, id: &str| (urls.to_owned(), kind.to_owned(), id.to_owned());
        assert_eq!(told("one", "responses", Cause::Stop), said("all", "response.completed", "resp_r"));
        assert_eq!(told("one", "responses", Cause::Length), said("all one", "response.incomplete", "resp_r"));
        assert_eq!(told("one", "chat", Cause::WorkerLost), said("all one", "run.failed", "r"));
        assert_eq!(told("two", "chat", Cause::GatewayDeadline), said("all", "run.failed", "r"));
        assert_eq!(told("two", "responses", Cause::CancelRequested), said("all", "response.cancelled", "resp_r"));
    }

    #[test]
    fn no_secret_is_shown_and_what_is_wrong_is_named() {
        assert!(!format!("{:?}", webhook("https://a.example/", &[], &[])).contains("MfKQ"));
        assert_eq!(Webhook::new("ftp://a/", SECRET, vec![], vec![]).expect_err("refused").0, "url");
        assert_eq!(Webhook::new("https://a.example/", "whsec_x", vec![], vec![]).expect_err("refused").0, "secret");
        let words = |list: &[&str]| digest(list);
        assert_ne!(words(&["ab", "c"]), words(&["a", "bc"]));
    }
}
