//! When a step can never complete: its blocks are lost, not freed, until the device is reset.
//!
//! Invariant: a condemned block is not in the prefix index, has no fence, and is never handed out.
// contract: C-15, C-16

use lifecycle::{Rules, StepId};

use crate::{Lease, Pool, Retired};

impl<R: Rules> Pool<R> {
    /// This step, which is in flight, can never complete. Every block that waits for it or for a newer one is condemned (the older step may
    /// touch what the newer one does): quarantined, or if it is owned again, when its last owner leaves. How many blocks were condemned.
    ///
    /// The leases that the step holds are the engine's to pass to [`quarantine_lease`](Pool::quarantine_lease); one that is retired with this
    /// step as its fence goes the same way. A step that is not in flight changes nothing and is counted as a late completion.
    pub fn quarantine(&mut self, step: StepId) -> u32 {
        if !self.fences.is_in_flight(step) {
            self.note_late_completion();
            return 0;
        }
        self.fences.lose(step);
        let mut condemned = 0;
        while let Some(i) = self.fences.first_from(step) {
            self.condemn(i);
            condemned += 1;
        }
        condemned
    }

    /// Takes back a lease on a block that a lost step may touch for ever. The block leaves the prefix index; others that own it keep it, and
    /// when the last leaves it is quarantined.
    pub fn quarantine_lease(&mut self, lease: Lease) -> Retired {
        match self.standing(lease.block(), lease.generation(), lease.owner()) {
            Err(refused) => {
                self.count(&refused);
                Retired::Refused(refused)
            }
            Ok(()) => {
                self.condemn(lease.block().0);
                self.disown(lease.block().0, lease.owner())
            }
        }
    }

    /// The device was reset: no step up to `newest`, the newest that was ever submitted, touches anything any more, and what the blocks held
    /// is gone. Quarantined and draining blocks are free, the prefix index is empty. Owners stay listed until they are retired. How many
    /// quarantined blocks were freed.
    ///
    /// Walks the whole pool; a reset is rare.
    pub fn device_reset(&mut self, newest: StepId) -> u32 {
        let quarantined = self.counts.quarantined;
        self.fences.reset(newest);
        self.close_fences_until(self.fences.completed);
        for root in self.index.all_roots() {
            self.unindex(root);
        }
        for i in 0..self.total() {
            self.slots[i as usize].condemned = false;
            self.settle(i);
        }
        quarantined
    }

    pub(crate) fn condemn(&mut self, i: u32) {
        self.clear_fence(i);
        self.slots[i as usize].condemned = true;
        if let Some(node) = self.slots[i as usize].node {
            self.unindex(node);
        }
        self.settle(i);
    }
}
