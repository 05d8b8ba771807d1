//! Accepting a run where it is kept: written before it begins, under an id that no run of any gateway has.
//!
//! Each of these runs as a task of its own, so that a caller that leaves meanwhile leaves no run half accepted: it is then opened, and its
//! reader, whom nobody takes, says that the caller is gone.
//!
//! Invariant: a background run that is answered is on disk; an interactive run waits for the store no longer than `store_patience`.
// contract: C-1 C-26

use std::sync::Arc;
use std::time::Duration;

use lifecycle::{AttemptId, RunId, RunKey, Work};
use store::{NewRun, StoreError, StoredRun, Survives, Write, Wrote};

use super::recorder::Refusal;
use super::{Keeper, log, now_ms};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Closed, Opened, Order, fresh_id};
use crate::feed::{Reader, feed};

/// How long whoever sends an old answer waits while its reader has as much as it may have.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// What the store says of a request.
enum Place {
    /// It has a run of its own, under this id.
    Own(RunKey),
    /// It belongs to this run.
    Of(Box<StoredRun>),
}

/// A run that goes on without the store: under an id that nobody else has, as whether the one that was asked for is free is not known, and
/// without its key, which may have led to a run elsewhere.
fn accept_late(keeper: &Keeper, new: NewRun) -> RunId {
    let new = NewRun { fresh: fresh_id(), wish: None, joining: None, ..new };
    let run = new.fresh.clone();
    keeper.write(Write::Accept(Box::new(new)), Survives::Process);
    run
}

impl Calls {
    /// Joins the run of the request's key, wherever and however long ago it ran, or accepts a run of its own.
    pub(crate) async fn accept(self: &Arc<Self>, order: Order, conn: &Arc<ConnState>) -> Result<Opened, Closed> {
        if self.keeper.is_none() {
            return self.open(order, conn);
        }
        let (calls, conn) = (self.clone(), conn.clone());
        let task = tokio::spawn(async move { calls.accept_kept(order, &conn).await });
        task.await.unwrap_or(Err(Closed::ShuttingDown))
    }

    async fn accept_kept(self: &Arc<Self>, order: Order, conn: &Arc<ConnState>) -> Result<Opened, Closed> {
        let Some(keeper) = &self.keeper else { return self.open(order, conn) };
        if let Some(joined) = self.join_live(&order, conn) {
            return joined;
        }
        match self.place(keeper, &order, order.is_background()).await? {
            Place::Own(key) => self.open_as(Some(key), order, conn),
            Place::Of(run) => match self.join_live(&order, conn) {
                Some(joined) => joined,
                None => Ok(self.reread(&run, conn)),
            },
        }
    }

    /// Accepts a run that goes on without readers. It is on disk when this returns.
    pub(crate) async fn accept_background(self: &Arc<Self>, order: Order) -> Result<StoredRun, Closed> {
        let calls = self.clone();
        let task = tokio::spawn(async move { calls.accept_background_kept(order).await });
        task.await.unwrap_or(Err(Closed::ShuttingDown))
    }

    async fn accept_background_kept(self: &Arc<Self>, order: Order) -> Result<StoredRun, Closed> {
        let Some(keeper) = &self.keeper else { return Err(Closed::NoStore) };
        if self.is_draining() {
            return Err(Closed::ShuttingDown);
        }
        if self.has_no_room(&self.lock()) {
            return Err(Closed::Full);
        }
        match self.place(keeper, &order, true).await? {
            Place::Of(run) => Ok(*run),
            Place::Own(key) => {
                self.open_background(&key, order)?;
                keeper.store.run(&key).await.ok().flatten().ok_or(Closed::StoreDown)
            }
        }
    }

    async fn place(&self, keeper: &Keeper, order: &Order, is_background: bool) -> Result<Place, Closed> {
        if keeper.is_full() {
            return Err(Closed::StoreDown);
        }
        // It is said at once, and not when the next try has failed as well.
        if is_background && !keeper.is_available() {
            return Err(Closed::StoreDown);
        }
        let new = self.new_run(keeper, order).map_err(|_| Closed::StoreDown)?;
        let wrote = if is_background {
            let asked = keeper.ask(Write::Accept(Box::new(new)), Survives::Machine, Refusal::Away);
            asked.await.map_err(|_: StoreError| Closed::StoreDown)?
        } else {
            // What the store would say of this one is known without it: it gets the id that was made for it.
            let is_plain = new.wish.is_none() && new.joining.is_none();
            let refusal = if is_plain { Refusal::Never } else { Refusal::Late };
            let asked = keeper.ask(Write::Accept(Box::new(new.clone())), Survives::Process, refusal);
            match tokio::time::timeout(keeper.config.patience, asked).await {
                Ok(Ok(wrote)) => wrote,
                // It is written when the store is back.
                Ok(Err(_)) | Err(_) => {
                    keeper.is_late();
                    let run = if is_plain { new.fresh } else { accept_late(keeper, new) };
                    Wrote::Accepted(run)
                }
            }
        };
        match wrote {
            Wrote::Accepted(run) => Ok(Place::Own(RunKey { tenant: order.caller.tenant.clone(), run })),
            Wrote::Joined(run) => Ok(Place::Of(run)),
            Wrote::OtherBody => Err(Closed::OtherBody),
            _ => Err(Closed::StoreDown),
        }
    }

    fn new_run(&self, keeper: &Keeper, order: &Order) -> Result<NewRun, protocol::Error> {
        let (fresh, created_ms) = (fresh_id(), now_ms());
        let key = RunKey { tenant: order.caller.tenant.clone(), run: fresh.clone() };
        let keeps = order.keeps();
        let work = Work { prompt: order.prompt.clone(), params: order.params.clone() };
        let request = keeps.then(|| log::request(&work, &AttemptId { key, attempt: 1 }, order.request.as_deref().unwrap_or_default()));
        let retention = order.expires.unwrap_or(keeper.config.retention);
        Ok(NewRun {
            tenant: order.caller.tenant.clone(),
            wish: order.requested.clone(),
            fresh,
            door: order.door.to_owned(),
            model: order.model.to_string(),
            caller: order.caller.name.to_string(),
            on_disconnect: order.on_disconnect,
            keeps,
            owner: self.incarnation,
            created_ms,
            expires_ms: Some(created_ms.saturating_add(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX))),
            request: request.transpose()?,
            joining: order.joining.as_ref().map(crate::joining::Joining::stored),
        })
    }

    /// The answer of a run that is not live here, for one more reader. Its reading is not the run's delivery.
    fn reread(self: &Arc<Self>, run: &StoredRun, conn: &Arc<ConnState>) -> Opened {
        let limit = self.config.stream_buffer_events;
        let (feed, end) = feed(limit);
        let (calls, key) = (self.clone(), run.key.clone());
        tokio::spawn(async move {
            let Ok(Some(mut follow)) = calls.follow(&key, 0).await else { return };
            while let Some((_, said)) = follow.next().await {
                while feed.waiting() >= limit && !feed.is_closed() {
                    tokio::time::sleep(READER_PAUSE).await;
                }
                if feed.is_closed() {
                    return;
                }
                feed.send(said);
            }
        });
        let reader = Reader::new(run.key.clone(), (crate::seats::NO_SEAT, end), self.clone(), conn.clone());
        Opened { reader, created: u64::try_from(run.created_ms / 1000).unwrap_or(0), joined: true }
    }
}
