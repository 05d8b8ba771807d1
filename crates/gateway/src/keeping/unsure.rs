//! What the store has taken and may still forget: commits that waited for no disk, until a later one did, or long enough.
//!
//! A database server that crashes comes back without the newest of them, while this process lives, goes on behind them and has perhaps told
//! what they say. So whenever the server may have been away they are said again, in their order, before anything else is. Each is a
//! compare-and-set that may be repeated: where nothing was forgotten nothing changes.
//!
//! Invariant: in the order of their commits, without a gap up to the newest; nothing that is new is committed behind a gap.
// contract: C-5 C-26

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use store::{RunStore, StoreError, Survives, Write, Wrote};

/// After so long, by a server that was there all the time, a commit is on disk: PostgreSQL writes at the latest after three times its `wal_writer_delay`, which is 10 s at most.
const SURE_AFTER: Duration = Duration::from_secs(30);
/// Writes that are said again in one commit.
const GROUP_MAX: usize = 256;
/// With so many writes, or so many bytes of content in them, the next commit waits for the disk and takes them along.
const WRITES_MAX: usize = 65_536;
const BYTES_MAX: usize = 32 * 1024 * 1024;

/// The writes, and as of which connection the store has all of them.
#[derive(Default)]
pub(super) struct Unsure {
    writes: VecDeque<(Instant, Write)>,
    /// Of content in them.
    bytes: usize,
    connected: u64,
}

/// An accept that led to another run, or to none, has made none, and another time it might: then nobody would know of it. The others are bound
/// to their attempt, number or state, and where they were refused they are again.
fn may_be_repeated(write: &Write, wrote: &Wrote) -> bool {
    !matches!(write, Write::Accept(_)) || matches!(wrote, Wrote::Accepted(_))
}

/// Bytes of a write that a caller or a run decides on.
fn bytes(write: &Write) -> usize {
    match write {
        Write::Accept(new) | Write::Disown { new, .. } => new.request.as_ref().map_or(0, Vec::len),
        Write::Append { events, .. } => events.iter().map(|event| event.body.len()).sum(),
        Write::End { last, hooks, .. } => {
            last.as_ref().map_or(0, |event| event.body.len()) + hooks.iter().map(|hook| hook.body.len()).sum::<usize>()
        }
        Write::Record { record, .. } => record.len(),
        _ => 0,
    }
}

impl Unsure {
    /// Commits behind everything that was committed before, which the store has when this is done.
    ///
    /// # Errors
    /// The store is not there; what it has then is to be found out by trying again.
    pub(super) async fn commit(&mut self, store: &dyn RunStore, writes: Vec<Write>, survives: Survives) -> Result<Vec<Wrote>, StoreError> {
        if store.is_exclusive() {
            // Nobody but this process has it open: it is lost with this process only.
            return store.commit(writes, survives).await;
        }
        let is_full = self.writes.len() >= WRITES_MAX || self.bytes >= BYTES_MAX;
        let survives = if is_full { Survives::Machine } else { survives };
        loop {
            let connected = store.connected();
            self.say_again(store, connected).await?;
            let wrote = store.commit(writes.clone(), survives).await?;
            // The server may have come back between the two, or with this very commit.
            let is_behind_all = store.connected() == connected || self.writes.is_empty() && survives == Survives::Machine;
            if is_behind_all {
                self.committed(writes.into_iter().zip(&wrote), survives, Instant::now());
                return Ok(wrote);
            }
        }
    }

    async fn say_again(&mut self, store: &dyn RunStore, connected: u64) -> Result<(), StoreError> {
        if self.connected != connected {
            // However long ago they were: a server that is away brings nothing to its disk.
            let all: Vec<Write> = self.writes.iter().map(|(_, write)| write.clone()).collect();
            for group in all.chunks(GROUP_MAX) {
                store.commit(group.to_vec(), Survives::Process).await?;
            }
            let now = Instant::now();
            self.writes.iter_mut().for_each(|(since, _)| *since = now);
            self.connected = connected;
        }
        Ok(())
    }

    fn committed<'a>(&mut self, done: impl Iterator<Item = (Write, &'a Wrote)>, survives: Survives, now: Instant) {
        match survives {
            // It takes all earlier ones along.
            Survives::Machine => {
                self.writes.clear();
                self.bytes = 0;
            }
            Survives::Process => {
                for (write, _) in done.filter(|(write, wrote)| may_be_repeated(write, wrote)) {
                    self.bytes += bytes(&write);
                    self.writes.push_back((now, write));
                }
                self.forget(now);
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        let is_sure = |(since, _): &mut (Instant, Write)| now.duration_since(*since) >= SURE_AFTER;
        while let Some((_, write)) = self.writes.pop_front_if(is_sure) {
            self.bytes -= bytes(&write);
        }
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::{Cause, Delivery, Incarnation, OnDisconnect, RunId, RunKey, Tenant};
    use store::memory::Memory;
    use store::{NewRun, StoreConfig};

    use super::*;

    fn done(unsure: &mut Unsure, writes: Vec<Write>, survives: Survives, now: Instant) {
        unsure.committed(writes.into_iter().map(|write| (write, &Wrote::Done)), survives, now);
    }

    /// An accept with a key that all have.
    fn accept(fresh: &str) -> Vec<Write> {
        let new = NewRun {
            tenant: Tenant::default(),
            wish: None,
            fresh: RunId::parse(fresh).expect("an id"),
            door: "chat".into(),
            model: "tiny".into(),
            caller: "anonymous".into(),
            on_disconnect: OnDisconnect::Cancel,
            keeps: true,
            owner: Incarnation(1),
            created_ms: 1,
            expires_ms: None,
            request: None,
            joining: Some(("k".into(), [0; 32])),
        };
        vec![Write::Accept(Box::new(new))]
    }

    #[tokio::test]
    async fn an_accept_that_led_to_another_run_is_not_said_again() {
        let store = Memory::new(StoreConfig::at("memory"), false);
        let mut unsure = Unsure::default();
        let first = unsure.commit(&*store, accept("f1"), Survives::Process).await.expect("the store is there");
        assert!(matches!(first[..], [Wrote::Accepted(_)]), "{first:?}");
        let second = unsure.commit(&*store, accept("f2"), Survives::Process).await.expect("the store is there");
        assert!(matches!(second[..], [Wrote::Joined(_)]), "{second:?}");
        // The run that it led to can be joined no more, and then the server is another connection.
        let run = RunKey { tenant: Tenant::default(), run: RunId::parse("f1").expect("an id") };
        let want = Write::Want { run, cause: Cause::CancelRequested };
        unsure.commit(&*store, vec![want], Survives::Process).await.expect("the store is there");
        store.crash_back_to(&store.moment());
        unsure.commit(&*store, beat(1), Survives::Process).await.expect("the store is there");
        assert_eq!(store.owned(Incarnation(1), 10).await.expect("the store is there").len(), 1);
    }

    fn beat(n: u128) -> Vec<Write> {
        vec![Write::Beat { owner: Incarnation(n), name: "a".to_owned() }]
    }

    // A server that is away for longer than what makes a commit sure has not made it sure.
    #[tokio::test]
    async fn time_that_the_server_was_away_makes_nothing_sure() {
        let store = Memory::new(StoreConfig::at("memory"), false);
        let (mut unsure, moment) = (Unsure::default(), store.moment());
        let begin = Instant::now();
        done(&mut unsure, beat(1), Survives::Process, begin.checked_sub(2 * SURE_AFTER).unwrap_or(begin));
        store.crash_back_to(&moment);
        unsure.commit(&*store, beat(2), Survives::Process).await.expect("the store is there");
        assert_eq!(unsure.writes.iter().map(|(_, write)| write.clone()).collect::<Vec<_>>(), [beat(1), beat(2)].concat());
        assert!(unsure.writes.iter().all(|(since, _)| *since >= begin), "it was said again, and counts from then on");
    }

    #[test]
    fn what_a_disk_has_or_must_have_by_now_is_not_remembered() {
        let (mut unsure, begin) = (Unsure::default(), Instant::now());
        done(&mut unsure, beat(1), Survives::Process, begin);
        done(&mut unsure, beat(2), Survives::Process, begin + Duration::from_secs(10));
        assert_eq!(unsure.writes.len(), 2);
        done(&mut unsure, beat(3), Survives::Process, begin + SURE_AFTER);
        assert_eq!(unsure.writes.iter().map(|(_, write)| write.clone()).collect::<Vec<_>>(), [beat(2), beat(3)].concat());
        done(&mut unsure, beat(4), Survives::Machine, begin + SURE_AFTER);
        assert!(unsure.writes.is_empty(), "a commit that waited for the disk took them along");
    }

    #[tokio::test]
    async fn when_there_is_much_of_it_the_next_commit_waits_for_the_disk() {
        let store = Memory::new(StoreConfig::at("memory"), false);
        let run = RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") };
        let record = Write::Record { run, owner: Incarnation(1), delivery: Delivery::None, record: vec![0; BYTES_MAX / 4] };
        let mut unsure = Unsure::default();
        for kept in [1, 2, 3, 4, 0] {
            unsure.commit(&*store, vec![record.clone()], Survives::Process).await.expect("the store is there");
            assert_eq!((unsure.writes.len(), unsure.bytes), (kept, kept * BYTES_MAX / 4));
        }
    }
}
