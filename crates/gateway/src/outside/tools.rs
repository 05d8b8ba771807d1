//! Declared tools: HTTP requests that kvit makes for a background run once its answer is complete, each at most once unless it says that it is
//! safe to repeat.
//!
//! The small model that is served here calls no tools by itself, so the caller declares what is to be called, and the answer's text goes with
//! it. Each is an effect: noted as `intended` when the run is accepted, `submitted` before it is sent, and after it as what the other side said.
//! Whoever drives them has the run's entry in the outbox; should it be lost in the middle, the next one finds `submitted`: it sends a tool that
//! is safe to repeat again with the same `Idempotency-Key`, and calls every other `unknown`.
//!
//! Invariant: `intended` → `submitted` by compare-and-set is the permission to send, and one has it; what may have arrived is not called failed.
// contract: C-27

use std::time::Duration;

use axum::http::Method;
use lifecycle::effect::not_begun;
use lifecycle::{EffectEvent, EffectState, Party, RunKey, Said};
use protocol::kept;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Effect, Hook, StoreError, StoredRun, Survives, Write, Wrote};
use tokio::time::Instant;

use super::client::{Heard, Outgoing, send};
use super::webhooks::digest;
use super::{NotMoved, count};
use crate::calls::Calls;
use crate::keeping::{Keeper, now_ms, tools};

/// The kind of effects that kvit does itself.
pub(crate) const KIND: &str = "kvit_http";
/// Events that are read at once.
const PAGE: usize = 1024;
/// First pause before a tool that is safe to repeat is sent again; it doubles.
const PAUSE: Duration = Duration::from_millis(500);

/// What is noted of one whose URL the operator has taken off the list since it was declared.
const NOT_ALLOWED: &[u8] = b"not sent: its URL is not among those that the operator allows (option tool_urls)";

/// The run's entry in the outbox, and until when nobody else works on it.
struct Held {
    hook: Hook,
    until: Instant,
}

impl Held {
    /// The same for one more call. False if somebody else has it.
    async fn again(&mut self, keeper: &Keeper, longest: Duration) -> Result<bool, StoreError> {
        let until = keeper.retake(&mut self.hook, longest).await?;
        self.until = until.unwrap_or(self.until);
        Ok(until.is_some())
    }
}

/// A declared tool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) method: String,
    /// It makes no difference whether it arrives once or twice with the same `Idempotency-Key`.
    pub(crate) safe_to_repeat: bool,
    pub(crate) timeout_ms: u64,
    /// What the caller wants sent with it.
    pub(crate) arguments: Value,
}

/// What a try says about the effect.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    Committed,
    /// It was not done, and would not be.
    Failed,
    /// It was not done, and might be another time.
    NotYet,
    Unknown,
}

/// What an answer means. A server that failed may have done it first.
fn verdict(heard: &Heard) -> Verdict {
    match heard {
        Heard::Answer { status: 200..=299, .. } => Verdict::Committed,
        Heard::Answer { status: 429, .. } | Heard::NotSent(_) => Verdict::NotYet,
        Heard::Answer { status: 408 | 425 | 500.., .. } | Heard::Lost(_) => Verdict::Unknown,
        Heard::Answer { .. } => Verdict::Failed,
    }
}

impl Tool {
    /// The effect's key within its run.
    pub(crate) fn key(&self) -> String {
        format!("tool:{}", self.name)
    }

    /// What is noted before anything is sent.
    fn effect(&self, attempt: u32) -> Effect {
        let now = now_ms();
        Effect {
            key: self.key(),
            kind: KIND.to_owned(),
            description: format!("{} {}", self.method, self.url),
            state: EffectState::Intended,
            attempt,
            detail: None,
            created_ms: now,
            updated_ms: now,
        }
    }

    /// The same for every try, in every life of every gateway, and no other run's, though that may have the same id later.
    fn idempotency_key(&self, run: &StoredRun) -> String {
        let (key, created) = (&run.key, run.created_ms.to_string());
        format!("kvit-{}", digest(&[key.tenant.as_str(), key.run.as_str(), &created, &self.name]))
    }

    fn outgoing(&self, run: &StoredRun, text: &str, answer_bytes_max: usize) -> Outgoing {
        let method = Method::from_bytes(self.method.as_bytes()).unwrap_or(Method::POST);
        let body = json!({"run": run.key.run.as_str(), "tool": self.name, "arguments": self.arguments, "text": text});
        let body = if method == Method::GET { Vec::new() } else { body.to_string().into_bytes() };
        Outgoing {
            method,
            url: self.url.clone(),
            headers: vec![("idempotency-key", self.idempotency_key(run))],
            body,
            timeout: Duration::from_millis(self.timeout_ms),
            answer_bytes_max,
        }
    }
}

impl Calls {
    /// Notes the tools that a run declares. To be called between its acceptance and its answer.
    pub(crate) async fn intend_tools(&self, keeper: &Keeper, run: &RunKey, declared: &[Tool]) -> Result<(), StoreError> {
        let max = usize::MAX;
        let intend = |tool: &Tool| Write::Intend { run: run.clone(), effect: tool.effect(0), max };
        if declared.is_empty() {
            return Ok(());
        }
        keeper.store.commit(declared.iter().map(intend).collect(), Survives::Machine).await.map(|_| ())
    }

    /// Calls a completed run's tools, one after the other, as its entry in the outbox says.
    pub(super) async fn call_tools(&self, keeper: &Keeper, hook: Hook, until: Instant) {
        let mut held = Held { hook, until };
        let done = self.drive_tools(keeper, &mut held).await;
        let hook = held.hook;
        match done {
            Ok(true) => self.tried(keeper, &hook, None, "done".to_owned()).await,
            // Somebody else has it.
            Ok(false) => {}
            // It is due again after a while, and whoever takes it then finds how far this came.
            Err(why) => tracing::warn!(run = %hook.run.run, %why, "a run's tools are left for later"),
        }
    }

    async fn drive_tools(&self, keeper: &Keeper, held: &mut Held) -> Result<bool, StoreError> {
        // A run that was deleted has no effects either.
        let Some(run) = keeper.store.run(&held.hook.run).await? else { return Ok(true) };
        let declared = tools(&run);
        if run.erased || declared.is_empty() {
            self.begin_none(keeper, &run).await?;
            return Ok(true);
        }
        // Noted when the run was accepted, but for a crash right then.
        self.intend_tools(keeper, &run.key, &declared).await?;
        let text = text(keeper, &run.key).await?;
        for tool in &declared {
            if !held.again(keeper, self.config.outside.tool_timeout_max).await? {
                return Ok(false);
            }
            if !self.call_tool(keeper, held, &run, (tool, &text)).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The run's content is deleted: what was to be sent is not known any more.
    async fn begin_none(&self, keeper: &Keeper, run: &StoredRun) -> Result<(), StoreError> {
        for effect in keeper.store.effects(&run.key).await?.into_iter().filter(|effect| effect.kind == KIND) {
            let event = if effect.state == EffectState::Intended { EffectEvent::Fail } else { EffectEvent::WaitOver };
            let _ = self.move_effect(keeper, (&run.key, &effect.key), (event, Party::Kvit), None).await?;
        }
        Ok(())
    }

    /// Calls one tool, if it may be called. False if somebody else drives the run's tools by now.
    async fn call_tool(&self, keeper: &Keeper, held: &mut Held, run: &StoredRun, (tool, text): (&Tool, &str)) -> Result<bool, StoreError> {
        let key = tool.key();
        let at = (&run.key, key.as_str());
        let Some(effect) = keeper.store.effects(&run.key).await?.into_iter().find(|effect| effect.key == key) else { return Ok(true) };
        match effect.state {
            EffectState::Committed | EffectState::Failed | EffectState::Unknown => return Ok(true),
            // Whoever sent it is gone, and the answer with it.
            EffectState::Submitted if !tool.safe_to_repeat => {
                let why = b"the gateway that sent it is gone".to_vec();
                self.conclude(keeper, at, EffectEvent::WaitOver, why).await?;
                return Ok(true);
            }
            EffectState::Submitted => {}
            EffectState::Intended if !self.config.outside.tool_urls.allow(&tool.url) => {
                self.conclude(keeper, at, EffectEvent::Fail, NOT_ALLOWED.to_vec()).await?;
                return Ok(true);
            }
            EffectState::Intended => {
                if !permission(keeper, at).await? {
                    self.conclude(keeper, at, EffectEvent::RunOver, not_begun(None).as_bytes().to_vec()).await?;
                    return Ok(true);
                }
            }
        }
        // As long as no try can have arrived, a refusal is certain. A former life's may have.
        let (mut tries, mut is_certain) = (0, effect.state == EffectState::Intended);
        loop {
            // What is sent again is sent only while it may be; the first permission was given just now.
            if tries > 0 || effect.state == EffectState::Submitted {
                let Some(run) = keeper.store.glance(&run.key).await? else { return Ok(true) };
                if run.erased || !self.config.outside.tool_urls.allow(&tool.url) {
                    let event = if is_certain { EffectEvent::Fail } else { EffectEvent::Lose };
                    self.conclude(keeper, at, event, if run.erased { Vec::new() } else { NOT_ALLOWED.to_vec() }).await?;
                    return Ok(true);
                }
            }
            tries += 1;
            let mut outgoing = tool.outgoing(run, text, self.config.outside.answer_bytes_max);
            // However long the store took for the permission: behind this time somebody else may have it.
            outgoing.timeout = outgoing.timeout.min(held.until.saturating_duration_since(Instant::now()));
            let heard = send(outgoing).await;
            let verdict = verdict(&heard);
            let is_last = !tool.safe_to_repeat || tries >= self.config.outside.tool_tries_max;
            is_certain &= verdict != Verdict::Unknown;
            let event = match verdict {
                Verdict::Committed => EffectEvent::Commit,
                Verdict::Failed if is_certain => EffectEvent::Fail,
                Verdict::NotYet if is_last && is_certain => EffectEvent::Fail,
                Verdict::Failed => EffectEvent::Lose,
                Verdict::NotYet | Verdict::Unknown if is_last => EffectEvent::Lose,
                Verdict::NotYet | Verdict::Unknown => {
                    tokio::time::sleep(PAUSE * 2_u32.saturating_pow(tries - 1)).await;
                    if !held.again(keeper, self.config.outside.tool_timeout_max).await? {
                        return Ok(false);
                    }
                    // A cancel that waited long enough calls it unknown, and then it is not sent again.
                    let stands = keeper.store.effects(&run.key).await?.into_iter().find(|effect| effect.key == key);
                    if stands.is_some_and(|effect| effect.state == EffectState::Submitted) {
                        continue;
                    }
                    return Ok(true);
                }
            };
            self.conclude(keeper, at, event, detail(&heard, self.config.outside.effect_text_bytes_max)).await?;
            return Ok(true);
        }
    }

    /// Notes what became of an effect, however long the store is away: what happened outside has happened.
    async fn conclude(&self, keeper: &Keeper, at: (&RunKey, &str), event: EffectEvent, detail: Vec<u8>) -> Result<(), StoreError> {
        loop {
            match self.move_effect(keeper, at, (event, Party::Kvit), Some(detail.clone())).await {
                Ok(Ok(effect)) => {
                    tracing::info!(run = %at.0.run, effect = at.1, state = effect.state.as_str(), "effect");
                    let counts = &self.outside.counts;
                    match effect.state {
                        EffectState::Committed => count(&counts.effects_committed),
                        EffectState::Failed => count(&counts.effects_failed),
                        EffectState::Unknown => count(&counts.effects_unknown),
                        EffectState::Intended | EffectState::Submitted => {}
                    }
                    return Ok(());
                }
                Ok(Err(NotMoved::Absent | NotMoved::Stands(_))) => return Ok(()),
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(keeper.config.poll).await,
                Err(why) => return Err(why),
            }
        }
    }
}

/// The one permission to send: nobody else gets it, and none is given once the run is over.
async fn permission(keeper: &Keeper, (run, key): (&RunKey, &str)) -> Result<bool, StoreError> {
    let from = EffectState::that_move(EffectEvent::Submit { safe_to_repeat: false });
    let (run, key) = (run.clone(), key.to_owned());
    let write = Write::Move { run, key, from, to: EffectState::Submitted, detail: None, now_ms: now_ms() };
    let wrote = keeper.store.commit(vec![write], Survives::Machine).await?.pop();
    Ok(matches!(wrote, Some(Wrote::Effect(_))))
}

/// What is kept of an answer: its status, and the beginning of its body as text.
fn detail(heard: &Heard, max: usize) -> Vec<u8> {
    match heard {
        Heard::Answer { status, body } => {
            let text = String::from_utf8_lossy(body);
            let shown: String = text.chars().take(max / 8).collect();
            json!({"status": status, "body": shown}).to_string().into_bytes()
        }
        Heard::NotSent(why) | Heard::Lost(why) => why.as_bytes().to_vec(),
    }
}

/// The text of the run's first answer.
async fn text(keeper: &Keeper, run: &RunKey) -> Result<String, StoreError> {
    let (mut text, mut after) = (String::new(), 0);
    loop {
        let page = keeper.store.events(run, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(text) };
        after = last.number;
        for event in &page {
            match kept::read_said(&event.body).map_err(|e| StoreError::Unreadable(e.to_string()))? {
                Said::Delta(delta) if delta.sequence == 0 => text.push_str(&delta.text),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_done_is_not_called_failed() {
        let answered = |status| verdict(&Heard::Answer { status, body: Vec::new() });
        for (status, means) in [
            (200, Verdict::Committed),
            (204, Verdict::Committed),
            (302, Verdict::Failed),
            (400, Verdict::Failed),
            (409, Verdict::Failed),
            (408, Verdict::Unknown),
            (429, Verdict::NotYet),
            (500, Verdict::Unknown),
            (503, Verdict::Unknown),
        ] {
            assert_eq!(answered(status), means, "{status}");
        }
        assert_eq!(verdict(&Heard::Lost("no answer in time")), Verdict::Unknown);
        assert_eq!(verdict(&Heard::NotSent("connection refused")), Verdict::NotYet);
        let long = Heard::Answer { status: 200, body: "\"ä".repeat(5000).into_bytes() };
        assert!(detail(&long, 4096).len() <= 4096);
    }
}
