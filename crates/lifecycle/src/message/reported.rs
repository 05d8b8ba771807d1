//! What another kvit's record of a run says of its work, where that kvit stands behind this one's gateway.
//!
//! Invariant: counts of one attempt, whole as that kvit counted them; what it was asked for is in no field.
// contract: C-12 C-28

/// One attempt's work, as the kvit that had it as a run of its own counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reported {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Of them, those that it had computed before.
    pub cached_prompt: u64,
    /// Tokens generated, those that were thrown away included.
    pub generated: u64,
    /// Of them, those that were done after it had first seen that nobody wants them.
    pub after: u64,
    /// Positions of the prompt that were.
    pub prompt_after: u64,
    /// Of the generated ones, those that were not done when the cancel had reached its worker.
    pub after_receipt: u64,
    /// Steps that computed something for it.
    pub steps: u64,
    /// Of them, those that were done after that.
    pub steps_after: u64,
    /// The most that it may still compute, by its own word; `None` where it does not say.
    pub waste_bound: Option<u64>,
}
