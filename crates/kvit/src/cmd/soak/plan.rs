//! What each caller does: its prompt, its phase, its way to go. Drawn from a seed, so that a soak can be repeated.

use serde_json::{Value, json};

use super::args::{Departure, Phase, SoakArgs};

/// A small generator (SplitMix64) of its own: what it draws is part of what a seed means.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice for one thing of a seed.
    pub fn new(seed: u64, thing: u64) -> Dice {
        Dice(seed.wrapping_mul(0xa076_1d64_78bd_642f) ^ thing.wrapping_mul(0xe703_7ed1_a0b4_28db))
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T], or: T) -> T {
        let at = self.roll(of.len() as u64) as usize;
        of.get(at).copied().unwrap_or(or)
    }
}

/// Token ids that prompts are made of: plain ones in every vocabulary that kvit serves.
const TOKENS: std::ops::Range<u64> = 32..256;
/// Every second prompt begins with one of so many beginnings, so that blocks are shared as well.
const BEGINNINGS: u64 = 4;
/// Tokens that have come when a caller goes early: one, two or three.
const EARLY: u64 = 3;

/// One caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Aim {
    /// The run's id.
    pub id: String,
    /// Where it is when the caller goes.
    pub phase: Phase,
    /// How the caller goes.
    pub departure: Departure,
    /// Whether it streams.
    pub stream: bool,
    /// Tokens that have come when it goes, in the phases of decode.
    pub at: u32,
    /// The prompt.
    pub prompt: Vec<u32>,
    /// The output cap.
    pub tokens: u32,
}

impl Aim {
    /// The caller with this number.
    pub fn draw(args: &SoakArgs, life: &str, number: u64) -> Aim {
        let mut dice = Dice::new(args.seed, number);
        let phase = dice.pick(&args.phases, Phase::Dispatch);
        let departure = dice.pick(&args.departures, Departure::Close);
        let at = match phase {
            Phase::EarlyDecode => 1 + dice.roll(EARLY.min(u64::from(args.tokens) / 2)) as u32,
            _ => args.tokens / 2 + dice.roll(u64::from(args.tokens) / 4) as u32,
        };
        let stream = dice.roll(4) > 0;
        Aim { id: format!("soak-{life}-{number}"), phase, departure, stream, at, prompt: prompt(args, &mut dice), tokens: args.tokens }
    }

    /// Its request. Log-probabilities are asked for because then each token has an event, also one whose text is held back.
    pub fn body(&self) -> Value {
        json!({"prompt": self.prompt, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": true, "stream": self.stream, "logprobs": 0})
    }
}

fn prompt(args: &SoakArgs, dice: &mut Dice) -> Vec<u32> {
    let length = args.prompt_tokens as usize;
    let token = |dice: &mut Dice| (TOKENS.start + dice.roll(TOKENS.end - TOKENS.start)) as u32;
    let mut prompt = Vec::with_capacity(length);
    if dice.roll(2) == 0 {
        let mut shared = Dice::new(args.seed, u64::MAX - dice.roll(BEGINNINGS));
        prompt.extend((0..length / 2).map(|_| token(&mut shared)));
    }
    prompt.extend((prompt.len()..length).map(|_| token(dice)));
    prompt
}

/// A prompt of the probes whose answers are compared: always the same, whatever the seed.
pub fn probe(number: u64, length: u32) -> Vec<u32> {
    let mut dice = Dice::new(0x9e0b, number);
    (0..length).map(|_| (TOKENS.start + dice.roll(TOKENS.end - TOKENS.start)) as u32).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: SoakArgs,
    }

    fn args(more: &[&str]) -> SoakArgs {
        Line::parse_from([&["soak"], more].concat()).args
    }

    #[test]
    fn a_seed_gives_the_same_callers_and_every_kind_of_them() {
        let a = args(&["--seed", "7", "--tokens", "16", "--prompt-tokens", "40"]);
        let drawn: Vec<Aim> = (0..500).map(|i| Aim::draw(&a, "x", i)).collect();
        assert_eq!(drawn, (0..500).map(|i| Aim::draw(&a, "x", i)).collect::<Vec<_>>());
        assert_ne!(drawn[0].prompt, Aim::draw(&args(&["--seed", "8"]), "x", 0).prompt);
        for phase in &a.phases {
            for departure in &a.departures {
                for stream in [true, false] {
                    let n = drawn.iter().filter(|d| (d.phase, d.departure, d.stream) == (*phase, *departure, stream)).count();
                    assert!(n > 0, "{phase:?} {departure:?} {stream}");
                }
            }
        }
        assert!(drawn.iter().all(|d| d.prompt.len() == 40 && d.prompt.iter().all(|t| TOKENS.contains(&u64::from(*t)))));
        assert!(drawn.iter().all(|d| d.at >= 1 && d.at < 16));
        let beginnings: std::collections::BTreeSet<&[u32]> = drawn.iter().map(|d| &d.prompt[..20]).collect();
        assert!(beginnings.len() > 200 && beginnings.len() < 400, "about half are shared: {}", beginnings.len());
    }
}
