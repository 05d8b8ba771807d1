//! A healthy neighbour notices nothing: random schedules of runs that are cancelled at random moments, over a pool that is too small for
//! them; the survivors' tokens are those of the run alone, and so are the bits of their log-probabilities and of the best alternatives', also
//! for those whose blocks were taken away meanwhile and who were computed again.
// contract: C-14, C-15, C-16, C-18, C-19
// field: F-41, F-61, F-63, F-64

use std::path::Path;

use lifecycle::event::Event;
use lifecycle::message::Prompt;
use lifecycle::params::{Params, Sampling};
use lifecycle::{Cause, OutcomeKind};

use crate::harness::{Rig, Seen, Sizes, greedy, id, tiny};

/// Alternatives whose log-probabilities are compared at each token.
const ALTERNATIVES: u8 = 5;

/// An answer: its tokens, and for each the bits of its log-probability and those of its alternatives.
type Answer = (Vec<u32>, Vec<Vec<(u32, u32)>>);

fn answer(seen: &Seen) -> Answer {
    let (tokens, logprobs) = (seen.tokens.get(&0).cloned().unwrap_or_default(), seen.logprobs.get(&0).cloned().unwrap_or_default());
    assert_eq!(tokens.len(), logprobs.len(), "one entry a token");
    for (token, entry) in tokens.iter().zip(&logprobs) {
        assert_eq!((entry[0].0, entry.len()), (*token, 1 + usize::from(ALTERNATIVES)), "its own and the alternatives'");
    }
    (tokens, logprobs)
}

/// What the schedules came to.
#[derive(Default, Debug)]
struct Tally {
    /// Runs that came to their end and were compared.
    survivors: u64,
    /// Of them, those whose blocks had been taken away at least once.
    survivors_preempted: u64,
    /// Times that blocks were taken away.
    preemptions: u64,
    /// Schedules in which that happened.
    schedules_preempting: u64,
}

/// Its own small generator: a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Runs that a schedule picks from: prompts of a few families with common beginnings, greedy and drawn.
fn catalogue(vocab: u32, longest: u64) -> Vec<(Vec<u32>, Params)> {
    let mut dice = Dice(0xfeed);
    (0..8u64)
        .map(|i| {
            let len = 5 + dice.roll(longest);
            let family = (i % 3) as u32;
            let prompt = (0..len as u32).map(|p| (family * 97 + p * 31 + p * p) % vocab).collect();
            let mut params = greedy(6 + dice.roll(20) as u32);
            if i % 2 == 1 {
                let sampling = Sampling { temperature: 0.9, top_p: 0.95, seed: 40 + i, repetition_penalty: 1.1, ..Sampling::default() };
                params.sampling = sampling;
            }
            params.sampling.logprobs = Some(ALTERNATIVES);
            (prompt, params)
        })
        .collect()
}

fn alone(path: &Path, catalogue: &[(Vec<u32>, Params)]) -> Vec<Answer> {
    let mut rig = Rig::new(path, Sizes { threads: 1, step_tokens: 512, max_running: 1, ..Sizes::default() });
    let mut out = Vec::new();
    for (i, (prompt, params)) in catalogue.iter().enumerate() {
        // A salt of its own: nothing is shared.
        let params = Params { cache_salt: format!("alone-{i}").as_str().into(), ..params.clone() };
        rig.submit(&format!("alone-{i}"), Prompt::Tokens(prompt.clone()), params);
        out.push(answer(&rig.released(&format!("alone-{i}"))));
    }
    rig.assert_at_rest();
    rig.stop();
    out
}

/// One schedule, added to the tally.
fn schedule(rig: &mut Rig, round: u64, catalogue: &[(Vec<u32>, Params)], expected: &[Answer], tally: &mut Tally) {
    let mut dice = Dice(0x9e37 + round * 7717);
    let mut runs: Vec<(String, usize, bool)> = Vec::new();
    for r in 0..8 {
        let pick = dice.roll(catalogue.len() as u64) as usize;
        let name = format!("s{round}-{r}");
        let (prompt, params) = catalogue[pick].clone();
        rig.submit(&name, Prompt::Tokens(prompt), params);
        runs.push((name, pick, dice.roll(2) == 0));
        match dice.roll(3) {
            0 => std::thread::sleep(std::time::Duration::from_micros(dice.roll(3000))),
            1 => {
                let (name, wait) = (runs[dice.roll(runs.len() as u64) as usize].0.clone(), dice.roll(4) as usize);
                rig.until("some tokens", |rig| rig.tokens(&name) >= wait || rig.seen[&name].outcome.is_some());
            }
            _ => {}
        }
        let victim = dice.roll(runs.len() as u64) as usize;
        if runs[victim].2 {
            rig.cancel(&runs[victim].0, Cause::ClientClosed);
        }
    }
    let before = tally.preemptions;
    for (name, pick, _) in &runs {
        let seen = rig.released(name);
        assert_eq!(seen.released, 1);
        let (tokens, logprobs) = answer(&seen);
        let (all_tokens, all_logprobs) = &expected[*pick];
        assert!(all_tokens.starts_with(&tokens), "{name}: {tokens:?} is no beginning of {all_tokens:?}");
        assert!(all_logprobs.starts_with(&logprobs), "{name}: other bits: {logprobs:?}, and alone {all_logprobs:?}");
        let records = rig.journal.records(&id(name).key);
        let preemptions = records.iter().filter(|r| matches!(r.event, Event::Preempted)).count() as u64;
        tally.preemptions += preemptions;
        if seen.outcome.as_ref().is_some_and(|o| o.kind() == OutcomeKind::Completed) {
            assert_eq!((tokens.len(), logprobs.len()), (all_tokens.len(), all_logprobs.len()), "{name}");
            tally.survivors += 1;
            tally.survivors_preempted += u64::from(preemptions > 0);
        }
    }
    tally.schedules_preempting += u64::from(tally.preemptions > before);
}

fn schedules(path: &Path, vocab: u32, longest: u64, rounds: u64, blocks: u32) {
    let catalogue = catalogue(vocab, longest);
    let expected = alone(path, &catalogue);
    let mut tally = Tally::default();
    for threads in [1, 2] {
        let mut rig = Rig::new(path, Sizes { blocks, threads, step_tokens: 48, max_running: 6 });
        for round in 0..rounds / 2 {
            schedule(&mut rig, round * 2 + threads as u64, &catalogue, &expected, &mut tally);
        }
        rig.assert_at_rest();
        rig.stop();
    }
    println!("{rounds} schedules, tokens and log-probabilities compared bit by bit: {tally:?}");
    assert!(tally.survivors > rounds, "{tally:?}");
    assert!(tally.schedules_preempting > rounds / 10 && tally.survivors_preempted > 0, "the pool is to be too small: {tally:?}");
}

#[test]
fn survivors_of_200_random_schedules_are_bit_identical() {
    schedules(&tiny(), 250, 120, 200, 11);
}

#[test]
#[ignore = "needs the real model, and minutes: cargo xtask test --long"]
fn long_survivors_of_200_random_schedules_are_bit_identical_on_the_real_model() {
    let path = std::env::var_os("KVIT_TEST_MODEL").expect("KVIT_TEST_MODEL names the real model");
    schedules(Path::new(&path), 40_000, 120, 200, 11);
}
