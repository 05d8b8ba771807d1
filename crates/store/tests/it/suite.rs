//! What every store does, whatever it is made of.

use std::collections::HashSet;
use std::sync::Arc;

use lifecycle::message::Usage;
use lifecycle::{Cause, Delivery, OnDisconnect, Outcome, OutcomeKind, Tenant};
use store::{EffectState, HookQuery, HookState, NewRun, RunQuery, RunStore, StoredEvent, Survives, Wake, Write, Wrote};

use crate::common::*;

macro_rules! on_every_store {
    ($($name:ident),+ $(,)?) => {
        on_every_store!(@ memory $($name),+);
        on_every_store!(@ sqlite $($name),+);
        on_every_store!(@ sealed $($name),+);
        on_every_store!(@ postgres $($name),+);
    };
    (@ $kind:ident $($name:ident),+) => {
        mod $kind {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some((store, _place)) = crate::common::$kind().await {
                        super::$name(store).await;
                    }
                }
            )+
        }
    };
}

on_every_store!(
    a_run_gets_the_id_that_is_free_and_is_read_back_as_it_was_accepted,
    the_same_accept_again_is_the_same_run,
    an_accept_that_is_taken_back_has_no_run_or_an_ended_one,
    a_key_leads_to_its_run_as_long_as_that_may_be_joined,
    an_attempt_and_its_events_are_its_owners,
    one_outcome_for_ever,
    events_are_read_in_pieces,
    an_end_is_asked_for_elsewhere_and_a_dead_lifes_run_is_taken_over,
    events_are_asked_for_and_kept_from_then_on,
    readers_elsewhere_are_known_until_they_or_their_gateway_leave,
    a_record_is_kept_and_erased,
    an_effect_moves_from_where_it_is_and_its_key_is_one_effect,
    a_webhook_is_due_until_it_is_over,
    nothing_is_begun_of_a_run_that_is_wanted_to_end_did_not_complete_or_is_erased,
    what_is_over_is_deleted_in_bounded_batches_with_all_that_belongs_to_it,
    runs_are_listed_newest_first,
    wakes_tell_of_what_was_committed,
    of_many_ends_at_once_one_is_the_outcome,
    of_many_accepts_with_one_key_one_begins_a_run,
    batches_that_cross_each_other_are_all_committed,
    a_nul_in_a_text_spoils_no_batch,
);

fn other(tenant: &str) -> Tenant {
    Tenant::parse(tenant).unwrap()
}

async fn a_run_gets_the_id_that_is_free_and_is_read_back_as_it_was_accepted(store: Arc<dyn RunStore>) {
    let wishing = |fresh: &str, wish: &str| NewRun { wish: Some(id(wish)), ..new(fresh) };
    let given = commit(
        &store,
        vec![
            accept(new("f1")),
            accept(wishing("f2", "mine")),
            accept(wishing("f3", "mine")),
            accept(NewRun { tenant: other("other"), ..wishing("f4", "mine") }),
        ],
    )
    .await;
    assert_eq!(given, ["f1", "mine", "mine~2", "mine"].map(|name| Wrote::Accepted(id(name))));
    for k in 3..=100 {
        assert_eq!(one(&store, accept(wishing(&format!("g{k}"), "mine"))).await, Wrote::Accepted(id(&format!("mine~{k}"))));
    }
    assert_eq!(one(&store, accept(wishing("last", "mine"))).await, Wrote::Accepted(id("last")));
    // Even `fresh` is somebody else's.
    assert!(matches!(one(&store, accept(new("mine"))).await, Wrote::Stands(run) if run.key == key("mine")));

    let whole = NewRun {
        door: "responses".to_owned(),
        on_disconnect: OnDisconnect::Grace(std::time::Duration::from_millis(2000)),
        keeps: false,
        owner: B,
        created_ms: i64::MAX,
        expires_ms: Some(-1),
        request: None,
        ..new("whole")
    };
    one(&store, accept(whole)).await;
    let kept = run(&store, "whole").await;
    assert_eq!((kept.door.as_str(), kept.model.as_str(), kept.caller.as_str()), ("responses", "model", "anonymous"));
    assert_eq!((kept.on_disconnect.to_string().as_str(), kept.keeps, kept.owner), ("grace(2000)", false, B));
    assert_eq!((kept.created_ms, kept.expires_ms, kept.request), (i64::MAX, Some(-1), None));
    assert_eq!((kept.attempt, kept.outcome, kept.wanted, kept.usage), (0, None, None, Usage::default()));
    assert_eq!((kept.delivery, kept.last_event, kept.ended_ms, kept.record, kept.erased), (None, 0, None, None, false));
    assert_eq!(run(&store, "f1").await.request.unwrap(), b"what was asked");
    assert_eq!(store.run(&key("nobody")).await.unwrap(), None);
}

async fn the_same_accept_again_is_the_same_run(store: Arc<dyn RunStore>) {
    let keyed = NewRun { wish: Some(id("mine")), joining: Some(("k".to_owned(), [1; 32])), ..new("f2") };
    commit(&store, vec![accept(NewRun { wish: Some(id("mine")), ..new("f1") }), accept(new("plain")), accept(keyed.clone())]).await;
    let wishing = NewRun { wish: Some(id("mine")), ..new("f1") };
    let again = commit(&store, vec![accept(wishing), accept(new("plain")), accept(keyed.clone())]).await;
    assert_eq!(again, ["mine", "plain", "mine~2"].map(|name| Wrote::Accepted(id(name))));
    // Without its key, too.
    assert_eq!(one(&store, accept(NewRun { joining: None, ..keyed })).await, Wrote::Accepted(id("mine~2")));
    let all = RunQuery { ended: false, outcome: None, cause: None, after: None, limit: 10 };
    assert_eq!(store.runs(&Tenant::default(), &all).await.unwrap().len(), 3);
}

async fn an_accept_that_is_taken_back_has_no_run_or_an_ended_one(store: Arc<dyn RunStore>) {
    let keyed = |fresh: &str| NewRun { wish: Some(id("mine")), joining: Some(("k".to_owned(), [1; 32])), ..new(fresh) };
    let outcome = || Outcome::because(Cause::QueueFull, "taken back");
    let disown = |fresh: &str| Write::Disown { new: Box::new(keyed(fresh)), outcome: outcome(), now_ms: 10 };
    // It never was.
    assert_eq!(one(&store, disown("f1")).await, Wrote::Absent);
    assert_eq!(store.run(&key("mine")).await.unwrap(), None);
    // It was, under the second name; the first is another one's and stays as it is. The next one with the key gets a run of its own.
    commit(&store, vec![accept(NewRun { wish: Some(id("mine")), ..new("f0") }), accept(keyed("f1"))]).await;
    let wrote = commit(&store, vec![disown("f1"), accept(keyed("f2")), disown("f1")]).await;
    assert_eq!(wrote[..2], [Wrote::Done, Wrote::Accepted(id("mine~3"))]);
    assert!(matches!(&wrote[2], Wrote::Stands(run) if run.key == key("mine~2")));
    assert_eq!((run(&store, "mine").await.outcome, run(&store, "mine~2").await.outcome), (None, Some(outcome())));
    // One that has begun is somebody's.
    commit(&store, vec![Write::Begin { run: key("mine~3"), from: 0, owner: A }]).await;
    assert!(matches!(one(&store, disown("f2")).await, Wrote::Stands(run) if run.outcome.is_none()));
}

async fn a_key_leads_to_its_run_as_long_as_that_may_be_joined(store: Arc<dyn RunStore>) {
    let keyed = |fresh: &str, digest: u8| NewRun { joining: Some(("the key".to_owned(), [digest; 32])), ..new(fresh) };
    let joined = |wrote: Wrote, name: &str| assert!(matches!(&wrote, Wrote::Joined(run) if run.key == key(name)), "{wrote:?}");
    assert_eq!(one(&store, accept(keyed("r1", 1))).await, Wrote::Accepted(id("r1")));
    joined(one(&store, accept(keyed("r2", 1))).await, "r1");
    assert_eq!(one(&store, accept(keyed("r2", 2))).await, Wrote::OtherBody);
    assert_eq!(one(&store, accept(NewRun { tenant: other("o"), ..keyed("r2", 2) })).await, Wrote::Accepted(id("r2")));
    // Somebody wants its end: it is nobody's to join.
    one(&store, Write::Want { run: key("r1"), cause: Cause::CancelRequested }).await;
    assert_eq!(one(&store, accept(keyed("r3", 2))).await, Wrote::OtherBody, "a key is for one request");
    assert_eq!(one(&store, accept(keyed("r3", 1))).await, Wrote::Accepted(id("r3")));
    one(&store, end("r3", 0, Cause::Stop, None)).await;
    joined(one(&store, accept(keyed("r4", 1))).await, "r3");
    assert_eq!(one(&store, accept(keyed("r4", 2))).await, Wrote::OtherBody);
    one(&store, Write::Erase { run: key("r3") }).await;
    assert_eq!(one(&store, accept(keyed("r4", 2))).await, Wrote::Accepted(id("r4")));
    one(&store, end("r4", 0, Cause::WorkerError, None)).await;
    assert_eq!(one(&store, accept(keyed("r5", 3))).await, Wrote::OtherBody, "whatever became of it");
    assert_eq!(one(&store, accept(keyed("r5", 2))).await, Wrote::Accepted(id("r5")));
    joined(one(&store, accept(keyed("r6", 2))).await, "r5");
}

async fn an_attempt_and_its_events_are_its_owners(store: Arc<dyn RunStore>) {
    let begin = |from, owner| Write::Begin { run: key("r"), from, owner };
    let stands = |wrote: &Wrote, attempt: u32, last: u64| {
        assert!(matches!(wrote, Wrote::Stands(run) if (run.attempt, run.last_event) == (attempt, last)), "{wrote:?}");
    };
    let wrote = commit(
        &store,
        vec![
            begin(0, A),
            accept(new("r")),
            append("r", 0, events(1..=2)),
            begin(0, B),
            begin(1, A),
            begin(0, A),
            begin(0, A),
            append("r", 0, events(3..=3)),
            Write::Append { attempt: attempt("r", 1), owner: B, events: events(3..=3) },
            append("r", 1, events(2..=3)),
            append("r", 1, events(4..=4)),
            append("r", 1, vec![event(3), event(5)]),
            append("r", 1, Vec::new()),
            append("r", 1, events(3..=40)),
        ],
    )
    .await;
    assert_eq!(wrote[0], Wrote::Absent);
    assert_eq!(wrote[2], Wrote::Done);
    stands(&wrote[3], 0, 2);
    stands(&wrote[4], 0, 2);
    assert_eq!(wrote[5], Wrote::Done);
    wrote[6..13].iter().for_each(|wrote| stands(wrote, 1, 2));
    assert_eq!(wrote[13], Wrote::Done);
    assert_eq!(store.events(&key("r"), 0, 100).await.unwrap(), events(1..=40));
    assert_eq!(one(&store, append("nobody", 1, events(1..=1))).await, Wrote::Absent);
}

// contract: C-5
async fn one_outcome_for_ever(store: Arc<dyn RunStore>) {
    commit(&store, vec![accept(new("r")), Write::Begin { run: key("r"), from: 0, owner: A }, append("r", 1, events(1..=1))]).await;
    for refused in [end("r", 0, Cause::Stop, Some(2)), end("r", 1, Cause::Stop, Some(3)), end("r", 1, Cause::Stop, Some(1))] {
        assert!(matches!(one(&store, refused).await, Wrote::Stands(run) if run.outcome.is_none()));
    }
    let usage = Usage { prompt: 3, cached_prompt: 2, generated: 1 };
    let outcome = Outcome::because(Cause::DeviceError, "it broke");
    let last = Some(event(2));
    let done = Write::End { attempt: attempt("r", 1), owner: A, outcome: outcome.clone(), usage, last, hooks: Vec::new(), now_ms: 10 };
    assert_eq!(one(&store, done.clone()).await, Wrote::Done);
    let ended = run(&store, "r").await;
    assert_eq!((ended.outcome.as_ref(), ended.usage, ended.ended_ms, ended.last_event), (Some(&outcome), usage, Some(10), 2));
    let late = [
        done,
        end("r", 1, Cause::Stop, Some(3)),
        end("r", 1, Cause::Stop, None),
        append("r", 1, events(3..=3)),
        Write::Begin { run: key("r"), from: 1, owner: A },
        Write::Want { run: key("r"), cause: Cause::CancelRequested },
        Write::TakeOver { run: key("r"), from: A, to: B, skip: 0 },
    ];
    for wrote in commit(&store, late.to_vec()).await {
        assert_eq!(wrote, Wrote::Stands(Box::new(ended.clone())));
    }
    assert_eq!(run(&store, "r").await, ended);
    assert_eq!(store.events(&key("r"), 0, 9).await.unwrap(), events(1..=2));
    assert_eq!(one(&store, end("nobody", 0, Cause::Stop, None)).await, Wrote::Absent);
}

async fn events_are_read_in_pieces(store: Arc<dyn RunStore>) {
    let body: Vec<u8> = (0..=255).collect();
    commit(
        &store,
        vec![accept(new("r")), append("r", 0, events(1..=9)), append("r", 0, vec![StoredEvent { number: 10, body: body.clone() }])],
    )
    .await;
    assert_eq!(store.events(&key("r"), 0, 4).await.unwrap(), events(1..=4));
    assert_eq!(store.events(&key("r"), 4, 5).await.unwrap(), events(5..=9));
    assert_eq!(store.events(&key("r"), 9, usize::MAX).await.unwrap(), [StoredEvent { number: 10, body }]);
    for (name, after, limit) in [("r", 10, 9), ("r", u64::MAX, 9), ("r", 0, 0), ("nobody", 0, 9)] {
        assert_eq!(store.events(&key(name), after, limit).await.unwrap(), []);
    }
}

async fn an_end_is_asked_for_elsewhere_and_a_dead_lifes_run_is_taken_over(store: Arc<dyn RunStore>) {
    let want = |name: &str, cause| Write::Want { run: key(name), cause };
    let beat = |owner| Write::Beat { owner, name: "gateway".to_owned() };
    let wrote =
        commit(&store, vec![accept(new("r1")), accept(new("r2")), want("r2", Cause::CancelRequested), want("r2", Cause::Shutdown)]).await;
    assert_eq!(wrote[2..], [Wrote::Done, Wrote::Done]);
    assert_eq!(one(&store, want("nobody", Cause::Shutdown)).await, Wrote::Absent);
    assert_eq!(store.wanted(A).await.unwrap(), [(key("r2"), Cause::CancelRequested)]);
    assert_eq!(store.wanted(B).await.unwrap(), []);

    assert_eq!(store.owners().await.unwrap(), [(A, 0)]);
    commit(&store, vec![beat(A), beat(A), beat(B)]).await;
    assert_eq!(store.owners().await.unwrap(), [(A, 2)]);
    let names = |runs: Vec<store::StoredRun>| runs.into_iter().map(|run| run.key.run.to_string()).collect::<Vec<_>>();
    assert_eq!(names(store.owned(A, 9).await.unwrap()), ["r1", "r2"]);
    assert_eq!(names(store.owned(A, 1).await.unwrap()), ["r1"]);

    let take = |from, to| Write::TakeOver { run: key("r1"), from, to, skip: 2 };
    let wrote = commit(&store, vec![take(B, A), take(A, B), take(A, B)]).await;
    assert!(matches!(&wrote[0], Wrote::Stands(run) if run.owner == A));
    assert!(matches!(&wrote[1], Wrote::Taken(run) if run.owner == B));
    assert!(matches!(&wrote[2], Wrote::Stands(run) if run.owner == B));
    // The life before is fenced off, whatever it still says.
    for late in [append("r1", 0, events(1..=1)), end("r1", 0, Cause::Stop, None), Write::Begin { run: key("r1"), from: 0, owner: A }] {
        assert!(matches!(one(&store, late).await, Wrote::Stands(run) if run.owner == B));
    }
    assert_eq!(store.owners().await.unwrap(), [(A, 2), (B, 1)]);
    one(&store, Write::Leave { owner: B }).await;
    one(&store, end("r2", 0, Cause::CancelRequested, None)).await;
    // Left in good order: what B had is nobody's, and whoever comes first may take it.
    assert_eq!(store.owners().await.unwrap(), [(lifecycle::Incarnation(0), 0)]);
    assert!(matches!(one(&store, take(lifecycle::Incarnation(0), A)).await, Wrote::Taken(run) if run.owner == A));
    assert_eq!(store.wanted(A).await.unwrap(), []);
}

async fn events_are_asked_for_and_kept_from_then_on(store: Arc<dyn RunStore>) {
    let follow = |run: &str| Write::Follow { run: key(run) };
    let keep = |owner, keeps| Write::Keep { run: key("r"), owner, keeps };
    commit(&store, vec![accept(NewRun { keeps: false, ..new("r") }), accept(new("kept"))]).await;
    assert!(matches!(one(&store, keep(A, true)).await, Wrote::Stands(_)), "nobody asks");
    assert!(matches!(one(&store, follow("kept")).await, Wrote::Stands(_)), "they are kept already");
    assert_eq!(one(&store, follow("nobody")).await, Wrote::Absent);
    assert_eq!(commit(&store, vec![follow("r"), follow("r")]).await, [Wrote::Done, Wrote::Done]);
    let asked = run(&store, "r").await;
    assert_eq!((asked.keeps, asked.followed, store.followed(A).await.unwrap()), (false, true, vec![key("r")]));
    assert_eq!(store.followed(B).await.unwrap(), []);
    // Only who has the run answers; a no may be asked again.
    assert!(matches!(one(&store, keep(B, true)).await, Wrote::Stands(_)));
    assert_eq!(commit(&store, vec![keep(A, false), follow("r"), keep(A, true)]).await, [Wrote::Done, Wrote::Done, Wrote::Done]);
    let kept = run(&store, "r").await;
    assert_eq!((kept.keeps, kept.followed, store.followed(A).await.unwrap()), (true, false, vec![]));
    assert_eq!(commit(&store, vec![append("r", 0, events(1..=2)), end("r", 0, Cause::Stop, Some(3))]).await, [Wrote::Done, Wrote::Done]);
    assert!(matches!(one(&store, follow("r")).await, Wrote::Stands(_)), "it has ended");
}

// contract: C-25
async fn readers_elsewhere_are_known_until_they_or_their_gateway_leave(store: Arc<dyn RunStore>) {
    let attend = |run: &str, by| Write::Attend { run: key(run), by };
    let depart = |run: &str, by| Write::Depart { run: key(run), by };
    let c = lifecycle::Incarnation(7);
    commit(&store, vec![accept(new("r")), accept(new("ended")), end("ended", 0, Cause::Stop, None)]).await;
    let mut wakes = store.wakes();
    assert!(matches!(one(&store, attend("ended", B)).await, Wrote::Stands(_)));
    assert_eq!(one(&store, attend("nobody", B)).await, Wrote::Absent);
    assert_eq!(commit(&store, vec![attend("r", B), attend("r", B), attend("r", c), attend("r", A)]).await, vec![Wrote::Done; 4]);
    // Those of its own gateway have a seat there.
    assert_eq!(store.attended(A).await.unwrap(), [(key("r"), c, 0), (key("r"), B, 0)]);
    assert_eq!(store.attended(B).await.unwrap(), []);
    commit(&store, vec![Write::Beat { owner: c, name: "c".to_owned() }; 2]).await;
    assert_eq!(store.attended(A).await.unwrap(), [(key("r"), c, 2), (key("r"), B, 0)]);
    assert_eq!(commit(&store, vec![depart("r", B), depart("r", B), depart("nobody", B)]).await, vec![Wrote::Done; 3]);
    assert_eq!(store.attended(A).await.unwrap(), [(key("r"), c, 2)]);
    // At least one of each commit: of equal ones in a commit PostgreSQL sends one. That of the end before may come behind them.
    let mut wanted = 0;
    while wanted < 2 {
        let wake = tokio::time::timeout(std::time::Duration::from_secs(20), wakes.recv()).await.unwrap().unwrap();
        assert!(wake == Wake::Wanted(key("r")) || wake == Wake::Moved(key("ended")), "{wake:?}");
        wanted += u32::from(wake == Wake::Wanted(key("r")));
    }
    one(&store, Write::Leave { owner: c }).await;
    assert_eq!(store.attended(A).await.unwrap(), []);
    // What is over has no readers that anybody waits for, and is deleted with them.
    commit(&store, vec![attend("r", B), end("r", 0, Cause::Stop, None)]).await;
    assert_eq!(store.attended(A).await.unwrap(), []);
    assert_eq!(store.expire(i64::MAX, 9).await.unwrap(), 2);
}

async fn a_record_is_kept_and_erased(store: Arc<dyn RunStore>) {
    let record = |run: &str| Write::Record { run: key(run), owner: A, delivery: Delivery::Partial, record: b"{}".to_vec() };
    let erase = |run: &str| Write::Erase { run: key(run) };
    commit(&store, vec![accept(new("r")), Write::Intend { run: key("r"), effect: effect("e"), max: 9 }, append("r", 0, events(1..=3))])
        .await;
    for early in [record("r"), erase("r")] {
        assert!(matches!(one(&store, early).await, Wrote::Stands(_)));
    }
    for nobodys in [record("nobody"), erase("nobody")] {
        assert_eq!(one(&store, nobodys).await, Wrote::Absent);
    }
    let wrote = commit(&store, vec![end("r", 0, Cause::Stop, Some(4)), record("r")]).await;
    assert_eq!(wrote, [Wrote::Done, Wrote::Done]);
    // contract: C-5. What a gateway that lost the run says of it changes nothing.
    let others = Write::Record { run: key("r"), owner: B, delivery: Delivery::None, record: b"{1}".to_vec() };
    assert!(matches!(one(&store, others).await, Wrote::Stands(_)));
    let kept = run(&store, "r").await;
    assert_eq!((kept.record.as_deref(), kept.delivery), (Some(b"{}".as_slice()), Some(Delivery::Partial)));

    assert_eq!(commit(&store, vec![erase("r"), erase("r"), record("r")]).await, [Wrote::Done, Wrote::Done, Wrote::Done]);
    let erased = run(&store, "r").await;
    assert_eq!((erased.request, erased.record, erased.erased, erased.outcome.is_some()), (None, None, true, true));
    assert_eq!(store.events(&key("r"), 0, 9).await.unwrap(), []);
    let effects = store.effects(&key("r")).await.unwrap();
    assert_eq!((effects.len(), effects[0].description.as_str(), effects[0].kind.as_str()), (1, "", "payment"));
    // Nothing comes back to it.
    let later = store::Effect { state: EffectState::Committed, ..effect("later") };
    one(&store, Write::Intend { run: key("r"), effect: later, max: 9 }).await;
    assert_eq!(store.effects(&key("r")).await.unwrap()[1].description, "");
}

async fn an_effect_moves_from_where_it_is_and_its_key_is_one_effect(store: Arc<dyn RunStore>) {
    use EffectState::{Committed, Failed, Intended, Submitted, Unknown};
    let intend = |run: &str, effect| Write::Intend { run: key(run), effect, max: 9 };
    let moved = |name: &str, from: &[EffectState], to, detail: Option<&[u8]>| Write::Move {
        run: key("r"),
        key: name.to_owned(),
        from: from.to_vec(),
        to,
        detail: detail.map(<[u8]>::to_vec),
        now_ms: 7,
    };
    one(&store, accept(new("r"))).await;
    assert_eq!(one(&store, intend("nobody", effect("e"))).await, Wrote::Absent);
    assert_eq!(one(&store, intend("r", effect("e2"))).await, Wrote::Effect(effect("e2")));
    assert_eq!(one(&store, intend("r", effect("e1"))).await, Wrote::Effect(effect("e1")));
    let again = store::Effect { description: "something else".to_owned(), ..effect("e2") };
    assert_eq!(one(&store, intend("r", again)).await, Wrote::Effect(effect("e2")));

    let submitted = store::Effect { state: Submitted, updated_ms: 7, ..effect("e2") };
    assert_eq!(one(&store, moved("e2", &[Intended], Submitted, None)).await, Wrote::Effect(submitted.clone()));
    assert_eq!(one(&store, moved("e2", &[Intended, Failed], Failed, Some(b"no"))).await, Wrote::EffectStands(submitted.clone()));
    assert_eq!(one(&store, moved("e2", &[], Failed, None)).await, Wrote::EffectStands(submitted.clone()));
    let committed = store::Effect { state: Committed, detail: Some(b"200".to_vec()), ..submitted };
    assert_eq!(one(&store, moved("e2", &[Submitted, Unknown], Committed, Some(b"200"))).await, Wrote::Effect(committed.clone()));
    let unknown = store::Effect { state: Unknown, ..committed };
    assert_eq!(one(&store, moved("e2", &EffectState::ALL, Unknown, None)).await, Wrote::Effect(unknown.clone()));
    assert_eq!(one(&store, moved("none", &EffectState::ALL, Unknown, None)).await, Wrote::Absent);
    assert_eq!(store.effects(&key("r")).await.unwrap(), [unknown, effect("e1")]);
    assert_eq!(store.effects(&key("nobody")).await.unwrap(), []);
}

async fn a_webhook_is_due_until_it_is_over(store: Arc<dyn RunStore>) {
    let tried = |name: &str, due_ms| Write::HookTried { id: name.to_owned(), due_ms, last: "500".to_owned() };
    let put = vec![
        Write::Hook(hook("h1", "r", 30)),
        Write::Hook(hook("h2", "r", 10)),
        Write::Hook(hook("h3", "r", 30)),
        Write::Hook(hook("h1", "r", 1)),
    ];
    assert_eq!(commit(&store, put).await, [Wrote::Done, Wrote::Done, Wrote::Done, Wrote::Done]);
    assert_eq!(store.due_hooks(&HookQuery::any(9, 9)).await.unwrap(), []);
    assert_eq!(store.due_hooks(&HookQuery::any(30, 9)).await.unwrap(), [hook("h2", "r", 10), hook("h1", "r", 30), hook("h3", "r", 30)]);
    assert_eq!(store.due_hooks(&HookQuery::any(30, 1)).await.unwrap(), [hook("h2", "r", 10)]);
    // Those to some URLs, and to any that have been due for long.
    let elsewhere = store::Hook { url: "http://there/too".to_owned(), ..hook("h9", "r", 20) };
    one(&store, Write::Hook(elsewhere.clone())).await;
    let urls = |urls: &[&str], any_since_ms| HookQuery {
        now_ms: 30,
        urls: urls.iter().map(|url| (*url).to_owned()).collect(),
        any_since_ms,
        limit: 9,
    };
    let ids = async |query: HookQuery| store.due_hooks(&query).await.unwrap().into_iter().map(|hook| hook.id).collect::<Vec<_>>().join(" ");
    assert_eq!(ids(urls(&[], 9)).await, "");
    assert_eq!(ids(urls(&["http://there/too"], 9)).await, "h9");
    assert_eq!(ids(urls(&["http://a/", "http://there/"], 9)).await, "h2 h1 h3");
    assert_eq!(ids(urls(&["http://there/", "http://there/too"], 9)).await, "h2 h9 h1 h3");
    assert_eq!(ids(urls(&["http://ther", "ttp://there/"], 10)).await, "h2");
    assert_eq!(ids(urls(&[], 20)).await, "h2 h9");
    one(&store, Write::HookTried { id: "h9".to_owned(), due_ms: None, last: "delivered".to_owned() }).await;
    assert_eq!(one(&store, tried("none", None)).await, Wrote::Absent);
    one(&store, accept(new("r"))).await;
    assert_eq!(
        commit(&store, vec![tried("h2", Some(50)), tried("h1", None), tried("h1", Some(1))]).await,
        [Wrote::Done, Wrote::Done, Wrote::Done]
    );
    // Written with a run's end, one is there if and only if that end is the run's.
    one(&store, accept(new("ends"))).await;
    let ends = |cause, name: &str| match end("ends", 0, cause, None) {
        Write::End { attempt, owner, outcome, usage, last, now_ms, .. } => {
            Write::End { attempt, owner, outcome, usage, last, hooks: vec![hook(name, "ends", 90)], now_ms }
        }
        other => other,
    };
    assert_eq!(one(&store, ends(Cause::Stop, "first")).await, Wrote::Done);
    assert!(matches!(one(&store, ends(Cause::ClientClosed, "second")).await, Wrote::Stands(_)));
    let of_end: Vec<_> = store.hooks(&key("ends")).await.unwrap().into_iter().map(|state| state.id).collect();
    assert_eq!(of_end, ["first"]);
    one(&store, tried("first", None)).await;
    // Over is over, and is no other's id.
    assert_eq!(one(&store, Write::Hook(hook("h1", "r", 1))).await, Wrote::Done);
    assert_eq!(
        store.due_hooks(&HookQuery::any(99, 9)).await.unwrap(),
        [hook("h3", "r", 30), store::Hook { tries: 1, last: Some("500".to_owned()), ..hook("h2", "r", 50) }]
    );
    let state = |name: &str, due_ms, tries| HookState {
        id: name.to_owned(),
        url: "http://there/".to_owned(),
        due_ms,
        tries,
        last: (tries > 0).then(|| "500".to_owned()),
    };
    let all = [state("h1", None, 1), state("h2", Some(50), 1), state("h3", Some(30), 0)];
    assert_eq!(store.hooks(&key("r")).await.unwrap(), all);
    assert_eq!(store.hooks(&key("nobody")).await.unwrap(), []);
    // Of several that take one, one has it.
    let take = |from_ms, due_ms| Write::HookTaken { id: "h3".to_owned(), from_ms, due_ms };
    assert_eq!(commit(&store, vec![take(29, 70), take(30, 60), take(30, 61)]).await, [Wrote::Absent, Wrote::Done, Wrote::Absent]);
    assert_eq!(store.due_hooks(&HookQuery::any(59, 9)).await.unwrap().len(), 1);
    assert_eq!(store.due_hooks(&HookQuery::any(60, 9)).await.unwrap()[1], hook("h3", "r", 60));
    let over = Write::HookTaken { id: "h1".to_owned(), from_ms: 30, due_ms: 60 };
    assert_eq!(one(&store, over).await, Wrote::Absent);
}

// contract: C-27
async fn nothing_is_begun_of_a_run_that_is_wanted_to_end_did_not_complete_or_is_erased(store: Arc<dyn RunStore>) {
    use EffectState::{Committed, Failed, Intended, Submitted};
    let state = |run: &str, name: &str, state| Write::Intend { run: key(run), effect: store::Effect { state, ..effect(name) }, max: 3 };
    let submit = |run: &str, name: &str| Write::Move {
        run: key(run),
        key: name.to_owned(),
        from: vec![Intended],
        to: Submitted,
        detail: None,
        now_ms: 7,
    };
    let runs = ["completed", "wanted", "cancelled", "both", "erased"];
    for name in runs {
        commit(&store, vec![accept(new(name)), state(name, "meant", Intended), state(name, "sent", Submitted)]).await;
    }
    let want = |name: &str| Write::Want { run: key(name), cause: Cause::CancelRequested };
    commit(&store, vec![want("wanted"), end("completed", 0, Cause::Stop, None), end("cancelled", 0, Cause::ClientClosed, None)]).await;
    commit(&store, vec![want("both"), end("both", 0, Cause::Stop, None)]).await;
    commit(&store, vec![end("erased", 0, Cause::Stop, None), Write::Erase { run: key("erased") }]).await;
    for (name, begins, meant) in [
        ("completed", true, Intended),
        ("wanted", false, Intended),
        ("cancelled", false, Failed),
        ("both", false, Intended),
        ("erased", false, Intended),
    ] {
        let effects = store.effects(&key(name)).await.unwrap();
        assert_eq!([effects[0].state, effects[1].state], [meant, Submitted], "{name}");
        let detail = (meant == Failed).then(|| b"not begun: the run was cancelled".to_vec());
        assert_eq!((effects[0].detail.clone(), effects[0].updated_ms), (detail, if meant == Failed { 10 } else { 5 }), "{name}");
        // What was noted before is answered as it stands, what was done already is noted, and what would begin is not.
        assert_eq!(one(&store, state(name, "meant", Intended)).await, Wrote::Effect(effects[0].clone()), "{name}");
        let anew = one(&store, state(name, "anew", Intended)).await;
        assert_eq!((matches!(anew, Wrote::Effect(_)), matches!(anew, Wrote::Stands(_))), (begins, !begins), "{name}: {anew:?}");
        let moved = one(&store, submit(name, "meant")).await;
        assert_eq!(matches!(moved, Wrote::Effect(_)), begins, "{name}: {moved:?}");
        if !begins {
            let done = one(&store, state(name, "done", Committed)).await;
            assert!(matches!(done, Wrote::Effect(done) if done.state == Committed), "{name}");
        }
        assert_eq!(one(&store, state(name, "more", Committed)).await, Wrote::Full, "{name}");
        assert!(matches!(one(&store, state(name, "sent", Submitted)).await, Wrote::Effect(_)), "{name}");
    }
}

async fn what_is_over_is_deleted_in_bounded_batches_with_all_that_belongs_to_it(store: Arc<dyn RunStore>) {
    let keyed = |fresh: &str, expires_ms| NewRun { expires_ms, joining: Some((fresh.to_owned(), [1; 32])), ..new(fresh) };
    let expiring = [("r1", Some(20)), ("r2", None), ("r3", Some(5000)), ("r4", Some(10)), ("open", Some(1))];
    for (name, expires) in expiring {
        let effect = Write::Intend { run: key(name), effect: effect("e"), max: 9 };
        commit(&store, vec![accept(keyed(name, expires)), append(name, 0, events(1..=20)), effect]).await;
        if name != "open" {
            one(&store, end(name, 0, Cause::Stop, Some(21))).await;
        }
    }
    commit(
        &store,
        vec![Write::Hook(hook("over", "r1", 1)), Write::HookTried { id: "over".to_owned(), due_ms: None, last: "204".to_owned() }],
    )
    .await;
    one(&store, Write::Hook(hook("due", "r1", 1))).await;

    assert_eq!(store.expire(9, 100).await.unwrap(), 0);
    assert_eq!(store.expire(4000, 0).await.unwrap(), 0);
    assert_eq!(store.expire(4000, 1).await.unwrap(), 1);
    let left = async || {
        let all = RunQuery { ended: false, outcome: None, cause: None, after: None, limit: 10 };
        let runs = store.runs(&Tenant::default(), &all).await.unwrap();
        runs.into_iter().map(|run| run.key.run.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(left().await, ["open", "r3", "r2", "r1"]);
    // One that says when, and one that ended at 10 and has the operator's default.
    assert_eq!(store.expire(10 + RETENTION_MS - 1, 100).await.unwrap(), 1);
    assert_eq!(store.expire(10 + RETENTION_MS, 100).await.unwrap(), 1);
    assert_eq!(left().await, ["open", "r3"]);
    assert_eq!(store.expire(4999, 100).await.unwrap(), 0);
    assert_eq!(store.events(&key("r1"), 0, 9).await.unwrap(), []);
    assert_eq!(store.effects(&key("r1")).await.unwrap(), []);
    // Key and id are free again, and a webhook that is due still is.
    assert_eq!(one(&store, accept(keyed("r1", None))).await, Wrote::Accepted(id("r1")));
    assert_eq!(store.events(&key("r1"), 0, 9).await.unwrap(), []);
    assert_eq!(store.due_hooks(&HookQuery::any(9, 9)).await.unwrap(), [hook("due", "r1", 1)]);
    assert_eq!(one(&store, Write::HookTried { id: "over".to_owned(), due_ms: None, last: "204".to_owned() }).await, Wrote::Absent);
}

async fn runs_are_listed_newest_first(store: Arc<dyn RunStore>) {
    let causes = [None, Some(Cause::Stop), Some(Cause::Length), Some(Cause::CancelRequested), Some(Cause::Stop)];
    for (number, cause) in causes.iter().enumerate() {
        let name = format!("r{number}");
        one(&store, accept(new(&name))).await;
        if let Some(cause) = cause {
            one(&store, end(&name, 0, *cause, None)).await;
        }
    }
    one(&store, accept(NewRun { tenant: other("other"), ..new("theirs") })).await;
    let all = RunQuery { ended: false, outcome: None, cause: None, after: None, limit: 10 };
    let listed = async |query: RunQuery| {
        let runs = store.runs(&Tenant::default(), &query).await.unwrap();
        runs.into_iter().map(|run| run.key.run.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(listed(all.clone()).await, "r4 r3 r2 r1 r0");
    assert_eq!(listed(RunQuery { limit: 2, ..all.clone() }).await, "r4 r3");
    assert_eq!(listed(RunQuery { after: Some(id("r3")), limit: 2, ..all.clone() }).await, "r2 r1");
    assert_eq!(listed(RunQuery { after: Some(id("nobody")), ..all.clone() }).await, "");
    assert_eq!(listed(RunQuery { ended: true, ..all.clone() }).await, "r4 r3 r2 r1");
    assert_eq!(listed(RunQuery { outcome: Some(OutcomeKind::Completed), ..all.clone() }).await, "r4 r2 r1");
    assert_eq!(listed(RunQuery { outcome: Some(OutcomeKind::Completed), cause: Some(Cause::Stop), ..all.clone() }).await, "r4 r1");
    assert_eq!(listed(RunQuery { cause: Some(Cause::Stop), after: Some(id("r4")), ..all.clone() }).await, "r1");
    assert_eq!(listed(RunQuery { limit: 0, ..all.clone() }).await, "");
    let prompts = store.runs(&Tenant::default(), &all).await.unwrap().into_iter().filter(|run| run.request.is_some()).count();
    assert_eq!((prompts, run(&store, "r0").await.request.is_some()), (0, true), "a list holds no prompts");
}

async fn wakes_tell_of_what_was_committed(store: Arc<dyn RunStore>) {
    let mut wakes = store.wakes();
    commit(
        &store,
        vec![
            accept(new("r")),
            Write::Want { run: key("r"), cause: Cause::Shutdown },
            Write::Want { run: key("nobody"), cause: Cause::Shutdown },
        ],
    )
    .await;
    commit(&store, vec![append("r", 0, events(1..=1)), append("r", 0, events(5..=5))]).await;
    one(&store, Write::TakeOver { run: key("r"), from: A, to: A, skip: 0 }).await;
    one(&store, end("r", 0, Cause::Stop, Some(2))).await;
    one(&store, end("r", 0, Cause::Stop, Some(2))).await;
    let mut heard = Vec::new();
    for _ in 0..4 {
        heard.push(tokio::time::timeout(std::time::Duration::from_secs(20), wakes.recv()).await.unwrap().unwrap());
    }
    let moved = Wake::Moved(key("r"));
    assert_eq!(heard, [Wake::Wanted(key("r")), moved.clone(), moved.clone(), moved]);
    assert!(wakes.try_recv().is_err());
}

// contract: C-5
async fn of_many_ends_at_once_one_is_the_outcome(store: Arc<dyn RunStore>) {
    let causes = [Cause::Stop, Cause::CancelRequested, Cause::ClientClosed, Cause::GatewayDeadline];
    for round in 0..20 {
        let name = format!("r{round}");
        one(&store, accept(new(&name))).await;
        let tasks = causes.map(|cause| {
            let (store, name) = (store.clone(), name.clone());
            tokio::spawn(async move { (cause, one(&store, end(&name, 0, cause, Some(1))).await) })
        });
        let (mut done, mut seen) = (Vec::new(), HashSet::new());
        for task in tasks {
            match task.await.unwrap() {
                (cause, Wrote::Done) => done.push(cause),
                (_, Wrote::Stands(run)) => drop(seen.insert(run.outcome.unwrap().cause)),
                (_, other) => panic!("{other:?}"),
            }
        }
        assert_eq!(done.len(), 1);
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), done);
        assert_eq!(run(&store, &name).await.outcome.unwrap().cause, done[0]);
        assert_eq!(store.events(&key(&name), 0, 9).await.unwrap(), events(1..=1));
    }
}

async fn of_many_accepts_with_one_key_one_begins_a_run(store: Arc<dyn RunStore>) {
    for round in 0..20 {
        let tasks = [0, 1, 2, 3].map(|number| {
            let store = store.clone();
            let joining = Some((format!("key {round}"), [7; 32]));
            tokio::spawn(async move { one(&store, accept(NewRun { joining, ..new(&format!("r{round}-{number}")) })).await })
        });
        let (mut accepted, mut joined) = (Vec::new(), HashSet::new());
        for task in tasks {
            match task.await.unwrap() {
                Wrote::Accepted(run) => accepted.push(run),
                Wrote::Joined(run) => drop(joined.insert(run.key.run)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(accepted.len(), 1);
        assert_eq!(joined.into_iter().collect::<Vec<_>>(), accepted);
    }
}

async fn batches_that_cross_each_other_are_all_committed(store: Arc<dyn RunStore>) {
    let names: Vec<String> = (0..8).map(|number| format!("r{number}")).collect();
    commit(&store, names.iter().map(|name| accept(new(name))).collect()).await;
    let beat = |owner| Write::Beat { owner, name: String::new() };
    let there = names.iter().map(|name| Write::Want { run: key(name), cause: Cause::CancelRequested });
    let there: Vec<Write> = std::iter::once(beat(A)).chain(there).collect();
    let back: Vec<Write> = names.iter().rev().map(|name| append(name, 0, events(1..=1))).chain([beat(A)]).collect();
    let (there, back) = tokio::join!(store.commit(there, Survives::Process), store.commit(back, Survives::Machine));
    assert_eq!((there.unwrap(), back.unwrap()), (vec![Wrote::Done; 9], vec![Wrote::Done; 9]));
    assert_eq!(store.wanted(A).await.unwrap().len(), 8);
    assert_eq!(store.owners().await.unwrap(), [(A, 2)]);
}

async fn a_nul_in_a_text_spoils_no_batch(store: Arc<dyn RunStore>) {
    let named = NewRun { model: "mo\0del".to_owned(), joining: Some(("k\0".to_owned(), [1; 32])), ..new("r") };
    let odd = store::Effect { kind: "\0".to_owned(), description: "a\0b".to_owned(), ..effect("e\0") };
    let moved = Write::Move {
        run: key("r"),
        key: "e\0".to_owned(),
        from: EffectState::ALL.to_vec(),
        to: EffectState::Failed,
        detail: Some(vec![0, 1]),
        now_ms: 9,
    };
    let wrote =
        commit(&store, vec![accept(named), Write::Intend { run: key("r"), effect: odd, max: 9 }, moved, Write::Hook(hook("h\0", "r", 1))])
            .await;
    assert_eq!(wrote[0], Wrote::Accepted(id("r")));
    assert!(matches!(&wrote[2], Wrote::Effect(moved) if moved.state == EffectState::Failed && moved.description == "a\0b"));
    assert_eq!(run(&store, "r").await.model, "mo\u{fffd}del");
    assert_eq!(store.due_hooks(&HookQuery::any(1, 9)).await.unwrap()[0].body, b"told");
}
