//! Rows in which something breaks or is refused: each has a server of its own, and says exactly what is left of it.
// contract: C-2, C-7, C-15, C-16, C-20

use std::time::Duration;

use engine::DeviceError;
use lifecycle::Cause;
use lifecycle::event::Event;
use lifecycle::message::Snapshot;
use serde_json::{Value, json};

use super::asks::{PATH, Spec};
use super::caller::{Caller, Heard};
use super::gate::{Hold, Trap, When};
use super::row::{Held, Reach, Run, SMALL_POOL, Shape, World, check_run, once};
use super::stand::{Rest, STEP_TOKENS, Setup, Stand};
use super::table::{Ending, Phase, Row};

/// Steps after which an engine knows its pace.
const MEASURED_MIN: u32 = 8;

/// A failure for the step that is held.
fn failure(ending: Ending) -> DeviceError {
    let why = "as the test wants it".to_owned();
    match ending {
        Ending::DeviceStep => DeviceError::Step(why),
        Ending::DeviceLost => DeviceError::Lost(why),
        _ => DeviceError::Hung(why),
    }
}

/// Blocks that any of these runs owns.
fn owned(cut: &Snapshot, runs: &[&str]) -> u32 {
    let by = |owner: &lifecycle::AttemptId| runs.contains(&owner.key.run.as_str());
    cut.blocks.iter().filter(|b| b.owners.iter().any(by)).count() as u32
}

fn plain(stand: &Stand, id: &str, body: Value) -> Caller {
    Caller::post(stand.addr, PATH, id, &body)
}

impl World {
    fn setup(&self, row: &Row) -> Setup {
        let mut setup = Setup::new(&self.model);
        if row.phase == Phase::Preempted {
            setup.blocks = SMALL_POOL;
        }
        setup
    }

    fn hold(&self, row: &Row, stand: &Stand, spec: Spec, holder: Spec, trap: Option<Trap>) -> Held {
        let hold = if row.stream == (row.n == 1) { Hold::Before } else { Hold::After };
        let name = row.to_string();
        let reach = Reach { row: *row, name, spec, holder, trap, shape: Shape::of(row), post: &plain, hold, reads: true };
        self.reach(stand, &reach).expect("nothing ends it before")
    }

    /// A cancel by name after the end: answered, recorded, and nothing else.
    fn cancel_afterwards(&self, row: &Row, stand: &Stand, id: &str) {
        stand.settled(id);
        assert_eq!(stand.request("POST", &format!("/v1/runs/{id}/cancel?wait_ms=0")).0, 200, "{row}");
        let run = stand.run(id).expect("it is known");
        assert_eq!((run.superseded, run.outcome.map(|o| o.cause)), (vec!["cancel_requested"], Some(row.ending.cause().as_str())), "{row}");
    }

    fn assert_account(&self, row: &Row, stand: &Stand, quarantined: u32) {
        stand.until("the last run is gone", || stand.cut().attempts.is_empty());
        assert_eq!(stand.rest(), Rest::of(stand.setup.blocks, quarantined), "{row}");
        assert_eq!(stand.journal.defects(), 0, "{row}");
    }

    /// A run that can no longer be served is told so, and leaves nothing.
    fn assert_refused(&self, row: &Row, stand: &Stand, cause: Cause) {
        let id = format!("{row}-again");
        let mut again = self.start(stand, id.clone(), Spec::victim(1, 16), &row.to_string(), row.stream);
        let heard = again.caller.finish();
        assert_eq!((heard.code.as_deref(), heard.count()), (Some(cause.as_str()), 0), "{row}: {heard:?}");
        stand.settled(&id);
        once(stand, &id, 1);
    }

    /// The step that holds the victim fails, hangs, or takes the device along.
    pub fn device_error(&self, row: &Row) {
        let stand = Stand::start(self.setup(row));
        let shape = Shape::of(row);
        let held = self.hold(row, &stand, Spec::victim(row.n, shape.max), Spec::neighbour(shape.neighbour), None);
        let Held { mut holder, mut victim, follower, before, at_door, .. } = held;
        // It waits while the device fails, in no step.
        let waits = (!at_door).then(|| {
            let run = self.start(&stand, format!("{row}-waits"), Spec::neighbour(8), "waits", !row.stream);
            stand.until("it waits", || stand.has(&run.id, |e| matches!(e, Event::Queued { .. })));
            run
        });
        let mut quarantined = 0;
        if at_door {
            stand.gate.refuse();
            stand.gate.open_door();
        } else {
            let cut = stand.quiet(|| false);
            let mut runs = vec![holder.id.as_str()];
            runs.extend(row.phase.has_rows().then_some(victim.id.as_str()));
            if row.ending != Ending::DeviceStep {
                quarantined = owned(&cut, &runs);
                assert!(quarantined > 0, "{row}");
            }
        }
        let steps = stand.gate.held();
        stand.gate.go((!at_door).then(|| failure(row.ending)));
        let heard = victim.caller.finish();
        let (expected, _) = self.isolated.of(&victim.spec, &self.names);
        check_run(row, &stand, &victim.id, &heard, &before, &expected);
        self.cancel_afterwards(row, &stand, &victim.id);
        self.assert_same_fate(&stand, &mut holder, Cause::DeviceError);
        let lost = row.ending == Ending::DeviceLost;
        for mut other in follower.into_iter().chain(waits) {
            match lost {
                true => self.assert_same_fate(&stand, &mut other, Cause::DeviceError),
                false => drop(self.assert_healthy(&stand, &mut other)),
            }
        }
        if at_door {
            // The step that was refused and the one before it: their blocks are given up with the device.
            quarantined = stand.rest().quarantined;
            assert!(quarantined > 0, "{row}");
        }
        self.assert_account(row, &stand, quarantined);
        match lost {
            true => self.assert_refused(row, &stand, Cause::DeviceError),
            false => drop(self.assert_nothing_stale(row, &stand, &victim.id)),
        }
        self.assert_account(row, &stand, quarantined);
        // What is told of a step after it was given up is counted and changes nothing.
        let late = if row.ending == Ending::DeviceStep { 0 } else { steps.saturating_sub(1) };
        if !at_door {
            stand.until("the late fences", || stand.cut().late_completions >= late);
            assert_eq!(stand.cut().late_completions, late, "{row}");
        }
    }

    /// The worker dies: nobody can say `released`, and everybody is told.
    pub fn worker_lost(&self, row: &Row) {
        let mut setup = self.setup(row);
        let shape = Shape::of(row);
        let mut beside = Spec::neighbour(shape.neighbour);
        if row.phase == Phase::Queued {
            // The neighbour takes every place, so that the victim goes on waiting when the engine goes on.
            (setup.max_running, beside.n) = (3, 3);
        }
        let stand = Stand::start(setup);
        let when = match row.phase {
            Phase::Tokenising | Phase::Queued => None,
            phase => Some(Trap { door: true, ..self.trap(row, phase, shape) }),
        };
        let held = self.hold(row, &stand, Spec::victim(row.n, shape.max), beside, when);
        let Held { mut holder, mut victim, mut follower, before, .. } = held;
        if row.phase == Phase::Queued {
            stand.gate.shut_door();
            stand.gate.go(None);
            stand.gate.engine_at_door();
        }
        stand.gate.break_door();
        let heard = victim.caller.finish();
        let run = stand.settled(&victim.id);
        let outcome = run.outcome.clone().expect("it has one");
        assert_eq!((outcome.kind, outcome.cause), ("failed", "worker_lost"), "{row}");
        assert_eq!((run.guarantee, run.released), (Some("best_effort"), false), "{row}");
        // contract: C-28
        let all = u64::from(row.n) * u64::from(::model::tiny::TinySpec::default().context);
        assert!(run.waste_bound_tokens.is_some_and(|bound| (1..=all).contains(&bound)), "{row}: {:?}", run.waste_bound_tokens);
        let count = |wanted: &dyn Fn(&Event) -> bool| stand.count(&victim.id, wanted);
        let ended = count(&|e| matches!(e, Event::OutcomeSet { .. } | Event::DeliveryEnded { .. }));
        let settled = count(&|e| matches!(e, Event::Settled { proven: false }));
        let (void, released) = (count(&|e| matches!(e, Event::Void { .. })), count(&|e| matches!(e, Event::Released { .. })));
        assert_eq!((ended, settled, void, released), (2, 1, 1, 0), "{row}");
        assert_eq!((heard.code.as_deref(), &heard.bits), (Some("worker_lost"), &before.bits), "{row}: {heard:?}");
        assert_eq!(run.tokens.delivered, heard.count(), "{row}");
        assert_eq!(run.delivery, if heard.count() > 0 { "partial" } else { "none" }, "{row}");
        let (expected, _) = self.isolated.of(&victim.spec, &self.names);
        assert!(heard.begins(&expected), "{row}: {heard:?}");
        self.cancel_afterwards(row, &stand, &victim.id);
        for run in [&mut holder].into_iter().chain(follower.as_mut()) {
            self.assert_same_fate(&stand, run, Cause::WorkerLost);
        }
        // A dead worker has no account, and takes no run.
        let (status, answer) = stand.request("GET", "/v1/kv");
        assert_eq!((status, answer["error"]["code"].as_str()), (503, Some("worker_silent")), "{row}");
        let mut again = Caller::post(stand.addr, PATH, "again", &Spec::victim(1, 16).body(victim.marker, "again", row.stream));
        let heard = again.finish();
        assert_eq!((heard.status, heard.code.as_deref()), (Some(503), Some("worker_lost")), "{row}");
    }

    /// A cancel is on its way when the worker dies: then the cancel is the outcome, and nobody says `released`.
    pub fn cancelled_and_lost(&self) {
        let row = Row { ending: Ending::Requested, phase: Phase::EarlyDecode, n: 1, stream: true };
        let stand = Stand::start(self.setup(&row));
        let shape = Shape::of(&row);
        let trap = Trap { door: true, ..self.trap(&row, row.phase, shape) };
        let (spec, beside) = (Spec::victim(1, shape.max), Spec::neighbour(shape.neighbour));
        let Held { mut holder, mut victim, .. } = self.hold(&row, &stand, spec, beside, Some(trap));
        let (status, run) = stand.request("POST", &format!("/v1/runs/{}/cancel?wait_ms=0", victim.id));
        assert_eq!((status, &run["state"], &run["released"]), (200, &json!("stopping"), &json!(false)));
        stand.gate.break_door();
        let heard = victim.caller.finish();
        let run = stand.settled(&victim.id);
        assert_eq!((run.outcome.map(|o| o.cause), run.guarantee, run.released), (Some("cancel_requested"), Some("best_effort"), false));
        assert_eq!((heard.code.as_deref(), heard.count()), (Some("cancel_requested"), run.tokens.delivered));
        assert_eq!(stand.count(&victim.id, |e| matches!(e, Event::Void { .. })), 1);
        assert_eq!(stand.count(&victim.id, |e| matches!(e, Event::Released { .. })), 0);
        self.assert_same_fate(&stand, &mut holder, Cause::WorkerLost);
    }

    /// A device takes so many blocks along that a run which was promised them runs short.
    pub fn worker_error(&self, row: &Row) {
        // What is left holds the prompt and a block or two of the answer.
        let blocks = if row.n == 1 { 18 } else { 20 };
        let stand = Stand::start(Setup { blocks, ..Setup::new(&self.model) });
        let max = match row.phase {
            Phase::EarlyDecode => 60,
            Phase::LateDecode => 32,
            _ => 30,
        };
        let (mut taker, cut, mut victim) = self.taker(row, &stand, Spec::victim(row.n, max), plain);
        let quarantined = owned(&cut, &[&taker.id]);
        stand.gate.go(Some(failure(Ending::DeviceHung)));
        self.assert_same_fate(&stand, &mut taker, Cause::DeviceError);
        let heard = victim.caller.finish();
        let (expected, _) = self.isolated.of(&victim.spec, &self.names);
        let before = if row.stream { heard.clone() } else { Heard::default() };
        check_run(row, &stand, &victim.id, &heard, &before, &expected);
        let generated = stand.settled(&victim.id).tokens.generated;
        if row.n == 1 {
            // The token whose position would have needed a ninth block.
            assert_eq!(generated, 29, "{row}");
        }
        self.cancel_afterwards(row, &stand, &victim.id);
        self.assert_account(row, &stand, quarantined);
        let mut after = self.start(&stand, format!("{row}-after"), Spec::neighbour(20), "after", !row.stream);
        self.assert_healthy(&stand, &mut after);
        self.assert_nothing_stale(row, &stand, &victim.id);
        self.assert_account(row, &stand, quarantined);
    }

    /// A run that holds ten blocks in a step that is held, and a victim that waits.
    fn taker(&self, row: &Row, stand: &Stand, spec: Spec, post: impl Fn(&Stand, &str, Value) -> Caller) -> (Run, Snapshot, Run) {
        let taken = Spec { prompt: 150, ..Spec::victim(1, 8) };
        let marker = self.names.marker();
        stand.gate.arm(Trap { marker, when: When::Token(0, 3), hold: Hold::Before, door: false });
        let id = format!("{row}-taker");
        let caller = Caller::post(stand.addr, PATH, &id, &taken.body(marker, "taker", true));
        let taker = Run { id, spec: taken, marker, caller };
        stand.until("the taker's third token", || stand.gate.has_caught());
        stand.quiet(|| false);
        let (id, marker) = (row.to_string(), self.names.marker());
        let caller = post(stand, &id, spec.body(marker, &id, row.stream));
        let victim = Run { id, spec, marker, caller };
        stand.until("the victim waits", || stand.has(&victim.id, |e| matches!(e, Event::Queued { .. })));
        (taker, stand.quiet(|| false), victim)
    }

    /// Runs that are refused: on arrival, by their prompt, or because a device took the blocks along that they waited for.
    pub fn rejected(&self, row: &Row) {
        match (row.ending, row.phase) {
            (Ending::CannotFit, Phase::Queued) => self.cannot_fit_queued(row),
            (Ending::CannotFit, Phase::Preempted) => self.cannot_fit_preempted(row),
            (Ending::QueueFull, _) => self.queue_full(row),
            _ => self.refused_by_its_prompt(row),
        }
    }

    fn cannot_fit_queued(&self, row: &Row) {
        let stand = Stand::start(Setup { blocks: 16, ..Setup::new(&self.model) });
        let (mut taker, cut, mut victim) = self.taker(row, &stand, Spec::victim(row.n, 16), plain);
        let quarantined = owned(&cut, &[&taker.id]);
        stand.gate.go(Some(failure(Ending::DeviceHung)));
        self.assert_same_fate(&stand, &mut taker, Cause::DeviceError);
        self.check_rejected(row, &stand, &mut victim, &Heard::default());
        self.assert_account(row, &stand, quarantined);
        self.assert_refused(row, &stand, Cause::CannotFit);
        let mut after = self.start(&stand, format!("{row}-after"), Spec::neighbour(20), "after", !row.stream);
        self.assert_healthy(&stand, &mut after);
        self.assert_account(row, &stand, quarantined);
    }

    fn cannot_fit_preempted(&self, row: &Row) {
        let stand = Stand::start(self.setup(row));
        let shape = Shape::of(row);
        let held = self.hold(row, &stand, Spec::victim(row.n, shape.max), Spec::neighbour(shape.neighbour), None);
        let Held { mut holder, mut victim, before, .. } = held;
        let quarantined = owned(&stand.quiet(|| false), &[&holder.id]);
        stand.gate.go(Some(failure(Ending::DeviceHung)));
        self.assert_same_fate(&stand, &mut holder, Cause::DeviceError);
        self.check_rejected(row, &stand, &mut victim, &before);
        self.assert_account(row, &stand, quarantined);
        self.assert_nothing_stale(row, &stand, &victim.id);
        self.assert_account(row, &stand, quarantined);
    }

    fn check_rejected(&self, row: &Row, stand: &Stand, victim: &mut Run, before: &Heard) {
        let heard = victim.caller.finish();
        let (expected, _) = self.isolated.of(&victim.spec, &self.names);
        check_run(row, stand, &victim.id, &heard, before, &expected);
        self.cancel_afterwards(row, stand, &victim.id);
    }

    fn refused_by_its_prompt(&self, row: &Row) {
        let stand = Stand::start(Setup { blocks: 64, ..Setup::new(&self.model) });
        let context = stand.gate.context();
        let (hold, name) = (Hold::Before, row.to_string());
        let post = |stand: &Stand, id: &str, mut body: Value| {
            match row.ending {
                Ending::Invalid => body["prompt"][7] = json!(u32::MAX),
                Ending::OverLimit => body["prompt"] = json!(vec![50; context as usize]),
                _ => body["max_tokens"] = json!(context),
            }
            Caller::post(stand.addr, PATH, id, &body)
        };
        let (spec, shape) = (Spec::victim(row.n, 16), Shape::of(row));
        let holder = Spec::neighbour(shape.neighbour);
        let reach = Reach { row: *row, name, spec, holder, trap: None, shape, post: &post, hold, reads: true };
        let Held { mut holder, mut victim, .. } = self.reach(&stand, &reach).expect("nothing ends it before");
        stand.gate.open_door();
        self.check_rejected(row, &stand, &mut victim, &Heard::default());
        self.assert_healthy(&stand, &mut holder);
        self.assert_account(row, &stand, 0);
        self.assert_nothing_stale(row, &stand, &victim.id);
        self.assert_account(row, &stand, 0);
    }

    /// The device took so long for each full step of a prompt that a deadline of one such step cannot be met by three. False if it passed
    /// before the prompt was tokenised.
    // contract: C-22
    pub fn deadline_unreachable(&self, row: &Row, patience: Duration) -> bool {
        let stand = Stand::start(Setup { blocks: 64, deadline_check_percent: 100, ..Setup::new(&self.model) });
        for i in 0..MEASURED_MIN {
            let (marker, id) = (self.names.marker(), format!("{row}-measured-{i}"));
            stand.gate.arm(Trap { marker, when: When::Token(0, 1), hold: Hold::Before, door: false });
            let spec = Spec { prompt: STEP_TOKENS, ..Spec::victim(1, 1) };
            let mut caller = plain(&stand, &id, spec.body(marker, &id, false));
            stand.until("its only step", || stand.gate.has_caught());
            std::thread::sleep(patience);
            stand.gate.go(None);
            assert!(caller.finish().complete, "{row}");
            stand.settled(&id);
        }
        let post = |stand: &Stand, id: &str, mut body: Value| {
            body["timeout_ms"] = json!(patience.as_millis() as u64);
            plain(stand, id, body)
        };
        let (spec, shape, name) = (Spec::victim(row.n, 16), Shape::of(row), row.to_string());
        let holder = Spec::neighbour(shape.neighbour);
        let reach = Reach { row: *row, name, spec, holder, trap: None, shape, post: &post, hold: Hold::Before, reads: true };
        let Some(Held { mut holder, mut victim, .. }) = self.reach(&stand, &reach) else { return false };
        stand.gate.open_door();
        let run = stand.settled(&victim.id);
        if run.outcome.as_ref().is_some_and(|o| o.cause == "client_deadline") {
            return false;
        }
        assert_eq!((run.steps.total, run.blocks.peak, run.tokens.generated), (0, 0, 0), "{row}: nothing is computed for nobody");
        assert!(!stand.has(&victim.id, |e| matches!(e, Event::Queued { .. })), "{row}");
        self.check_rejected(row, &stand, &mut victim, &Heard::default());
        self.assert_healthy(&stand, &mut holder);
        self.assert_account(row, &stand, 0);
        self.assert_nothing_stale(row, &stand, &victim.id);
        self.assert_account(row, &stand, 0);
        true
    }

    /// The worker's queue is full, or the gateway's table: then no worker ever hears of the run.
    fn queue_full(&self, row: &Row) {
        let mut setup = Setup { queue_limit: 1, ..Setup::new(&self.model) };
        let at_gateway = !row.stream;
        if at_gateway {
            (setup.queue_limit, setup.gateway.calls_max) = (64, 2);
        }
        let stand = Stand::start(setup);
        // Two others: one in a step that is held, one that waits.
        let first = Row { phase: Phase::Queued, ..*row };
        let (hold, name, spec) = (Hold::Before, format!("{row}-waits"), Spec::victim(1, 16));
        let (holder, shape) = (Spec::neighbour(45), Shape::of(row));
        let reach = Reach { row: first, name, spec, holder, trap: None, shape, post: &plain, hold, reads: false };
        let Held { mut holder, victim: mut waits, .. } = self.reach(&stand, &reach).expect("nothing ends it before");
        let mut victim = self.start(&stand, row.to_string(), Spec::victim(row.n, 16), &row.to_string(), row.stream);
        let heard = victim.caller.finish();
        assert_eq!((heard.status, heard.code.as_deref(), heard.count()), (Some(429), Some("queue_full"), 0), "{row}");
        let run = stand.settled(&victim.id);
        assert_eq!((run.outcome.map(|o| o.cause), run.delivery, run.guarantee), (Some("queue_full"), "none", Some("confirmed")), "{row}");
        assert_eq!(stand.has(&victim.id, |e| matches!(e, Event::Dispatched { .. })), !at_gateway, "{row}");
        once(&stand, &victim.id, usize::from(!at_gateway));
        self.cancel_afterwards(row, &stand, &victim.id);
        stand.gate.go(None);
        self.assert_healthy(&stand, &mut holder);
        self.assert_healthy(&stand, &mut waits);
        self.assert_account(row, &stand, 0);
        self.assert_nothing_stale(row, &stand, &victim.id);
        self.assert_account(row, &stand, 0);
    }
}
