//! Random batches do the same to a real store as to the naive one in memory: every write answers the same, and every read after it.
//!
//! An operation is resolved against the naive store when its turn comes (which attempt, which number is next), so that most are valid
//! and each kind of invalid one occurs, too.

use std::sync::Arc;

use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Delivery, Incarnation, OnDisconnect, Outcome, OutcomeKind, RunKey, Tenant};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use store::memory::Memory;
use store::{EffectState, HookQuery, NewRun, RunQuery, RunStore, StoredEvent, Survives, Write, Wrote};

use crate::common::*;

const OWNERS: [Incarnation; 3] = [A, B, Incarnation(77)];
const FRESH: [&str; 6] = ["f0", "f1", "f2", "f3", "f4", "f5"];
const WISHES: [&str; 2] = ["w", "w~2"];
const NAMES: [&str; 11] = ["f0", "f1", "f2", "f3", "f4", "f5", "w", "w~2", "w~3", "w~2~2", "none"];
const TENANTS: [&str; 2] = ["default", "other"];
const CAUSES: [Cause; 5] = [Cause::Stop, Cause::Length, Cause::CancelRequested, Cause::WorkerLost, Cause::GatewayDeadline];
const EFFECTS: [&str; 3] = ["e0", "e1", "e\0"];
const HOOKS: [&str; 3] = ["h0", "h1", "h2"];

/// What is to be done, with what a run's state decides left open. `odd` is 0 mostly: then what it names holds.
#[derive(Clone, Debug)]
struct Op {
    what: u8,
    tenant: usize,
    run: usize,
    owner: usize,
    odd: u8,
    number: usize,
    time: i64,
    bytes: Vec<u8>,
    survives: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let odd = prop_oneof![6 => Just(0_u8), 4 => 1..6_u8];
    let bytes = proptest::collection::vec(any::<u8>(), 0..40);
    let tenant = prop_oneof![4 => Just(0_usize), 1 => Just(1)];
    (0..52_u8, tenant, 0..NAMES.len(), 0..OWNERS.len(), odd, 0..20_usize, 0..60_i64, bytes, any::<bool>()).prop_map(
        |(what, tenant, run, owner, odd, number, time, bytes, survives)| Op {
            what,
            tenant,
            run,
            owner,
            odd,
            number,
            time,
            bytes,
            survives,
        },
    )
}

impl Op {
    fn tenant(&self) -> Tenant {
        Tenant::parse(TENANTS[self.tenant]).unwrap()
    }

    fn key(&self) -> RunKey {
        RunKey { tenant: self.tenant(), run: id(NAMES[self.run]) }
    }

    fn owner(&self) -> Incarnation {
        OWNERS[self.owner]
    }

    fn new_run(&self) -> NewRun {
        let policies =
            [OnDisconnect::Cancel, OnDisconnect::Continue, OnDisconnect::Grace(std::time::Duration::from_millis(self.time as u64))];
        NewRun {
            tenant: self.tenant(),
            wish: (self.odd > 2).then(|| id(WISHES[self.number % WISHES.len()])),
            fresh: id(FRESH[self.run % FRESH.len()]),
            door: "chat".to_owned(),
            model: String::from_utf8_lossy(&self.bytes).into_owned(),
            caller: "anonymous".to_owned(),
            on_disconnect: policies[self.number % policies.len()],
            keeps: self.survives,
            owner: self.owner(),
            created_ms: self.time,
            expires_ms: (self.number > 12).then_some(self.time),
            request: self.number.is_multiple_of(2).then(|| self.bytes.clone()),
            joining: self.number.is_multiple_of(3).then(|| (format!("k{}", self.number % 2), [u8::from(self.odd == 1); 32])),
        }
    }

    /// The write, given how the run stands.
    async fn write(&self, model: &Memory) -> Write {
        let (run, now_ms) = (self.key(), self.time);
        let stands = model.run(&run).await.unwrap();
        let (number, has, next) = stands.map_or((0, self.owner(), 1), |run| (run.attempt, run.owner, run.last_event + 1));
        let attempt = AttemptId { key: run.clone(), attempt: number.saturating_add(u32::from(self.odd == 1)) };
        let owner = if self.odd == 2 { self.owner() } else { has };
        let first = match self.odd {
            3 => next + 1,
            4 => next.saturating_sub(1),
            _ => next,
        };
        let event = |number: u64| StoredEvent { number, body: [self.bytes.as_slice(), &number.to_be_bytes()].concat() };
        let states = EffectState::ALL;
        let state = states[self.number % 5];
        let detail = (self.odd != 5).then(|| self.bytes.clone());
        let cause = CAUSES[self.number % CAUSES.len()];
        match self.what {
            0..8 => accept(self.new_run()),
            8..11 => Write::Begin { run, from: attempt.attempt, owner },
            11..18 => {
                let count = if self.odd == 5 { 0 } else { self.number as u64 };
                Write::Append { attempt, owner, events: (first..first + count).map(event).collect() }
            }
            18..22 => {
                let reason = (self.number > 9).then(|| String::from_utf8_lossy(&self.bytes).into_owned());
                let usage = Usage { prompt: u32::MAX, cached_prompt: 1, generated: self.number as u32 };
                let last = self.number.is_multiple_of(2).then(|| event(first));
                Write::End { attempt, owner, outcome: Outcome { cause, reason }, usage, last, hooks: Vec::new(), now_ms }
            }
            22..24 => Write::Record { run, owner, delivery: Delivery::ALL[self.number % 3], record: self.bytes.clone() },
            24..26 => Write::Want { run, cause },
            42..44 => Write::Follow { run },
            47..50 => Write::Attend { run, by: self.owner() },
            50..52 => Write::Depart { run, by: self.owner() },
            44..47 => Write::Keep { run, owner, keeps: self.number > 3 },
            26..28 => Write::TakeOver {
                run,
                from: owner,
                to: OWNERS[self.number % 3],
                skip: if self.odd == 5 { u32::MAX } else { self.number as u32 % 3 },
            },
            28 => Write::Beat { owner: self.owner(), name: "name".to_owned() },
            29 => Write::Leave { owner: self.owner() },
            30 => Write::Erase { run },
            31..33 => {
                let name = EFFECTS[self.number % 3];
                Write::Intend {
                    run,
                    effect: store::Effect { state, attempt: number, detail, created_ms: now_ms, ..effect(name) },
                    max: 2 + self.number % 2,
                }
            }
            33..36 => {
                let from = if self.odd == 1 { vec![states[(self.number + 1) % 5]] } else { states.to_vec() };
                Write::Move { run, key: EFFECTS[self.time as usize % 3].to_owned(), from, to: state, detail, now_ms }
            }
            36..38 => Write::Hook(store::Hook { run, body: self.bytes.clone(), ..hook(HOOKS[self.number % 3], "none", now_ms) }),
            38 => Write::HookTaken { id: HOOKS[self.number % 3].to_owned(), from_ms: i64::from(self.odd), due_ms: now_ms },
            40.. => Write::Disown { new: Box::new(self.new_run()), outcome: Outcome::of(cause), now_ms },
            _ => {
                Write::HookTried { id: HOOKS[self.number % 3].to_owned(), due_ms: (self.odd < 3).then_some(now_ms), last: "200".to_owned() }
            }
        }
    }
}

/// What can be read of these runs, and every list.
async fn everything(store: &dyn RunStore, keys: &[RunKey], now_ms: i64) -> String {
    let mut all = String::new();
    let mut add = |what: &dyn std::fmt::Debug| all += &format!("{what:?}\n");
    for key in keys {
        add(&store.run(key).await.unwrap());
        add(&store.glance(key).await.unwrap());
        add(&store.events(key, 0, 1000).await.unwrap());
        add(&store.events(key, 3, 4).await.unwrap());
        add(&store.effects(key).await.unwrap());
    }
    for tenant in TENANTS.map(|tenant| Tenant::parse(tenant).unwrap()) {
        for (ended, outcome, cause, after, limit) in [
            (false, None, None, None, 100),
            (true, None, None, None, 5),
            (false, Some(OutcomeKind::Completed), None, None, 2),
            (true, None, Some(Cause::Stop), Some("f1"), 100),
            (false, Some(OutcomeKind::Failed), Some(Cause::WorkerLost), Some("w"), 1),
        ] {
            let query = RunQuery { ended, outcome, cause, after: after.map(id), limit };
            add(&store.runs(&tenant, &query).await.unwrap());
        }
    }
    for owner in OWNERS {
        add(&store.owned(owner, 100).await.unwrap());
        add(&store.owned(owner, 1).await.unwrap());
        add(&store.wanted(owner).await.unwrap());
        add(&store.followed(owner).await.unwrap());
        add(&store.attended(owner).await.unwrap());
    }
    add(&store.owners().await.unwrap());
    add(&store.due_hooks(&HookQuery::any(now_ms, 100)).await.unwrap());
    add(&store.due_hooks(&HookQuery::any(now_ms, 1)).await.unwrap());
    add(&store.due_hooks(&HookQuery { any_since_ms: now_ms / 2, ..HookQuery::any(now_ms, 9) }).await.unwrap());
    all
}

/// One history, told to both.
async fn same(batches: Vec<Vec<Op>>, real: Arc<dyn RunStore>, place: &Place) -> Result<(), TestCaseError> {
    let model = Memory::new(place.config.clone(), false);
    for batch in batches {
        let (mut writes, mut expected) = (Vec::new(), Vec::new());
        for op in &batch {
            let write = op.write(&model).await;
            expected.extend(model.commit(vec![write.clone()], Survives::Process).await.unwrap());
            writes.push(write);
        }
        let survives = if batch.iter().all(|op| op.survives) { Survives::Machine } else { Survives::Process };
        let told: Vec<Wrote> = real.commit(writes.clone(), survives).await.unwrap();
        prop_assert_eq!(&told, &expected, "{:?}", writes);
        let now_ms = batch.first().map_or(0, |op| op.time);
        if batch.len() % 4 == 1 {
            let limit = batch[0].number % 4;
            let now_ms = now_ms * 20;
            prop_assert_eq!(real.expire(now_ms, limit).await.unwrap(), model.expire(now_ms, limit).await.unwrap());
        }
        let keys: Vec<RunKey> = batch.iter().map(Op::key).collect();
        prop_assert_eq!(everything(&*real, &keys, now_ms).await, everything(&*model, &keys, now_ms).await, "{:?}", writes);
    }
    let named = |tenant: &str| NAMES.map(|name| RunKey { tenant: Tenant::parse(tenant).unwrap(), run: id(name) });
    let keys: Vec<RunKey> = TENANTS.iter().flat_map(|tenant| named(tenant)).collect();
    prop_assert_eq!(everything(&*real, &keys, i64::MAX).await, everything(&*model, &keys, i64::MAX).await);
    Ok(())
}

fn play(cases: u32, fresh: impl AsyncFn() -> Option<(Arc<dyn RunStore>, Place)>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if runtime.block_on(fresh()).is_none() {
        return;
    }
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let history = proptest::collection::vec(proptest::collection::vec(op(), 1..12), 1..24);
    let played = runner.run(&history, |batches| {
        runtime.block_on(async {
            let (real, place) = fresh().await.unwrap();
            same(batches, real, &place).await
        })
    });
    played.unwrap();
}

#[test]
fn sqlite_does_what_the_model_does() {
    play(24, sqlite);
}

#[test]
fn postgres_does_what_the_model_does() {
    play(8, postgres);
}

#[test]
#[ignore = "minutes"]
fn long_sqlite_does_what_the_model_does() {
    play(1500, sqlite);
}

#[test]
#[ignore = "minutes"]
fn long_postgres_does_what_the_model_does() {
    play(1500, postgres);
}
