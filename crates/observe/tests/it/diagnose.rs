//! Each verdict by what only it shows, which goes before which, and what is never called a fault.
// contract: C-9 C-15 C-16 C-20 C-24 C-25

use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::message::{AttemptCut, BlockCut, Held, Receipt, Snapshot};
use lifecycle::{AttemptId, Cause, OnDisconnect, Phase, StepId};
use observe::diagnose::{AccountLook, Diagnosis, Look, Probe, ProcessLook, Verdict, WorkerLook, judge, tail};
use observe::{AlertRules, Journal};

use crate::hands;
use crate::story::{accepted, cancelled_run, computed, key, outcome_set, queued, released};

const BLOCK: u64 = 1 << 20;

/// A pool of 100 blocks, of which so many are held by one attempt and so many cached.
fn pool(active: u32, cached: u32) -> Snapshot {
    let id = AttemptId { key: key("r"), attempt: 1 };
    let block = |n: u32| {
        let state = if n < active {
            "active"
        } else if n < active + cached {
            "cached"
        } else {
            "free"
        };
        let owners = if n < active { vec![id.clone()] } else { Vec::new() };
        BlockCut { block: n, generation: 1, state, owners, fence: None }
    };
    let attempts = if active > 0 { vec![AttemptCut { attempt: id.clone(), state: "decoding", blocks: active }] } else { Vec::new() };
    Snapshot {
        step: StepId(7),
        total: 100,
        free: 100 - active - cached,
        active,
        cached,
        running: attempts.len() as u32,
        reserved_bytes: 100 * BLOCK,
        held: Held { slots_total: 32, ..Held::default() },
        attempts,
        blocks: (0..100).map(block).collect(),
        ..Snapshot::default()
    }
}

fn worker(cut: &Snapshot) -> WorkerLook {
    WorkerLook {
        name: "w".into(),
        life: Some("1".into()),
        presence: "here".into(),
        account: Some(AccountLook::of(cut)),
        ..WorkerLook::default()
    }
}

fn look(at_ms: u64, cut: &Snapshot) -> Look {
    Look { at_ms, patience_ms: 5000, orphaned_ms: 30_000, has_pool: true, workers: vec![worker(cut)], ..Look::default() }
}

fn resident(mut look: Look, mib: u64) -> Look {
    look.process = Some(ProcessLook { resident_bytes: mib << 20, ..ProcessLook::default() });
    look
}

fn of(cut: &Snapshot) -> Diagnosis {
    judge(&[look(0, cut)], None)
}

fn verdict(cut: &Snapshot) -> Verdict {
    of(cut).verdict
}

#[test]
fn what_is_no_fault_is_told_apart_by_who_has_the_blocks() {
    assert_eq!(verdict(&pool(0, 0)), Verdict::Healthy);
    assert_eq!(verdict(&pool(40, 20)), Verdict::Healthy);
    assert_eq!(verdict(&pool(2, 60)), Verdict::IntentionalCache);
    assert_eq!(verdict(&pool(20, 75)), Verdict::IntentionalCache, "a cached block is there for whoever needs one");
    assert_eq!(verdict(&pool(95, 3)), Verdict::PressureFromLiveRuns);
    let mut waiting = pool(40, 60);
    waiting.held = Held { slots: 4, slots_total: 4, ..Held::default() };
    waiting.attempts.push(AttemptCut { attempt: AttemptId { key: key("q"), attempt: 1 }, state: "queued", blocks: 0 });
    waiting.queued = 1;
    let told = of(&waiting);
    assert_eq!((told.verdict, told.also.as_slice()), (Verdict::PressureFromLiveRuns, &[Verdict::IntentionalCache][..]));
    for verdict in Verdict::ALL {
        assert!(verdict.is_fault() == (verdict < Verdict::CannotTell) && !verdict.summary().is_empty());
        assert_eq!(serde_json::to_value(verdict).expect("JSON"), verdict.as_str());
    }
}

#[test]
fn memory_that_does_not_fall_with_what_was_held_is_the_allocators() {
    let (loaded, idle) = (pool(60, 0), pool(0, 10));
    let kept = judge(&[resident(look(0, &loaded), 300), resident(look(60_000, &idle), 299)], None);
    assert_eq!(kept.verdict, Verdict::NoLeakAllocatorKeeps, "{kept:#?}");
    assert!(kept.evidence.iter().any(|line| line.contains("300.0 MiB") && line.contains("299.0 MiB")), "{kept:#?}");
    assert!(kept.evidence.iter().any(|line| line.contains("100 of its 100 blocks were ever used")), "{kept:#?}");
    assert_eq!((kept.looks, kept.over_ms), (2, 60_000));
    let fell = judge(&[resident(look(0, &loaded), 300), resident(look(60_000, &idle), 230)], None);
    assert_eq!(fell.verdict, Verdict::Healthy);
    // Another process's memory says nothing of the pool.
    let mut remote = [resident(look(0, &loaded), 300), resident(look(60_000, &idle), 300)];
    remote.iter_mut().for_each(|look| look.has_pool = false);
    let remote = judge(&remote, None);
    assert_eq!(remote.verdict, Verdict::Healthy);
    assert!(remote.cannot_tell.iter().any(|line| line.contains("another process")), "{remote:#?}");
}

// field: F-58 F-61
#[test]
fn blocks_that_nobody_owns_are_a_defect_whatever_else_is_the_matter() {
    let mut lost = pool(3, 0);
    lost.attempts.clear();
    lost.running = 0;
    let told = of(&lost);
    assert_eq!((told.verdict, told.fault), (Verdict::AccountingDefect, true));
    assert!(told.evidence[0].starts_with("3 of the 3 active blocks belong to none of the 0 live attempts"), "{told:#?}");
    // The sums alone tell it too.
    let sums = Snapshot { blocks: Vec::new(), ..lost.clone() };
    assert_eq!(verdict(&sums), Verdict::AccountingDefect);

    let mut disputed = pool(3, 0);
    disputed.blocks[0].owners.clear();
    disputed.blocks[0].state = "free";
    (disputed.free, disputed.active) = (98, 2);
    assert!(of(&disputed).evidence[0].contains("hold 1 block that the pool does not count as theirs"));

    // Answers that run on: what has ended owns nothing any more.
    let mut ended = pool(3, 0);
    ended.attempts[0].state = "stopping";
    (ended.running, ended.stopping, ended.held.steps) = (0, 1, 1);
    assert!(of(&ended).evidence[0].contains("belong to none of the 0 live attempts"), "{:#?}", of(&ended));

    let unsound = Snapshot { free: 96, ..pool(3, 0) };
    assert_eq!(verdict(&unsound), Verdict::AccountingDefect);
    let forsaken = Snapshot { held: Held { owners: 2, ..Held::default() }, ..pool(0, 0) };
    assert!(of(&forsaken).evidence[0].contains("2 entries kept for attempts"), "{:#?}", of(&forsaken));
    let mut journalled = look(0, &pool(0, 0));
    journalled.defects = 1;
    assert_eq!(judge(&[journalled], None).verdict, Verdict::AccountingDefect);
    let shrunk = judge(&[look(0, &pool(0, 0)), look(9, &Snapshot { total: 99, free: 99, ..pool(0, 0) })], None);
    assert_eq!(shrunk.verdict, Verdict::AccountingDefect);

    // It goes before a fence that is stuck, which stands beside it.
    let mut both = lost.clone();
    (both.draining, both.free) = (2, both.free - 2);
    let told = of(&both);
    assert_eq!((told.verdict, told.also.as_slice()), (Verdict::AccountingDefect, &[Verdict::DrainingStuck][..]));
}

#[test]
fn a_worker_that_names_no_attempt_is_not_accused() {
    let nameless = Snapshot { attempts: Vec::new(), running: 1, ..pool(30, 0) };
    assert_eq!(verdict(&nameless), Verdict::Healthy);
}

#[test]
fn a_fence_that_nothing_can_complete_is_stuck_at_once_and_any_other_in_time() {
    let draining =
        |steps| Snapshot { draining: 4, free: 96, stopping: 1, held: Held { steps, slots_total: 32, ..Held::default() }, ..pool(0, 0) };
    let stopping = |steps| Snapshot {
        attempts: vec![AttemptCut { attempt: AttemptId { key: key("r"), attempt: 1 }, state: "stopping", blocks: 0 }],
        ..draining(steps)
    };
    assert_eq!(verdict(&stopping(1)), Verdict::Healthy, "the step that it waits for is in flight");
    let stuck = of(&stopping(0));
    assert_eq!((stuck.verdict, stuck.boundary.as_deref()), (Verdict::DrainingStuck, Some("engine-allocator")));
    assert!(stuck.evidence[0].contains("behind a fence: 4 blocks and 1 ended attempt;"), "{stuck:#?}");
    // The same step, look after look.
    let two = |after, step| judge(&[look(0, &stopping(1)), look(after, &Snapshot { step: StepId(step), ..stopping(1) })], None).verdict;
    assert_eq!([two(4000, 7), two(6000, 7), two(6000, 8)], [Verdict::Healthy, Verdict::DrainingStuck, Verdict::Healthy]);
    let quarantined = Snapshot { quarantined: 1, free: 99, ..pool(0, 0) };
    assert_eq!(verdict(&quarantined), Verdict::DrainingStuck);
    assert_eq!(verdict(&Snapshot { device_lost: Some("it hangs".into()), ..pool(0, 0) }), Verdict::DrainingStuck);
}

#[test]
fn who_does_not_answer_is_stuck_if_it_is_silent_with_runs_and_else_unknown() {
    let one = |at_ms, presence: &str, runs| {
        let silent = WorkerLook { presence: presence.into(), account: None, runs, ..worker(&pool(0, 0)) };
        Look { workers: vec![silent, WorkerLook { name: "v".into(), ..worker(&pool(95, 0)) }], ..look(at_ms, &pool(0, 0)) }
    };
    let with = |presence, runs| judge(&[one(0, presence, runs)], None);
    assert_eq!(with("silent", 2).verdict, Verdict::CannotTell, "it may only be starved for a moment");
    let twice = |after| judge(&[one(0, "silent", 2), one(after, "silent", 2)], None);
    assert_eq!((twice(4000).verdict, twice(6000).verdict), (Verdict::CannotTell, Verdict::DrainingStuck));
    assert!(twice(6000).evidence[0].contains("worker w: the worker is silent and has 2 runs"), "{:#?}", twice(6000));
    assert_eq!((with("silent", 0).verdict, with("here", 2).verdict), (Verdict::CannotTell, Verdict::CannotTell));
    assert_eq!(with("here", 2).also, [Verdict::PressureFromLiveRuns]);
    assert_eq!(with("lost", 0).verdict, Verdict::PressureFromLiveRuns, "of a life that is over nothing can be missing");
    assert_eq!(judge(&[Look::default()], None).verdict, Verdict::CannotTell);
    assert_eq!(judge(&[], None).verdict, Verdict::CannotTell);
}

#[test]
fn a_probe_shows_what_flat_gauges_do_not() {
    let probe = |starved, back| Probe {
        runs: 4,
        answered: 4 - starved,
        starved,
        available: 100,
        blocks: 16,
        held: Some(16),
        back,
        patience_ms: 20_000,
        unsaid: None,
    };
    let with = |probe: &Probe| judge(&[look(0, &pool(0, 0))], Some(probe));
    let well = with(&probe(0, Some(true)));
    assert_eq!(well.verdict, Verdict::Healthy);
    assert!(
        well.evidence.iter().any(|line| line.contains("asked for 16 blocks of the 100"))
            && !well.cannot_tell.iter().any(|line| line.contains("--probe")),
        "{well:#?}"
    );
    assert_eq!(with(&probe(2, Some(true))).verdict, Verdict::AccountingDefect);
    assert_eq!(with(&probe(0, Some(false))).verdict, Verdict::AccountingDefect);
    let unsaid = with(&Probe { starved: 4, ..Probe::unsaid("runs wait already") });
    assert_eq!(unsaid.verdict, Verdict::Healthy);
    assert!(unsaid.cannot_tell.iter().any(|line| line.contains("--probe")), "{unsaid:#?}");
    assert!(!of(&pool(0, 0)).cannot_tell.is_empty(), "one look without a probe says what it does not prove");
}

const CAUSE: Cause = Cause::ClientClosed;

fn event(journal: &Journal, id: &str, event: Event) {
    crate::story::at(journal, &key(id), hands::us(), event);
}

/// A run that decodes, and whose caller leaves now.
fn left(journal: &Journal, id: &str) {
    for one in [accepted(), queued(8), Event::PrefillStart, computed(1, 8, 1, 0), Event::AbandonmentObserved { cause: CAUSE }] {
        event(journal, id, one);
    }
}

/// The journal's look, with a worker that is well.
fn seen(journal: &Journal) -> Look {
    let found = journal.look(&AlertRules::default(), &[]);
    Look { workers: vec![worker(&pool(5, 0))], has_pool: true, ..found }
}

fn now(journal: &Journal) -> Diagnosis {
    judge(&[seen(journal)], None)
}

// field: F-21 F-42
#[test]
fn a_word_that_does_not_come_through_is_told_with_the_boundary_that_it_has_not_crossed() {
    let ways: [(&[Event], Verdict, &str); 4] = [
        (&[], Verdict::UpstreamNeverCancelled, "client-gateway"),
        (&[Event::CancelSent { cause: CAUSE, count: 1 }], Verdict::UpstreamNeverCancelled, "gateway-worker"),
        (
            &[Event::CancelSent { cause: CAUSE, count: 1 }, Event::CancelReceived { cause: CAUSE }],
            Verdict::UpstreamNeverCancelled,
            "worker-engine",
        ),
        (
            &[
                Event::CancelSent { cause: CAUSE, count: 1 },
                Event::CancelReceived { cause: CAUSE },
                Event::CancelApplied { cause: CAUSE, phase: Phase::Decode },
                Event::CancelAcknowledged,
            ],
            Verdict::DrainingStuck,
            "engine-allocator",
        ),
    ];
    for (events, verdict, boundary) in ways {
        let journal = hands::journal();
        hands::set(100);
        left(&journal, "r");
        events.iter().for_each(|one| event(&journal, "r", one.clone()));
        hands::set(103);
        assert_eq!(now(&journal).verdict, Verdict::Healthy, "{boundary}: it is on its way");
        event(&journal, "r", computed(2, 0, 3, 0));
        hands::set(106);
        let told = now(&journal);
        assert_eq!((told.verdict, told.boundary.as_deref()), (verdict, Some(boundary)), "{told:#?}");
        assert_eq!((told.runs.len(), told.runs[0].run.as_str()), (1, "r"));
        let since = told.since_ms.expect("a time");
        assert_eq!(since, journal.clock().calendar_ms(lifecycle::Time(100_000_000)));
        if verdict == Verdict::UpstreamNeverCancelled {
            assert!(told.evidence.iter().any(|line| line.contains("3 tokens were generated")), "{told:#?}");
        }
        event(&journal, "r", released());
        event(&journal, "r", outcome_set(CAUSE));
        event(&journal, "r", Event::Settled { proven: true });
        assert_eq!(now(&journal).verdict, Verdict::Healthy, "it is over");
    }
}

// contract: C-25
#[test]
fn in_a_grace_and_where_a_run_goes_on_by_its_policy_nobody_has_left_it() {
    let journal = hands::journal();
    hands::set(100);
    let open = |id: &str, on_disconnect| {
        event(&journal, id, Event::Accepted { model: "m".into(), n: 1, stream: true, on_disconnect });
        [queued(8), Event::PrefillStart, computed(1, 8, 1, 0)].into_iter().for_each(|one| event(&journal, id, one));
    };
    let grace = Duration::from_secs(600);
    open("grace", OnDisconnect::Grace(grace));
    event(&journal, "grace", Event::AbandonmentObserved { cause: CAUSE });
    event(&journal, "grace", Event::GraceBegun { grace });
    open("continues", OnDisconnect::Continue);
    event(&journal, "continues", Event::LeftRunning { cause: CAUSE });
    hands::set(200);
    assert_eq!(now(&journal).verdict, Verdict::Healthy);
    event(&journal, "grace", Event::GraceRanOut);
    hands::set(204);
    assert_eq!(now(&journal).verdict, Verdict::Healthy, "only now somebody wants it to end");
    hands::set(206);
    assert_eq!(now(&journal).boundary.as_deref(), Some("client-gateway"));
}

#[test]
fn an_orphan_that_nobody_reaps_is_work_for_nobody() {
    let journal = hands::journal();
    hands::set(100);
    event(&journal, "r", accepted());
    event(&journal, "r", queued(8));
    event(&journal, "r", Event::Orphaned);
    hands::set(140);
    let orphaned = Snapshot { orphaned: 5, ..pool(5, 0) };
    let told = judge(&[Look { workers: vec![worker(&orphaned)], ..seen(&journal) }], None);
    assert_eq!((told.verdict, told.boundary.as_deref()), (Verdict::UpstreamNeverCancelled, Some("gateway-worker")), "{told:#?}");
}

#[test]
fn of_a_silent_workers_runs_the_worker_is_the_matter() {
    let journal = hands::journal();
    hands::set(100);
    left(&journal, "r");
    event(&journal, "r", Event::CancelSent { cause: CAUSE, count: 1 });
    hands::set(110);
    let mut look = seen(&journal);
    look.left[0].worker = Some("w".into());
    look.workers[0] = WorkerLook { account: None, presence: "silent".into(), runs: 1, ..look.workers[0].clone() };
    let told = judge(&[look.clone()], None);
    assert_eq!((told.verdict, told.also.as_slice()), (Verdict::DrainingStuck, &[Verdict::CannotTell][..]), "{told:#?}");
    assert_eq!(told.runs.len(), 1);
    // It answers again and the cancel is still lost: then that is the matter.
    look.workers[0] = worker(&pool(5, 0));
    assert_eq!(judge(&[look], None).verdict, Verdict::UpstreamNeverCancelled);
}

#[test]
fn twenty_healthy_runs_are_healthy_whenever_one_looks() {
    let journal = hands::journal();
    for n in 0..20 {
        hands::set(n * 60);
        cancelled_run(&journal, &key(&format!("gone-{n}")));
        left(&journal, &format!("left-{n}"));
        assert_eq!(now(&journal).verdict, Verdict::Healthy, "its caller has just left");
        event(&journal, &format!("left-{n}"), released());
        event(&journal, &format!("left-{n}"), outcome_set(CAUSE));
        assert_eq!(now(&journal).verdict, Verdict::Healthy);
    }
}

#[test]
fn very_many_left_runs_are_counted_and_the_longest_waiting_named() {
    let journal = hands::journal();
    for n in 0..1500 {
        hands::set(n);
        left(&journal, &format!("r{n}"));
    }
    hands::set(1600);
    let look = journal.look(&AlertRules::default(), &[]);
    assert_eq!((look.left_total, look.left.len(), look.left[0].run.as_str(), look.left[63].run.as_str()), (1500, 64, "r0", "r63"));
    let told = judge(&[Look { workers: vec![worker(&pool(5, 0))], ..look }], None);
    assert!(told.evidence[0].starts_with("runs r0, r1, r2, r3, r4 and 59 more: no caller"), "{told:#?}");
}

#[test]
fn a_look_is_read_back_as_it_was_written_and_by_other_releases() {
    let journal = hands::journal();
    hands::set(100);
    left(&journal, "r");
    hands::set(110);
    let look = resident(seen(&journal), 100);
    let text = serde_json::to_string(&look).expect("JSON");
    assert_eq!(serde_json::from_str::<Look>(&text).expect("a look"), look);
    let other: Look =
        serde_json::from_str(r#"{"object": "look", "at_ms": 5, "field_of_tomorrow": [1], "workers": [{"name": "w"}]}"#).expect("a look");
    assert_eq!((other.at_ms, other.workers[0].name.as_str()), (5, "w"));
}

#[test]
fn the_tail_of_a_run_has_kinds_and_counts_and_nobodys_words() {
    let journal = hands::journal();
    hands::set(100);
    left(&journal, "r");
    let reason = Some("the prompt `fire Bob` cannot be read".to_owned());
    let outcome = lifecycle::Outcome { reason, ..lifecycle::Outcome::of(Cause::WorkerError) };
    event(&journal, "r", Event::OutcomeSet { outcome });
    event(&journal, "r", Event::Released { receipt: Receipt::default() });
    event(&journal, "other", accepted());
    let lines = tail(&journal, &[key("r")], 3);
    let told: Vec<&str> = lines.iter().filter_map(|line| line["event"].as_str()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(told[1], "OutcomeSet { kind: failed, cause: worker_error }");
    assert!(told[0].starts_with("AbandonmentObserved") && told[2].starts_with("Released") && !told.concat().contains("Bob"), "{told:?}");
}
