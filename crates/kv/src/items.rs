//! The pool's large arrays: blocks, nodes and their links, as many as the pool is large. They can be reached through here only.
//!
//! Under test each element that is read or written is counted, one that an iterator passes over as well. So a test sees what an operation
//! costs without a clock, and a scan of the pool cannot hide. In the library the counting is not there.
//!
//! Invariant: no way to an element goes past the count.

use std::ops::{Index, IndexMut};

/// Such an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Items<T>(Vec<T>);

impl<T> Items<T> {
    pub(crate) fn new(items: Vec<T>) -> Items<T> {
        Items(items)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn push(&mut self, item: T) {
        touch();
        self.0.push(item);
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        touch();
        self.0.get(at)
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        touch();
        self.0.get_mut(at)
    }

    /// All of them: for the audit and for listings.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().inspect(|_| touch())
    }

    /// For tests that break what they then find broken.
    #[cfg(test)]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().inspect(|_| touch())
    }

    /// As `iter_mut`.
    #[cfg(test)]
    pub(crate) fn swap(&mut self, a: usize, b: usize) {
        self.0.swap(a, b);
    }
}

impl<T> Index<usize> for Items<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        touch();
        &self.0[at]
    }
}

impl<T> IndexMut<usize> for Items<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        touch();
        &mut self.0[at]
    }
}

#[cfg(not(test))]
#[inline(always)]
fn touch() {}

#[cfg(test)]
thread_local! {
    static TOUCHED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn touch() {
    TOUCHED.with(|count| count.set(count.get() + 1));
}

/// How many elements this thread has touched so far.
#[cfg(test)]
pub(crate) fn touched() -> u64 {
    TOUCHED.with(std::cell::Cell::get)
}
