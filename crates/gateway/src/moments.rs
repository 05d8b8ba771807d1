//! What became of each worker's blocks over the last minutes: moments, each one cut of the worker's own state, kept small.
//!
//! A cut of 100,000 blocks is megabytes as it comes. Blocks beside one another are mostly alike, so a moment has what kinds there are and how
//! many in a row are of which, and the generations apart. When the moments have become too many bytes every second one of the older half goes,
//! so that the last minutes stay in sight, the older ones more coarsely.
//!
//! Invariant: nothing in a moment was not in its worker's cut; what is kept is bounded by time and by bytes.
// contract: C-15

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lifecycle::message::{BlockCut, Snapshot};
use lifecycle::{AttemptId, Incarnation, StepId};

use crate::asks::Cut;
use crate::calls::Calls;

/// The pause behind a moment, in parts of the time that it took.
const PART_OF_TIME: u32 = 50;

/// How long moments are kept, and how many bytes they may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MomentsConfig {
    /// How long a moment is kept. Default none: one is taken when somebody asks, and only the newest is there. `kvit` keeps five minutes.
    pub keep: Duration,
    /// How often a worker is asked whether its blocks stand otherwise than before. Default 1 s.
    pub every: Duration,
    /// Most bytes of all moments of a worker, as they are counted here; the newest stays in any case. Default 32 MiB.
    pub bytes_max: usize,
}

impl Default for MomentsConfig {
    fn default() -> Self {
        MomentsConfig { keep: Duration::ZERO, every: Duration::from_secs(1), bytes_max: 32 << 20 }
    }
}

/// The sums of a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Account {
    pub(crate) step: StepId,
    pub(crate) total: u32,
    pub(crate) free: u32,
    pub(crate) active: u32,
    pub(crate) orphaned: u32,
    pub(crate) cached: u32,
    pub(crate) draining: u32,
    pub(crate) quarantined: u32,
    pub(crate) conserved: bool,
}

impl Account {
    pub(crate) fn of(cut: &Snapshot) -> Account {
        let Snapshot { step, total, free, active, orphaned, cached, draining, quarantined, .. } = *cut;
        Account { step, total, free, active, orphaned, cached, draining, quarantined, conserved: cut.is_conserved() }
    }
}

/// What blocks have in common that are told of together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Kind {
    pub(crate) state: &'static str,
    pub(crate) owners: Vec<AttemptId>,
    pub(crate) fence: Option<StepId>,
}

/// One moment of a worker's blocks.
#[derive(Debug)]
pub(crate) struct Moment {
    /// Its number; a worker's moments are numbered upwards.
    pub(crate) number: u64,
    /// When it was taken, in milliseconds of the calendar.
    pub(crate) at_ms: u64,
    pub(crate) life: Option<Incarnation>,
    pub(crate) block_tokens: u32,
    pub(crate) account: Account,
    pub(crate) kinds: Vec<Kind>,
    /// How many blocks in a row, from the first on, are of which kind.
    pub(crate) cells: Vec<(u32, u32)>,
    /// The blocks' generations: how many in a row have which.
    generations: Vec<(u32, u64)>,
}

impl Moment {
    /// From a cut with blocks.
    pub(crate) fn of(number: u64, at_ms: u64, life: Option<Incarnation>, cut: Snapshot) -> Moment {
        let (account, block_tokens) = (Account::of(&cut), cut.block_tokens);
        let mut known: HashMap<Kind, u32> = HashMap::new();
        let (mut kinds, mut cells, mut generations) = (Vec::new(), Vec::new(), Vec::new());
        for BlockCut { generation, state, owners, fence, .. } in cut.blocks {
            let kind = Kind { state, owners, fence };
            let index = match known.get(&kind) {
                Some(index) => *index,
                None => {
                    let index = kinds.len() as u32;
                    kinds.push(kind.clone());
                    known.insert(kind, index);
                    index
                }
            };
            lengthen(&mut cells, index);
            lengthen(&mut generations, generation);
        }
        cells.shrink_to_fit();
        generations.shrink_to_fit();
        Moment { number, at_ms, life, block_tokens, account, kinds, cells, generations }
    }

    /// A block's kind and generation.
    pub(crate) fn block(&self, block: u32) -> Option<(&Kind, u64)> {
        let kind = self.kinds.get(at(&self.cells, block)? as usize)?;
        Some((kind, at(&self.generations, block)?))
    }

    /// About what it takes in memory.
    fn bytes(&self) -> usize {
        let owner = |owner: &AttemptId| size_of::<AttemptId>() + owner.key.run.as_str().len();
        let kinds: usize = self.kinds.iter().map(|kind| size_of::<Kind>() + kind.owners.iter().map(owner).sum::<usize>()).sum();
        size_of::<Moment>() + kinds + self.cells.len() * size_of::<(u32, u32)>() + self.generations.len() * size_of::<(u32, u64)>()
    }
}

/// One more of this in a row.
fn lengthen<T: PartialEq>(rows: &mut Vec<(u32, T)>, of: T) {
    match rows.last_mut() {
        Some((count, last)) if *last == of => *count += 1,
        _ => rows.push((1, of)),
    }
}

/// What the block at an index is.
fn at<T: Copy>(rows: &[(u32, T)], block: u32) -> Option<T> {
    let mut end = 0;
    rows.iter()
        .find(|(count, _)| {
            end += count;
            block < end
        })
        .map(|(_, of)| *of)
}

/// The moments of one worker, oldest first.
#[derive(Default, Debug)]
pub(crate) struct Film {
    moments: VecDeque<(usize, Arc<Moment>)>,
    bytes: usize,
    last: u64,
}

impl Film {
    /// Whether this cut's sums are those of the newest moment: then nothing was computed since, and no block stands otherwise.
    fn is_still(&self, life: Option<Incarnation>, cut: &Snapshot) -> bool {
        self.newest().is_some_and(|newest| newest.life == life && newest.account == Account::of(cut))
    }

    /// Takes a cut in, and lets go of what is too old or too much. An older life of the worker's is over, and so are its moments.
    fn take(&mut self, at_ms: u64, life: Option<Incarnation>, cut: Snapshot, config: &MomentsConfig) {
        if self.newest().is_some_and(|newest| newest.life != life) {
            self.moments.clear();
            self.bytes = 0;
        }
        self.last += 1;
        let moment = Moment::of(self.last, at_ms, life, cut);
        let bytes = moment.bytes();
        self.bytes += bytes;
        self.moments.push_back((bytes, Arc::new(moment)));
        let keep = u64::try_from(config.keep.as_millis()).unwrap_or(u64::MAX);
        // A moment holds until the next one: the oldest goes when its successor has that age.
        while self.moments.get(1).is_some_and(|(_, second)| second.at_ms.saturating_add(keep) <= at_ms) {
            let gone = self.moments.pop_front().map_or(0, |(bytes, _)| bytes);
            self.bytes -= gone;
        }
        while self.bytes > config.bytes_max && self.moments.len() > 1 {
            self.thin();
        }
    }

    /// Every second moment of the older half goes, the oldest one for certain.
    fn thin(&mut self) {
        let half = (self.moments.len() / 2).max(1);
        let mut place = 0;
        self.moments.retain(|_| {
            place += 1;
            place > half || place % 2 == 0
        });
        self.bytes = self.moments.iter().map(|(bytes, _)| bytes).sum();
    }

    pub(crate) fn newest(&self) -> Option<&Arc<Moment>> {
        self.moments.back().map(|(_, moment)| moment)
    }

    /// The moment of a number.
    pub(crate) fn get(&self, number: u64) -> Option<&Arc<Moment>> {
        let place = self.moments.binary_search_by_key(&number, |(_, moment)| moment.number).ok()?;
        self.moments.get(place).map(|(_, moment)| moment)
    }

    /// Every moment, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Moment>> {
        self.moments.iter().map(|(_, moment)| moment)
    }
}

/// The films of all workers, by name, and when they were last looked at.
#[derive(Default, Debug)]
pub(crate) struct Films {
    pub(crate) by_worker: BTreeMap<Arc<str>, Film>,
    looked: Option<Instant>,
}

impl Calls {
    /// The films as they are.
    pub(crate) fn films(&self) -> MutexGuard<'_, Films> {
        self.films.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks each worker whether its blocks stand otherwise than in its newest moment, and takes a further one of those where they do. Nobody
    /// is asked if that was done less than `every` ago. Answers how long the workers took for it.
    pub(crate) async fn take_moments(&self) -> Duration {
        let config = self.config.moments;
        let began = Instant::now();
        {
            let mut films = self.films();
            // Whoever comes meanwhile sees what was there before.
            if films.looked.is_some_and(|looked| began.duration_since(looked) < config.every) {
                return Duration::ZERO;
            }
            films.looked = Some(began);
        }
        let sums = self.own_snapshots(false).await;
        let moved = {
            let mut films = self.films();
            films.by_worker.retain(|name, _| sums.iter().any(|cut| cut.name == *name));
            let is_still = |cut: &Cut, sum: &Snapshot| films.by_worker.get(&cut.name).is_some_and(|film| film.is_still(cut.life, sum));
            sums.iter().any(|cut| cut.snapshot.as_ref().is_some_and(|sum| !is_still(cut, sum)))
        };
        if moved {
            for cut in self.own_snapshots(true).await {
                let Some(snapshot) = cut.snapshot else { continue };
                let at_ms = self.calendar_ms();
                let mut films = self.films();
                let film = films.by_worker.entry(cut.name).or_default();
                if !film.is_still(cut.life, &snapshot) {
                    film.take(at_ms, cut.life, *snapshot, &config);
                }
            }
        }
        began.elapsed()
    }

    /// Takes moments as long as it is let. A worker of very many blocks is asked less often: for a small part of its time at most.
    pub(crate) async fn film(&self) {
        if self.config.moments.keep.is_zero() {
            return;
        }
        loop {
            let took = self.take_moments().await;
            tokio::time::sleep(self.config.moments.every.max(took.saturating_mul(PART_OF_TIME))).await;
        }
    }

    /// Now, in milliseconds of the calendar.
    pub(crate) fn calendar_ms(&self) -> u64 {
        self.journal.clock().calendar_ms(self.now())
    }
}
