//! Both machines as tables (state × event) and graphs, compared with `snapshots/`: a change of behaviour is a diff of a table.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p lifecycle --test it` writes them anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use lifecycle::{Applied, AttemptEvent, AttemptState, Call, CallEffect, CallEvent, CallState, Cause, Delivery, Resumable};

/// A whole machine: rows are states, columns are events. A cell is what the event does there.
pub struct Table {
    pub legend: &'static str,
    pub columns: Vec<String>,
    pub rows: Vec<(String, Vec<String>)>,
    /// (from, to) → events, for the graph.
    pub edges: BTreeMap<(String, String), Vec<String>>,
}

impl Table {
    pub fn text(&self) -> String {
        let width = |column: usize| self.rows.iter().map(|row| row.1[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = self.columns.iter().enumerate().map(|(i, head)| width(i).max(head.chars().count())).collect();
        let first = self.rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0).max("state".len());
        let line = |head: &str, cells: &[String]| {
            let mut line = format!("{head:first$}");
            for (cell, width) in cells.iter().zip(&widths) {
                write!(line, " | {cell:width$}").expect("a string takes it");
            }
            format!("{}\n", line.trim_end())
        };
        let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
        let mut out = format!("{}\n{}{}", self.legend, line("state", &self.columns), line(&"-".repeat(first), &rule));
        self.rows.iter().for_each(|(head, cells)| out.push_str(&line(head, cells)));
        out
    }

    pub fn dot(&self, name: &str) -> String {
        let mut out = format!("digraph {name} {{\n  rankdir=LR;\n  node [shape=box, style=rounded];\n");
        for ((from, to), events) in &self.edges {
            writeln!(out, "  {from:?} -> {to:?} [label=\"{}\"];", events.join("\\n")).expect("a string takes it");
        }
        out + "}\n"
    }
}

pub fn compare(file: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(file);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).and_then(|()| std::fs::write(&path, now)).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == now, "snapshots/{file} differs; if that is meant, run with UPDATE_SNAPSHOTS=1. It would be:\n{now}");
}

fn cell(applied: Applied, to: String) -> String {
    match applied {
        Applied::Moved => to,
        Applied::NoOp => "·".into(),
        Applied::Superseded { .. } => "=".into(),
        Applied::Defect(_) => "!".into(),
    }
}

const CLOSED: Cause = Cause::ClientClosed;
const STOP: Cause = Cause::Stop;

const ATTEMPT_LEGEND: &str = "\
The attempt machine: what each event (column) does in each state (row). Ended states hold the cause client_closed; `end` brings stop.
  name  moves to that state      ·  repeated or late, nothing changes
  =     superseded: the state's own cause won      !  defect: impossible, nothing changes
";

fn attempt_label(state: AttemptState) -> String {
    match state {
        AttemptState::Suspended { was } => format!("suspended({})", AttemptState::from(was).label()),
        _ => match state.cause() {
            Some(cause) => format!("{}({cause})", state.label()),
            None => state.label().to_owned(),
        },
    }
}

fn attempt_table() -> Table {
    use AttemptEvent as E;
    use AttemptState as S;
    let live = [S::Tokenising, S::Queued, S::Prefilling, S::Decoding, S::Preempted];
    let was = [Resumable::Tokenising, Resumable::Queued, Resumable::Prefilling, Resumable::Decoding, Resumable::Preempted];
    let mut states = vec![S::Unknown, S::Tombstoned { cause: CLOSED }];
    states.extend(live);
    states.extend(was.map(|was| S::Suspended { was }));
    states.extend([S::Stopping { cause: CLOSED }, S::Released { cause: CLOSED }]);
    let events = [E::Submit, E::Tokenised, E::Scheduled, E::FirstToken, E::Preempt, E::Suspend, E::Attach, E::End(STOP), E::Drained];
    let mut table = Table {
        legend: ATTEMPT_LEGEND,
        columns: events.iter().map(|event| event.label().to_owned()).collect(),
        rows: vec![],
        edges: BTreeMap::new(),
    };
    for state in states {
        let cells = events.iter().map(|event| {
            let mut next = state;
            let applied = next.apply(*event);
            if applied == Applied::Moved {
                let plain = |s: S| attempt_label(s).replace("(client_closed)", "").replace("(stop)", "");
                table.edges.entry((plain(state), plain(next))).or_default().push(event.label().to_owned());
            }
            cell(applied, attempt_label(next))
        });
        let cells = cells.collect();
        table.rows.push((attempt_label(state), cells));
    }
    table
}

const CALL_LEGEND: &str = "\
The call machine: what each event (column) does in each state (row), and the effects it asks for. A row with `delivered` is the same
state when the caller's answer is over; one with `no worker` ended before its dispatch. Causes: closed = client_closed, deadline =
client_deadline. #n is the attempt that a worker speaks of; the current one is 1 once dispatched. `again` says that nothing was delivered
and the policy allows a further attempt, as does `handed_back`, by a worker that stops: rows with `after #1` wait for it, rows with `#2` have it. A run with a void attempt is never proven.
  name  moves to that state        ·  repeated, late or stale, nothing changes
  =     superseded: another cause has precedence        !  defect: impossible, nothing changes
  effects: +cancel send a cancel   +outcome write the outcome   +lost write a superseded cause   +void write that the release is unproven
           +handed_back write that its worker gave it back
           +settle let go of everything but the record
";

fn short(cause: Cause) -> &'static str {
    match cause {
        Cause::ClientClosed => "closed",
        Cause::ClientDeadline => "deadline",
        other => other.as_str(),
    }
}

fn call_label(call: &Call) -> String {
    let state = call.state();
    let label = match state {
        CallState::Accepted | CallState::Dispatched | CallState::Live | CallState::HandedBack => state.label().to_owned(),
        CallState::Stopping { cause } | CallState::Ended { cause } | CallState::Released { cause } | CallState::Void { cause } => {
            format!("{}({})", state.label(), short(cause))
        }
        CallState::Settled { cause, proven } => format!("settled({}, {})", short(cause), if proven { "proven" } else { "void" }),
    };
    let label = if call.outcome().is_some() && call.attempt() == 0 { label + " no worker" } else { label };
    let label = match (state, call.attempt()) {
        (CallState::Accepted, n @ 1..) if !call.is_voided() => format!("{label} after #{n} released"),
        (_, 0 | 1) if !call.is_voided() => label,
        (CallState::Accepted, n) => format!("{label} after #{n}"),
        (_, 1) => label,
        (_, n) => format!("{label} #{n}"),
    };
    if call.delivery().is_some() && !call.is_settled() { format!("{label} delivered") } else { label }
}

fn effect(effect: &CallEffect) -> &'static str {
    match effect {
        CallEffect::SendCancel { .. } => " +cancel",
        CallEffect::OutcomeSet { .. } => " +outcome",
        CallEffect::Superseded { .. } => " +lost",
        CallEffect::HandedBack => " +handed_back",
        CallEffect::Void => " +void",
        CallEffect::Settle { .. } => " +settle",
    }
}

fn call_events() -> Vec<(&'static str, CallEvent)> {
    use CallEvent::*;
    let lost = |attempt, again| WorkerLost { attempt, again };
    vec![
        ("dispatch(after #0)", Dispatch { after: 0 }),
        ("dispatch(after #1)", Dispatch { after: 1 }),
        ("worker_accepted(#1)", WorkerAccepted { attempt: 1 }),
        ("worker_accepted(#2)", WorkerAccepted { attempt: 2 }),
        ("want(closed)", Want(CLOSED)),
        ("want(deadline)", Want(Cause::ClientDeadline)),
        ("worker_ended(#1, closed)", WorkerEnded { attempt: 1, cause: CLOSED }),
        ("worker_ended(#1, stop)", WorkerEnded { attempt: 1, cause: STOP }),
        ("worker_ended(#2, stop)", WorkerEnded { attempt: 2, cause: STOP }),
        ("worker_ended(#0, stop)", WorkerEnded { attempt: 0, cause: STOP }),
        ("worker_handed_back(#1)", WorkerHandedBack { attempt: 1, cause: Cause::Shutdown }),
        ("worker_handed_back(#2)", WorkerHandedBack { attempt: 2, cause: Cause::Shutdown }),
        ("worker_released(#1)", WorkerReleased { attempt: 1 }),
        ("worker_released(#2)", WorkerReleased { attempt: 2 }),
        ("worker_released(#0)", WorkerReleased { attempt: 0 }),
        ("worker_lost(#1)", lost(1, false)),
        ("worker_lost(#1, again)", lost(1, true)),
        ("worker_lost(#2)", lost(2, false)),
        ("worker_lost(#2, again)", lost(2, true)),
        ("delivered", Delivered(Delivery::Partial)),
        ("retry", Retry),
    ]
}

/// One way to every state; each is walked with and without a finished delivery.
fn call_paths() -> Vec<Vec<CallEvent>> {
    use CallEvent::*;
    let first = Dispatch { after: 0 };
    let accepted = |attempt| WorkerAccepted { attempt };
    let ended = |attempt| WorkerEnded { attempt, cause: CLOSED };
    let stopped = WorkerEnded { attempt: 1, cause: STOP };
    let released = |attempt| WorkerReleased { attempt };
    let lost = |attempt, again| WorkerLost { attempt, again };
    let second = [first, accepted(1), lost(1, true), Dispatch { after: 1 }, accepted(2)];
    let back = [first, accepted(1), WorkerHandedBack { attempt: 1, cause: Cause::Shutdown }, released(1), Dispatch { after: 1 }];
    let after = |more: &[CallEvent]| [&second, more].concat();
    vec![
        vec![],
        vec![first],
        vec![first, accepted(1)],
        vec![first, accepted(1), Want(CLOSED)],
        vec![first, accepted(1), Want(CLOSED), ended(1)],
        vec![first, accepted(1), stopped],
        vec![first, accepted(1), Want(CLOSED), ended(1), released(1)],
        vec![first, accepted(1), Want(CLOSED), lost(1, false)],
        vec![Want(CLOSED)],
        second[..3].to_vec(),
        second[..4].to_vec(),
        second.to_vec(),
        after(&[Want(CLOSED)]),
        after(&[Want(CLOSED), ended(2)]),
        after(&[Want(CLOSED), ended(2), released(2)]),
        after(&[Want(CLOSED), lost(2, false)]),
        [&second[..3], &[Want(CLOSED)]].concat(),
        back[..3].to_vec(),
        [&back[..3], &[Want(CLOSED)]].concat(),
        [&back[..3], &[lost(1, true)]].concat(),
        back[..4].to_vec(),
        back.to_vec(),
    ]
}

fn call_table() -> Table {
    let events = call_events();
    let mut table = Table {
        legend: CALL_LEGEND,
        columns: events.iter().map(|event| event.0.to_owned()).collect(),
        rows: vec![],
        edges: BTreeMap::new(),
    };
    let delivered = [None, Some(CallEvent::Delivered(Delivery::Partial))];
    for (path, delivered) in call_paths().iter().flat_map(|path| delivered.map(|delivered| (path, delivered))) {
        let mut call = Call::new();
        path.iter().chain(&delivered).for_each(|event| assert_eq!(call.apply(*event).0, Applied::Moved));
        let cells = events.iter().map(|(name, event)| {
            let mut next = call.clone();
            let (applied, effects) = next.apply(*event);
            let (from, to) = (call_label(&call), call_label(&next));
            if applied == Applied::Moved && from != to && delivered.is_none() {
                table.edges.entry((call.state().label().into(), next.state().label().into())).or_default().push((*name).into());
            }
            let effects: String = effects.iter().map(effect).collect();
            let stays = applied == Applied::Moved && from == to && call.state().label() == next.state().label();
            format!("{}{effects}", cell(applied, if stays { "stays".into() } else { to }))
        });
        let cells = cells.collect();
        table.rows.push((call_label(&call), cells));
    }
    // A graph shows events, not examples: one label an event; delivery is told by the table.
    for events in table.edges.values_mut() {
        events.iter_mut().for_each(|name| name.truncate(name.find('(').unwrap_or(name.len())));
        events.dedup();
    }
    table.edges.retain(|(from, to), _| from != to);
    table
}

#[test]
fn the_attempt_table_is_the_kept_one() {
    let table = attempt_table();
    compare("attempt.txt", &table.text());
    compare("attempt.dot", &table.dot("attempt"));
}

#[test]
fn the_call_table_is_the_kept_one() {
    let table = call_table();
    compare("call.txt", &table.text());
    compare("call.dot", &table.dot("call"));
}

#[test]
fn every_state_of_a_call_has_its_row() {
    let table = call_table();
    for label in ["accepted", "dispatched", "live", "handed_back", "stopping", "ended", "released", "void", "settled"] {
        assert!(table.rows.iter().any(|row| row.0.starts_with(label)), "{label} is missing");
    }
}
