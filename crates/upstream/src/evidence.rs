//! What proves that cancelled requests are gone from an engine that others wrote: its own counters, and what kvit saw of its own requests.
//!
//! A look at the counters that began after a connection was closed counts the closed request as long as it is there. The engine shows only
//! a sum. So the closed ones are proven gone if every request in the sum is known to be another one: one of ours that was certainly counted
//! during the whole look, because it had shown tokens before the look began and showed another one after it had ended. That one may come
//! long after the look, so looks are kept and judged again. A sum of zero needs no others. Requests of other users of the engine are in the
//! sum and in no list of ours: they make a proof harder, never wrong.
//!
//! Where the counters are those of the last step, a request that was left before it showed anything is in none of them until its first step is
//! over, however long that takes. A later request that has shown tokens is a witness that a step is over which began when the first had come.
//!
//! What has to hold of the engine is [`Freshness`], and nothing else is believed. A sum below what is certainly counted shows that it does
//! not hold, and that look proves nothing.
//!
//! Invariant: pure; `Observed` is said only of a request that no look of the kind above could have missed. What is forgotten because of a
//! limit, and what comes late, can only make a proof harder.
// contract: C-29

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::kind::{CancelBy, Freshness};

/// Looks that are kept for a token that may still come.
const LOOKS_MAX: usize = 64;
/// Requests that are over and may still count for a look that is kept.
const PAST_MAX: usize = 1024;

/// How well one cancel at such an engine is proven. `confirmed` is not among them: no such engine acknowledges a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Its own counters show that the request is gone.
    Observed,
    /// The connection was closed, and nothing more is known.
    BestEffort,
    /// It is known that neither closing nor an id means anything to it.
    Unsupported,
}

/// What became of one cancel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Whose.
    pub id: u64,
    /// How well it is proven.
    pub level: Level,
    /// When its connection was closed.
    pub closed: Duration,
    /// The end of the look that proves it: by then it was gone.
    pub gone_by: Option<Duration>,
}

/// One look at the counters. Moments are counted from any one beginning that all of them share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Before the first byte of the question was sent.
    pub began: Duration,
    /// After the last byte of the answer was read.
    pub ended: Duration,
    /// Requests that run or wait.
    pub present: u64,
}

/// What one request has shown: written by its reader for each token, without a lock, and read here.
#[derive(Debug, Default)]
pub struct Tokens {
    count: AtomicU32,
    /// When it had shown `shown_before`, and after which moment its last one came, in nanoseconds and one more; 0 for never.
    enough: AtomicU64,
    last: AtomicU64,
    needed: u32,
    /// Before it was sent.
    sent: Duration,
}

impl Tokens {
    /// An event that shows a token was read now, and there was nothing to read at `empty`, before that ([`Answer::empty_at`]): so it came
    /// after that. A reader that is held up reads old tokens, which say nothing of now. Only one task calls this, with moments that do not go
    /// back.
    ///
    /// [`Answer::empty_at`]: super::client::Answer::empty_at
    pub fn shown(&self, now: Duration, empty: Duration) {
        let count = self.count.load(Ordering::Relaxed).saturating_add(1);
        self.count.store(count, Ordering::Relaxed);
        if count == self.needed {
            self.enough.store(stamp(now), Ordering::Release);
        }
        self.last.store(stamp(empty), Ordering::Release);
    }

    /// Whether it had shown so many by then that it was counted.
    fn counted_by(&self, moment: Duration) -> bool {
        (1..=stamp(moment)).contains(&self.enough.load(Ordering::Acquire))
    }

    /// When it had shown so many, if it was sent that late.
    fn witness_of(&self, moment: Duration) -> Option<Duration> {
        let enough = self.enough.load(Ordering::Acquire);
        (self.sent >= moment && enough > 0).then(|| Duration::from_nanos(enough))
    }

    fn shown_since(&self, moment: Duration) -> bool {
        self.last.load(Ordering::Acquire) >= stamp(moment)
    }
}

fn stamp(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX - 1).saturating_add(1)
}

#[derive(Debug)]
struct Closed {
    id: u64,
    closed: Duration,
    /// By then it has come to the engine, if it ever will.
    come_by: Duration,
    /// A look that began then or later counts it, if it is there. `None` until a later request has shown that.
    looks_from: Option<Duration>,
}

/// All requests at one upstream, as far as its cancels' levels go by them.
#[derive(Debug)]
pub struct Ledger {
    cancel: CancelBy,
    fresh: Option<Freshness>,
    observe_for: Duration,
    /// When every proof that is not there yet is given up, if that was said.
    last: Option<Duration>,
    live: HashMap<u64, Arc<Tokens>>,
    /// Requests of an engine that was here before: nothing that this one shows says anything of them, nor they of it.
    former: HashSet<u64>,
    closed: Vec<Closed>,
    /// Those that no look can say anything of, and when they were closed: the engine before had them, or nobody knows when this one would count them.
    unseen: Vec<(u64, Duration)>,
    /// What those showed that are over: they were there while they showed it.
    past: VecDeque<Arc<Tokens>>,
    looks: VecDeque<Look>,
    contradictions: u64,
}

impl Ledger {
    /// For an upstream that is told of cancels like this, whose counters are so fresh (`None`: they prove nothing).
    pub fn new(cancel: CancelBy, fresh: Option<Freshness>, observe_for: Duration) -> Ledger {
        Ledger {
            cancel,
            fresh,
            observe_for,
            last: None,
            live: HashMap::new(),
            former: HashSet::new(),
            closed: Vec::new(),
            unseen: Vec::new(),
            past: VecDeque::new(),
            looks: VecDeque::new(),
            contradictions: 0,
        }
    }

    /// Another engine is here than before, which is told of cancels like this and whose counters are so fresh. What the one before was sent is
    /// seen by nobody any more: its cancels are decided now, and its tokens show nothing of this one. What was held against its counters is
    /// forgotten with it.
    pub fn another(&mut self, cancel: CancelBy, fresh: Option<Freshness>) {
        (self.cancel, self.fresh) = (cancel, fresh);
        self.former.extend(self.live.drain().map(|(id, _)| id));
        self.unseen.extend(self.closed.drain(..).map(|closed| (closed.id, closed.closed)));
        self.past.clear();
        self.looks.clear();
    }

    /// A request is about to be sent, now. Returns what its reader notes its tokens in.
    pub fn sent(&mut self, id: u64, now: Duration) -> Arc<Tokens> {
        let needed = self.fresh.map_or(u32::MAX, |fresh| fresh.shown_before.max(1));
        let tokens = Arc::new(Tokens { needed, sent: now, ..Tokens::default() });
        self.live.insert(id, tokens.clone());
        tokens
    }

    /// Its answer was read to its end, or nothing of it was ever sent: it is not there, whatever becomes of others.
    pub fn ended(&mut self, id: u64) {
        self.former.remove(&id);
        if let Some(tokens) = self.live.remove(&id) {
            self.remember(tokens);
        }
    }

    /// Its connection was closed before the end of its answer, at `now` at the latest. A second close changes nothing.
    pub fn closed(&mut self, id: u64, now: Duration) {
        self.closed_on_its_way(id, now, Some(Duration::ZERO));
    }

    /// The same of a request that needs so much longer than others to come to where the engine counts it. `None`: nobody knows how long, so it is
    /// proven gone only if it had shown that it was there.
    pub fn closed_on_its_way(&mut self, id: u64, now: Duration, longer: Option<Duration>) {
        if self.former.remove(&id) {
            return self.unseen.push((id, now));
        }
        let Some(tokens) = self.live.remove(&id) else { return };
        let (come_by, looks_from) = match (self.fresh, longer) {
            (Some(fresh), Some(longer)) if !tokens.counted_by(now) => {
                let come_by = now.saturating_add(fresh.counted_within).saturating_add(longer);
                (come_by, (!fresh.needs_witness).then_some(come_by))
            }
            (Some(_), None) if !tokens.counted_by(now) => {
                self.unseen.push((id, now));
                return self.remember(tokens);
            }
            _ => (now, Some(now)),
        };
        self.closed.push(Closed { id, closed: now, come_by, looks_from });
        self.remember(tokens);
    }

    /// Nobody can hear of a proof after `last`: what is not proven by then is given up. The first word stands.
    pub fn end_by(&mut self, last: Duration) {
        self.last.get_or_insert(last);
    }

    /// When every proof is given up, if that was said.
    pub fn ends_by(&self) -> Option<Duration> {
        self.last
    }

    /// When the next look is useful, if any is: now or later. Not before the last one ended.
    pub fn look_from(&self) -> Option<Duration> {
        self.fresh.and_then(|_| self.closed.iter().filter_map(|closed| closed.looks_from).min())
    }

    /// From when on a request that is sent would be a witness that somebody waits for, if anybody does.
    pub fn witness_from(&self) -> Option<Duration> {
        self.closed.iter().filter(|closed| closed.looks_from.is_none()).map(|closed| closed.come_by).min()
    }

    /// A request that was sent at `sent` has shown as many tokens as a witness needs, by now.
    pub fn witnessed(&mut self, sent: Duration, now: Duration) {
        for closed in self.closed.iter_mut().filter(|closed| closed.looks_from.is_none() && closed.come_by <= sent) {
            closed.looks_from = Some(now);
        }
    }

    /// What ordinary requests have witnessed meanwhile.
    fn take_witnesses(&mut self) {
        for closed in self.closed.iter_mut().filter(|closed| closed.looks_from.is_none()) {
            closed.looks_from = self.live.values().chain(&self.past).filter_map(|tokens| tokens.witness_of(closed.come_by)).min();
        }
    }

    /// When the next verdict falls at the latest, whatever is seen.
    pub fn due(&self) -> Option<Duration> {
        let unseen = self.unseen.iter().map(|(_, closed)| *closed);
        self.closed.iter().map(|closed| self.give_up(closed)).chain(unseen).min()
    }

    /// The counters were looked at.
    pub fn looked(&mut self, look: Look) {
        self.take_witnesses();
        let serves = |closed: &Closed| closed.looks_from.is_some_and(|from| from <= look.began);
        if self.fresh.is_none() || !self.closed.iter().any(serves) {
            return;
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back(look);
    }

    /// What is decided by now. Each cancel is decided once. To be called after a look, and now and then until all is decided, for the tokens
    /// that came behind it: not for each of them, for it goes through all requests.
    pub fn verdicts(&mut self, now: Duration) -> Vec<Verdict> {
        self.take_witnesses();
        let mut proofs: Vec<Look> = Vec::new();
        for look in std::mem::take(&mut self.looks) {
            match look.present.cmp(&self.certainly(&look)) {
                std::cmp::Ordering::Less => {
                    // They are not what they are taken for: from now on they prove nothing.
                    self.contradictions += 1;
                    self.fresh = None;
                    continue;
                }
                std::cmp::Ordering::Equal => proofs.push(look),
                std::cmp::Ordering::Greater => {}
            }
            self.looks.push_back(look);
        }
        if self.fresh.is_none() {
            proofs.clear();
        }
        let without = if self.cancel == CancelBy::Nothing { Level::Unsupported } else { Level::BestEffort };
        let unseen = self.unseen.drain(..);
        let mut verdicts: Vec<_> = unseen.map(|(id, closed)| Verdict { id, level: without, closed, gone_by: None }).collect();
        for request in std::mem::take(&mut self.closed) {
            let serves = |look: &&Look| request.looks_from.is_some_and(|from| look.began >= from);
            let proof = proofs.iter().filter(serves).map(|look| look.ended).min();
            let (level, gone_by) = match (self.cancel, proof) {
                (CancelBy::Nothing, _) => (without, None),
                (_, Some(_)) => (Level::Observed, proof),
                (_, None) if now >= self.give_up(&request) => (without, None),
                _ => {
                    self.closed.push(request);
                    continue;
                }
            };
            verdicts.push(Verdict { id: request.id, level, closed: request.closed, gone_by });
        }
        self.forget();
        verdicts
    }

    /// How often the counters showed less than was certainly there. More than none: they are not what they are taken for.
    pub fn contradictions(&self) -> u64 {
        self.contradictions
    }

    /// Requests whose level is not decided.
    pub fn undecided(&self) -> usize {
        self.closed.len() + self.unseen.len()
    }

    fn give_up(&self, closed: &Closed) -> Duration {
        match (self.cancel, self.fresh) {
            (CancelBy::Nothing, _) | (_, None) => closed.closed,
            // Its first look may still come.
            (_, Some(_)) => {
                let usual = closed.looks_from.unwrap_or(closed.come_by).saturating_add(self.observe_for);
                self.last.map_or(usual, |last| usual.min(last))
            }
        }
    }

    /// How many of our own requests this look certainly counted, from all that is known now.
    fn certainly(&self, look: &Look) -> u64 {
        let Some(fresh) = self.fresh else { return 0 };
        let after = look.ended.saturating_add(fresh.delivered_within);
        let ours = self.live.values().chain(&self.past);
        ours.filter(|tokens| tokens.counted_by(look.began) && tokens.shown_since(after)).count() as u64
    }

    fn remember(&mut self, tokens: Arc<Tokens>) {
        if self.looks.is_empty() && self.witness_from().is_none() {
            return;
        }
        if self.past.len() == PAST_MAX {
            self.past.pop_front();
        }
        self.past.push_back(tokens);
    }

    /// Drops what can prove nothing any more.
    fn forget(&mut self) {
        let earliest = self.closed.iter().filter_map(|closed| closed.looks_from).min();
        self.looks.retain(|look| earliest.is_some_and(|earliest| look.began >= earliest));
        let (first, witness) = (self.looks.iter().map(|look| look.ended).min(), self.witness_from());
        let serves = |tokens: &Arc<Tokens>| {
            first.is_some_and(|first| tokens.shown_since(first)) || witness.is_some_and(|from| tokens.witness_of(from).is_some())
        };
        self.past.retain(serves);
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
