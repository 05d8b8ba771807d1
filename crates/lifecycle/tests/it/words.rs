//! The contract's words and ids: the table of causes, and what is an id and what is not.

use lifecycle::event::{Event, Record};
use lifecycle::id::{RUN_ID_MAX_LEN, TENANT_MAX_LEN};
use lifecycle::message::{Receipt, Snapshot};
use lifecycle::params::{Params, STOP_MAX_LEN, STOPS_MAX};
use lifecycle::{
    AttemptId, Cause, Delivery, Guarantee, IdError, Incarnation, Outcome, OutcomeKind, Phase, RunId, RunKey, StepId, Tenant, Time,
};

/// The contract's table, as it is written there.
const TABLE: [(OutcomeKind, &str); 5] = [
    (OutcomeKind::Completed, "stop length"),
    (OutcomeKind::Cancelled, "client_closed client_reset client_lost client_stalled cancel_requested edge_timeout orphaned shutdown"),
    (OutcomeKind::Expired, "client_deadline gateway_deadline worker_deadline queue_deadline"),
    (OutcomeKind::Failed, "worker_error device_error worker_lost upstream_error"),
    (OutcomeKind::Rejected, "invalid over_limit queue_full cannot_fit deadline_unreachable"),
];

#[test]
fn every_cause_has_the_outcome_of_the_contract_s_table() {
    let mut seen = 0;
    for (kind, words) in TABLE {
        for word in words.split(' ') {
            let cause = Cause::parse(word).unwrap_or_else(|| panic!("{word} is no cause"));
            assert_eq!((cause.outcome(), Outcome::of(cause).kind()), (kind, kind), "{word}");
            seen += 1;
        }
    }
    assert_eq!(seen, Cause::ALL.len(), "no cause beside the table");
}

#[test]
fn every_word_is_read_back_and_no_other() {
    assert!(Cause::ALL.iter().all(|w| Cause::parse(&w.to_string()) == Some(*w)));
    assert!(Delivery::ALL.iter().all(|w| Delivery::parse(w.as_str()) == Some(*w)));
    assert!(Guarantee::ALL.iter().all(|w| Guarantee::parse(w.as_str()) == Some(*w)));
    assert!(Phase::ALL.iter().all(|w| Phase::parse(w.as_str()) == Some(*w)));
    for other in ["", "Stop", "stop ", "abort", "clientclosed"] {
        assert_eq!(Cause::parse(other), None, "{other:?}");
    }
}

#[test]
fn a_disconnect_means_that_the_caller_is_gone() {
    let gone: Vec<_> = Cause::ALL.iter().filter(|cause| cause.is_disconnect()).map(|cause| cause.as_str()).collect();
    assert_eq!(gone, ["client_closed", "client_reset", "client_lost", "client_stalled", "edge_timeout"]);
    assert!(Cause::ALL.iter().filter(|c| c.is_disconnect()).all(|c| c.outcome() == OutcomeKind::Cancelled));
}

// contract: C-1
#[test]
fn an_id_is_checked_whole() {
    assert_eq!(RunId::parse("a-Z0._:~").map(|id| id.to_string()), Ok("a-Z0._:~".into()));
    assert_eq!(RunId::parse(""), Err(IdError::Empty));
    assert!(RunId::parse(&"x".repeat(RUN_ID_MAX_LEN)).is_ok());
    assert_eq!(RunId::parse(&"x".repeat(RUN_ID_MAX_LEN + 1)), Err(IdError::TooLong { len: 129, max: 128 }));
    for (text, found, at) in [("a b", ' ', 1), ("a\n", '\n', 1), ("ab/1", '/', 2), ("naïve", 'ï', 2), ("\"", '"', 0)] {
        assert_eq!(RunId::parse(text), Err(IdError::Character { found, at }), "{text:?}");
    }
    for dots in [".", ".."] {
        assert_eq!(RunId::parse(dots), Err(IdError::Dots), "a URL's path cannot name it");
    }
    assert!(RunId::parse("...").is_ok() && RunId::parse(".a").is_ok());
    assert!(Tenant::parse(&"t".repeat(TENANT_MAX_LEN)).is_ok() && Tenant::parse(&"t".repeat(TENANT_MAX_LEN + 1)).is_err());
    assert_eq!(Tenant::default().as_str(), "default");
}

// contract: C-1
// field: F-65
#[test]
fn a_taken_id_gives_another_valid_id_of_its_own() {
    let id = RunId::parse("order-7").expect("an id");
    assert_eq!(id.taken(2).as_str(), "order-7~2");
    let longest = RunId::parse(&"x".repeat(RUN_ID_MAX_LEN)).expect("an id");
    for k in [2, 10, u32::MAX] {
        let other = longest.taken(k);
        assert!(other.as_str().len() == RUN_ID_MAX_LEN && other.as_str().ends_with(&format!("~{k}")));
        assert_ne!(other, longest);
        assert_eq!(RunId::parse(other.as_str()), Ok(other.clone()), "it is an id itself");
    }
}

// contract: C-3
#[test]
fn an_incarnation_reads_as_a_uuid() {
    assert_eq!(Incarnation(0x0199_0000_1111_2222_3333_4444_5555_6666).to_string(), "01990000-1111-2222-3333-444455556666");
    assert_eq!(Incarnation(1).to_string(), "00000000-0000-0000-0000-000000000001");
}

// contract: C-28
#[test]
fn a_parameter_out_of_its_range_is_named() {
    assert_eq!(Params::default().check(), Ok(()));
    type Break = fn(&mut Params);
    let cases: [(&str, Break); 13] = [
        ("temperature", |p| p.sampling.temperature = f32::NAN),
        ("temperature", |p| p.sampling.temperature = 2.1),
        ("top_p", |p| p.sampling.top_p = 0.0),
        ("min_p", |p| p.sampling.min_p = -0.1),
        ("presence_penalty", |p| p.sampling.presence_penalty = 2.1),
        ("frequency_penalty", |p| p.sampling.frequency_penalty = f32::INFINITY),
        ("repetition_penalty", |p| p.sampling.repetition_penalty = 0.0),
        ("logit_bias", |p| p.sampling.logit_bias = vec![(1, 101.0)]),
        ("top_logprobs", |p| p.sampling.logprobs = Some(21)),
        ("max_tokens", |p| p.max_tokens = Some(0)),
        ("n", |p| p.n = 17),
        ("stop", |p| p.stop = vec![String::new()]),
        ("min_tokens", |p| (p.max_tokens, p.sampling.min_tokens) = (Some(3), 4)),
    ];
    for (param, break_it) in cases {
        let mut params = Params::default();
        break_it(&mut params);
        assert_eq!(params.check().map_err(|e| e.param), Err(param));
    }
}

// contract: C-28
#[test]
fn a_parameter_at_the_end_of_its_range_is_within() {
    type Set = fn(&mut Params);
    let cases: [(Set, Set); 5] = [
        (|p| p.sampling.logprobs = Some(20), |p| p.sampling.logprobs = Some(21)),
        (|p| p.stop = vec!["x".repeat(STOP_MAX_LEN)], |p| p.stop = vec!["x".repeat(STOP_MAX_LEN + 1)]),
        (|p| p.stop = vec!["x".into(); STOPS_MAX], |p| p.stop = vec!["x".into(); STOPS_MAX + 1]),
        (|p| p.n = 16, |p| p.n = 0),
        (|p| (p.max_tokens, p.sampling.min_tokens) = (Some(3), 3), |p| (p.max_tokens, p.sampling.min_tokens) = (Some(3), 4)),
    ];
    for (i, (last, beyond)) in cases.into_iter().enumerate() {
        let (mut within, mut out) = (Params::default(), Params::default());
        last(&mut within);
        beyond(&mut out);
        assert_eq!(within.check(), Ok(()), "case {i}");
        assert!(out.check().is_err(), "case {i}");
    }
}

// contract: C-15
#[test]
fn an_account_is_conserved_if_its_parts_are_the_whole() {
    let whole = Snapshot { total: 31, free: 1, active: 2, cached: 4, draining: 8, quarantined: 16, ..Snapshot::default() };
    assert!(whole.is_conserved());
    let (less, more) = (Snapshot { total: 32, ..whole.clone() }, Snapshot { total: 30, ..whole });
    assert!(!less.is_conserved() && !more.is_conserved());
}

// contract: C-5
#[test]
fn a_record_names_its_attempt_if_it_is_about_one() {
    let key = RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") };
    let about = |run: Option<RunKey>, attempt| Record { at: Time(1), run, attempt, event: Event::Attached }.attempt();
    assert_eq!(about(Some(key.clone()), 0), None, "none exists yet");
    for attempt in [1, 2] {
        assert_eq!(about(Some(key.clone()), attempt), Some(AttemptId { key: key.clone(), attempt }));
    }
    assert_eq!(about(None, 1), None, "the worker as a whole");
}

// contract: C-20
#[test]
fn a_worker_s_words_about_an_attempt_cross_and_no_others() {
    let cause = Cause::ClientClosed;
    let crosses = [
        Event::PrefillStart,
        Event::CancelApplied { cause, phase: Phase::Decode },
        Event::Orphaned,
        Event::AttemptEnded { outcome: Outcome::of(cause) },
        Event::Released { receipt: Receipt::default() },
    ];
    assert!(crosses.iter().all(Event::crosses));
    let stays = [
        // The gateway's own.
        Event::OutcomeSet { outcome: Outcome::of(cause) },
        Event::Settled { proven: true },
        Event::Void { worker: Incarnation(1) },
        // The worker as a whole.
        Event::StepDone { step: StepId(1), rows: 1, dropped: 0 },
        Event::DeviceBusy { span: std::time::Duration::from_millis(1) },
        Event::StaleMessage,
    ];
    assert!(!stays.iter().any(Event::crosses));
}
