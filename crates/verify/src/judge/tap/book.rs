//! The exchanges that a tap remembers: the newest, those that still go on among them.
//!
//! Invariant: never more than it may be; what was forgotten is counted. Who passes bytes waits here for nothing but another's copy of one
//! exchange.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Options;
use super::exchange::{Exchange, Protocol};

/// Most exchanges that are told at once.
pub const PAGE_MAX: usize = 100;

/// An exchange that may go on.
pub type Kept = Arc<Mutex<Exchange>>;

/// Whoever held it last left it whole: each change of it is one assignment after the other.
pub fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a tap has seen, and how it is run.
pub struct Book {
    /// How.
    pub options: Options,
    began: Instant,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    connections: u64,
    exchanges: u64,
    forgotten: u64,
    kept: VecDeque<Kept>,
}

/// Which exchanges are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Which {
    /// Those of an id, which stands in the traced header or is the traced word, with their marks.
    Id(String),
    /// Those with a greater number, without marks.
    After(u64),
}

/// What a tap tells of its exchanges.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Page {
    /// The tap's name.
    pub name: String,
    /// Its clock.
    pub now_ns: u64,
    /// Exchanges, oldest first.
    pub exchanges: Vec<Exchange>,
    /// Whether there are more of them: ask again, after the last one's number.
    pub more: bool,
    /// Exchanges that are not remembered any more.
    pub forgotten: u64,
}

impl Book {
    pub(super) fn new(options: Options) -> Book {
        Book { options, began: Instant::now(), pages: Mutex::default() }
    }

    /// The tap's clock.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The number of a new connection.
    pub(super) fn connection(&self) -> u64 {
        let mut pages = lock(&self.pages);
        pages.connections += 1;
        pages.connections
    }

    /// A new exchange of a connection.
    pub(super) fn open(&self, connection: u64, protocol: Protocol, at_ns: u64) -> Kept {
        let mut pages = lock(&self.pages);
        pages.exchanges += 1;
        let kept = Arc::new(Mutex::new(Exchange::new(pages.exchanges, connection, protocol, at_ns)));
        while pages.kept.len() >= self.options.exchanges_max.max(1) {
            pages.kept.pop_front();
            pages.forgotten += 1;
        }
        pages.kept.push_back(Arc::clone(&kept));
        kept
    }

    /// What is remembered.
    pub fn page(&self, which: &Which) -> Page {
        let (kept, forgotten) = {
            let pages = lock(&self.pages);
            // Exchanges are numbered without a gap, so that the first one's place is known.
            let first = pages.exchanges + 1 - pages.kept.len() as u64;
            let skip = match which {
                Which::Id(_) => 0,
                Which::After(number) => usize::try_from(number.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX),
            };
            (pages.kept.iter().skip(skip).map(Arc::clone).collect::<Vec<Kept>>(), pages.forgotten)
        };
        let mut exchanges = Vec::new();
        let mut more = false;
        for kept in kept {
            let exchange = lock(&kept);
            match which {
                Which::Id(id) if ![&exchange.id, &exchange.word].iter().any(|has| has.as_deref() == Some(id)) => continue,
                _ if exchanges.len() == PAGE_MAX => {
                    more = true;
                    break;
                }
                Which::Id(_) => exchanges.push(exchange.clone()),
                Which::After(_) => exchanges.push(exchange.brief()),
            }
        }
        Page { name: self.options.name.clone(), now_ns: self.now_ns(), exchanges, more, forgotten }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered_and_found_by_id_and_by_number() {
        let book = Book::new(Options { exchanges_max: 150, ..Options::default() });
        for number in 1..=200 {
            let kept = book.open(1, Protocol::Http1, number);
            let id = Some(format!("id-{}", number % 2));
            if number % 3 == 0 { lock(&kept).word = id } else { lock(&kept).id = id }
        }
        let page = book.page(&Which::After(0));
        assert_eq!((page.exchanges.len(), page.exchanges[0].number, page.more, page.forgotten), (PAGE_MAX, 51, true, 50));
        let page = book.page(&Which::After(150));
        assert_eq!((page.exchanges.len(), page.exchanges[0].number, page.more), (50, 151, false));
        assert!(book.page(&Which::After(200)).exchanges.is_empty() && book.page(&Which::After(u64::MAX - 1)).exchanges.is_empty());
        assert_eq!(book.page(&Which::Id("id-1".to_owned())).exchanges.len(), 75);
        assert!(book.page(&Which::Id("id-2".to_owned())).exchanges.is_empty());
    }
}
