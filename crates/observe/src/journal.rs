//! The journal: the one place where records arrive, are stamped, kept for a while, and folded into every view.
//!
//! One lock, held for one fold: records come once a run and step from the engine's thread, and a few times a run from the gateway's. A
//! reader takes what it needs under the lock and makes JSON or text of it outside.
//!
//! Invariant: a run's view and the metrics page are each one cut of one stream, so no two of them disagree; memory is bounded by `Limits`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lifecycle::event::{Event, Record};
use lifecycle::session::PeerState;
use lifecycle::{RunKey, Tenant, Time};

use crate::alert::{Alert, AlertRules, AlertState, AlertsView, Seen};
use crate::clock::Clock;
use crate::evicted::{Evicted, Recall};
use crate::files::Counts;
use crate::fold::{AttemptKnown, Run};
use crate::history::{History, Tally, WINDOWS};
use crate::metrics::{Defect, Scrape, Totals, WorkerScrape};
use crate::runs::{PAGE_MAX, RunFilter, RunPage};
use crate::standing::{fold_into, matches};
use crate::view::{RunState, RunView};
use crate::waiting::Waiting;
use crate::waste::{Prices, WasteView};

mod filed;
mod look;
mod ring;

pub(crate) use filed::Folding;

/// Live runs are never forgotten below this many times `Limits::runs`.
const HARD_LIMIT_FACTOR: usize = 8;

/// Runs that a listing looks at without letting go of the lock, so that a long list does not hold up the engine's thread.
const SCAN: usize = 128;

/// Runs forgotten at most when one is opened: more than one, so that a crowd of live runs shrinks back to the limit, and few, so that no
/// record takes long.
const FORGET_PER_OPEN: usize = 2;

/// How much is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Records in the ring; the oldest go first.
    pub records: usize,
    /// Runs with a view. Beyond it the run that settled first is forgotten. Live runs stay, up to eight times as many.
    pub runs: usize,
    /// Ids of runs that were evicted so, kept to say that they were.
    pub evicted: usize,
    /// The window that waste is reckoned over.
    pub window: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { records: 65_536, runs: 10_000, evicted: 32_768, window: Duration::from_secs(300) }
    }
}

/// What is known by run. Its hash has a random key, since callers choose the ids.
pub type ByRun<T> = HashMap<RunKey, T, ahash::RandomState>;

/// The process's journal. A clone is the same journal.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    clock: Clock,
    limits: Limits,
    state: Mutex<State>,
    /// Counts what goes to files, where it does.
    filed: OnceLock<Arc<Counts>>,
}

struct State {
    ring: VecDeque<Record>,
    /// Records that were ever in the ring: the number of its newest.
    taken: u64,
    runs: ByRun<Run>,
    /// Runs in order of acceptance.
    order: BTreeMap<u64, RunKey>,
    /// Runs that are over, by their place in `order`, in the order in which they came to be.
    over: VecDeque<u64>,
    evicted: Evicted,
    next_seq: u64,
    /// How each gateway stands with the worker, where there is a worker with sessions; the worker bounds how many it knows.
    gateways: BTreeMap<Arc<str>, PeerState>,
    waiting: Waiting,
    /// Since when each account that was cut had blocks of orphans.
    orphaned_blocks: Option<Time>,
    history: History,
    totals: Totals,
}

impl Journal {
    /// An empty journal that stamps with `clock`.
    pub fn new(clock: Clock, limits: Limits) -> Journal {
        Journal(Arc::new(Shared { clock, limits, state: Mutex::new(State::new(limits)), filed: OnceLock::new() }))
    }

    /// The clock that stamps its records.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// Stamps an event with the time of now, keeps it and folds it. `attempt` is 0 where none exists yet, `run` is `None` for what concerns
    /// the worker as a whole.
    pub fn record(&self, run: Option<&RunKey>, attempt: u32, event: Event) {
        let run = run.cloned();
        let mut state = self.lock();
        // Stamped under the lock: the ring's order is the order of its times.
        let at = self.0.clock.now();
        state.take(Record { at, run, attempt, event }, self.0.limits);
    }

    /// Keeps and folds a record that carries its own time: for batches that were stamped together, and for tests.
    pub fn record_at(&self, record: Record) {
        self.lock().take(record, self.0.limits);
    }

    /// A run as the API shows it. `None` if it is not known here, never was or no longer is.
    pub fn run(&self, key: &RunKey) -> Option<RunView> {
        self.folded(key).map(|run| RunView::of(&run, self.0.clock))
    }

    /// What the journal keeps of a run, as it stands.
    pub(crate) fn folded(&self, key: &RunKey) -> Option<Run> {
        self.lock().runs.get(key).cloned()
    }

    /// What the records of an attempt say. `None` if none is known.
    pub fn attempt(&self, key: &RunKey, number: u32) -> Option<AttemptKnown> {
        self.lock().runs.get(key)?.known(number)
    }

    /// Whether a run is held, was evicted, or never was, as far as that is still known.
    pub fn recall(&self, key: &RunKey) -> Recall {
        let state = self.lock();
        if state.runs.contains_key(key) { Recall::Held } else { state.evicted.recall(key) }
    }

    /// How much this journal remembers.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// A tenant's runs, newest first; each as it stood when it was looked at, not all of them at one moment. `None` if `filter.after` names no run of this tenant that is still known.
    // contract: C-30
    pub fn runs(&self, tenant: &Tenant, filter: &RunFilter) -> Option<RunPage> {
        let before = match &filter.after {
            Some(id) => self.lock().runs.get(&RunKey { tenant: tenant.clone(), run: id.clone() })?.seq,
            None => u64::MAX,
        };
        Some(self.page(before, filter, |key| key.tenant == *tenant))
    }

    /// The runs of all tenants, for an operator: as `runs`, but that there is no going on behind a run, whose id alone does not name it here.
    pub fn runs_of_all(&self, filter: &RunFilter) -> RunPage {
        self.page(u64::MAX, filter, |_| true)
    }

    /// The page of those before a place in the order of acceptance.
    fn page(&self, mut before: u64, filter: &RunFilter, sees: impl Fn(&RunKey) -> bool) -> RunPage {
        let limit = filter.limit.clamp(1, PAGE_MAX);
        let mut found: Vec<Run> = Vec::new();
        while found.len() <= limit {
            let state = self.lock();
            let older = state.order.range(..before).rev().take(SCAN);
            let Some((oldest, _)) = older.clone().last() else { break };
            before = *oldest;
            let runs = older.filter(|(_, key)| sees(key)).filter_map(|(_, key)| state.runs.get(key));
            found.extend(runs.filter(|run| matches(run, filter)).cloned());
        }
        let has_more = found.len() > limit;
        found.truncate(limit);
        RunPage { object: "list", data: found.iter().map(|run| RunView::of(run, self.0.clock)).collect(), has_more }
    }

    /// The metrics page, as `scrape.format` says: the journal's totals as one cut, and the worker's account as the scrape brings it. An
    /// account that does not add up is shown as it is and counted as a defect.
    // contract: C-15
    pub fn metrics(&self, scrape: &Scrape<'_>) -> String {
        let now = self.0.clock.now();
        let mut totals = self.lock().cut(scrape.workers, now);
        totals.filed = self.filed();
        totals.expose(scrape, self.0.limits, self.0.clock.epoch_us(now))
    }

    /// Every alert rule as it stands; the accounts as with `metrics`.
    pub fn alerts(&self, rules: &AlertRules, workers: &[WorkerScrape<'_>]) -> AlertsView {
        let now = self.0.clock.now();
        let mut state = self.lock();
        let totals = state.cut(workers, now);
        let seen = Seen { now, totals: &totals, history: &state.history, workers };
        let data: Vec<_> = Alert::ALL.into_iter().map(|alert| alert.look(rules, &seen)).collect();
        AlertsView { object: "list", firing: data.iter().filter(|a| a.state == AlertState::Firing).count(), data }
    }

    /// The two views of waste, and the cost of answers.
    pub fn waste(&self, prices: &Prices) -> WasteView {
        let now = self.0.clock.now();
        let state = self.lock();
        let (history, totals) = (&state.history, &state.totals);
        let (latest, total) = (history.latest(now, totals), Tally::of(totals));
        let windows: Vec<Tally> = (0..WINDOWS).map_while(|back| history.window(back, now, totals)).collect();
        drop(state);
        WasteView::new(self.0.limits.window, &latest, &windows, &total, prices)
    }

    /// The base of a run's times, and in how many steps something was computed for it.
    pub(crate) fn base_and_steps(&self, key: &RunKey) -> Option<(Time, u64)> {
        let state = self.lock();
        let run = state.runs.get(key)?;
        Some((run.base(), run.meter.waste().steps))
    }

    /// Defects seen so far, of every kind. Anything above 0 is a bug of kvit's.
    pub fn defects(&self) -> u64 {
        self.lock().totals.defects()
    }

    /// A thread that panicked while it held the lock leaves at worst one record half folded; views go on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(limits: Limits) -> State {
        State {
            ring: VecDeque::new(),
            runs: ByRun::default(),
            order: BTreeMap::new(),
            over: VecDeque::new(),
            evicted: Evicted::default(),
            next_seq: 0,
            gateways: BTreeMap::new(),
            waiting: Waiting::default(),
            orphaned_blocks: None,
            history: History::new(limits.window),
            taken: 0,
            totals: Totals::default(),
        }
    }

    fn take(&mut self, record: Record, limits: Limits) {
        self.history.pass(record.at, &self.totals);
        match &record.event {
            Event::StepDone { .. } => self.totals.steps += 1,
            Event::DeviceBusy { span } => self.totals.busy_us += u64::try_from(span.as_micros()).unwrap_or(u64::MAX),
            Event::DeviceFailed { .. } => self.totals.device_failures += 1,
            Event::Defect { .. } => self.totals.defect(Defect::Refused),
            Event::StaleMessage => self.totals.stale_messages += 1,
            Event::SessionOpened { .. } => self.totals.sessions_opened += 1,
            Event::Gateway { gateway, state } => self.gateway(gateway, *state),
            _ => {}
        }
        if let Some(key) = &record.run {
            self.fold(key, &record, limits);
        }
        if self.ring.len() >= limits.records {
            self.ring.pop_front();
        }
        if limits.records > 0 {
            self.ring.push_back(record);
            self.taken += 1;
        }
    }

    /// The totals with the gauges that only a look can have, and what the workers' accounts say against their contract.
    fn cut(&mut self, workers: &[WorkerScrape<'_>], now: Time) -> Totals {
        self.history.pass(now, &self.totals);
        let accounts = || workers.iter().filter_map(|worker| worker.snapshot);
        for _ in accounts().filter(|account| !account.is_conserved()) {
            self.totals.defect(Defect::NotConserved);
        }
        // A gateway that is lost took its records along: its orphans show in the account alone.
        if accounts().any(|account| account.orphaned > 0) {
            self.orphaned_blocks.get_or_insert(now);
        } else if accounts().next().is_some() {
            self.orphaned_blocks = None;
        }
        let mut totals = self.totals.clone();
        totals.records = self.ring.len() as u64;
        let age = |since: Option<Time>| since.map_or(0, |at| u64::try_from(now.since(at).as_micros()).unwrap_or(u64::MAX));
        totals.unacknowledged_oldest_us = age(self.waiting.unacknowledged());
        totals.orphans_oldest_us = age(self.waiting.orphan()).max(age(self.orphaned_blocks));
        totals
    }

    fn gateway(&mut self, gateway: &Arc<str>, state: Option<PeerState>) {
        let before = match state {
            Some(state) => self.gateways.insert(gateway.clone(), state),
            None => self.gateways.remove(gateway),
        };
        if let Some(before) = before {
            self.totals.gateways[before as usize] -= 1;
        }
        if state == Some(PeerState::LeaseOver) && before != state {
            self.totals.leases_over += 1;
        }
        if let Some(state) = state {
            self.totals.gateways[state as usize] += 1;
        }
    }

    fn fold(&mut self, key: &RunKey, record: &Record, limits: Limits) {
        // A gateway that was started anew may choose a name again that its former life had given: another run (C-23). The worker has released
        // the first one by then.
        let again = |run: &Run| matches!(record.event, Event::Queued { .. }) && run.has_released(record.attempt);
        match self.runs.get_mut(key) {
            Some(run) if !again(run) => return fold_into(run, record, (&mut self.totals, &mut self.over, &mut self.waiting)),
            Some(run) => {
                let seq = run.seq;
                self.over.retain(|over| *over != seq);
                self.drop_run(seq);
            }
            None => {}
        }
        // Only the front doors' records open a run, the gateway's and the worker's: a late record must not bring a forgotten run back.
        if !matches!(record.event, Event::Accepted { .. } | Event::Queued { .. }) {
            self.totals.unmatched += 1;
            return;
        }
        self.open(key, record, limits);
        if let Some(run) = self.runs.get_mut(key) {
            fold_into(run, record, (&mut self.totals, &mut self.over, &mut self.waiting));
        }
    }

    fn open(&mut self, key: &RunKey, record: &Record, limits: Limits) {
        for _ in 0..FORGET_PER_OPEN {
            if self.runs.len() >= limits.runs.max(1) {
                self.forget_one(limits);
            }
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.order.insert(seq, key.clone());
        self.runs.insert(key.clone(), Run::new(key.clone(), seq, record.at));
        self.totals.runs[RunState::Queued as usize] += 1;
    }

    /// Forgets the run that settled first; a live one only beyond the hard limit, where the oldest goes and is counted.
    fn forget_one(&mut self, limits: Limits) {
        let seq = match self.over.pop_front() {
            Some(seq) => seq,
            None if self.runs.len() >= limits.runs.max(1).saturating_mul(HARD_LIMIT_FACTOR) => {
                self.totals.forgotten += 1;
                match self.order.first_key_value() {
                    Some((seq, _)) => *seq,
                    None => return,
                }
            }
            None => return,
        };
        if let Some(run) = self.drop_run(seq) {
            self.evicted.push(run.key, limits.evicted);
        }
    }

    fn drop_run(&mut self, seq: u64) -> Option<Run> {
        let mut run = self.order.remove(&seq).and_then(|key| self.runs.remove(&key))?;
        self.waiting.forget(&mut run);
        self.totals.runs[run.stands.state as usize] -= 1;
        self.totals.unacknowledged -= u64::from(run.stands.awaits);
        self.totals.orphans -= run.stands.orphans;
        Some(run)
    }
}
