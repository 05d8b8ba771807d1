//! What departures leave behind in an engine, looked at apart: room, what it keeps for each request, memory, and what its cache still gives.
//!
//! Many requests are left, every other one in the computing of a long prompt, in rounds with a rest behind each. Memory that a pool keeps is no leak:
//! it grows once and stays, or grows until it is full. State that is kept for each request and grows with round after round is one.
//!
//! Invariant: a figure is compared with one that was taken at rest as well; memory alone convicts nobody.

use std::time::Duration;

use super::caller::{Caller, End};
use super::cell::Trigger;
use super::result::{Check, Fault, Look, Source, Verdict};
use super::run::rest;
use super::stack::{ended_badly, words};
use super::trial::Bench;

/// Rounds of departures. Fewer cannot tell what grows once, or twice, from what grows on.
const ROUNDS: u64 = 4;
/// Least departures that are any use: two a round, one of each kind.
pub const DEPARTURES_MIN: u64 = 2 * ROUNDS;
/// Tokens that each asks for: of an engine that does not stop, no more are wasted.
const TOKENS: u64 = 32;
/// Tokens that are read of those that are not left in their prompt.
const READ: usize = 3;
/// Time for what is under way to be counted.
const SETTLE: Duration = Duration::from_millis(300);
/// How often a prompt is asked again to see whether it is cached, and prompts of which that is asked.
const AGAIN: usize = 3;
/// Prompts that have to be found at once, before, for later ones to say anything.
const BEFORE: usize = 2;
/// A prompt that is cached costs less than this part of what it cost first.
const CACHED: f64 = 0.5;

/// Memory behind each round, in KiB.
#[derive(Debug, Default)]
struct Kept {
    /// Of the engine's processes.
    processes: Vec<f64>,
    /// Of its GPUs.
    devices: Vec<f64>,
}

/// Figures at rest: before everything, and behind each round. What was not told is `None` in all of them.
#[derive(Debug, Default)]
struct Series {
    first: Option<f64>,
    rounds: Vec<f64>,
}

impl Series {
    fn of(first: Option<&Look>, looks: &[Look], of: fn(&Look) -> Option<f64>) -> Series {
        Series { first: first.and_then(of), rounds: looks.iter().filter_map(of).collect() }
    }

    fn last(&self) -> Option<f64> {
        self.rounds.last().copied()
    }

    /// Rounds in which it grew by at least so much.
    fn grew(&self, least: f64) -> usize {
        self.rounds.windows(2).filter(|two| two[1] - two[0] >= least).count()
    }

    /// Whether it never fell, and grew again and again.
    fn grows_on(&self, least: f64) -> bool {
        let steps = self.rounds.len().saturating_sub(1);
        let falls = self.rounds.windows(2).any(|two| two[1] < two[0]);
        steps >= 3 && !falls && self.grew(least) * 2 > steps
    }
}

/// What it costs to ask a prompt: the time to its first token, and the tokens that were computed of it.
#[derive(Clone, Copy, Debug)]
struct Cost {
    first: Duration,
    prompted: Option<f64>,
}

impl Bench<'_> {
    /// The checks of what is left. `first` is what the engine said before any request was left, `tries` how many were since.
    pub(super) async fn cleanup(&self, first: Option<&Look>, tries: u64) -> Vec<Check> {
        let asked = self.settings.departures > 0;
        let cached = if asked { self.cached_before().await } else { None };
        let probes = asked && self.needs_probe();
        let fitted = if probes { self.fits_before().await } else { Ok(0.0) };
        let all = if asked { self.in_time(4, self.rounds()).await } else { Err("nobody wanted them".to_owned()) };
        let (looks, memory, left, why) = match all {
            Ok((looks, memory, left)) => (looks, memory, left, String::new()),
            // What cannot be repeated is judged by what there is, if the engine comes to rest at all.
            Err(why) => (self.at_rest().await.ok().flatten().into_iter().collect(), Kept::default(), 0, why),
        };
        let went = left > 0;
        let departures = tries + left;
        let mut checks: Vec<Check> = capacity(first, &looks, departures).into_iter().collect();
        checks.extend(state(first, &looks, departures));
        // Where nobody left, memory says nothing of departures.
        if left > 0 {
            checks.extend(self.memory("memory", Source::Memory, &memory.processes, left));
            checks.extend(self.memory("gpu memory", Source::Gpu, &memory.devices, left));
        }
        if asked {
            let missing = || Verdict::NotProven { missing: format!("departures could not be repeated: {why}") };
            checks.push(if went { self.cache(cached, left).await } else { Check::new("cache", missing(), Vec::new()) });
            if probes {
                checks.push(if went { self.fits(fitted).await } else { Check::new("probe", missing(), Vec::new()) });
            }
        }
        checks
    }

    /// Leaves requests, round after round: what the engine said and how much memory it had behind each, and how many were left.
    async fn rounds(&self) -> Result<(Vec<Look>, Kept, u64), String> {
        let departures = self.settings.departures;
        let (mut looks, mut memory, mut left) = (Vec::new(), Kept::default(), 0);
        let mut note = |look: Option<Look>| {
            looks.extend(look);
            let processes = self.stack.processes.as_ref();
            memory.processes.extend(processes.and_then(|of| of.resident_kib()));
            memory.devices.extend(self.stack.devices.as_ref().and_then(|of| of.held_kib(processes)));
        };
        note(self.at_rest().await?);
        for round in 0..ROUNDS {
            for _ in 0..departures * (round + 1) / ROUNDS - left {
                self.depart(left).await?;
                left += 1;
            }
            note(self.at_rest().await?);
        }
        Ok((looks, memory, left))
    }

    /// What the engine says with nothing at work; without counters nobody says when that is.
    async fn at_rest(&self) -> Result<Option<Look>, String> {
        self.rested().await.map_err(|missed| missed.why)?;
        let stale = self.stack.counters.as_ref().map_or(0, |counters| counters.profile.stale_ms);
        tokio::time::sleep(SETTLE.max(Duration::from_millis(stale))).await;
        Ok(rest(self.stack).await)
    }

    /// One request that is left: in the computing of a long prompt, or, every other one, behind its first tokens.
    async fn depart(&self, number: u64) -> Result<(), String> {
        let id = format!("verify-departure-{number}-{}", self.settings.seed);
        let long = self.pace.long.filter(|_| number.is_multiple_of(2));
        let prompt = words(self.settings.seed, &id, long.map_or(16, |(count, _)| count));
        let ask = self.stack.ask(&id, &prompt, true, TOKENS);
        let mut caller = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("one could not be sent: {e}"))?;
        match long {
            Some((_, took)) => {
                let _ = tokio::time::timeout(took / 3, caller.tokens(1)).await;
            }
            None => {
                caller.tokens(READ).await;
            }
        }
        // What is refused leaves nothing that says anything.
        if let Some((_, how)) = caller.read.end.filter(|(_, how)| *how != End::Complete) {
            return Err(format!("one ended before it could be left: {}", ended_badly(&caller.read, how)));
        }
        caller.leave(Trigger::Close).map(drop).map_err(|e| format!("one could not be left: {e}"))
    }

    /// What comes of it, if it comes in so many times the patience of a try.
    pub(super) async fn in_time<T>(&self, times: u32, of: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let within = self.patience() * times;
        let late = |_| Err(format!("it took longer than {within:?}: patience_ms in --settings"));
        tokio::time::timeout(within, of).await.unwrap_or_else(late)
    }

    /// Whether memory grew on.
    fn memory(&self, name: &str, by: Source, rounds: &[f64], departures: u64) -> Option<Check> {
        let (first, last) = rounds.first().zip(rounds.last()).filter(|_| rounds.len() > 1)?;
        let each = departures as f64 / (rounds.len() - 1) as f64;
        let verdict = memory(rounds, each, self.settings.memory_kib);
        let check = Check::new(name, verdict, vec![by]).with("before_mib", first / 1024.0).with("after_mib", last / 1024.0);
        Some(check.with("departures", departures as f64).with("late_kib_each", late(rounds) / each.max(1.0)))
    }

    /// Whether prompts are found in a cache every time. Where they are found only sometimes, as with several engines behind one address,
    /// later ones that are not found would say nothing. `None` where no prompt takes long enough to see that.
    async fn cached_before(&self) -> Option<Result<bool, String>> {
        let (count, _) = self.pace.long?;
        for number in 0..BEFORE {
            match self.cached(&format!("before-{number}"), count).await {
                Ok(Some(1)) => {}
                Ok(_) => return Some(Ok(false)),
                Err(why) => return Some(Err(why)),
            }
        }
        Some(Ok(true))
    }

    /// The how manieth time that a prompt of so many words is asked again it is found in a cache, if it is.
    async fn cached(&self, when: &str, count: usize) -> Result<Option<usize>, String> {
        let id = format!("verify-cached-{when}-{}", self.settings.seed);
        let prompt = words(self.settings.seed, &id, count);
        let mut sum = self.prompted().await?;
        let cold = self.cost(&format!("{id}-0"), &prompt, &mut sum).await?;
        for number in 1..=AGAIN {
            let warm = self.cost(&format!("{id}-{number}"), &prompt, &mut sum).await?;
            let less = |warm: f64, cold: f64| warm < cold * CACHED;
            // Some engines count a prompt's tokens whether they are computed or found; time tells all the same.
            if cold.prompted.zip(warm.prompted).is_some_and(|(cold, warm)| less(warm, cold))
                || less(warm.first.as_secs_f64(), cold.first.as_secs_f64())
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The sum of prompt tokens with nothing at work, where it is told.
    async fn prompted(&self) -> Result<Option<f64>, String> {
        let tells = self.stack.counters.as_ref().is_some_and(|counters| !counters.profile.prompted.is_empty());
        if tells { Ok(self.at_rest().await?.and_then(|look| look.prompted)) } else { Ok(None) }
    }

    /// Asks a prompt once. `sum` is the sum of prompt tokens before, and then behind it.
    async fn cost(&self, id: &str, prompt: &str, sum: &mut Option<f64>) -> Result<Cost, String> {
        let all = async {
            let asked = Caller::ask(&self.stack.target, self.stack.ask(id, prompt, true, 1)).await;
            let mut caller = asked.map_err(|e| format!("it could not be sent: {e}"))?;
            let how = caller.rest().await;
            let at = caller.read.tokens.first().copied().or(caller.read.end.map(|(at, _)| at)).filter(|_| how == End::Complete);
            at.map(|at| at.duration_since(caller.sent)).ok_or_else(|| ended_badly(&caller.read, how))
        };
        let first = self.in_time(1, all).await?;
        let before = std::mem::replace(sum, self.prompted().await?);
        Ok(Cost { first, prompted: sum.zip(before).map(|(after, before)| after - before) })
    }

    /// Whether the cache gives what it gave before.
    async fn cache(&self, before: Option<Result<bool, String>>, departures: u64) -> Check {
        let mut asked = 0;
        let badly = |when: &str, why: &str| Verdict::NotProven { missing: format!("a prompt that nobody left, {when}: {why}") };
        let verdict = match before.zip(self.pace.long) {
            None => Verdict::NotApplicable { why: "no prompt takes long enough to tell a cached one from others".to_owned() },
            Some((Err(why), _)) => badly("before the departures", &why),
            Some((Ok(false), _)) => Verdict::NotApplicable {
                why: "a prompt that is asked again is not found each time: none is cached, or several engines share the work".to_owned(),
            },
            Some((Ok(true), (count, _))) => loop {
                asked += 1;
                match self.cached(&format!("after-{asked}"), count).await {
                    Ok(Some(_)) => break Verdict::Pass,
                    Err(why) => break badly("behind the departures", &why),
                    Ok(None) if asked < AGAIN => {}
                    Ok(None) => {
                        let why = format!(
                            "behind {departures} departures none of {asked} prompts that were asked again was found; before, it was"
                        );
                        break Verdict::Fail { fault: Fault::CapacityLeaks, why };
                    }
                }
            },
        };
        let by = if self.stack.counters.is_some() { vec![Source::CountersApart, Source::Client] } else { vec![Source::Client] };
        Check::new("cache", verdict, by).with("prompts", asked as f64)
    }
}

/// How much it grew in the later half, a round.
fn late(rounds: &[f64]) -> f64 {
    let half = &rounds[rounds.len() / 2..];
    match half {
        [first, .., last] => (last - first) / (half.len() - 1) as f64,
        _ => 0.0,
    }
}

/// What memory behind each round says: that which grows on is a pool that is not full yet, or a leak, and nobody can tell from outside.
fn memory(rounds: &[f64], each: f64, kib: f64) -> Verdict {
    let limit = (each * kib).max(1.0);
    let half = &rounds[rounds.len() / 2..];
    let grows = half.len() > 1 && half.windows(2).all(|two| two[1] - two[0] >= limit);
    if !grows {
        return Verdict::Pass;
    }
    let growth = late(rounds) / each.max(1.0);
    Verdict::NotProven {
        missing: format!(
            "the engine's memory still grew, by {growth:.0} KiB with each departure: a pool that is not full yet, or a leak; more `departures` in --settings tell, for a pool stops growing"
        ),
    }
}

/// Room that departures took for good: what counters tell exactly needs no rounds.
fn capacity(first: Option<&Look>, looks: &[Look], departures: u64) -> Option<Check> {
    let grown = |of: fn(&Look) -> Option<f64>, least: f64| {
        let series = Series::of(first, looks, of);
        let (before, after) = series.first.zip(series.last())?;
        let growth = after - before;
        let verdict = match departures {
            0 => Verdict::NotProven { missing: "nobody left".to_owned() },
            _ if growth >= least => {
                let why = format!("{growth} more than before {departures} departures, with nothing at work");
                Verdict::Fail { fault: Fault::CapacityLeaks, why }
            }
            _ => Verdict::Pass,
        };
        let check = Check::new("capacity", verdict, vec![Source::CountersApart]);
        Some(check.with("before", before).with("after", after).with("departures", departures as f64))
    };
    // A part of the memory is a number of blocks that nobody told: a hundredth of it is no rounding.
    grown(|look| look.kv_held, 1.0).or_else(|| grown(|look| look.kv_used, 0.01))
}

/// What is kept for each request.
fn state(first: Option<&Look>, looks: &[Look], departures: u64) -> Option<Check> {
    let series = Series::of(first, looks, |look| look.per_request);
    let (before, after) = series.first.zip(series.last())?;
    let verdict = if departures == 0 {
        Verdict::NotProven { missing: "nobody left".to_owned() }
    } else if series.grows_on(1.0) {
        let (grew, rounds) = (series.grew(1.0), series.rounds.len() - 1);
        let why = format!("{before} entries before {departures} departures and {after} behind them, more in {grew} of {rounds} rounds");
        Verdict::Fail { fault: Fault::StateLeaks, why }
    } else if series.rounds.len() <= 3 && after > before {
        let missing = "entries were left, and no rounds say whether they go on growing: `departures` in --settings";
        Verdict::NotProven { missing: missing.to_owned() }
    } else {
        Verdict::Pass
    };
    let check = Check::new("per-request state", verdict, vec![Source::CountersApart]);
    Some(check.with("before", before).with("after", after).with("departures", departures as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(of: fn(&mut Look) -> &mut Option<f64>, values: &[f64]) -> Vec<Look> {
        let look = |value: &f64| {
            let mut look = Look::default();
            *of(&mut look) = Some(*value);
            look
        };
        values.iter().map(look).collect()
    }

    #[test]
    fn room_that_does_not_come_back_is_a_leak_and_what_is_not_told_is_not_checked() {
        let check = |values: &[f64]| {
            let looks = looks(|look| &mut look.kv_held, values);
            capacity(looks.first(), &looks[1..], 21).expect("a check").verdict
        };
        assert!(matches!(check(&[0.0, 21.0]), Verdict::Fail { fault: Fault::CapacityLeaks, .. }));
        assert_eq!(check(&[2.0, 3.0, 2.0]), Verdict::Pass);
        assert!(capacity(Some(&Look::default()), &[Look::default()], 21).is_none() && state(None, &[], 21).is_none());
        let used = |values: &[f64]| {
            let looks = looks(|look| &mut look.kv_used, values);
            capacity(looks.first(), &looks[1..], 3).expect("a check").verdict
        };
        assert_eq!(used(&[0.1, 0.105]), Verdict::Pass);
        assert!(used(&[0.1, 0.2]).is_fail());
    }

    #[test]
    fn state_that_grows_with_the_rounds_is_a_leak_and_a_pool_that_grew_once_is_none() {
        let check = |values: &[f64]| {
            let looks = looks(|look| &mut look.per_request, values);
            state(looks.first(), &looks[1..], 12).expect("a check").verdict
        };
        for leak in [[0.0, 3.0, 5.0, 7.0, 9.0, 11.0], [2.0, 2.0, 3.0, 3.0, 4.0, 5.0]] {
            assert!(matches!(check(&leak), Verdict::Fail { fault: Fault::StateLeaks, .. }), "{leak:?}");
        }
        for pool in [[0.0, 0.0, 8.0, 8.0, 8.0, 8.0], [0.0, 4.0, 8.0, 16.0, 16.0, 16.0], [4.0; 6]] {
            assert_eq!(check(&pool), Verdict::Pass, "{pool:?}");
        }
        assert_eq!(check(&[1.0, 2.0, 3.0, 4.0, 2.0, 6.0]), Verdict::Pass, "what falls again is kept by nobody");
        assert!(matches!(check(&[1.0, 2.0]), Verdict::NotProven { missing } if missing.contains("departures")));
    }

    #[test]
    fn memory_that_a_pool_keeps_is_well_and_what_grows_on_convicts_nobody() {
        for kept in [&[100.0, 90_100.0, 90_100.0, 90_150.0, 90_120.0][..], &[5.0; 5], &[9.0, 8.0]] {
            assert_eq!(memory(kept, 2.0, 256.0), Verdict::Pass, "{kept:?}");
        }
        let grows: Vec<f64> = (0..5).map(|round| f64::from(round) * 2048.0).collect();
        let Verdict::NotProven { missing } = memory(&grows, 2.0, 256.0) else { panic!("it grew on") };
        assert!(missing.contains("1024 KiB with each departure"), "{missing}");
    }
}
