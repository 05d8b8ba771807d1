//! The most that an attempt can still compute: what its run may waste where nobody can say that it was released.
//!
//! Tokens are counted as everywhere in a run's record: generated ones, and positions of the prompt. Each sequence counts its whole prompt,
//! for that the others share it is likely and not certain. Positions that a preemption yet to come would have computed again are not in
//! it; those of one that has come are. Where nobody says how long a prompt is, a token shows that one of them is worked off, and no more of them
//! than so many tokens certainly need, each sequence having its cap.
//!
//! Invariant: without a preemption it only falls, and never below what the attempt goes on to compute.
// contract: C-28

/// What lies ahead of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ahead {
    /// Whether the worker has said what the prompt is.
    tokenised: bool,
    /// Prompt tokens of all its sequences together, as far as they are known.
    whole_prompt: u64,
    /// Its sequences, and the cap of each.
    sequences: u64,
    cap: u64,
    generated: u64,
    /// Positions to compute before the next token.
    prompt: u64,
    /// Tokens that its caps still allow.
    output: u64,
}

impl Ahead {
    /// It is on its way to a worker; the model's context is all that bounds it.
    pub(super) fn dispatched(&mut self, tokens_max: u64) {
        if !self.tokenised {
            self.prompt = tokens_max;
        }
    }

    /// The worker knows its prompt and its cap. An engine of another make does not say how long the prompt is (0, which no prompt is): all that
    /// the cap leaves of the context may be prompt, until tokens show that it is computed.
    pub(super) fn queued(&mut self, prompt_tokens: u32, n: u32, max_tokens: u32) {
        let (sequences, cap) = (u64::from(n), u64::from(max_tokens));
        let output = sequences * cap;
        let prompt = if prompt_tokens == 0 { self.prompt.saturating_sub(output) } else { sequences * u64::from(prompt_tokens) };
        *self = Ahead { tokenised: prompt_tokens > 0, whole_prompt: prompt, sequences, cap, generated: 0, prompt, output };
    }

    /// The prefix index gave some of the positions.
    pub(super) fn cached(&mut self, tokens: u32) {
        self.prompt = self.prompt.saturating_sub(tokens.into());
    }

    /// A step computed so much of it. What was thrown away brings no sequence nearer to its cap.
    pub(super) fn computed(&mut self, prompt: u32, generated: u32) {
        self.output = self.output.saturating_sub(generated.into());
        self.generated += u64::from(generated);
        self.prompt = self.prompt.saturating_sub(prompt.into());
        if !self.tokenised {
            self.prompt = self.prompt.min(self.prompts_unbegun());
        }
    }

    /// What may be left of prompts whose length nobody has said. So many tokens need so many sequences at least, whosever they are.
    fn prompts_unbegun(&self) -> u64 {
        let begun = self.generated.div_ceil(self.cap.max(1)).min(self.sequences);
        let part = u128::from(self.whole_prompt) * u128::from(self.sequences - begun);
        u64::try_from(part.div_ceil(u128::from(self.sequences.max(1)))).unwrap_or(u64::MAX)
    }

    /// Its blocks are gone; all that stood in them has to be computed again.
    pub(super) fn preempted(&mut self) {
        self.prompt = self.whole_prompt + self.generated;
    }

    /// Tokens that it was seen to generate.
    pub(super) fn generated(&self) -> u64 {
        self.generated
    }

    /// All of it.
    pub(super) fn tokens(&self) -> u64 {
        self.prompt.saturating_add(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // contract: C-28
    #[test]
    fn an_unknown_prompt_is_all_that_the_context_leaves_until_a_token_shows_that_it_is_computed() {
        let mut ahead = Ahead::default();
        ahead.dispatched(2 * 4096);
        ahead.queued(0, 2, 100);
        assert_eq!(ahead.tokens(), 2 * 4096);
        ahead.computed(0, 0);
        assert_eq!(ahead.tokens(), 2 * 4096, "nothing was shown");
        // One of the two has begun, whose prompt is computed. Whichever it was, the other's may not be.
        ahead.computed(0, 3);
        assert_eq!(ahead.tokens(), (4096 - 100) + 197);
        ahead.computed(0, 97);
        assert_eq!(ahead.tokens(), (4096 - 100) + 100);
        // More than one of them can have said.
        ahead.computed(0, 1);
        assert_eq!(ahead.tokens(), 99);
        let mut one = Ahead::default();
        one.dispatched(4096);
        one.queued(0, 1, 100);
        one.computed(0, 1);
        assert_eq!(one.tokens(), 99);
        let mut many = Ahead::default();
        many.dispatched(100 * 4096);
        many.queued(0, 100, 40);
        many.computed(0, 1);
        assert_eq!(many.tokens(), 99 * (4096 - 40) + 100 * 40 - 1, "the first token is one prompt's");
        let mut known = Ahead::default();
        known.dispatched(4096);
        known.queued(30, 1, 100);
        assert_eq!(known.tokens(), 130);
    }
}
