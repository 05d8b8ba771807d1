//! Accepting a run where it is kept: written before it begins, under an id that no run of any gateway has.
//!
//! Each of these runs as a task of its own, so that a caller that leaves meanwhile leaves no run half accepted: it is then opened, and its
//! reader, whom nobody takes, says that the caller is gone.
//!
//! Invariant: a background run that is answered is on disk, and one that is refused is never computed; an interactive run without a key waits
//! for the store no longer than `store_patience`, and has the id in the store that its caller was told.
// contract: C-1 C-26

use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::{DeadlineLeft, Usage};
use lifecycle::{AttemptId, Cause, Outcome, RunId, RunKey, Said, Work};
use store::{NewRun, StoreError, StoredRun, Survives, Write, Wrote};

use super::{Keeper, log, now_ms};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Closed, Opened, Order, fresh_id};
use crate::feed::{Reader, feed};

/// How long whoever sends an old answer waits while its reader has as much as it may have.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// What the store says of a request.
enum Place {
    /// It has a run of its own, under this id; `None` if the store did not answer in time.
    Own(Option<RunId>),
    /// It belongs to this run.
    Of(Box<StoredRun>),
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
        let (new, is_background) = (self.new_run(keeper, &order)?, order.is_background());
        match self.place(keeper, new, is_background).await? {
            Place::Own(run) => {
                let key = match run {
                    Some(run) => {
                        let key = RunKey { tenant: order.caller.tenant.clone(), run };
                        self.intend_or_end(keeper, &key, &order).await?;
                        key
                    }
                    None => self.write_late(keeper, &order)?,
                };
                self.open_as(Some(key.clone()), order, conn).inspect_err(|_| self.end_unopened(keeper, key, Outcome::of(Cause::Shutdown)))
            }
            Place::Of(run) => match self.join_live(&order, conn) {
                Some(joined) => joined,
                None => Ok(self.reread(&run, conn, order.timeout.map(|left| left.saturating_sub(self.now().since(order.arrived))))),
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
        if self.has_no_room(&self.lock(), &order.caller.tenant) {
            return Err(Closed::Full);
        }
        let new = self.new_run(keeper, &order)?;
        let mut run = new.accepted(new.fresh.clone());
        match self.place(keeper, new, true).await? {
            Place::Of(run) => Ok(*run),
            Place::Own(None) => Err(Closed::StoreDown),
            Place::Own(Some(id)) => {
                run.key.run = id;
                self.intend_or_end(keeper, &run.key, &order).await?;
                self.open_background(&run.key, order)
                    .inspect_err(|_| self.end_unopened(keeper, run.key.clone(), Outcome::of(Cause::Shutdown)))?;
                // Not read back: a store that is away by now would make a refusal of a run that is computed.
                Ok(run)
            }
        }
    }

    /// A run goes on though the store has not answered. It is written when the store is back, under an id that no other run can have: which
    /// runs have the id that was asked for, only the store could say.
    fn write_late(&self, keeper: &Keeper, order: &Order) -> Result<RunKey, Closed> {
        keeper.is_late();
        let new = NewRun { wish: None, ..self.new_run(keeper, order)? };
        let key = RunKey { tenant: new.tenant.clone(), run: new.fresh.clone() };
        keeper.write(Write::Accept(Box::new(new)), Survives::Process);
        Ok(key)
    }

    /// A run that is written, and that something kept from being opened.
    fn end_unopened(&self, keeper: &Keeper, key: RunKey, outcome: Outcome) {
        let attempt = AttemptId { key, attempt: 0 };
        let end = Write::End {
            attempt,
            owner: self.incarnation,
            outcome,
            usage: Usage::default(),
            last: None,
            hooks: Vec::new(),
            now_ms: now_ms(),
        };
        keeper.write(end, Survives::Process);
    }

    async fn place(&self, keeper: &Keeper, new: NewRun, is_background: bool) -> Result<Place, Closed> {
        if keeper.is_full() {
            return Err(Closed::StoreDown);
        }
        let is_keyed = new.joining.is_some();
        let write = Write::Accept(Box::new(new));
        let wrote = if is_background || is_keyed {
            // Only the store knows whether a key has a run already, and a second one is what its sender wants least.
            let survives = if is_background { Survives::Machine } else { Survives::Process };
            keeper.ask(write, survives, true).await.map_err(|_: StoreError| Closed::StoreDown)?
        } else {
            match keeper.ask_patiently(write, Survives::Process).await {
                Some(wrote) => wrote,
                None => return Ok(Place::Own(None)),
            }
        };
        match wrote {
            Wrote::Accepted(run) => Ok(Place::Own(Some(run))),
            Wrote::Joined(run) => Ok(Place::Of(run)),
            Wrote::OtherBody => Err(Closed::OtherBody),
            _ => Err(Closed::StoreDown),
        }
    }

    /// Notes the effects that the request declares, before anything of the run begins; a run whose effects cannot be noted ends unopened.
    // contract: C-27
    async fn intend_or_end(&self, keeper: &Keeper, key: &RunKey, order: &Order) -> Result<(), Closed> {
        self.intend_tools(keeper, key, &order.tools).await.map_err(|_| {
            let why = "the run store did not take what the run declares to do outside; the request was refused";
            self.end_unopened(keeper, key.clone(), Outcome::because(Cause::QueueFull, why));
            Closed::StoreDown
        })
    }

    fn new_run(&self, keeper: &Keeper, order: &Order) -> Result<NewRun, Closed> {
        let (fresh, created_ms) = (fresh_id(), now_ms());
        let key = RunKey { tenant: order.caller.tenant.clone(), run: fresh.clone() };
        let work = Work { prompt: order.prompt.clone(), params: order.params.clone() };
        let (attempt, door) = (AttemptId { key, attempt: 1 }, order.request.as_deref().unwrap_or_default());
        let since = self.now().since(order.arrived);
        let deadline = order.timeout.map(|left| DeadlineLeft { left: left.saturating_sub(since), cause: Cause::ClientDeadline });
        let request = order.keeps_request().then(|| log::request(&work, &attempt, deadline.into_iter().collect(), &order.tools, door));
        let retention = order.expires.unwrap_or(keeper.config.retention);
        Ok(NewRun {
            tenant: order.caller.tenant.clone(),
            wish: order.requested.clone(),
            fresh,
            door: order.door.to_owned(),
            model: order.model.to_string(),
            caller: order.caller.name.to_string(),
            on_disconnect: order.on_disconnect,
            keeps: order.keeps(),
            owner: self.incarnation,
            created_ms,
            expires_ms: Some(created_ms.saturating_add(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX))),
            request: request.transpose().map_err(|_: protocol::Error| Closed::StoreDown)?,
            joining: order.joining.as_ref().map(crate::joining::Joining::stored),
        })
    }

    /// The answer of a run that is not live here, for one more reader, who has so long for it. Its reading is not the run's delivery, and its
    /// deadline not the run's.
    // contract: C-22
    fn reread(self: &Arc<Self>, run: &StoredRun, conn: &Arc<ConnState>, left: Option<Duration>) -> Opened {
        let limit = self.config.stream_buffer_events;
        let (feed, end) = feed(limit);
        let (calls, key, attendance) = (self.clone(), run.key.clone(), self.attend(run));
        tokio::spawn(async move {
            let hand_on = async {
                let Some(follow) = calls.follow_known(&key, 0) else { return };
                let mut follow = follow.attending(attendance);
                while let Some((_, said)) = follow.next().await {
                    while feed.waiting() >= limit && !feed.is_closed() {
                        tokio::time::sleep(READER_PAUSE).await;
                    }
                    if feed.is_closed() {
                        return;
                    }
                    feed.send(said);
                }
            };
            // A reader that is gone while nothing comes is let go of, too.
            let is_late = tokio::select! {
                () = hand_on => false,
                () = feed.closed() => false,
                () = sleep(left) => true,
            };
            if is_late {
                feed.send(Said::End { outcome: Outcome::of(Cause::ClientDeadline), usage: Usage::default() });
            }
        });
        let reader = Reader::new(run.key.clone(), (crate::seats::NO_SEAT, end), self.clone(), conn.clone());
        Opened { reader, created: u64::try_from(run.created_ms / 1000).unwrap_or(0), joined: true }
    }
}

/// Waits so long; for ever without an end.
async fn sleep(left: Option<Duration>) {
    match left {
        Some(left) => tokio::time::sleep(left).await,
        None => std::future::pending().await,
    }
}
