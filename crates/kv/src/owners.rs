//! The owners of one block, and those that left it last. Most blocks have one owner, so that one costs no allocation.

use std::collections::HashSet;

use crate::Owner;

/// How many former owners a block remembers, to tell a double release from a foreign one. Both are refused; only the count differs.
pub(crate) const FORMER_MAX: usize = 4;

/// Who holds a block. Constant time whatever their number.
#[derive(Clone, Debug, Default)]
pub(crate) enum Owners {
    #[default]
    None,
    One(Owner),
    Many(HashSet<Owner>),
}

impl Owners {
    pub(crate) fn len(&self) -> u32 {
        match self {
            Owners::None => 0,
            Owners::One(_) => 1,
            Owners::Many(all) => all.len() as u32,
        }
    }

    pub(crate) fn contains(&self, owner: Owner) -> bool {
        match self {
            Owners::None => false,
            Owners::One(one) => *one == owner,
            Owners::Many(all) => all.contains(&owner),
        }
    }

    pub(crate) fn are_within(&self, among: &HashSet<Owner>) -> bool {
        match self {
            Owners::None => true,
            Owners::One(one) => among.contains(one),
            Owners::Many(all) => all.is_subset(among),
        }
    }

    /// False where the owner is listed already.
    pub(crate) fn insert(&mut self, owner: Owner) -> bool {
        match self {
            Owners::None => *self = Owners::One(owner),
            Owners::One(one) if *one == owner => return false,
            Owners::One(one) => *self = Owners::Many(HashSet::from([*one, owner])),
            Owners::Many(all) => return all.insert(owner),
        }
        true
    }

    /// Removes exactly this owner; false where it is not listed.
    // contract: C-18
    pub(crate) fn remove(&mut self, owner: Owner) -> bool {
        let removed = match self {
            Owners::None => return false,
            Owners::One(one) => *one == owner,
            Owners::Many(all) => all.remove(&owner),
        };
        if removed && (matches!(self, Owners::One(_)) || self.len() == 0) {
            *self = Owners::None;
        }
        removed
    }

    /// All of them, in ascending order.
    pub(crate) fn sorted(&self) -> Vec<Owner> {
        let mut all = match self {
            Owners::None => Vec::new(),
            Owners::One(one) => vec![*one],
            Owners::Many(all) => all.iter().copied().collect(),
        };
        all.sort_unstable();
        all
    }
}

/// The owners that left this hand-out last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Former {
    pub(crate) last: [Option<Owner>; FORMER_MAX],
    pub(crate) next: u8,
}

impl Former {
    pub(crate) fn push(&mut self, owner: Owner) {
        self.last[usize::from(self.next)] = Some(owner);
        self.next = (self.next + 1) % FORMER_MAX as u8;
    }

    pub(crate) fn contains(&self, owner: Owner) -> bool {
        self.last.contains(&Some(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_listed_once_and_leave_alone() {
        let (a, b, c) = (Owner(1), Owner(2), Owner(3));
        let mut owners = Owners::None;
        assert!(!owners.remove(a));
        assert!(owners.insert(a) && !owners.insert(a), "one, once");
        assert!(matches!(owners, Owners::One(_)) && !owners.remove(b));
        assert!(owners.insert(c) && owners.insert(b) && !owners.insert(b));
        assert_eq!((owners.sorted(), owners.len(), owners.contains(c)), (vec![a, b, c], 3, true));
        assert!(owners.remove(a) && !owners.remove(a) && owners.remove(c) && owners.remove(b));
        assert!(matches!(owners, Owners::None), "an empty set is not kept: most blocks never have a second owner again");
    }
}
