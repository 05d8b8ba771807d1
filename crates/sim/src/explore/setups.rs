//! The setups that are explored: each small enough to be closed, together rich enough to reach every mark and every cell.

use std::time::Duration;

use lifecycle::{Cause, OnDisconnect};

use super::setup::{Budget, RunSetup, Setup, Stop};

const CLOSED: Cause = Cause::ClientClosed;
const BY_NAME: Cause = Cause::CancelRequested;
const RESET: Cause = Cause::ClientReset;
/// It passes when that is chosen, or with the deadlines.
const GRACE: OnDisconnect = OnDisconnect::Grace(Duration::from_micros(10));

/// Two runs whose prompts begin alike.
fn sharing() -> [RunSetup; 2] {
    [RunSetup::new("a", &[1, 2, 3]), RunSetup::new("b", &[1, 2, 4])]
}

/// What CI closes.
pub fn all() -> Vec<Setup> {
    [blocks(), leaving(), faults(), sessions()].concat()
}

/// One process: who has which block when.
fn blocks() -> Vec<Setup> {
    let [a, b] = sharing();
    let budget = Budget::default();
    vec![
        Setup {
            lazy: true,
            blocks: 4,
            ..Setup::new(
                "share",
                "two runs that share a prefix, each left at any time, several messages between two plans",
                vec![a.clone().leaves(&[CLOSED]), b.clone().leaves(&[BY_NAME])],
            )
        },
        Setup {
            blocks: 3,
            budget: Budget { strays: 1, ..budget },
            ..Setup::new(
                "preempt",
                "more positions than blocks: runs are preempted while they share, and cancelled meanwhile",
                vec![
                    RunSetup::new("a", &[1, 2]).answers(1, 4).leaves(&[CLOSED]),
                    RunSetup::new("b", &[3, 4]).answers(1, 3).leaves(&[CLOSED]),
                ],
            )
        },
        Setup {
            blocks: 4,
            ..Setup::new(
                "preempt-shared",
                "the same with a common prefix: who is preempted leaves a block that the other keeps",
                vec![
                    RunSetup::new("a", &[1, 2, 3]).answers(1, 5).leaves(&[CLOSED]),
                    RunSetup::new("b", &[1, 2, 4]).answers(1, 3).leaves(&[CLOSED]),
                ],
            )
        },
        Setup {
            blocks: 5,
            slots: 3,
            slow_tokeniser: true,
            slow_reader: true,
            ..Setup::new(
                "answers",
                "a run of two answers beside another that shares its prompt",
                vec![RunSetup::new("a", &[1, 2, 3]).answers(2, 2).leaves(&[CLOSED, BY_NAME]), b.clone().leaves(&[CLOSED])],
            )
        },
        Setup {
            slow_reader: true,
            ..Setup::new(
                "stops",
                "stop tokens, stop strings and lengths race with callers that leave",
                vec![a.clone().answers(1, 3).stops(Stop::Text).leaves(&[CLOSED, BY_NAME]), b.clone().stops(Stop::Token).leaves(&[CLOSED])],
            )
        },
        Setup {
            deadlines: true,
            slow_tokeniser: true,
            slow_reader: true,
            budget: Budget { repeats: 1, refusals: 1, ..budget },
            ..Setup::new(
                "deadlines",
                "deadlines pass on either side, prompts are slow or refused, cancels are repeated",
                vec![a.leaves(&[CLOSED]), b.leaves(&[BY_NAME])],
            )
        },
    ]
}

/// What a disconnect means: readers leave and come back or not.
fn leaving() -> Vec<Setup> {
    let [a, b] = sharing();
    let budget = Budget { returns: 2, ..Budget::default() };
    let graced = |run: RunSetup| run.on_disconnect(GRACE);
    vec![
        Setup {
            deadlines: true,
            budget,
            ..Setup::new(
                "grace",
                "a reader leaves twice and comes back or not, deadlines pass meanwhile; another run goes on unread",
                vec![graced(a.leaves(&[CLOSED, RESET])), b.leaves(&[CLOSED]).on_disconnect(OnDisconnect::Continue)],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            slow_reader: true,
            budget: Budget { restarts: 1, ..budget },
            ..Setup::new(
                "grace-restart",
                "the worker dies or not while nobody reads, and a reader comes back or not",
                vec![graced(RunSetup::new("a", &[1, 2, 3]).answers(1, 2).leaves(&[CLOSED, RESET]))],
            )
        },
        Setup {
            redispatch: 1,
            slow_tokeniser: true,
            budget: Budget { drains: 1, returns: 1, ..budget },
            ..Setup::new(
                "grace-drain",
                "the worker stops, or the run is cancelled by name, while nobody reads",
                vec![graced(RunSetup::new("a", &[1, 2, 3]).answers(1, 2).leaves(&[CLOSED, RESET, BY_NAME]))],
            )
        },
    ]
}

/// One process: what the device may do.
fn faults() -> Vec<Setup> {
    let [a, b] = sharing();
    let budget = Budget::default();
    vec![
        Setup {
            budget: Budget { failures: 1, hangs: 1, ..budget },
            ..Setup::new(
                "device",
                "a step fails, a step hangs and writes later, while both runs are left",
                vec![a.clone().leaves(&[CLOSED]), b.clone().leaves(&[CLOSED])],
            )
        },
        Setup {
            budget: Budget { losses_of_device: 1, strays: 1, ..budget },
            slow_tokeniser: true,
            ..Setup::new("lost-device", "the device is lost at any time", vec![a.clone().leaves(&[CLOSED]), b.clone()])
        },
        Setup {
            blocks: 4,
            fine_steps: false,
            slow_tokeniser: true,
            budget: Budget { cuts: 1, leases: 1, strays: 1, sessions_again: 1, ..budget },
            ..Setup::new(
                "suspend",
                "the session is lost and comes back or not, and another gateway's cancel comes meanwhile",
                vec![a.clone().leaves(&[CLOSED]), b.clone()],
            )
        },
        Setup {
            fine_steps: false,
            budget: Budget { cuts: 2, strays: 1, sessions_again: 1, ..budget },
            ..Setup::new(
                "suspend-preempted",
                "the session is lost twice, in a pool in which runs are preempted",
                vec![RunSetup::new("a", &[1, 2]).answers(1, 4), RunSetup::new("b", &[3, 4]).answers(1, 3).leaves(&[CLOSED])],
            )
        },
        Setup {
            blocks: 2,
            budget: Budget { cuts: 1, failures: 1, hangs: 1, ..budget },
            ..Setup::new(
                "suspend-full",
                "a lost session in a pool that is too small for both runs",
                vec![RunSetup::new("a", &[1, 2]).answers(1, 2), RunSetup::new("b", &[3, 4]).answers(1, 2).leaves(&[CLOSED])],
            )
        },
    ]
}

/// Two processes: the real lanes over a network that loses, doubles and reorders.
fn sessions() -> Vec<Setup> {
    let one = || RunSetup::new("a", &[1, 2, 3]).answers(1, 1).leaves(&[CLOSED]);
    let two = || RunSetup::new("b", &[1, 2, 4]).answers(1, 1).leaves(&[BY_NAME]);
    let budget = Budget::default();
    vec![
        Setup {
            near: false,
            fine_steps: false,
            slow_reader: true,
            budget: Budget { losses: 1, doubles: 1, overtakings: 1, strays: 1, submits_again: 1, ..budget },
            ..Setup::new(
                "lanes",
                "one run; frames are lost, doubled and reordered, its submit and a cancel come beside the lanes",
                vec![one()],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            slow_heartbeat: true,
            budget: Budget { losses: 2, repeats: 1, ..budget },
            ..Setup::new("heartbeats", "one run; frames are lost, and what arrived is acknowledged late", vec![one()])
        },
        Setup {
            near: false,
            fine_steps: false,
            budget: Budget { losses: 1, ..budget },
            ..Setup::new("lanes-two", "two runs over lanes, a frame of which is lost", vec![one(), two()])
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            slow_reader: true,
            slow_tokeniser: true,
            budget: Budget { restarts: 1, doubles: 1, strays: 1, ..budget },
            ..Setup::new(
                "restart",
                "the worker dies at any time; the run is void or dispatched again",
                vec![one().leaves(&[CLOSED, BY_NAME])],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            slow_reader: true,
            budget: Budget { cuts: 1, leases: 1, restarts: 1, ..budget },
            ..Setup::new("lease", "the session is cut; the lease ends, for the worker or for both", vec![one().answers(1, 2)])
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            budget: Budget { cuts: 1, leases: 1, restarts: 1, refused: 1, ..budget },
            ..Setup::new(
                "refused",
                "the worker is not heard and its host refuses connections, be it dead or alive; it is heard again, begins anew, or is given up",
                vec![one().answers(1, 2).leaves(&[BY_NAME])],
            )
        },
        Setup {
            blocks: 4,
            redispatch: 1,
            slow_tokeniser: true,
            budget: Budget { drains: 1, ..budget },
            ..Setup::new(
                "drain",
                "the worker of two runs is told to stop: it hands back, lets go on, cancels at its limit, and begins anew",
                vec![one().answers(1, 2), two().answers(1, 2)],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            slow_reader: true,
            slow_tokeniser: true,
            budget: Budget { drains: 1, restarts: 1, ..budget },
            ..Setup::new(
                "drain-lanes",
                "a worker that stops, over lanes: it turns away what had not heard of it, and may die before its last words are heard",
                vec![one().answers(1, 2)],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            budget: Budget { restarts: 1, ..budget },
            ..Setup::new("restart-two", "the worker of two runs dies at any time", vec![one(), two()])
        },
    ]
}

/// Larger ones, for the longer tier.
pub fn large() -> Vec<Setup> {
    let [a, b] = sharing();
    let one = || RunSetup::new("a", &[1, 2, 3]).answers(1, 1).leaves(&[CLOSED]);
    let two = || RunSetup::new("b", &[1, 2, 4]).answers(1, 1).leaves(&[BY_NAME]);
    let budget = Budget::default();
    vec![
        Setup {
            blocks: 4,
            slow_tokeniser: true,
            budget: Budget { cuts: 1, leases: 1, strays: 1, ..budget },
            ..Setup::new(
                "large-suspend",
                "a lost session, with steps that begin and end",
                vec![a.answers(1, 3).leaves(&[CLOSED]), b.leaves(&[BY_NAME])],
            )
        },
        Setup {
            slow_reader: true,
            deadlines: true,
            budget: Budget { returns: 2, ..budget },
            ..Setup::new(
                "large-grace",
                "a reader leaves twice and comes back or not, deadlines pass or the run is cancelled by name meanwhile; another run goes on unread",
                vec![
                    RunSetup::new("a", &[1, 2, 3]).leaves(&[CLOSED, RESET, BY_NAME]).on_disconnect(GRACE),
                    RunSetup::new("b", &[1, 2, 4]).leaves(&[CLOSED]).on_disconnect(OnDisconnect::Continue),
                ],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            budget: Budget { restarts: 1, losses: 1, ..budget },
            ..Setup::new("large-restart", "the worker of two runs over lanes dies at any time, and a frame is lost", vec![one(), two()])
        },
        Setup {
            near: false,
            fine_steps: false,
            budget: Budget { losses: 1, strays: 1, ..budget },
            ..Setup::new("large-lanes", "two runs over lanes; a frame is lost, a cancel comes from another gateway", vec![one(), two()])
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            budget: Budget { cuts: 2, leases: 1, losses: 1, ..budget },
            ..Setup::new("large-lease", "the session is cut twice and loses a frame; the lease ends", vec![one().answers(1, 2)])
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            slow_reader: true,
            budget: Budget { cuts: 1, leases: 1, restarts: 1, refused: 1, ..budget },
            ..Setup::new(
                "large-refused",
                "a refused worker, and a caller that leaves in two ways and reads slowly",
                vec![one().answers(1, 2).leaves(&[CLOSED, BY_NAME])],
            )
        },
        Setup {
            near: false,
            fine_steps: false,
            redispatch: 1,
            budget: Budget { restarts: 1, refused: 1, ..budget },
            ..Setup::new("large-refused-two", "the worker of two runs dies, and its host refuses connections", vec![one(), two()])
        },
    ]
}
