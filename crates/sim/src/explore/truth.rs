//! What is right: each answer as its run alone would get it, and what a block may hold.
//!
//! K and V of position p are a number made of the number at p - 1 and the token at p; a chosen token is made of all numbers before it. So a
//! block that was handed out too early, shared wrongly or computed in part gives other tokens than these.
//!
//! Invariant: nothing here depends on the engine.

use std::collections::HashSet;

use super::setup::{RunSetup, Setup};

/// Size of the vocabulary.
pub const VOCAB: u32 = 97;

pub(super) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

/// The token that these contents choose, in this answer of a run.
pub(super) fn choose(contents: impl Iterator<Item = u64>, sequence: u32) -> u32 {
    let fold = contents.fold(u64::from(sequence), mix);
    (mix(fold, 7) % u64::from(VOCAB)) as u32
}

/// The right answers of a setup.
#[derive(Debug)]
pub struct Truth {
    /// Tokens by run and answer.
    pub answers: Vec<Vec<Vec<u32>>>,
    /// Everything that a complete position of any run may hold.
    pub contents: HashSet<u64>,
}

impl Truth {
    /// Of a setup.
    pub fn of(setup: &Setup) -> Truth {
        let mut contents = HashSet::new();
        let answers = setup.runs.iter().map(|run| (0..run.n).map(|s| alone(run, s, &mut contents)).collect()).collect();
        Truth { answers, contents }
    }

    /// The first token of a run's first answer.
    pub fn first_token(&self, run: usize) -> u32 {
        self.answers[run][0][0]
    }
}

fn alone(run: &RunSetup, sequence: u32, all: &mut HashSet<u64>) -> Vec<u32> {
    let mut contents: Vec<u64> = Vec::new();
    let mut add = |contents: &mut Vec<u64>, token: u32| {
        let content = mix(contents.last().copied().unwrap_or(0), u64::from(token));
        all.insert(content);
        contents.push(content);
    };
    run.prompt.iter().for_each(|token| add(&mut contents, *token));
    (0..run.cap)
        .map(|_| {
            let token = choose(contents.iter().copied(), sequence);
            add(&mut contents, token);
            token
        })
        .collect()
}
