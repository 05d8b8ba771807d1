//! One row: a server at rest, a healthy run that goes on beside it, a victim that is brought into its phase and kept there, its end and a
//! second cause; then everything that must hold afterwards.
// contract: C-4, C-6, C-12, C-13, C-14, C-15, C-18, C-19, C-20, C-31

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use lifecycle::Cause;
use lifecycle::OutcomeKind;
use lifecycle::event::Event;
use observe::RunView;

use super::asks::{Isolated, Names, PATH, Spec};
use super::caller::{Caller, Heard, Leave};
use super::gate::{Hold, Trap, When};
use super::stand::{Loaded, Rest, Setup, Stand};
use super::table::{Ending, Phase, Row};

/// Blocks of a pool in which a neighbour that grows takes the victim's, at a step that follows on one with rows of it.
pub const SMALL_POOL: u32 = 15;

/// What all rows share.
pub struct World {
    pub model: Loaded,
    pub isolated: Isolated,
    pub names: Names,
    /// A deadline's length in the first try of a row.
    pub first_try: Duration,
    /// By number of answers: the token that is under way when a victim is preempted.
    preempted_at: Mutex<HashMap<u32, u32>>,
}

/// A run of a row.
pub struct Run {
    pub id: String,
    pub spec: Spec,
    pub marker: u32,
    pub caller: Caller,
}

impl World {
    pub fn new(model: Loaded, names: Names, first_try: Duration) -> World {
        World { isolated: Isolated::new(&model), model, names, first_try, preempted_at: Mutex::default() }
    }

    pub fn start(&self, stand: &Stand, id: String, spec: Spec, salt: &str, stream: bool) -> Run {
        let marker = self.names.marker();
        let caller = Caller::post(stand.addr, PATH, &id, &spec.body(marker, salt, stream));
        Run { id, spec, marker, caller }
    }

    /// The run came to its own end, with the answer of an isolated one.
    pub fn assert_healthy(&self, stand: &Stand, run: &mut Run) -> RunView {
        let heard = run.caller.finish();
        let (expected, _) = self.isolated.of(&run.spec, &self.names);
        assert!(heard.complete, "{} was to notice nothing: {heard:?}", run.id);
        assert!(heard.answer() == expected.answer(), "{} was to answer as alone: {heard:?}, alone {expected:?}", run.id);
        let view = stand.settled(&run.id);
        assert_eq!((view.outcome.as_ref().map(|o| o.kind), view.delivery), (Some("completed"), "complete"), "{}", run.id);
        assert_eq!(view.tokens.delivered, heard.count(), "{}", run.id);
        once(stand, &run.id, 1);
        view
    }
}

/// A row's numbers.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Tokens that the victim asks for, each answer.
    pub max: u32,
    /// The token whose step is held in early and in late decode.
    pub early: u32,
    pub late: u32,
    /// Tokens of the neighbour.
    pub neighbour: u32,
}

impl Shape {
    pub fn of(row: &Row) -> Shape {
        match (row.phase, row.ending, row.n) {
            (Phase::Preempted, _, 1) => Shape { max: 100, early: 0, late: 0, neighbour: 90 },
            (Phase::Preempted, _, _) => Shape { max: 28, early: 0, late: 0, neighbour: 90 },
            // Enough to fill every buffer on the way to a caller who does not read.
            (_, Ending::Stalled, _) => Shape { max: 60, early: 24, late: 56, neighbour: 110 },
            _ => Shape { max: 16, early: 4, late: 14, neighbour: 45 },
        }
    }
}

/// Records that stand in the journal exactly once, whatever raced to end the run.
pub fn once(stand: &Stand, id: &str, released: usize) {
    let count = |name: &str, wanted: &dyn Fn(&Event) -> bool, times: usize| {
        let found = stand.count(id, wanted);
        assert_eq!(found, times, "{id}: {name} stands {found} times in the journal: {:#?}", stand.journal.records(&super::stand::key(id)));
    };
    count("accepted", &|e| matches!(e, Event::Accepted { .. }), 1);
    count("outcome", &|e| matches!(e, Event::OutcomeSet { .. }), 1);
    count("delivery", &|e| matches!(e, Event::DeliveryEnded { .. }), 1);
    count("attempt ended", &|e| matches!(e, Event::AttemptEnded { .. }), released);
    count("released", &|e| matches!(e, Event::Released { .. }), released);
    count("void", &|e| matches!(e, Event::Void { .. }), 0);
    count("settled", &|e| matches!(e, Event::Settled { proven: true }), 1);
    count("defect", &|e| matches!(e, Event::Defect { .. }), 0);
}

/// A victim in its phase, everything held.
pub struct Held {
    pub holder: Run,
    pub victim: Run,
    pub follower: Option<Run>,
    /// What the victim's caller had read when its end came.
    pub before: Heard,
    /// Whether the engine's thread is kept at the device's door.
    pub at_door: bool,
    /// Callers whose prompts keep the tokeniser busy.
    pub busy: Vec<Caller>,
}

pub struct Reach<'a> {
    pub row: Row,
    pub name: String,
    pub spec: Spec,
    pub holder: Spec,
    /// The step to be held where it is not the phase's usual one; its marker is filled in.
    pub trap: Option<Trap>,
    pub shape: Shape,
    /// Gives the victim's request what it needs; it is called with the victim's id before anything is sent.
    pub post: &'a dyn Fn(&Stand, &str, serde_json::Value) -> Caller,
    pub hold: Hold,
    pub reads: bool,
}

impl World {
    /// Brings a victim into its phase. `None` if its end came before that, by a deadline: then everything has ended and settled.
    pub fn reach(&self, stand: &Stand, r: &Reach) -> Option<Held> {
        let (row, gate) = (r.row, &stand.gate);
        let holder_id = format!("{}-beside", r.name);
        let marker = self.names.marker();
        gate.arm(Trap { marker, when: When::Token(0, 3), hold: Hold::Before, door: false });
        let spec = r.holder.clone();
        let caller =
            Caller::post(stand.addr, PATH, &holder_id, &spec.body(marker, &holder_id, !row.stream && row.ending != Ending::Stalled));
        let holder = Run { id: holder_id, spec, marker, caller };
        let is_queued = |id: &str| stand.has(id, |e| matches!(e, Event::Queued { .. }));
        let is_over = |id: &str| stand.run(id).is_some_and(|run| run.outcome.is_some());
        stand.until("the holder's third token", || gate.has_caught() || is_over(&holder.id));
        if !gate.has_caught() {
            stand.settled(&holder.id);
            return None;
        }
        stand.quiet(|| is_over(&holder.id));
        let marker = self.names.marker();
        let at_door = row.phase == Phase::Tokenising && !needs_time_at_worker(row.ending);
        if at_door {
            // Whatever is sent from now on waits in the mailbox, in its order.
            gate.shut_door();
            gate.go(None);
            gate.engine_at_door();
        }
        let busy = if row.phase == Phase::Tokenising && !at_door { busy_tokeniser(stand, &r.name) } else { Vec::new() };
        let caller = (r.post)(stand, &r.name, r.spec.body(marker, &r.name, row.stream));
        let mut victim = Run { id: r.name.clone(), spec: r.spec.clone(), marker, caller };
        let mut follower = None;
        match row.phase {
            Phase::Tokenising => stand.until("the submit is handed on", || stand.is_submitted(&victim.id)),
            Phase::Queued => {
                stand.until("the victim waits", || is_queued(&victim.id) || is_over(&victim.id));
                stand.quiet(|| is_over(&holder.id));
            }
            _ => {
                stand.until("the victim waits", || is_queued(&victim.id) || is_over(&victim.id));
                if row.phase == Phase::SharedPrefix {
                    let spec = Spec { variant: r.spec.variant, ..Spec::victim(1, 12) };
                    let run = self.start(stand, format!("{}-follower", r.name), spec, &r.name, row.stream);
                    stand.until("the follower waits", || is_queued(&run.id));
                    follower = Some(run);
                }
                let usual = || Trap { hold: r.hold, ..self.trap(&row, row.phase, r.shape) };
                let trap = Trap { marker, ..r.trap.unwrap_or_else(usual) };
                gate.arm(trap);
                gate.go(None);
                loop {
                    stand.until("the victim's phase", || gate.has_caught() || is_over(&victim.id));
                    if !gate.has_caught() {
                        break;
                    }
                    let preempted = || stand.has(&victim.id, |e| matches!(e, Event::Preempted));
                    match trap.door {
                        true => gate.engine_at_door(),
                        false => drop(stand.quiet(|| preempted() || is_over(&victim.id) || is_over(&holder.id))),
                    }
                    if row.phase != Phase::Preempted || preempted() || is_over(&victim.id) {
                        break;
                    }
                    assert!(
                        r.trap.is_none_or(|trap| trap.door),
                        "{row}: the step of the last token is under way and nobody needs its blocks"
                    );
                    // It only waited for a block; the next step without it may be the one.
                    gate.arm_gone_again(trap);
                    gate.open_door();
                    gate.go(None);
                }
            }
        }
        // A neighbour that is over gives its part of each step away, and the phase would be another.
        let too_late =
            is_over(&victim.id) || is_over(&holder.id) || stand.has(&victim.id, |e| matches!(e, Event::AbandonmentObserved { .. }));
        if too_late && busy.is_empty() {
            gate.go(None);
            gate.open_door();
            for run in [&victim, &holder].into_iter().chain(&follower) {
                stand.settled(&run.id);
            }
            return None;
        }
        let generated = stand.run(&victim.id).map_or(0, |run| run.tokens.generated - run.tokens.overrun);
        let before =
            if row.stream && r.reads { victim.caller.until("every token so far", |h| h.count() == generated) } else { Heard::default() };
        Some(Held { holder, victim, follower, before, at_door, busy })
    }

    /// The step to be held so that the victim stays in a phase.
    pub fn trap(&self, row: &Row, phase: Phase, shape: Shape) -> Trap {
        let when = match phase {
            Phase::Prefill | Phase::SharedPrefix => When::Chunk(3),
            Phase::BeforeFirstToken => When::Token(0, 1),
            Phase::EarlyDecode => When::Token(row.n - 1, shape.early),
            Phase::LateDecode => When::Token(row.n - 1, shape.late),
            Phase::LastStep => When::Token(row.n - 1, shape.max),
            Phase::Preempted | Phase::Tokenising | Phase::Queued => When::Gone,
        };
        Trap { marker: 0, when, hold: Hold::After, door: false }
    }

    /// Runs a row; false if a deadline came before its phase and it is to be tried again with more time.
    pub fn run(&self, row: &Row, stand: &mut Stand, name: &str, patience: Duration) -> bool {
        let baseline = Rest::of(stand.setup.blocks, 0);
        assert_eq!(stand.rest(), baseline, "{row}: before");
        let completes = row.ending.kind() == OutcomeKind::Completed;
        let shape = Shape::of(row);
        let hold = if row.stream == (row.n == 1) { Hold::Before } else { Hold::After };
        let (spec, trap) = if completes { self.completing(row, &self.model, shape, hold) } else { (Spec::victim(row.n, shape.max), None) };
        let post = |stand: &Stand, id: &str, mut body: serde_json::Value| match row.ending {
            Ending::ClientDeadline => {
                body["timeout_ms"] = serde_json::json!(patience.as_millis() as u64);
                Caller::post(stand.addr, PATH, id, &body)
            }
            Ending::WorkerDeadline => {
                // The worker gives every deadline but the queue's some time of its own. A prompt keeps the tokeniser busy for so long only.
                let left = if row.phase == Phase::Tokenising { Duration::ZERO } else { patience };
                stand.add_deadline(id, left, Cause::WorkerDeadline);
                Caller::post(stand.addr, PATH, id, &body)
            }
            Ending::QueueDeadline if row.phase == Phase::Tokenising => {
                // As the gateway's own, but for this run alone: those whose prompts keep the tokeniser busy must stay.
                stand.add_deadline(id, Duration::from_millis(1), Cause::QueueDeadline);
                Caller::post(stand.addr, PATH, id, &body)
            }
            Ending::Stalled => {
                body["logprobs"] = serde_json::json!(20);
                Caller::narrow(stand.addr, PATH, id, &body)
            }
            _ => Caller::post(stand.addr, PATH, id, &body),
        };
        let reads = row.ending != Ending::Stalled;
        let holder = Spec::neighbour(shape.neighbour);
        let reach = Reach { row: *row, name: name.to_owned(), spec, holder, trap, shape, post: &post, hold, reads };
        let Some(mut held) = self.reach(stand, &reach) else { return false };
        // A gateway's deadline is every run's: the healthy one comes when half of it is over, and has the other half for itself.
        let mut late = (row.ending == Ending::GatewayDeadline).then(|| {
            std::thread::sleep(patience / 2);
            self.start(stand, format!("{name}-late"), Spec::neighbour(8), &format!("{name}-late"), true)
        });
        if !completes {
            self.end(row, stand, &mut held);
        }
        if !held.busy.is_empty() && stand.has(name, |e| matches!(e, Event::Queued { .. })) {
            // The tokeniser was quicker than the deadline.
            stand.gate.go(None);
            held.holder.caller.finish();
            held.busy.iter_mut().for_each(|caller| drop(caller.finish()));
            stand.until("the last run is gone", || stand.cut().attempts.is_empty());
            return false;
        }
        if held.at_door {
            stand.gate.open_door();
        }
        stand.gate.go(None);
        let run = stand.settled(name);
        if completes {
            let (status, _) = stand.request("POST", &format!("/v1/runs/{name}/cancel?wait_ms=0"));
            assert_eq!(status, 200, "{row}");
        }
        let second = self.second(row, &held);
        let Held { mut holder, mut victim, follower, before, mut busy, .. } = held;
        busy.iter_mut().for_each(|caller| drop(caller.finish()));
        let heard = match row.ending {
            Ending::Closed | Ending::Stalled => victim.caller.drain(),
            Ending::Reset => victim.caller.read(),
            _ if second == Some(Cause::ClientClosed) => victim.caller.drain(),
            _ => victim.caller.finish(),
        };
        let (expected, _) = self.isolated.of(&victim.spec, &self.names);
        check_run(row, stand, name, &heard, &before, &expected);
        let run = if completes { stand.run(name).expect("it is known") } else { run };
        let superseded: Vec<&str> = second.iter().map(|c| c.as_str()).collect();
        assert_eq!(stand.run(name).expect("it is known").superseded, superseded, "{row}");
        check_phase(row, stand, name, &run);
        check_waste(row, hold, &run);
        // The others: nobody but who shared the cause noticed anything.
        match row.ending {
            Ending::Shutdown | Ending::GatewayDeadline => self.assert_same_fate(stand, &mut holder, row.ending.cause()),
            _ => drop(self.assert_healthy(stand, &mut holder)),
        }
        if let Some(late) = &mut late {
            if stand.settled(&late.id).outcome.is_some_and(|o| o.cause == "gateway_deadline") {
                // Half of the deadline was not enough for it.
                stand.until("the last run is gone", || stand.cut().attempts.is_empty());
                return false;
            }
            self.assert_healthy(stand, late);
        }
        if let Some(mut follower) = follower {
            match row.ending {
                Ending::Shutdown => self.assert_same_fate(stand, &mut follower, Cause::Shutdown),
                // It came later and has so much more time; that may be enough.
                Ending::GatewayDeadline if stand.settled(&follower.id).outcome.is_some_and(|o| o.cause == "gateway_deadline") => {
                    self.assert_same_fate(stand, &mut follower, Cause::GatewayDeadline);
                }
                _ => drop(self.assert_healthy(stand, &mut follower)),
            }
        }
        if row.ending == Ending::Shutdown {
            stand.served().expect("everything settled");
            let cut = stand.cut();
            assert!(cut.is_conserved());
            assert_eq!((cut.free + cut.cached, cut.attempts.len()), (stand.setup.blocks, 0), "{row}");
        } else {
            stand.until("the last run is gone", || stand.cut().attempts.is_empty());
            assert_eq!(stand.rest(), baseline, "{row}: after");
            let mut again = self.ask_again(row, stand, name, victim.spec.variant);
            if row.ending == Ending::GatewayDeadline && stand.settled(&again.id).outcome.is_some_and(|o| o.cause == "gateway_deadline") {
                return false;
            }
            let again = self.assert_healthy(stand, &mut again);
            // What was computed of the prompt is there again.
            assert!(!row.phase.decodes() || again.tokens.cached_prompt == 96, "{row}: {:?}", again.tokens);
            assert_eq!(stand.rest(), baseline, "{row}: after the prefix was asked for again");
        }
        assert_eq!(stand.journal.defects(), 0, "{row}");
        true
    }

    fn ask_again(&self, row: &Row, stand: &Stand, salt: &str, variant: u32) -> Run {
        let spec = Spec { variant, ..Spec::victim(1, 16) };
        self.start(stand, format!("{salt}-again"), spec, salt, row.stream)
    }

    /// The same prefix again: what is cached of it is right, to the bit.
    pub fn assert_nothing_stale(&self, row: &Row, stand: &Stand, salt: &str) -> RunView {
        let mut again = self.ask_again(row, stand, salt, 0);
        self.assert_healthy(stand, &mut again)
    }

    /// A run that ended for the same cause as the victim: what it answered was right as far as it went.
    pub fn assert_same_fate(&self, stand: &Stand, run: &mut Run, cause: Cause) {
        let heard = run.caller.finish();
        let view = stand.settled(&run.id);
        assert_eq!(view.outcome.as_ref().map(|o| o.cause), Some(cause.as_str()), "{}", run.id);
        let (expected, _) = self.isolated.of(&run.spec, &self.names);
        assert!(heard.begins(&expected), "{}: {heard:?}", run.id);
        assert_eq!(view.tokens.delivered, heard.count(), "{}", run.id);
    }

    /// Ends the victim, then ends it again for another cause.
    fn end(&self, row: &Row, stand: &mut Stand, held: &mut Held) {
        let (id, cause) = (held.victim.id.clone(), row.ending.cause());
        let cancel = format!("/v1/runs/{id}/cancel?wait_ms=0");
        match row.ending {
            Ending::Closed => held.victim.caller.leave(Leave::Close),
            Ending::Reset => held.victim.caller.leave(Leave::Reset),
            Ending::Requested => assert_eq!(stand.request("POST", &cancel).0, 200, "{row}"),
            Ending::Orphaned | Ending::Lost => stand.cancel_at_worker(&id, cause),
            Ending::Shutdown => stand.shut_down(),
            _ => {}
        }
        let decided = || stand.run(&id).is_some_and(|run| run.outcome.is_some_and(|o| o.cause == cause.as_str()));
        match held.at_door {
            true if matches!(row.ending, Ending::Orphaned | Ending::Lost) => {}
            true => stand.until("the cancel is handed on", || stand.is_cancel_sent(&id, cause)),
            false => stand.until(&format!("{row} is decided"), decided),
        }
        match self.second(row, held) {
            Some(Cause::CancelRequested) => assert_eq!(stand.request("POST", &cancel).0, 200, "{row}"),
            Some(_) => {
                if !held.at_door {
                    held.victim.caller.finish();
                }
                held.victim.caller.leave(Leave::Close);
                if held.at_door {
                    stand.until(&format!("{row}: the close is seen"), || stand.has(&id, |e| matches!(e, Event::DeliveryEnded { .. })));
                } else {
                    let seen = || stand.run(&id).is_some_and(|run| run.superseded == ["client_closed"]);
                    stand.until(&format!("{row}: the close is seen as superseded"), seen);
                }
            }
            None if row.ending == Ending::Requested => assert_eq!(stand.request("POST", &cancel).0, 200, "{row}"),
            None => {}
        }
    }

    /// The cause that comes second: a cancel by name, or where that was the first, or nobody takes one any more, the caller's leaving, if
    /// there is still something to leave.
    fn second(&self, row: &Row, held: &Held) -> Option<Cause> {
        match row.ending {
            // In a drain a whole answer ends its connection: nobody is left to leave.
            Ending::Shutdown if !row.stream && !held.at_door => None,
            Ending::Requested | Ending::Shutdown => (held.at_door || row.phase.has_rows()).then_some(Cause::ClientClosed),
            _ => Some(Cause::CancelRequested),
        }
    }

    /// What the victim asks for so that it completes in this phase, and the step that decides it.
    fn completing(&self, row: &Row, model: &Loaded, shape: Shape, hold: Hold) -> (Spec, Option<Trap>) {
        let wanted = match row.phase {
            Phase::BeforeFirstToken | Phase::SharedPrefix => 1,
            Phase::EarlyDecode => shape.early,
            Phase::LateDecode => shape.late,
            Phase::Preempted => self.preempted_at(row.n, model),
            _ => shape.max,
        };
        // Of several answers the first is ahead of the others. Where the victim is preempted with its last token under way, the others go on
        // after a recomputation; elsewhere the last of them ends the run.
        let sequence = if row.phase == Phase::Preempted { 0 } else { row.n - 1 };
        let trap = Trap { marker: 0, when: When::Token(sequence, wanted), hold, door: false };
        // A stop must be the same token of all answers, so they are drawn alike.
        let plain = |variant| Spec { variant, hot: row.ending == Ending::Length && row.n > 1, ..Spec::victim(row.n, shape.max) };
        if row.ending == Ending::Length {
            return (Spec { max: wanted, ..plain(0) }, Some(trap));
        }
        let max = if row.phase == Phase::LastStep { wanted } else { shape.max };
        let at = wanted as usize - 1;
        let stopping = |variant| {
            let plain = plain(variant);
            let (heard, chosen) = self.isolated.of(&plain, &self.names);
            if row.ending == Ending::StopToken {
                let token = chosen[0][at];
                return (!chosen[0][..at].contains(&token)).then_some(Spec { stop_token: Some(token), max, ..plain });
            }
            // Text that comes with this token and stands nowhere before.
            let (text, piece) = (&heard.text[&0], &heard.tokens[&0][at]);
            let before = match at {
                0 => String::new(),
                _ => self.isolated.of(&Spec { max: wanted - 1, ..plain.clone() }, &self.names).0.text[&0].clone(),
            };
            let fits = !piece.starts_with("bytes:") && !piece.is_empty() && text.find(piece.as_str()) == Some(before.len());
            fits.then(|| Spec { stop: Some(piece.clone()), max, ..plain })
        };
        (0..200).find_map(stopping).map(|spec| (spec, Some(trap))).expect("some prompt of two hundred has a new piece there")
    }

    /// The token that is under way when a victim in a small pool is preempted: the steps are the same each time, so it is found by trying.
    fn preempted_at(&self, n: u32, model: &Loaded) -> u32 {
        if let Some(known) = self.preempted_at.lock().expect("no asker panicked").get(&n) {
            return *known;
        }
        let stand = Stand::start(Setup { blocks: SMALL_POOL, ..Setup::new(model) });
        let row = Row { ending: Ending::Requested, phase: Phase::Preempted, n, stream: false };
        let shape = Shape::of(&row);
        let post = |stand: &Stand, id: &str, body: serde_json::Value| Caller::post(stand.addr, PATH, id, &body);
        let spec = Spec::victim(n, shape.max);
        let (holder, name) = (Spec::neighbour(shape.neighbour), format!("trial-{n}"));
        let reach = Reach { row, name, spec, holder, trap: None, shape, post: &post, hold: Hold::After, reads: false };
        let held = self.reach(&stand, &reach).expect("nothing ends it before");
        let at = stand.gate.planned(held.victim.marker, 0);
        assert_eq!(stand.request("POST", &format!("/v1/runs/trial-{n}/cancel")).0, 200);
        self.preempted_at.lock().expect("no asker panicked").insert(n, at);
        at
    }
}

/// Conversations that keep the one thread that tokenises busy for longer than a deadline; each is too long in the end.
fn busy_tokeniser(stand: &Stand, name: &str) -> Vec<Caller> {
    let turn = serde_json::json!({"role": "user", "content": ""});
    let body = serde_json::json!({"messages": vec![turn; super::MANY_TURNS], "max_tokens": 1});
    let start = |i: u32| {
        let id = format!("{name}-long-{i}");
        let caller = Caller::post(stand.addr, "/v1/chat/completions", &id, &body);
        stand.until("a long prompt is handed on", || stand.is_submitted(&id));
        caller
    };
    (0..super::LONG_PROMPTS).map(start).collect()
}

/// Whether the deadline is counted by the worker from the moment it takes the submit.
fn needs_time_at_worker(ending: Ending) -> bool {
    matches!(ending, Ending::WorkerDeadline | Ending::QueueDeadline)
}

/// What must hold of the victim, however it ended.
pub fn check_run(row: &Row, stand: &Stand, id: &str, heard: &Heard, before: &Heard, expected: &Heard) {
    let run = stand.settled(id);
    let (kind, cause) = (row.ending.kind(), row.ending.cause());
    let outcome = run.outcome.clone().expect("it has one");
    assert_eq!((outcome.kind, outcome.cause), (kind.as_str(), cause.as_str()), "{row}: {outcome:?}");
    once(stand, id, 1);
    assert_eq!((run.guarantee, run.blocks.held, run.released), (Some("confirmed"), 0, true), "{row}");
    // Delivery, as the caller saw it.
    let stalled = row.ending == Ending::Stalled;
    match stalled {
        // What was given to the connection of a caller who does not read may have died there.
        true => assert!(heard.count() <= run.tokens.delivered && run.tokens.delivered > 0, "{row}"),
        false => assert_eq!(run.tokens.delivered, heard.count(), "{row}: {heard:?}"),
    }
    let word = match (heard.complete, run.tokens.delivered) {
        (true, _) => "complete",
        (false, 0) => "none",
        (false, _) => "partial",
    };
    assert_eq!(run.delivery, word, "{row}: {heard:?}");
    if kind == OutcomeKind::Completed {
        assert!(heard.complete && heard.code.is_none(), "{row}: {heard:?}");
        assert!(heard.answer() == expected.answer(), "{row}: {heard:?}, alone {expected:?}");
        return;
    }
    assert!(!heard.complete && heard.finish.len() < row.n as usize + usize::from(row.n > 1), "{row}: {heard:?}");
    if !stalled {
        assert!(heard.begins(expected), "{row}: {heard:?}, alone {expected:?}");
        assert_eq!(&heard.bits, &before.bits, "{row}: nothing is delivered after the end");
    }
    if let Some(code) = &heard.code {
        assert_eq!(code, cause.as_str(), "{row}: what it was told");
    }
    // Who was there to the end was told why.
    let stays = !matches!(row.ending, Ending::Closed | Ending::Reset | Ending::Stalled);
    let told_before_leaving = !matches!(row.ending, Ending::Requested | Ending::Shutdown) || row.phase != Phase::Tokenising;
    if stays && told_before_leaving {
        assert!(heard.code.is_some(), "{row}: {heard:?}");
    }
    assert!(run.tokens.after_receipt <= u64::from(row.n), "{row}: {:?}", run.tokens);
}

/// The engine applied the end where the table says that the run was.
fn check_phase(row: &Row, stand: &Stand, id: &str, run: &RunView) {
    let queued = stand.has(id, |e| matches!(e, Event::Queued { .. }));
    let preempted = stand.has(id, |e| matches!(e, Event::Preempted));
    assert_eq!((queued, preempted), (row.phase != Phase::Tokenising, row.phase == Phase::Preempted), "{row}");
    if matches!(row.ending.kind(), OutcomeKind::Cancelled | OutcomeKind::Expired) {
        let applied = stand.count(
            id,
            |e| matches!(e, Event::CancelApplied { cause, phase } if *cause == row.ending.cause() && *phase == row.phase.applied()),
        );
        assert_eq!(applied, 1, "{row}: {:#?}", stand.journal.records(&super::stand::key(id)));
    }
    if matches!(row.phase, Phase::Tokenising | Phase::Queued) {
        assert_eq!((run.blocks.peak, run.steps.total, run.tokens.generated), (0, 0, 0), "{row}");
    }
}

/// The device was held when the end came, so what was computed in vain is known to the token.
fn check_waste(row: &Row, hold: Hold, run: &RunView) {
    if !matches!(row.ending.kind(), OutcomeKind::Cancelled | OutcomeKind::Expired) || !row.phase.has_rows() {
        return;
    }
    let t = &run.tokens;
    assert_eq!(t.after_receipt, 0, "{row}: nothing was begun after the receipt: {t:?}");
    match hold {
        // Rows that wait are dropped before their first layer.
        Hold::Before => {
            let wasted = (t.after_disconnect, t.prompt_computed_after_disconnect, run.steps.after_disconnect, run.steps.layers_dropped);
            assert_eq!(wasted, (0, 0, 0, 0), "{row}");
        }
        // What was computed and not told yet: the held step and the one behind it.
        Hold::After => {
            assert!((1..=2).contains(&run.steps.after_disconnect), "{row}: {:?}", run.steps);
            assert!(t.after_disconnect <= 2 * u64::from(row.n), "{row}: {t:?}");
        }
    }
}
