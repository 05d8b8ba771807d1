//! The workers that a gateway knows: which are here, and which of them a run goes to.
//!
//! What their sessions say goes in; nothing here ends a run. A worker that is silent is only not chosen; one that is lost is lost for good
//! as the life that it was, and may come back as another.
//!
//! Invariant: a run is given only to a worker that is here, does not drain and has the model that was asked for.
// contract: C-3 C-10

use std::sync::Arc;

use crate::Incarnation;
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
    /// It has not been heard for a while; what it has is not over.
    Silent,
    /// Nobody listens where it was; what it has is not over, and nobody waits for it.
    Refused,
    /// The life that was known is over; another may come.
    Lost,
    /// It cannot come back: its link is over.
    Gone,
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
    /// What it says of its model.
    pub model: Option<ModelInfo>,
    /// Its clock, if it was compared.
    pub clock: Option<ClockSample>,
}

impl WorkerState {
    /// Whether a life of it is known that is not over.
    const fn is_there(&self) -> bool {
        matches!(self.presence, Presence::Here | Presence::Silent | Presence::Refused)
    }

    /// The word for it on the API.
    pub const fn word(&self) -> &'static str {
        match self.presence {
            Presence::Unknown => "unknown",
            Presence::Here if self.draining => "draining",
            Presence::Here => "here",
            Presence::Silent => "silent",
            Presence::Refused => "refused",
            Presence::Lost | Presence::Gone => "lost",
        }
    }

    /// Whether it may be given a run for this model, having so much to do.
    fn takes(&self, model: &str, forwarded: bool, load: Load) -> bool {
        let known = self.model.as_ref().filter(|known| *known.id == *model);
        let has_room = known.is_some_and(|known| known.slots.is_none_or(|slots| load.runs < slots) && (known.forwards || !forwarded));
        self.presence == Presence::Here && !self.draining && has_room
    }

    /// Whether this is its model.
    pub fn serves(&self, model: &str) -> bool {
        self.model.as_ref().is_some_and(|known| *known.id == *model)
    }
}

/// What a worker has to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Load {
    /// Tokens that its runs may still generate.
    pub tokens: u64,
    /// Its runs.
    pub runs: u32,
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, more: Load) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.runs = self.runs.saturating_add(more.runs);
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
        let (life, presence, draining) = (None, Presence::Unknown, false);
        self.list.push(WorkerState { name, life, presence, draining, device_lost: None, model: None, clock: None });
        index
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
    pub fn here(&mut self, worker: WorkerIndex, life: Incarnation, model: ModelInfo, name: Arc<str>) -> Option<Incarnation> {
        // Two that call themselves the same are still two on every page that names them.
        let is_taken = self.iter().any(|(other, known)| other != worker && known.name == name);
        let name = if is_taken { format!("{name}~{}", worker.0).into() } else { name };
        let known = self.change(worker)?;
        let was_there = known.is_there();
        let former = known.life.filter(|former| was_there && *former != life);
        let fresh = WorkerState {
            name,
            life: Some(life),
            presence: Presence::Here,
            draining: false,
            device_lost: None,
            model: Some(model),
            clock: None,
        };
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

    /// Its host refuses connections. Whether this is news of the life that is known.
    // contract: C-9
    pub fn refused(&mut self, worker: WorkerIndex, life: Incarnation) -> bool {
        let is_it = |known: &&mut WorkerState| known.life == Some(life) && matches!(known.presence, Presence::Here | Presence::Silent);
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

    /// Whether one is here that takes new runs.
    pub fn is_any_here(&self) -> bool {
        self.list.iter().any(|known| known.presence == Presence::Here && !known.draining)
    }

    /// Why no device takes a step any more, if none of those that take runs has one that does.
    pub fn all_devices_lost(&self) -> Option<&str> {
        let mut here = self.list.iter().filter(|known| known.presence == Presence::Here && !known.draining);
        let first = here.next()?.device_lost.as_deref()?;
        here.all(|known| known.device_lost.is_some()).then_some(first)
    }

    /// The models that are known, each once, in the order of the workers.
    pub fn models(&self) -> Vec<&ModelInfo> {
        let mut models: Vec<&ModelInfo> = Vec::new();
        for model in self.list.iter().filter_map(|known| known.model.as_ref()) {
            if models.iter().all(|known| known.id != model.id) {
                models.push(model);
            }
        }
        models
    }

    /// Whether requests for this model are forwarded as they come: every engine that is known to have it speaks their language.
    pub fn forwards(&self, model: &str) -> bool {
        let mut theirs = self.list.iter().filter_map(|known| known.model.as_ref()).filter(|known| *known.id == *model).peekable();
        theirs.peek().is_some() && theirs.all(|known| known.forwards)
    }

    /// The worker that a run for this model goes to: of those that may take it, one whose device works before one whose does not, then the
    /// one with the fewest tokens to do, then with the fewest runs, then the first. One whose slots are taken is given nothing, and a request
    /// that goes on as it came goes only where it is understood.
    pub fn choose(&self, model: &str, forwarded: bool, load: impl Fn(WorkerIndex) -> Load) -> Option<WorkerIndex> {
        let may = self.iter().filter(|(index, known)| known.takes(model, forwarded, load(*index)));
        may.map(|(index, known)| (known.device_lost.is_some(), load(index), index)).min().map(|(_, _, index)| index)
    }
}
