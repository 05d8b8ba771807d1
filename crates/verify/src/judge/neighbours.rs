//! Healthy streams beside departures: do their tokens come as before, and is their text their own?
//!
//! The baseline has companions, too, which end by themselves where the others leave: so the two differ by the departures alone. An engine whose
//! text depends on what is computed beside it says something else in two baselines already; then nothing is said of the text.
//!
//! Invariant: a stream is compared with its own baseline and with nothing else.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::caller::{Caller, End};
use super::cell::Trigger;
use super::result::{Check, Fault, Source, Verdict};
use super::stack::words;
use super::trial::Bench;
use super::verdict::median;

/// Companions of each round, one after the other.
const COMPANIONS: usize = 4;
/// Tokens that one reads before it leaves, or is all that it asks for.
const EARLY: u64 = 4;
/// Comparisons that must all show streams that are slower, each with baselines of its own: a machine that has other work meanwhile slows one.
const COMPARED: u64 = 3;

/// What a round of streams said.
struct Round {
    texts: Vec<String>,
    /// Time between two tokens, of all streams, behind the first companion's end.
    gaps: Vec<f64>,
    /// Companions that could be had.
    companions: usize,
}

impl Bench<'_> {
    /// Checks the neighbours of departures.
    pub async fn neighbours(&self) -> Check {
        let mut number = 0;
        loop {
            let check = self.compared(number * 3).await;
            number += 1;
            if number == COMPARED || !matches!(check.verdict, Verdict::Fail { fault: Fault::NeighboursSlowed, .. }) {
                return check;
            }
        }
    }

    /// Compares once; its rounds have these numbers.
    async fn compared(&self, from: u64) -> Check {
        let mut check = Check::new("neighbours", Verdict::Pass, vec![Source::Client]);
        let rounds = async {
            let first = self.round(false, from).await?;
            let second = self.round(false, from + 1).await?;
            let left = self.round(true, from + 2).await?;
            Ok::<_, String>((first, second, left))
        };
        let (first, second, left) = match tokio::time::timeout(self.patience() * 3, rounds).await {
            Ok(Ok(rounds)) => rounds,
            Ok(Err(missing)) => {
                check.verdict = Verdict::NotProven { missing };
                return check;
            }
            Err(_) => {
                check.verdict = Verdict::NotProven { missing: "it took too long: patience_ms in --settings".to_owned() };
                return check;
            }
        };
        let baseline = median(first.gaps.iter().chain(&second.gaps).copied()).unwrap_or(0.0);
        let gap = median(left.gaps.iter().copied()).unwrap_or(0.0);
        let is_steady = first.texts == second.texts;
        let corrupted = first.texts.iter().zip(&left.texts).filter(|(own, now)| own != now).count();
        let count = |n: usize| n as f64;
        check.measured.extend([
            ("streams".to_owned(), count(self.settings.neighbours)),
            ("departures".to_owned(), count(left.companions)),
            ("corrupted".to_owned(), count(corrupted)),
            ("baseline_gap_ms".to_owned(), baseline),
            ("gap_ms".to_owned(), gap),
        ]);
        check.verdict = if is_steady && corrupted > 0 {
            let why = format!("{corrupted} of {} streams said something else than without the departures", left.texts.len());
            Verdict::Fail { fault: Fault::NeighboursCorrupted, why }
        } else if baseline > 0.0 && gap > baseline * self.settings.slowdown_max {
            let why = format!("their tokens came every {gap:.1} ms around departures and every {baseline:.1} ms without");
            Verdict::Fail { fault: Fault::NeighboursSlowed, why }
        } else if !is_steady {
            Verdict::NotProven {
                missing: "their text differs between two rounds without departures, so nothing can be said of it".to_owned(),
            }
        } else {
            Verdict::Pass
        };
        check
    }

    /// Streams with companions that end or leave.
    async fn round(&self, leaves: bool, number: u64) -> Result<Round, String> {
        let mut streams = JoinSet::new();
        let begun = Instant::now();
        for index in 0..self.settings.neighbours {
            // The same prompt in each round, under another id.
            let prompt = words(self.settings.seed, &format!("verify-neighbour-{index}"), 16);
            let ask = self.stack.ask(&format!("verify-neighbour-{index}-{number}"), &prompt, true, self.settings.max_tokens);
            let mut caller = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("a stream could not be sent: {e}"))?;
            streams.spawn(async move {
                let end = caller.rest().await;
                (index, end, std::mem::take(&mut caller.read))
            });
        }
        let mut companions = 0;
        let mut from = None;
        while companions < COMPANIONS && streams.len() == self.settings.neighbours {
            let id = format!("verify-companion-{companions}-{number}");
            let prompt = words(self.settings.seed, &format!("verify-companion-{companions}"), 16);
            let asked = if leaves { self.settings.max_tokens } else { EARLY };
            let ask = self.stack.ask(&id, &prompt, true, asked);
            let mut caller = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("a companion could not be sent: {e}"))?;
            if leaves {
                caller.tokens(usize::try_from(EARLY).unwrap_or(usize::MAX)).await;
                caller.leave(Trigger::Close).map_err(|e| e.to_string())?;
            } else {
                caller.rest().await;
            }
            companions += 1;
            from = from.or(Some(Instant::now()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut round = Round { texts: vec![String::new(); self.settings.neighbours], gaps: Vec::new(), companions };
        while let Some(ended) = streams.join_next().await {
            let (index, end, read) = ended.map_err(|e| e.to_string())?;
            if end != End::Complete {
                return Err(format!("a healthy stream ended {end:?}"));
            }
            let from = from.unwrap_or(begun);
            let late: Vec<Instant> = read.tokens.iter().copied().filter(|at| *at >= from).collect();
            round.gaps.extend(late.windows(2).map(|two| two[1].duration_since(two[0]).as_secs_f64() * 1e3));
            round.texts[index] = read.texts.concat();
        }
        if round.gaps.is_empty() {
            let missing =
                "the streams had ended before a companion could go: ask for more tokens (--max-tokens), or for fewer streams (neighbours)";
            return Err(missing.to_owned());
        }
        Ok(round)
    }
}
