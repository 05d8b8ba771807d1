//! What one gateway heard of one attempt, held against the order in which it must come.
//!
//! Invariant: accepted, steps, ended, released: each once but for the steps, and nothing of an attempt after its end but acknowledgements.
// contract: C-4, C-12, C-20

use lifecycle::message::{Delta, Receipt, Usage};
use lifecycle::{Cause, Outcome};

/// What was heard of an attempt.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// This gateway submitted or claimed it.
    pub mine: bool,
    /// It has heard all of it, from its submit on.
    whole: bool,
    n: u32,
    max_tokens: u32,
    pub accepted: Option<u32>,
    /// Of each sequence: how many tokens, and how it finished.
    sequences: Vec<(u32, Option<Cause>)>,
    /// Cancels that were sent, and what was said to each.
    pub cancels: Vec<Cause>,
    pub acknowledged: Vec<Option<Cause>>,
    pub outcome: Option<Outcome>,
    pub usage: Usage,
    pub released: bool,
    /// Its tenure is gone.
    pub lost: bool,
}

fn must(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl Story {
    pub(super) fn submitted(&mut self, n: u32, max_tokens: u32) {
        // A second submit of the same name changes nothing.
        if !self.mine {
            (self.mine, self.whole, self.n, self.max_tokens) = (true, true, n, max_tokens);
        }
    }

    pub(super) fn cancelled(&mut self, cause: Cause) {
        self.cancels.push(cause);
    }

    /// It was claimed: what came before is not known.
    pub fn claimed(&mut self) {
        self.mine = true;
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> u32 {
        self.sequences.iter().map(|(tokens, _)| tokens).sum()
    }

    /// The cause that it ended with.
    pub fn cause(&self) -> Option<Cause> {
        self.outcome.as_ref().map(|outcome| outcome.cause)
    }

    pub(super) fn accepted(&mut self, prompt_tokens: u32) -> Result<(), String> {
        must(self.mine, || "Accepted of an attempt that this gateway has not submitted".to_owned())?;
        must(self.accepted.is_none(), || "Accepted twice".to_owned())?;
        must(self.outcome.is_none(), || "Accepted after Ended".to_owned())?;
        self.accepted = Some(prompt_tokens);
        Ok(())
    }

    pub(super) fn delta(&mut self, delta: &Delta) -> Result<(), String> {
        must(self.mine, || "a token of an attempt that is not this gateway's".to_owned())?;
        must(!self.whole || self.accepted.is_some(), || "a token before Accepted".to_owned())?;
        must(self.outcome.is_none(), || "a token after Ended".to_owned())?;
        must(self.acknowledged.iter().all(Option::is_none), || "a token after CancelAcknowledged said what ends the attempt".to_owned())?;
        must(!self.whole || delta.sequence < self.n, || format!("Delta.sequence is {}, of {} answers", delta.sequence, self.n))?;
        must(delta.logprobs.is_empty(), || "log-probabilities that nobody asked for".to_owned())?;
        if self.sequences.len() <= delta.sequence as usize {
            self.sequences.resize(delta.sequence as usize + 1, (0, None));
        }
        let (tokens, finish) = &mut self.sequences[delta.sequence as usize];
        must(finish.is_none(), || format!("a delta of answer {} after its finish", delta.sequence))?;
        *tokens = tokens.saturating_add(u32::try_from(delta.tokens.len()).unwrap_or(u32::MAX));
        let (tokens, max_tokens) = (*tokens, self.max_tokens);
        must(!self.whole || tokens <= max_tokens, || format!("{tokens} tokens, and max_tokens is {max_tokens}"))?;
        *finish = delta.finish;
        match delta.finish {
            None | Some(Cause::Stop | Cause::Length) => Ok(()),
            Some(other) => Err(format!("Delta.finish is {}: stop and length are possible", other.as_str())),
        }
    }

    pub(super) fn acknowledged(&mut self, won: Option<Cause>) -> Result<(), String> {
        self.acknowledged.push(won);
        // What was said of an attempt that was not known may be said again when it is.
        let unknown = self.acknowledged.iter().filter(|won| won.is_none()).count().min(self.cancels.len());
        let (said, asked) = (self.acknowledged.len(), self.cancels.len() + unknown);
        must(said <= asked, || format!("CancelAcknowledged {said} times, for {asked} cancels"))?;
        match (won, self.cause()) {
            (Some(won), Some(cause)) if won != cause => {
                Err(format!("CancelAcknowledged says {}, Ended said {}", won.as_str(), cause.as_str()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn ended(&mut self, outcome: Outcome, usage: Usage) -> Result<(), String> {
        must(self.mine || !self.cancels.is_empty(), || {
            "Ended of an attempt that is not this gateway's and that it has not cancelled".to_owned()
        })?;
        must(self.outcome.is_none(), || "Ended twice".to_owned())?;
        let (cause, tokens) = (outcome.cause, self.tokens());
        (self.outcome, self.usage) = (Some(outcome), usage);
        if let Some(won) = self.acknowledged.iter().flatten().next() {
            must(*won == cause, || format!("Ended says {}, CancelAcknowledged said {}", cause.as_str(), won.as_str()))?;
        }
        must(usage.cached_prompt <= usage.prompt, || format!("{} cached tokens of a prompt of {}", usage.cached_prompt, usage.prompt))?;
        if !self.whole {
            return Ok(());
        }
        if let Some(prompt) = self.accepted {
            must(usage.prompt == prompt, || format!("Usage.prompt is {}, Accepted.prompt_tokens was {prompt}", usage.prompt))?;
        }
        must(usage.generated == tokens, || format!("Usage.generated is {}, and {tokens} tokens came", usage.generated))?;
        if matches!(cause, Cause::Stop | Cause::Length) {
            let (finished, n) = (self.sequences.iter().filter(|(_, finish)| finish.is_some()).count(), self.n);
            must(finished == n as usize, || format!("Ended says {}, and {finished} of {n} answers have a finish", cause.as_str()))?;
        }
        Ok(())
    }

    pub(super) fn released(&mut self, receipt: Receipt) -> Result<(), String> {
        must(self.outcome.is_some(), || "Released before Ended".to_owned())?;
        must(!self.released, || "Released twice".to_owned())?;
        self.released = true;
        must(receipt.blocks_held == 0, || format!("Released, and Receipt.blocks_held is {}", receipt.blocks_held))
    }

    pub(super) fn summary(&self) -> String {
        let accepted = if self.accepted.is_some() { "accepted" } else { "not accepted" };
        let ended = self.cause().map_or("not ended", Cause::as_str);
        let released = if self.released { "released" } else { "not released" };
        let acknowledged = self.acknowledged.len();
        format!("{accepted}, {} tokens, {acknowledged} acknowledgements, {ended}, {released}", self.tokens())
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::{AttemptId, RunId, RunKey, Tenant};

    use super::*;

    fn running() -> Story {
        let mut story = Story::default();
        story.submitted(1, 2);
        story.accepted(7).expect("it was submitted");
        story
    }

    fn delta(tokens: usize, finish: Option<Cause>) -> Delta {
        let key = RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") };
        let attempt = AttemptId { key, attempt: 1 };
        Delta { attempt, sequence: 0, text: String::new(), tokens: vec![1; tokens], logprobs: Vec::new(), finish, passed: None }
    }

    fn usage(generated: u32) -> Usage {
        Usage { prompt: 7, cached_prompt: 0, generated }
    }

    #[test]
    fn what_is_in_order_is_taken() {
        let mut story = running();
        story.delta(&delta(1, None)).expect("in order");
        story.delta(&delta(1, Some(Cause::Length))).expect("in order");
        story.ended(Outcome::of(Cause::Length), usage(2)).expect("in order");
        story.released(Receipt::default()).expect("in order");
        assert!(story.released && story.tokens() == 2);
    }

    #[test]
    fn what_is_out_of_order_is_a_breach() {
        assert!(Story::default().accepted(1).is_err(), "not ours");
        assert!(running().accepted(7).is_err(), "twice");
        assert!(running().delta(&delta(3, None)).is_err(), "more than max_tokens");
        assert!(running().delta(&delta(1, Some(Cause::ClientLost))).is_err(), "no finish of a sequence");
        assert!(running().released(Receipt::default()).is_err(), "before its end");
        assert!(running().ended(Outcome::of(Cause::Length), usage(0)).is_err(), "complete without a finish");
        assert!(running().ended(Outcome::of(Cause::Orphaned), usage(1)).is_err(), "a count that is not what came");
        assert!(running().acknowledged(None).is_err(), "nobody cancelled");
    }

    #[test]
    fn after_an_acknowledgement_no_token_and_no_other_cause() {
        let mut story = running();
        story.cancelled(Cause::ClientClosed);
        story.acknowledged(Some(Cause::ClientClosed)).expect("once for a cancel");
        assert!(story.acknowledged(Some(Cause::ClientClosed)).is_err(), "twice for one");
        assert!(story.delta(&delta(1, None)).is_err());
        assert!(story.ended(Outcome::of(Cause::Orphaned), usage(0)).is_err());
        assert!(story.ended(Outcome::of(Cause::ClientClosed), usage(0)).is_err(), "a second end");
    }
}
