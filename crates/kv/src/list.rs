//! A doubly linked list threaded through an array of links, so that any block leaves any list in constant time.
//!
//! Invariant: an item is in at most one list of those that share an array of links; whoever moves it takes it out first.

use crate::items::Items;

/// No item.
const NIL: u32 = u32::MAX;

/// An item's neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    prev: u32,
    next: u32,
}

impl Link {
    /// The link of an item that is in no list.
    pub(crate) const OUT: Link = Link { prev: NIL, next: NIL };
}

/// The two ends and the length; the links lie with the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(crate) const EMPTY: List = List { head: NIL, tail: NIL, len: 0 };

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn push_front(&mut self, links: &mut Items<Link>, item: u32) {
        links[item as usize] = Link { prev: NIL, next: self.head };
        match self.head {
            NIL => self.tail = item,
            head => links[head as usize].prev = item,
        }
        self.head = item;
        self.len += 1;
    }

    pub(crate) fn push_back(&mut self, links: &mut Items<Link>, item: u32) {
        links[item as usize] = Link { prev: self.tail, next: NIL };
        match self.tail {
            NIL => self.head = item,
            tail => links[tail as usize].next = item,
        }
        self.tail = item;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, links: &mut Items<Link>, item: u32) {
        let Link { prev, next } = std::mem::replace(&mut links[item as usize], Link::OUT);
        match prev {
            NIL => self.head = next,
            prev => links[prev as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => links[next as usize].prev = prev,
        }
        self.len -= 1;
    }

    /// The items from front to back, for the audit. Stops after `len` items, so that a corrupt list cannot hold it for ever; `None` where
    /// the links contradict each other.
    pub(crate) fn walk(&self, links: &Items<Link>) -> Option<Vec<u32>> {
        let mut items = Vec::with_capacity(self.len as usize);
        let (mut before, mut at) = (NIL, self.head);
        while at != NIL {
            let link = links.get(at as usize)?;
            if link.prev != before || items.len() == self.len as usize {
                return None;
            }
            items.push(at);
            (before, at) = (at, link.next);
        }
        (before == self.tail && items.len() == self.len as usize).then_some(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_leave_from_the_ends_and_from_the_middle() {
        let mut links = Items::new(vec![Link::OUT; 5]);
        let mut list = List::EMPTY;
        for i in [1, 2, 3] {
            list.push_back(&mut links, i);
        }
        list.push_front(&mut links, 0);
        assert_eq!(list.walk(&links), Some(vec![0, 1, 2, 3]));
        list.remove(&mut links, 2);
        assert_eq!(list.walk(&links), Some(vec![0, 1, 3]));
        list.remove(&mut links, 0);
        list.remove(&mut links, 3);
        assert_eq!((list.walk(&links), list.front(), list.len()), (Some(vec![1]), Some(1), 1));
        list.remove(&mut links, 1);
        assert_eq!(list, List::EMPTY);
        assert_eq!(links, Items::new(vec![Link::OUT; 5]));
    }

    #[test]
    fn a_walk_finds_broken_links() {
        let mut links = Items::new(vec![Link::OUT; 3]);
        let mut list = List::EMPTY;
        for i in [0, 1, 2] {
            list.push_back(&mut links, i);
        }
        for broken in [Link { prev: 2, next: 2 }, Link { prev: 0, next: 0 }, Link { prev: 0, next: NIL }, Link { prev: 0, next: 9 }] {
            let mut links = links.clone();
            links[1] = broken;
            assert_eq!(list.walk(&links), None, "{broken:?}");
        }
        for len in [2, 4] {
            assert_eq!(List { len, ..list }.walk(&links), None);
        }
    }
}
