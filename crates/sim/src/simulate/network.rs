//! The network between gateways and workers: what happens to whatever is sent.
//!
//! A connection's frames go one way in order unless the seed reorders them. What is sent on a connection that was cut is gone; what was on its
//! way may come late.
//!
//! Invariant: when the network has healed, whatever is sent arrives, once, in order and soon.

use lifecycle::{Incarnation, Rules};

use super::event::{Event, Link};
use super::faults::FaultKind;
use super::scenario::MS;
use super::world::World;

/// A connection: the gateway's life, and its number in that life.
pub(super) type Session = (Incarnation, u64);

/// One way of a link.
#[derive(Clone, Debug, Default)]
pub(super) struct Way {
    /// Until when nothing passes.
    pub dark_until: u64,
    /// Until when everything is held.
    pub held_until: u64,
    /// When the last frame arrives.
    last: u64,
}

/// Both ways between a gateway and a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipe {
    pub down: Way,
    pub up: Way,
    /// The newest connection that was cut: nothing is taken on it, or on an earlier one of that life.
    pub cut: Option<Session>,
}

impl Pipe {
    fn is_cut(&self, session: Session) -> bool {
        self.cut.is_some_and(|(life, number)| life == session.0 && session.1 <= number)
    }
}

/// How often frames suffer, in a thousand, by hardness.
const LOSS: [u32; 3] = [10, 60, 150];
const DOUBLE: [u32; 3] = [10, 60, 150];
const DELAY: [u32; 3] = [5, 20, 60];

impl<R: Rules> World<R> {
    fn suffers(&mut self, kind: FaultKind, odds: [u32; 3]) -> bool {
        let on = self.is_on(kind);
        // Drawn in any case, so that to switch a kind off moves no other draw.
        let hit = self.network.chance(odds[self.scenario.hardness as usize - 1]);
        on && hit
    }

    /// Puts something onto a connection.
    pub fn transmit(&mut self, link: Link, is_up: bool, session: Session, event: Event) {
        let (now, healed) = (self.now, self.healed);
        let lost = self.suffers(FaultKind::Loss, LOSS);
        let doubled = self.suffers(FaultKind::Duplicate, DOUBLE);
        let delayed = self.suffers(FaultKind::Delay, DELAY);
        let reordered = self.is_on(FaultKind::Reorder) && self.network.chance(100);
        let mut travel = self.network.between(50, 2 * MS);
        let extra = self.network.between(5 * MS, 500 * MS);
        let pipe = &mut self.pipes[link.gateway * self.scenario.workers + link.worker];
        let is_cut = pipe.is_cut(session);
        let way = if is_up { &mut pipe.up } else { &mut pipe.down };
        if is_cut || (now < way.dark_until && !healed) {
            return;
        }
        // A connection is opened or it is not: only what passes on it suffers.
        let opens = matches!(event, Event::Hello { .. } | Event::Welcome { .. } | Event::Refused { .. });
        if lost {
            self.fault(FaultKind::Loss);
            return;
        }
        if delayed {
            travel += extra;
        }
        let held = if healed { 0 } else { way.held_until };
        let mut at = (now + travel).max(held);
        if !reordered || opens {
            at = at.max(way.last + 1);
            way.last = at;
        }
        if delayed {
            self.fault(FaultKind::Delay);
        }
        if reordered {
            self.fault(FaultKind::Reorder);
        }
        if doubled && !opens {
            self.fault(FaultKind::Duplicate);
            self.at(at + travel, event.clone());
        }
        self.at(at, event);
    }

    /// A connection breaks. Who is told, and how much later.
    pub fn cut(&mut self, link: Link, gateway_sees: Option<u64>, worker_sees: Option<u64>) {
        let session = self.gateways[link.gateway].links[link.worker].session;
        if session.1 == 0 {
            return;
        }
        self.pipe(link).cut = Some(session);
        self.tell(|| format!("connection {} of {link} is cut", session.1));
        if let Some(later) = gateway_sees {
            self.at(self.now + later, Event::ClosedAtGateway { link, session });
        }
        if let Some(later) = worker_sees {
            self.at(self.now + later, Event::ClosedAtWorker { link, session });
        }
    }

    pub fn pipe(&mut self, link: Link) -> &mut Pipe {
        &mut self.pipes[link.gateway * self.scenario.workers + link.worker]
    }
}
