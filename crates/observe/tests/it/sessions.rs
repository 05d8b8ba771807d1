//! Sessions with gateways in other processes: what a worker's journal makes of them.

use lifecycle::event::{Event, Record};
use lifecycle::session::PeerState;
use lifecycle::{Cause, Incarnation, Outcome, Time};
use observe::{Clock, RunState};

use crate::metrics::parse;
use crate::story::*;

fn whole(journal: &observe::Journal, us: u64, event: Event) {
    journal.record_at(Record { at: Time(us), run: None, attempt: 0, event });
}

fn gateway(journal: &observe::Journal, us: u64, state: Option<PeerState>) {
    whole(journal, us, Event::Gateway { gateway: "g".into(), state });
}

// contract: C-10, C-23
#[test]
fn a_suspended_run_is_shown_so_and_an_orphan_until_it_is_released() {
    let (journal, run) = (journal(), key("r"));
    let state = |journal: &observe::Journal| journal.run(&key("r")).map(|view| view.state);
    let value = |journal: &observe::Journal, series: &str| parse(&page(journal))[series];
    whole(&journal, 1, Event::SessionOpened { gateway: "g".into(), incarnation: Incarnation(1), session: 1 });
    gateway(&journal, 1, Some(PeerState::Here));
    at(&journal, &run, 10, queued(5));
    at(&journal, &run, 20, Event::PrefillStart);
    at(&journal, &run, 30, Event::Suspended);
    gateway(&journal, 30, Some(PeerState::Suspended));
    assert_eq!(state(&journal), Some(RunState::Suspended));
    assert_eq!(value(&journal, "kvit_runs{state=\"suspended\"}"), 1.0);
    at(&journal, &run, 40, Event::Attached);
    assert_eq!(state(&journal), Some(RunState::Prefilling));
    at(&journal, &run, 50, Event::Suspended);
    at(&journal, &run, 60, Event::Orphaned);
    at(&journal, &run, 60, Event::Orphaned);
    at(&journal, &run, 60, Event::CancelReceived { cause: Cause::Orphaned });
    gateway(&journal, 60, Some(PeerState::LeaseOver));
    assert_eq!(state(&journal), Some(RunState::Stopping));
    let series = |journal: &observe::Journal| {
        ["kvit_orphaned_attempts", "kvit_reaped_attempts_total", "kvit_suspensions_total", "kvit_sessions_opened_total"]
            .map(|name| value(journal, name))
    };
    assert_eq!(series(&journal), [1.0, 1.0, 2.0, 1.0]);
    let by_state = |journal: &observe::Journal| {
        ["here", "suspended", "lease_over"].map(|state| value(journal, &format!("kvit_sessions{{state=\"{state}\"}}")))
    };
    assert_eq!(by_state(&journal), [0.0, 0.0, 1.0]);
    at(&journal, &run, 70, Event::AttemptEnded { outcome: Outcome::of(Cause::Orphaned) });
    at(&journal, &run, 80, released());
    gateway(&journal, 90, None);
    whole(&journal, 95, Event::StaleMessage);
    assert_eq!(series(&journal), [0.0, 1.0, 2.0, 1.0]);
    assert_eq!(by_state(&journal), [0.0; 3]);
    assert_eq!(value(&journal, "kvit_stale_messages_total"), 1.0);
    assert_eq!((state(&journal), journal.defects()), (Some(RunState::Ended), 0));
}

// contract: C-9
#[test]
fn the_clock_does_not_run_backwards() {
    let clock = Clock::start();
    let mut last = clock.now();
    for _ in 0..10_000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}

// contract: C-23
#[test]
fn a_name_that_a_gateways_next_life_gives_again_is_another_run() {
    let (journal, run) = (journal(), key("r"));
    for (life, cause) in [(0, Cause::Orphaned), (100, Cause::Length)] {
        at(&journal, &run, life + 10, queued(5));
        at(&journal, &run, life + 20, computed(1, 5, 1, 0));
        assert_eq!(journal.run(&run).map(|view| (view.state, view.tokens.generated)), Some((RunState::Decoding, 1)));
        at(&journal, &run, life + 30, Event::AttemptEnded { outcome: Outcome::of(cause) });
        at(&journal, &run, life + 40, released());
    }
    assert_eq!((journal.defects(), parse(&page(&journal))["kvit_journal_runs"]), (0, 1.0));
}
