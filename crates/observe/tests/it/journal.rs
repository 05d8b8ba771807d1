//! What the journal keeps, forgets and lists.

use lifecycle::event::Event;
use lifecycle::{Cause, OutcomeKind, RunId, RunKey, Tenant, Time};
use observe::{Clock, Journal, Limits, Recall, RunFilter, RunState};

use crate::story::*;

fn small(records: usize, runs: usize) -> Journal {
    Journal::new(Clock::start(), Limits { records, runs, ..Limits::default() })
}

fn settle(journal: &Journal, key: &RunKey) {
    at(journal, key, 1, outcome_set(Cause::Stop));
    at(journal, key, 2, released());
    at(journal, key, 3, Event::Settled { proven: true });
}

fn ids(page: &observe::RunPage) -> Vec<&str> {
    page.data.iter().map(|run| run.id.as_str()).collect()
}

#[test]
fn the_clock_does_not_run_backwards_and_its_copies_agree() {
    let clock = Clock::start();
    let copy = clock;
    let mut last = Time::ZERO;
    for _ in 0..1000 {
        let now = clock.now();
        assert!(now >= last && copy.now() >= now);
        last = now;
    }
}

#[test]
fn the_ring_is_bounded_and_in_order() {
    let (journal, key) = (small(3, 10), key("r"));
    journal.record(Some(&key), 0, accepted());
    for tokens in 1..=4 {
        journal.record(Some(&key), 1, Event::Delivered { tokens });
    }
    journal.record(None, 0, Event::Defect { what: "test" });
    let kept = journal.records(&key);
    assert_eq!(kept.iter().map(|r| &r.event).collect::<Vec<_>>(), [&Event::Delivered { tokens: 3 }, &Event::Delivered { tokens: 4 }]);
    assert!(kept.is_sorted_by_key(|r| r.at));
    assert_eq!(journal.count(|r| r.run.is_none()), 1);
    assert_eq!(journal.run(&key).map(|r| r.tokens.delivered), Some(10), "views outlive the ring");
}

#[test]
fn settled_runs_are_forgotten_first_settled_first_and_live_ones_stay() {
    let journal = small(0, 3);
    let name = |i: u32| key(&format!("r{i}"));
    for i in 0..3 {
        at(&journal, &name(i), 0, accepted());
    }
    settle(&journal, &name(2));
    settle(&journal, &name(1));
    at(&journal, &name(3), 9, accepted());
    assert!(journal.run(&name(2)).is_none() && journal.run(&name(1)).is_some());
    at(&journal, &name(4), 9, accepted());
    at(&journal, &name(5), 9, accepted());
    assert!(journal.run(&name(1)).is_none());
    for live in [0, 3, 4, 5] {
        assert!(journal.run(&name(live)).is_some(), "r{live} is live");
    }
}

#[test]
fn an_evicted_run_is_said_to_be_evicted_for_as_long_as_its_id_is_kept() {
    let journal = Journal::new(Clock::start(), Limits { records: 0, runs: 1, evicted: 2, ..Limits::default() });
    let open = |id: &str| {
        at(&journal, &key(id), 0, accepted());
        settle(&journal, &key(id));
    };
    open("a");
    assert_eq!((journal.recall(&key("a")), journal.recall(&key("x"))), (Recall::Held, Recall::Never));
    open("b");
    assert_eq!((journal.recall(&key("a")), journal.recall(&key("b"))), (Recall::Evicted, Recall::Held));
    assert_eq!(journal.recall(&key("x")), Recall::Never, "nothing was forgotten yet, so this is known");
    // The id is used once more: the new run is held, and evicted in its turn.
    open("a");
    assert_eq!((journal.recall(&key("a")), journal.recall(&key("b"))), (Recall::Held, Recall::Evicted));
    open("c");
    assert_eq!(journal.recall(&key("a")), Recall::Evicted);
    assert_eq!(journal.recall(&key("x")), Recall::Never, "the ring let go only of an older entry of a kept id");
    open("d");
    assert_eq!((journal.recall(&key("b")), journal.recall(&key("a"))), (Recall::NeverOrForgotten, Recall::Evicted));
    assert_eq!(journal.recall(&key("x")), Recall::NeverOrForgotten, "nobody can tell it from b any more");
    // contract: C-30. Another tenant's evicted run does not exist for this one.
    let foreign = RunKey { tenant: Tenant::parse("other").expect("a tenant"), run: RunId::parse("a").expect("an id") };
    assert_eq!(journal.recall(&foreign), journal.recall(&key("x")));
}

#[test]
fn late_news_do_not_bring_a_forgotten_run_back() {
    let journal = small(10, 1);
    at(&journal, &key("old"), 0, accepted());
    settle(&journal, &key("old"));
    at(&journal, &key("new"), 0, accepted());
    at(&journal, &key("old"), 9, Event::CancelAcknowledged);
    assert!(journal.run(&key("old")).is_none());
    assert!(page(&journal).contains("kvit_journal_unmatched_records_total 1\n"));
}

#[test]
fn a_crowd_of_live_runs_is_bounded_and_shrinks_back() {
    let journal = small(0, 2);
    let name = |i: u32| key(&format!("r{i}"));
    for i in 0..20 {
        at(&journal, &name(i), 0, accepted());
    }
    let everything = RunFilter { limit: 1000, ..RunFilter::default() };
    let held = || journal.runs(&Tenant::default(), &everything).unwrap().data.len();
    assert_eq!(held(), 16);
    assert!(page(&journal).contains("kvit_journal_forgotten_runs_total 4\n"));
    for i in 0..60 {
        settle(&journal, &name(i));
        at(&journal, &name(i + 20), 0, accepted());
    }
    assert!(held() <= 22, "each opening forgets up to two: {}", held());
    for i in 60..80 {
        settle(&journal, &name(i));
        at(&journal, &name(i + 20), 0, accepted());
        settle(&journal, &name(i + 20));
    }
    assert_eq!(held(), 2);
}

#[test]
fn a_worker_without_a_gateway_forgets_released_runs() {
    let journal = small(0, 2);
    for i in 0..20 {
        let key = key(&format!("r{i}"));
        at(&journal, &key, 0, queued(1));
        at(&journal, &key, 1, Event::AttemptEnded { outcome: lifecycle::Outcome::of(Cause::Length) });
        at(&journal, &key, 2, released());
        assert_eq!(journal.run(&key).map(|r| r.state), Some(RunState::Ended));
    }
    assert!(page(&journal).contains("kvit_journal_forgotten_runs_total 0\n"));
    assert_eq!(journal.runs(&Tenant::default(), &RunFilter::default()).unwrap().data.len(), 2);
}

#[test]
fn a_list_is_complete_however_many_runs_there_are() {
    let journal = journal();
    let name = |i: u32| format!("r{i:04}");
    for i in 0..700 {
        at(&journal, &key(&name(i)), 0, accepted());
    }
    for i in [0, 127, 128, 400, 699] {
        settle(&journal, &key(&name(i)));
    }
    let ended = RunFilter { state: Some(RunState::Ended), ..RunFilter::default() };
    let page = journal.runs(&Tenant::default(), &ended).unwrap();
    assert_eq!((ids(&page), page.has_more), (vec!["r0699", "r0400", "r0128", "r0127", "r0000"], false));
    let (mut seen, mut filter) = (Vec::new(), RunFilter { limit: 333, ..RunFilter::default() });
    loop {
        let page = journal.runs(&Tenant::default(), &filter).unwrap();
        seen.extend(ids(&page).into_iter().map(str::to_owned));
        filter.after = RunId::parse(&seen[seen.len() - 1]).ok();
        if !page.has_more {
            break;
        }
    }
    assert_eq!(seen, (0..700).rev().map(name).collect::<Vec<_>>());
}

// contract: C-30
#[test]
fn lists_are_newest_first_in_pages_and_of_one_tenant() {
    let journal = journal();
    let other = RunKey { tenant: Tenant::parse("other").unwrap(), run: RunId::parse("r1").unwrap() };
    at(&journal, &other, 0, accepted());
    for i in 0..5 {
        at(&journal, &key(&format!("r{i}")), 0, accepted());
    }
    settle(&journal, &key("r3"));
    let ask = |filter: RunFilter| journal.runs(&Tenant::default(), &filter);
    let first = ask(RunFilter { limit: 2, ..RunFilter::default() }).unwrap();
    assert_eq!((ids(&first), first.has_more), (vec!["r4", "r3"], true));
    let after = RunId::parse("r3").ok();
    let rest = ask(RunFilter { limit: 3, after, ..RunFilter::default() }).unwrap();
    assert_eq!((ids(&rest), rest.has_more), (vec!["r2", "r1", "r0"], false));
    assert_eq!(ids(&ask(RunFilter { limit: 0, ..RunFilter::default() }).unwrap()), ["r4"], "at least one");
    assert!(ask(RunFilter { after: RunId::parse("nobody").ok(), ..RunFilter::default() }).is_none());

    let ended = ask(RunFilter { state: Some(RunState::Ended), ..RunFilter::default() }).unwrap();
    assert_eq!(ids(&ended), ["r3"]);
    let live = RunFilter { live: true, ..RunFilter::default() };
    assert_eq!(ids(&ask(live.clone()).unwrap()), ["r4", "r2", "r1", "r0"]);
    let all = journal.runs_of_all(&RunFilter { limit: 3, ..live });
    assert_eq!((ids(&all), all.has_more), (vec!["r4", "r2", "r1"], true));
    let all = journal.runs_of_all(&RunFilter::default());
    let last = all.data.last().map(|run| (run.tenant.as_str(), run.id.as_str()));
    assert_eq!((all.data.len(), last), (6, Some(("other", "r1"))), "whose each is stands in it");
    let completed = RunFilter { outcome: Some(OutcomeKind::Completed), cause: Some(Cause::Stop), ..RunFilter::default() };
    assert_eq!(ids(&ask(completed).unwrap()), ["r3"]);
    assert!(ask(RunFilter { cause: Some(Cause::Length), ..RunFilter::default() }).unwrap().data.is_empty());
    assert_eq!(ids(&journal.runs(&other.tenant, &RunFilter::default()).unwrap()), ["r1"]);
    assert!(journal.run(&RunKey { tenant: other.tenant, run: RunId::parse("r4").unwrap() }).is_none());
}
