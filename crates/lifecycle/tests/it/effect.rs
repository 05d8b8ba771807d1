//! Effects outside: the machine and who may move it as a kept table, and what no path through it can do.
// contract: C-27

use std::collections::BTreeMap;

use lifecycle::effect::{may_begin, not_begun};
use lifecycle::{EffectEvent, EffectState, Fate, OutcomeKind, Party};

use crate::table::{Table, compare};

const LEGEND: &str = "\
Effects outside: what each event (column) does to an effect in each state (row).
  name  moves to that state      ·  nothing changes, what stands is the answer      !  refused
The letters say who may: k is kvit and c the caller, each first of an effect of its own; kc is the caller of an effect of kvit's, ck kvit of
one of the caller's.
";

fn events() -> [(&'static str, EffectEvent); 8] {
    use EffectEvent::*;
    [
        ("intend", Intend),
        ("submit", Submit { safe_to_repeat: false }),
        ("submit(safe to repeat)", Submit { safe_to_repeat: true }),
        ("commit", Commit),
        ("fail", Fail),
        ("lose", Lose),
        ("run_over", RunOver),
        ("wait_over", WaitOver),
    ]
}

fn may(state: EffectState, event: EffectEvent) -> String {
    let parties = [("c", Party::Caller, Party::Caller), ("k", Party::Kvit, Party::Kvit)];
    let others = [("kc", Party::Caller, Party::Kvit), ("ck", Party::Kvit, Party::Caller)];
    let all = parties.into_iter().chain(others).filter(|(_, by, whose)| state.may(event, *by, *whose)).map(|(name, ..)| name);
    all.collect::<Vec<_>>().join(" ")
}

fn table() -> Table {
    let mut table =
        Table { legend: LEGEND, columns: events().map(|(name, _)| name.to_owned()).to_vec(), rows: vec![], edges: BTreeMap::new() };
    for state in EffectState::ALL {
        let cells = events().map(|(name, event)| {
            let fate = match state.meets(event) {
                Fate::Moved(to) => {
                    table.edges.entry((state.as_str().to_owned(), to.as_str().to_owned())).or_default().push(name.to_owned());
                    to.as_str()
                }
                Fate::Stands => "·",
                Fate::Refused => "!",
            };
            format!("{fate} [{}]", may(state, event))
        });
        table.rows.push((state.as_str().to_owned(), cells.to_vec()));
    }
    table
}

#[test]
fn the_effect_table_is_the_kept_one() {
    compare("effect.txt", &table().text());
    compare("effect.dot", &table().dot("effect"));
}

/// Every sequence of six events from every state: what was sent once is sent again only where that is declared safe, and what is committed
/// stays committed.
#[test]
fn nothing_is_sent_twice_on_any_path() {
    fn walk(state: EffectState, sent: u32, committed: bool, left: u32, paths: &mut u64) {
        *paths += 1;
        assert!(sent <= 1, "an effect that is not safe to repeat was sent {sent} times");
        assert!(!committed || state == EffectState::Committed, "a committed effect became {}", state.as_str());
        if left == 0 {
            return;
        }
        for (_, event) in events().into_iter().filter(|(_, e)| *e != EffectEvent::Submit { safe_to_repeat: true }) {
            let next = match state.meets(event) {
                Fate::Moved(next) => next,
                Fate::Stands | Fate::Refused => state,
            };
            let sends = matches!((event, state.meets(event)), (EffectEvent::Submit { .. }, Fate::Moved(_) | Fate::Stands));
            walk(next, sent + u32::from(sends), committed || next == EffectState::Committed, left - 1, paths);
        }
    }
    let mut paths = 0;
    walk(EffectState::Intended, 0, false, 6, &mut paths);
    assert_eq!(paths, (0..=6).map(|n| 7u64.pow(n)).sum::<u64>());
    // Declared safe, it is sent again from where nobody can say, and never once it is done or is known not to be.
    let again = EffectEvent::Submit { safe_to_repeat: true };
    let sendable: Vec<_> = EffectState::ALL.into_iter().filter(|s| s.meets(again) != Fate::Refused).collect();
    assert_eq!(sendable, [EffectState::Intended, EffectState::Submitted, EffectState::Unknown]);
}

#[test]
fn a_cancel_begins_nothing_and_undoes_nothing() {
    use EffectState::{Committed, Failed, Intended, Submitted, Unknown};
    let over = |state: EffectState| match state.meets(EffectEvent::RunOver) {
        Fate::Moved(to) => to,
        _ => state,
    };
    assert_eq!(EffectState::ALL.map(over), [Failed, Submitted, Committed, Failed, Unknown]);
    let waited = |state: EffectState| match state.meets(EffectEvent::WaitOver) {
        Fate::Moved(to) => to,
        _ => state,
    };
    assert_eq!(EffectState::ALL.map(waited), [Intended, Unknown, Committed, Failed, Unknown]);
    for outcome in [None, Some(OutcomeKind::Completed)] {
        assert!(may_begin(outcome, false) && !may_begin(outcome, true));
    }
    for outcome in [OutcomeKind::Cancelled, OutcomeKind::Expired, OutcomeKind::Failed, OutcomeKind::Rejected] {
        assert!(!may_begin(Some(outcome), false) && not_begun(Some(outcome)).starts_with("not begun: the run "));
    }
    assert_eq!(EffectState::that_move(EffectEvent::WaitOver), [Submitted]);
    assert_eq!(EffectState::that_move(EffectEvent::Commit), [Submitted, Unknown]);
}

#[test]
fn words_are_read_again() {
    for state in EffectState::ALL {
        assert_eq!(EffectState::parse(state.as_str()), Some(state));
    }
    assert_eq!(EffectState::parse("Intended"), None);
}
