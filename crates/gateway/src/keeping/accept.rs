//! Accepting a run where it is kept: written before it begins, under an id that no run of any gateway has.
//!
//! Each of these runs as a task of its own, so that a caller that leaves meanwhile leaves no run half accepted: it is then opened, and its
//! reader, whom nobody takes, says that the caller is gone.
//!
//! Invariant: a background run that is answered is on disk; an interactive run waits for the store no longer than `store_patience`.
// contract: C-1 C-26

use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::DeadlineLeft;
use lifecycle::{AttemptId, Cause, RunId, RunKey, Work};
use store::{NewRun, StoreError, StoredRun, Survives, Write, Wrote};
use tokio::sync::oneshot;

use super::{Keeper, log, now_ms};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Closed, Id, Opened, Order, fresh_id};
use crate::feed::{Reader, feed};

/// How long whoever sends an old answer waits while its reader has as much as it may have.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// What the store says of a request.
enum Place {
    /// It has a run of its own, under this id.
    Own(RunKey),
    /// The store did not answer in time.
    Late(Box<Late>),
    /// It belongs to this run.
    Of(Box<StoredRun>),
}

/// An acceptance that is on its way to the store while its run goes on already.
struct Late {
    write: Write,
    fresh: RunId,
    answer: oneshot::Receiver<Result<Wrote, StoreError>>,
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
            Place::Own(key) => self.open_as(Id::Given(key), order, conn),
            Place::Late(mut late) => {
                // Under the id that the store will most likely give it: what is written of it later goes to that.
                let opened = self.open_as(Id::Free(late.fresh), order, conn);
                late.answer.close();
                // Nobody hears an answer from now on; one that came between is heard here.
                if let Ok(Ok(wrote)) = late.answer.try_recv() {
                    self.accepted_late(keeper, &late.write, &wrote);
                }
                opened
            }
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
            Place::Late(_) => Err(Closed::StoreDown),
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
        let new = self.new_run(keeper, order).map_err(|_| Closed::StoreDown)?;
        let (fresh, write) = (new.fresh.clone(), Write::Accept(Box::new(new)));
        let wrote = if is_background {
            keeper.ask(write, Survives::Machine, true).await.map_err(|_: StoreError| Closed::StoreDown)?
        } else {
            let mut answer = keeper.asked(write.clone(), Survives::Process, false);
            match tokio::time::timeout(keeper.config.patience, &mut answer).await {
                Ok(Ok(Ok(wrote))) => wrote,
                // It is written when the store is back.
                Ok(_) | Err(_) => {
                    keeper.is_late();
                    return Ok(Place::Late(Box::new(Late { write, fresh, answer })));
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
        let since = self.now().since(order.arrived);
        let deadlines = order.timeout.map(|left| DeadlineLeft { left: left.saturating_sub(since), cause: Cause::ClientDeadline });
        let (attempt, door) = (AttemptId { key, attempt: 1 }, order.request.as_deref().unwrap_or_default());
        let request = keeps.then(|| log::request(&work, &attempt, deadlines.into_iter().collect(), door));
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
