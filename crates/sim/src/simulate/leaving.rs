//! Readers that leave their runs and come back to them, at the gateway that has the run.
//!
//! Invariant: a gateway's shell keeps what was told of a run for whoever comes back; whether it is there for it, the dispatch says.
// contract: C-25

use lifecycle::event::Event as Journalled;
use lifecycle::{Cause, Delivery, Rules};

use super::Sabotage;
use super::event::Event;
use super::scenario::{MS, called};
use super::world::World;

impl<R: Rules> World<R> {
    /// The caller leaves, or somebody cancels the run by name.
    pub fn leave(&mut self, g: usize, run: usize, cause: Cause) {
        let now = self.gateways[g].shell.clock.local(self.now);
        let Some(entry) = self.gateways[g].runs.get_mut(&run).filter(|e| !e.gone) else { return };
        // Who cancels by name may go on reading.
        entry.gone = cause != Cause::CancelRequested;
        let (gone, told) = (entry.gone, entry.told);
        if !gone {
            return self.cancel_here(g, run);
        }
        self.tell(|| format!("gateway-{}: {}'s reader leaves: {cause}", g + 1, called(run)));
        self.oracle.left(run, cause, self.now);
        if let Some(until) = self.oracle.runs[run].readers.grace_until() {
            let leaving = self.oracle.runs[run].readers.leaving();
            self.at(until, Event::GraceOver { run, leaving });
        }
        if self.sabotage != Sabotage::LeavingIsForgotten {
            let delivery = if told { Delivery::Partial } else { Delivery::None };
            self.act(g, run, |d| d.abandoned(cause, delivery, now));
        }
    }

    /// Somebody cancels a run by name, at its own gateway.
    pub fn cancel_here(&mut self, g: usize, run: usize) {
        let now = self.gateways[g].shell.clock.local(self.now);
        if self.gateways[g].runs.contains_key(&run) {
            self.tell(|| format!("gateway-{}: {} is cancelled by name", g + 1, called(run)));
            self.oracle.wanted(run, Cause::CancelRequested);
            self.act(g, run, |d| d.want(Cause::CancelRequested, now));
        }
    }

    /// A reader comes back, or comes to a run that had none.
    pub fn come_back(&mut self, g: usize, run: usize) {
        let Some(entry) = self.gateways[g].runs.get_mut(&run).filter(|e| e.gone) else { return };
        let forgets = self.sabotage == Sabotage::ReturnIsForgotten;
        let (there, effects) = if forgets { (true, Vec::new()) } else { entry.dispatch.returned() };
        entry.gone = !there;
        let (ended, wanted) = (entry.ended, entry.dispatch.call().wanted());
        self.tell(|| format!("gateway-{}: a reader comes to {}{}", g + 1, called(run), if there { "" } else { ", and is turned away" }));
        let life = self.gateways[g].shell.life;
        if there {
            self.oracle.came_back(run);
        } else if wanted.is_none_or(Cause::is_disconnect) {
            self.oracle.turned_away(run, self.now);
        }
        self.run_does(g, run, effects);
        if there && ended {
            let at = self.now + self.misc.between(100, 20 * MS);
            self.at(at, Event::Read { run, gateway: g, life });
        }
    }

    /// A grace is over by every clock. If its gateway stands still, that is to be seen once it goes on.
    pub fn grace_over(&mut self, run: usize, leaving: Option<u32>) {
        let truth = &self.oracle.runs[run];
        let Some((g, life)) = truth.owner.filter(|_| truth.readers.leaving() == leaving && truth.outcome.is_none()) else { return };
        let shell = &self.gateways[g].shell;
        if shell.life != life || !shell.alive {
            return;
        }
        if shell.paused {
            return self.at(self.now + 10 * MS, Event::GraceOver { run, leaving });
        }
        let goes_on = self.gateways[g].runs.get(&run).is_some_and(|e| e.dispatch.call().wanted().is_none());
        if goes_on {
            self.oracle.fail("C-25", || format!("nobody came back to {} within its grace, and it goes on", called(run)));
        }
    }

    /// What a gateway writes of its run's readers.
    pub fn journalled_leaving(&mut self, run: usize, event: &Journalled) {
        match event {
            Journalled::AbandonmentWithdrawn => self.oracle.met.came_back += 1,
            Journalled::GraceRanOut => self.oracle.met.ran_out += 1,
            Journalled::LeftRunning { .. } => self.oracle.met.unread += 1,
            // contract: C-25. The worker is not told either.
            Journalled::CancelSent { cause, .. } => self.oracle.may_end(run, *cause, self.now),
            _ => {}
        }
    }
}
