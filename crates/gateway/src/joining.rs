//! Joining a run: a request with the `Idempotency-Key` and the body of one that is live gets that run's answer, not a second run.
//!
//! SDKs and proxies ask again by themselves when an answer seems lost; where the first request still runs, the second costs nothing. A run
//! that somebody wants ended is not joined: whoever comes then gets a run of its own.
//!
//! Invariant: a request never gets an answer that was made for another body, and a key's run is forgotten with the run.
// contract: C-1 C-26

use std::sync::Arc;

use lifecycle::{RunKey, Tenant};
use sha2::{Digest, Sha256};

use crate::calls::{Calls, Entry, Table};
use crate::conn::ConnState;
use crate::dispatch::{Closed, Order};
use crate::feed::{FeedEnd, Reader};
use crate::http::error::ApiError;
use crate::seats::SeatId;

/// Longest `Idempotency-Key` in bytes.
pub(crate) const KEY_MAX_LEN: usize = 255;

/// A key within its tenant.
pub(crate) type JoinKey = (Tenant, Arc<str>);

/// A key, and what was asked for with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Joining {
    key: Arc<str>,
    /// SHA-256 of the endpoint and the body.
    asked: [u8; 32],
}

impl Joining {
    /// `endpoint` and `body` are what must be equal.
    pub(crate) fn new(key: &str, endpoint: &str, body: &[u8]) -> Joining {
        let asked = Sha256::new().chain_update(endpoint).chain_update([0]).chain_update(body).finalize().into();
        Joining { key: key.into(), asked }
    }

    /// As the store takes it.
    pub(crate) fn stored(&self) -> (String, [u8; 32]) {
        (self.key.to_string(), self.asked)
    }
}

impl Table {
    /// Takes a run in. If its key had another run, that one can be joined no more.
    pub(crate) fn insert(&mut self, entry: Entry) {
        if let Some(joining) = &entry.joining {
            self.joinable.insert((entry.key.tenant.clone(), joining.key.clone()), entry.key.clone());
        }
        self.entries.insert(entry.key.clone(), entry);
    }

    /// Forgets a settled run's key, unless a later run has it.
    pub(crate) fn forget(&mut self, entry: &Entry) {
        let Some(joining) = &entry.joining else { return };
        let key = (entry.key.tenant.clone(), joining.key.clone());
        if self.joinable.get(&key) == Some(&entry.key) {
            self.joinable.remove(&key);
        }
    }
}

impl Calls {
    /// A seat at a live run here that is read and not only kept, for whoever comes back to it: a reader from the first event on. `None` if there
    /// is no such run.
    // contract: C-25
    pub(crate) fn come_back(self: &Arc<Self>, key: &RunKey, conn: &Arc<ConnState>) -> Option<Result<Reader, ApiError>> {
        let mut table = self.lock();
        let entry = table.entries.get_mut(key).filter(|entry| !entry.log.is_background && entry.dispatch.is_joinable())?;
        if entry.seats.open() >= self.config.readers_max {
            return Some(Err(ApiError::too_many_readers(self.config.readers_max)));
        }
        let seat = entry.seats.join(conn, self.config.stream_buffer_events, self.now())?;
        self.act(entry, |dispatch, _| dispatch.returned().1);
        drop(table);
        Some(Ok(Reader::new(key.clone(), seat, self.clone(), conn.clone())))
    }

    /// A seat at the live run of this request's key. `None` if there is no such run, or none that anybody still wants.
    #[expect(clippy::type_complexity, reason = "a run, a seat in it and its calendar time, once")]
    pub(crate) fn join(
        &self,
        table: &mut Table,
        order: &Order,
        conn: &Arc<ConnState>,
    ) -> Option<Result<(RunKey, (SeatId, FeedEnd), u64), Closed>> {
        let joining = order.joining.as_ref()?;
        let run = table.joinable.get(&(order.caller.tenant.clone(), joining.key.clone()))?;
        let entry = table.entries.get_mut(run)?;
        if entry.joining.as_ref().is_none_or(|first| first.asked != joining.asked) {
            return Some(Err(Closed::OtherBody));
        }
        if !entry.dispatch.is_joinable() {
            return None;
        }
        if entry.seats.open() >= self.config.readers_max {
            return Some(Err(Closed::InUse));
        }
        let Some(seat) = entry.seats.join(conn, self.config.stream_buffer_events, self.now()) else { return Some(Err(Closed::InUse)) };
        self.returned(entry);
        if let Some(left) = order.timeout {
            entry.seats.bound(seat.0, order.arrived.after(left));
        }
        tracing::info!(run = %entry.key.run, readers = entry.seats.open(), "joined");
        Some(Ok((entry.key.clone(), seat, entry.created)))
    }
}
