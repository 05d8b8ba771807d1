//! The worker: what it says of a run follows from what it was asked, so that a run that is computed again says the same.

use std::collections::HashMap;

use gateway::{Here, LinkEvent};
use lifecycle::message::{Delta, Down, From, Prompt, Receipt, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, StepId};

use super::life::Life;
use super::rng::Rng;
use crate::simulated::tiny;

pub struct Attempt {
    pub id: AttemptId,
    pub tag: String,
    tokens: u32,
    said: u32,
    accepted: bool,
    cancel: Option<Cause>,
    ended: bool,
}

#[derive(Default)]
pub struct Worker {
    pub life: u128,
    pub here: bool,
    pub attempts: Vec<Attempt>,
    pub step: u64,
    /// How often each run, by its tag, was given to it.
    pub submits: HashMap<String, u32>,
    /// Tags in the order of their coming, since they were last looked at.
    pub news: Vec<String>,
    /// Further bytes in each piece.
    pub padding: usize,
}

impl Attempt {
    /// Nothing more is said of it.
    pub fn is_over(&self) -> bool {
        self.ended
    }
}

/// What a run says as its `k`th piece.
pub fn piece(tag: &str, k: u32) -> String {
    format!("{tag}.{k} ")
}

fn tag(submit: &Submit) -> String {
    let text = match &submit.prompt {
        Prompt::Chat(turns) => turns.last().map(|turn| turn.content.clone()).unwrap_or_default(),
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(_) | Prompt::Forward(_) | Prompt::Worded(_) => String::new(),
    };
    text.split(' ').next().unwrap_or_default().to_owned()
}

impl Worker {
    async fn tell(&self, gateway: &Life, event: LinkEvent) {
        // A gateway that is over hears nothing.
        let _ = gateway.up.send(event).await;
    }

    async fn say(&self, gateway: &Life, message: Up) {
        self.tell(gateway, LinkEvent::Up(From { incarnation: Incarnation(self.life), message })).await;
    }

    pub async fn come(&mut self, gateway: &Life) {
        self.here = true;
        let here = Here { incarnation: Incarnation(self.life), offer: tiny().into(), name: "simulated".into() };
        self.tell(gateway, LinkEvent::Here(here)).await;
    }

    pub async fn be_lost(&mut self, gateway: &Life) {
        self.tell(gateway, LinkEvent::Lost { incarnation: Incarnation(self.life), why: "the test says so".into() }).await;
        self.here = false;
        self.life += 1;
        self.attempts.clear();
    }

    async fn release(&self, gateway: &Life, attempt: &AttemptId) {
        self.say(gateway, Up::Released { attempt: attempt.clone(), receipt: Receipt::default() }).await;
    }

    /// Takes in what it was sent.
    pub async fn hear(&mut self, gateway: &mut Life) {
        while let Ok(message) = gateway.down.try_recv() {
            match message.message {
                Down::Submit(submit) if self.here && submit.worker == Incarnation(self.life) => {
                    let tag = tag(&submit);
                    *self.submits.entry(tag.clone()).or_default() += 1;
                    self.news.push(tag.clone());
                    let tokens = submit.params.max_tokens.unwrap_or(3);
                    let id = submit.attempt.clone();
                    self.attempts.push(Attempt { id, tag, tokens, said: 0, accepted: false, cancel: None, ended: false });
                }
                Down::Cancel { attempt, cause, .. } => match self.attempts.iter_mut().find(|a| a.id == attempt && !a.ended) {
                    Some(there) => there.cancel = Some(cause),
                    None => self.release(gateway, &attempt).await,
                },
                _ => {}
            }
        }
    }

    /// Every attempt's next token is its last.
    pub fn finish_next(&mut self) {
        self.attempts.iter_mut().for_each(|attempt| attempt.tokens = attempt.said + 1);
    }

    /// One attempt goes one step on: a token, its end, or its cancel.
    pub async fn work(&mut self, gateway: &mut Life, rng: &mut Rng, obeys: bool) {
        self.hear(gateway).await;
        let live: Vec<usize> = (0..self.attempts.len()).filter(|i| !self.attempts[*i].ended).collect();
        let Some(&at) = rng.one(&live) else { return };
        let Attempt { id, tag, tokens, said, accepted, cancel, .. } = &mut self.attempts[at];
        let (id, tag, tokens) = (id.clone(), tag.clone(), *tokens);
        let usage = |generated| Usage { prompt: 3, cached_prompt: 0, generated };
        // A cancel that comes while the last token is computed loses or wins, as chance will have it.
        if let Some(cause) = cancel.filter(|_| obeys || rng.below(2) == 0) {
            let generated = *said;
            self.attempts[at].ended = true;
            self.say(gateway, Up::CancelAcknowledged { attempt: id.clone(), won: Some(cause) }).await;
            self.say(gateway, Up::Ended { attempt: id.clone(), outcome: Outcome::of(cause), usage: usage(generated) }).await;
            return self.release(gateway, &id).await;
        }
        if !std::mem::replace(accepted, true) {
            return self.say(gateway, Up::Accepted { attempt: id, prompt_tokens: 3 }).await;
        }
        *said += 1;
        let (k, is_last) = (*said, *said >= tokens);
        self.attempts[at].ended = is_last;
        self.step += 1;
        let finish = is_last.then_some(Cause::Length);
        let text = piece(&tag, k) + &"x".repeat(self.padding);
        let delta = Delta { attempt: id.clone(), sequence: 0, text, tokens: vec![k], logprobs: Vec::new(), finish, passed: None };
        self.say(gateway, Up::Step { step: StepId(self.step), deltas: vec![delta] }).await;
        if is_last {
            self.say(gateway, Up::Ended { attempt: id.clone(), outcome: Outcome::of(Cause::Length), usage: usage(k) }).await;
            self.release(gateway, &id).await;
        }
    }
}
