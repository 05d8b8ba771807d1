//! The ids of runs whose records were evicted from memory, so that whoever asks for one is told so and not that it never was.
//!
//! Invariant: at most `limit` ids are held; once one was let go, every answer about an id that is not held says that too.

use std::collections::{HashMap, VecDeque};

use lifecycle::RunKey;

/// What is known of a run's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recall {
    /// The run is held and can be shown.
    Held,
    /// Its record was evicted from memory.
    Evicted,
    /// No such run was evicted, nor is it held: in this process's life there was none.
    Never,
    /// Not known; but ids of evicted runs were forgotten as well, and it may be one of them.
    NeverOrForgotten,
}

/// A bounded ring of ids, the oldest going first.
#[derive(Default)]
pub(crate) struct Evicted {
    ring: VecDeque<(u64, RunKey)>,
    /// An id may be used, evicted, used anew and evicted again: only its newest entry counts.
    newest: HashMap<RunKey, u64>,
    next: u64,
    forgot: bool,
}

impl Evicted {
    /// Notes an evicted run.
    pub(crate) fn push(&mut self, key: RunKey, limit: usize) {
        self.newest.insert(key.clone(), self.next);
        self.ring.push_back((self.next, key));
        self.next += 1;
        while self.ring.len() > limit {
            let Some((number, key)) = self.ring.pop_front() else { return };
            if self.newest.get(&key) == Some(&number) {
                self.newest.remove(&key);
                self.forgot = true;
            }
        }
    }

    /// What is known of a run that is not held.
    pub(crate) fn recall(&self, key: &RunKey) -> Recall {
        match (self.newest.contains_key(key), self.forgot) {
            (true, _) => Recall::Evicted,
            (false, true) => Recall::NeverOrForgotten,
            (false, false) => Recall::Never,
        }
    }
}
