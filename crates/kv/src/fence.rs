//! Step fences: which blocks wait for which step, and which steps are done, or never will be.
//!
//! Steps complete in order. A block with an open fence is in the list of that step, whether it has owners again or not; so a completion
//! touches only the blocks that waited for it. The map of lists is as large as the number of steps in flight that blocks wait for.
// contract: C-16

use std::collections::{BTreeMap, VecDeque};

use lifecycle::StepId;

use crate::items::Items;
use crate::list::{Link, List};

/// How many lost steps are remembered one by one. Of older ones only the newest is: a fence at or before it is not trusted.
pub(crate) const LOST_STEPS_MAX: usize = 64;

/// What a step's fence is worth now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It may still touch blocks.
    Open,
    /// It has completed.
    Completed,
    /// It can never complete.
    Lost,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Fences {
    pub(crate) completed: StepId,
    lost: VecDeque<StepId>,
    distrusted: Option<StepId>,
    pub(crate) waiting: BTreeMap<StepId, List>,
}

impl Fences {
    pub(crate) fn standing(&self, step: StepId) -> Standing {
        if Some(step) <= self.distrusted || self.lost.contains(&step) {
            Standing::Lost
        } else if step <= self.completed {
            Standing::Completed
        } else {
            Standing::Open
        }
    }

    /// Whether a word about this step can be true: neither its completion nor its loss is known.
    pub(crate) fn is_in_flight(&self, step: StepId) -> bool {
        self.standing(step) == Standing::Open
    }

    /// Puts a block into the list of a step that is open.
    pub(crate) fn wait(&mut self, links: &mut Items<Link>, block: u32, step: StepId) {
        self.waiting.entry(step).or_insert(List::EMPTY).push_back(links, block);
    }

    /// Takes a block out of the list of its step.
    pub(crate) fn leave(&mut self, links: &mut Items<Link>, block: u32, step: StepId) {
        if let Some(list) = self.waiting.get_mut(&step) {
            list.remove(links, block);
            if list.len() == 0 {
                self.waiting.remove(&step);
            }
        }
    }

    /// The block that waits first for a step up to this one.
    pub(crate) fn first_until(&self, step: StepId) -> Option<u32> {
        self.waiting.range(..=step).next().and_then(|(_, list)| list.front())
    }

    /// The block that waits first for this step or a newer one.
    pub(crate) fn first_from(&self, step: StepId) -> Option<u32> {
        self.waiting.range(step..).next().and_then(|(_, list)| list.front())
    }

    pub(crate) fn lose(&mut self, step: StepId) {
        if self.lost.len() == LOST_STEPS_MAX
            && let Some(oldest) = self.lost.pop_front()
        {
            self.distrusted = self.distrusted.max(Some(oldest));
        }
        self.lost.push_back(step);
    }

    /// Nothing is in flight any more, and nothing that was lost can come back.
    pub(crate) fn reset(&mut self, newest: StepId) {
        self.completed = self.completed.max(newest);
        self.lost.clear();
        self.distrusted = None;
    }
}
