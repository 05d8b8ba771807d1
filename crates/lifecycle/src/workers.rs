//! The workers that a gateway knows: which are here, and which of them a run goes to.
//!
//! What their sessions say goes in; nothing here ends a run. A worker that is silent is only not chosen; one that is lost is lost for good
//! as the life that it was, and may come back as another.
//!
//! Invariant: a run is given only to a worker that is here, does not drain and has the model that was asked for.
// contract: C-3 C-10

use std::sync::Arc;

use crate::Incarnation;
use crate::affinity::{self, Affinity};
use crate::make::Make;
use crate::message::ModelInfo;
use crate::session::ClockSample;

/// A worker, by its place in its gateway's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerIndex(pub u32);

/// Whether a worker can be spoken with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Presence {
    /// It was never met.
    Unknown,
    /// It answers.
    Here,
    /// It failed run after run, and may have mended: it is given one at a time, until one goes well.
    Trial {
        /// The newest submit before: those up to it are none of the trial.
        after: u64,
    },
    /// It has not been heard for a while; what it has is not over.
    Silent,
    /// Nobody listens where it was; what it has is not over, and nobody waits for it.
    Refused,
    /// The life that was known is over; another may come.
    Lost,
    /// It cannot come back: its link is over.
    Gone,
}

/// What a worker offers when a gateway meets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its models.
    pub models: Vec<ModelInfo>,
    /// Runs that it is given at once; further ones wait in the gateway, where a cancel costs nothing. `None` for a worker with a queue of its
    /// own that drops what is cancelled.
    pub slots: Option<u32>,
    /// It speaks OpenAI's HTTP itself: a request can be forwarded to it as it came.
    pub forwards: bool,
    /// What it is; `None` before it was met.
    pub make: Option<Make>,
}

impl From<ModelInfo> for Offer {
    /// A worker of kvit's own.
    fn from(model: ModelInfo) -> Offer {
        Offer { models: vec![model], slots: None, forwards: false, make: Some(Make::WORKER) }
    }
}

/// What a run needs of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need<'a> {
    /// The model that was asked for.
    pub model: &'a str,
    /// Its request goes on as it came, or in words that only an engine of others has.
    pub forwarded: bool,
    /// The beginning of its prompt, if it has one that a worker may have computed before.
    pub affinity: Option<Affinity>,
}

impl<'a> Need<'a> {
    /// A run for this model on any worker.
    pub const fn of(model: &'a str) -> Need<'a> {
        Need { model, forwarded: false, affinity: None }
    }
}

/// What is known of a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerState {
    /// Its name.
    pub name: Arc<str>,
    /// The newest life that was met.
    pub life: Option<Incarnation>,
    /// Whether it can be spoken with.
    pub presence: Presence,
    /// It takes no new runs.
    pub draining: bool,
    /// Why its device takes no more steps, once it does not.
    pub device_lost: Option<String>,
    /// What it says that it has; empty before it was met.
    pub offer: Offer,
    /// Its clock, if it was compared.
    pub clock: Option<ClockSample>,
}

impl WorkerState {
    /// Whether a life of it is known that is not over.
    const fn is_there(&self) -> bool {
        matches!(self.presence, Presence::Here | Presence::Trial { .. } | Presence::Silent | Presence::Refused)
    }

    /// The word for it on the API.
    pub const fn word(&self) -> &'static str {
        match self.presence {
            Presence::Unknown => "unknown",
            Presence::Here | Presence::Trial { .. } if self.draining => "draining",
            Presence::Here => "here",
            Presence::Trial { .. } => "trial",
            Presence::Silent => "silent",
            Presence::Refused => "refused",
            Presence::Lost | Presence::Gone => "lost",
        }
    }

    /// Whether new runs are for it.
    fn is_open(&self) -> bool {
        matches!(self.presence, Presence::Here | Presence::Trial { .. }) && !self.draining
    }

    /// Whether it may be given such a run at some time.
    fn suits(&self, need: &Need<'_>) -> bool {
        self.is_open() && self.serves(need)
    }

    /// Whether what it offers is what such a run needs.
    fn serves(&self, need: &Need<'_>) -> bool {
        self.model(need.model).is_some() && (self.offer.forwards || !need.forwarded)
    }

    /// Whether it is known that it does not serve such a run, and will not as long as it is what it is.
    fn never_serves(&self, need: &Need<'_>) -> bool {
        match self.presence {
            Presence::Gone => true,
            // Another life may have anything, and so may one that was never met, unless it is said what that has.
            Presence::Lost => false,
            Presence::Unknown if self.offer.models.is_empty() => false,
            Presence::Unknown | Presence::Here | Presence::Trial { .. } | Presence::Silent | Presence::Refused => !self.serves(need),
        }
    }

    /// Whether it has room for one more, having so much to do.
    fn has_room(&self, load: Load) -> bool {
        // contract: C-10. What it was sent before it failed may go on for long, and is not what is tried.
        let is_tried = matches!(self.presence, Presence::Trial { after } if load.newest > after);
        !is_tried && self.offer.slots.is_none_or(|slots| load.runs < slots)
    }

    /// What it says of this model, if it has it.
    pub fn model(&self, id: &str) -> Option<&ModelInfo> {
        self.offer.models.iter().find(|known| *known.id == *id)
    }
}

/// What a worker has to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Load {
    /// Tokens that its runs may still generate.
    pub tokens: u64,
    /// Its runs.
    pub runs: u32,
    /// The newest submit of them; 0 if there is none.
    pub newest: u64,
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, more: Load) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.runs = self.runs.saturating_add(more.runs);
        self.newest = self.newest.max(more.newest);
    }
}

/// All workers of a gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workers {
    list: Vec<WorkerState>,
}

impl Workers {
    /// One more, that was not met yet.
    pub fn add(&mut self, name: Arc<str>) -> WorkerIndex {
        let index = WorkerIndex(u32::try_from(self.list.len()).unwrap_or(u32::MAX));
        let offer = Offer { models: Vec::new(), slots: None, forwards: false, make: None };
        let (life, presence, draining) = (None, Presence::Unknown, false);
        self.list.push(WorkerState { name, life, presence, draining, device_lost: None, offer, clock: None });
        index
    }

    /// What one that was not met yet is said to have: runs for that wait for it.
    pub fn expects(&mut self, worker: WorkerIndex, offer: Offer) {
        if let Some(known) = self.change(worker).filter(|known| known.presence == Presence::Unknown) {
            known.offer = offer;
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerIndex, &WorkerState)> {
        (0..).map(WorkerIndex).zip(&self.list)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// One of them.
    pub fn get(&self, worker: WorkerIndex) -> Option<&WorkerState> {
        self.list.get(worker.0 as usize)
    }

    fn change(&mut self, worker: WorkerIndex) -> Option<&mut WorkerState> {
        // What has gone stays gone.
        self.list.get_mut(worker.0 as usize).filter(|known| known.presence != Presence::Gone)
    }

    /// A life of it answers. The life that is over by that, if another one was here.
    // contract: C-3
    pub fn here(&mut self, worker: WorkerIndex, life: Incarnation, offer: Offer, name: Arc<str>) -> Option<Incarnation> {
        // Two that call themselves the same are still two on every page that names them.
        let is_taken = self.iter().any(|(other, known)| other != worker && known.name == name);
        let name = if is_taken { format!("{name}~{}", worker.0).into() } else { name };
        let known = self.change(worker)?;
        let was_there = known.is_there();
        let former = known.life.filter(|former| was_there && *former != life);
        let fresh =
            WorkerState { name, life: Some(life), presence: Presence::Here, draining: false, device_lost: None, offer, clock: None };
        // The same life that comes back after a pause still drains, and its device is still lost.
        let same = known.life == Some(life);
        *known = WorkerState {
            draining: same && known.draining,
            device_lost: known.device_lost.take().filter(|_| same),
            clock: known.clock.filter(|_| same),
            ..fresh
        };
        former
    }

    /// The same life of it offers something else from now on.
    pub fn offers(&mut self, worker: WorkerIndex, offer: Offer) {
        if let Some(known) = self.change(worker).filter(|known| known.is_there()) {
            known.offer = offer;
        }
    }

    /// It was not heard for a while, or is heard again.
    // contract: C-10
    pub fn heard(&mut self, worker: WorkerIndex, is_heard: bool) {
        let Some(known) = self.change(worker).filter(|known| known.is_there()) else { return };
        known.presence = match known.presence {
            _ if is_heard => Presence::Here,
            // That says less than is known.
            Presence::Refused => Presence::Refused,
            _ => Presence::Silent,
        };
    }

    /// It answers again, and is given one run at a time until it is heard as before: of those behind the submit `after`, the newest so far.
    // contract: C-10
    pub fn tried(&mut self, worker: WorkerIndex, after: u64) {
        if let Some(known) = self.change(worker).filter(|known| known.is_there()) {
            known.presence = Presence::Trial { after };
        }
    }

    /// Its host refuses connections. Whether this is news of the life that is known.
    // contract: C-9
    pub fn refused(&mut self, worker: WorkerIndex, life: Incarnation) -> bool {
        let is_it = |known: &&mut WorkerState| known.life == Some(life) && known.is_there() && known.presence != Presence::Refused;
        self.change(worker).filter(is_it).map(|known| known.presence = Presence::Refused).is_some()
    }

    /// A life of it is over for good. Whether it was the one that is known.
    pub fn lost(&mut self, worker: WorkerIndex, life: Incarnation) -> bool {
        let known = self.change(worker).filter(|known| known.life == Some(life) && known.presence != Presence::Lost);
        known.map(|known| known.presence = Presence::Lost).is_some()
    }

    /// Its link is over: it cannot come back. The life that is over by that, if there was one.
    pub fn gone(&mut self, worker: WorkerIndex) -> Option<Incarnation> {
        let known = self.change(worker)?;
        let was_there = known.is_there();
        known.presence = Presence::Gone;
        known.life.filter(|_| was_there)
    }

    /// It says that it takes no new runs.
    pub fn drains(&mut self, worker: WorkerIndex) {
        if let Some(known) = self.change(worker) {
            known.draining = true;
        }
    }

    /// It says that its device takes no more steps. The first reason stands.
    pub fn device_lost(&mut self, worker: WorkerIndex, why: String) {
        if let Some(known) = self.change(worker) {
            known.device_lost.get_or_insert(why);
        }
    }

    /// Its clock was compared.
    pub fn clock(&mut self, worker: WorkerIndex, clock: ClockSample) {
        if let Some(known) = self.change(worker) {
            known.clock = Some(clock);
        }
    }

    /// Whether this life of it speaks now; what another one says changes nothing.
    // contract: C-3
    pub fn is_current(&self, worker: WorkerIndex, life: Incarnation) -> bool {
        self.get(worker).filter(|known| known.is_there()).is_some_and(|known| known.life == Some(life))
    }

    /// Whether all of them have gone, so that waiting is in vain.
    pub fn are_gone(&self) -> bool {
        self.list.iter().all(|known| known.presence == Presence::Gone)
    }

    /// Whether all of them are known and none serves such a run, so that it would wait in vain.
    pub fn never_serve(&self, need: &Need<'_>) -> bool {
        self.list.iter().all(|known| known.never_serves(need))
    }

    /// Whether one is here that takes new runs.
    pub fn is_any_here(&self) -> bool {
        self.list.iter().any(WorkerState::is_open)
    }

    /// Why no device takes a step any more, if none of those that take runs has one that does.
    pub fn all_devices_lost(&self) -> Option<&str> {
        let mut here = self.list.iter().filter(|known| known.is_open());
        let first = here.next()?.device_lost.as_deref()?;
        here.all(|known| known.device_lost.is_some()).then_some(first)
    }

    /// Whether somebody may come of whom nobody knows what it has, or no model is known at all.
    pub fn may_have_others(&self) -> bool {
        let is_unknown = |known: &WorkerState| known.presence == Presence::Unknown && known.offer.models.is_empty();
        self.list.iter().any(is_unknown) || self.models().is_empty()
    }

    /// The models that are known, each once, in the order of the workers.
    pub fn models(&self) -> Vec<&ModelInfo> {
        let mut models: Vec<&ModelInfo> = Vec::new();
        for model in self.list.iter().flat_map(|known| &known.offer.models) {
            if models.iter().all(|known| known.id != model.id) {
                models.push(model);
            }
        }
        models
    }

    /// Whether requests for this model are forwarded as they come: every engine that is known to have it speaks their language.
    pub fn forwards(&self, model: &str) -> bool {
        let mut theirs = self.list.iter().filter(|known| known.model(model).is_some()).peekable();
        theirs.peek().is_some() && theirs.all(|known| known.offer.forwards)
    }

    /// The worker that a run goes to: of those that may take it, one whose device works before one whose does not; then, for a prompt whose
    /// beginning is known, the one that has most likely computed that, as long as it has no more than `percent` / 100 of its share of the
    /// runs; then the one with the fewest tokens to do, then with the fewest runs, then the first. One whose slots are taken is given nothing,
    /// and a request that goes on as it came goes only where it is understood.
    pub fn choose(&self, need: &Need<'_>, percent: u32, load: impl Fn(WorkerIndex) -> Load) -> Option<WorkerIndex> {
        let suits = || self.iter().filter(|(_, known)| known.suits(need));
        let may = || suits().filter(|(index, known)| known.has_room(load(*index)));
        let least = may().min_by_key(|(index, known)| {
            let load = load(*index);
            (known.device_lost.is_some(), load.tokens, load.runs, *index)
        });
        let least = least.map(|(index, _)| index);
        let Some(affinity) = need.affinity.filter(|_| may().nth(1).is_some()) else { return least };
        // Shares are by slots, where all say how many they have.
        let by_slots = suits().all(|(_, known)| known.offer.slots.is_some());
        let weight = |known: &WorkerState| known.offer.slots.filter(|_| by_slots);
        let (mut runs, mut weights) = (0, 0);
        for (index, known) in suits() {
            runs += u64::from(load(index).runs);
            weights += u64::from(weight(known).unwrap_or(1));
        }
        let is_within = |index, known| u64::from(load(index).runs) < affinity::bound(runs, (weight(known), weights), percent);
        let liked = may().filter(|(index, known)| known.device_lost.is_none() && is_within(*index, known));
        let first = liked.max_by_key(|(index, known)| (affinity.score(&known.name), std::cmp::Reverse(*index)));
        first.map(|(index, _)| index).or(least)
    }
}
