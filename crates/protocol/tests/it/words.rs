//! The contract's words and the wire's numbers are the same list.

use lifecycle::{Cause, Delivery, Guarantee, OutcomeKind, Phase};
use protocol::{run_state, runs_v1, worker_v1};

/// Each word of the contract, as the wire names it and back.
macro_rules! same {
    ($prefix:literal $module:ident::$word:ident) => {
        for word in $word::ALL {
            let wire = $module::$word::from(*word);
            assert_eq!(wire.as_str_name(), format!("{}_{}", $prefix, word.as_str().to_uppercase()));
            assert_eq!(Option::<$word>::from(wire), Some(*word));
            assert_ne!(i32::from(wire), 0, "0 is no word");
        }
        assert_eq!(Option::<$word>::from($module::$word::Unspecified), None);
        assert!($module::$word::try_from($word::ALL.len() as i32 + 1).is_err(), "the wire has no other word");
    };
}

#[test]
fn the_words_are_the_contract_s() {
    same!("CAUSE" worker_v1::Cause);
    same!("CAUSE" runs_v1::Cause);
    same!("OUTCOME_KIND" worker_v1::OutcomeKind);
    same!("OUTCOME_KIND" runs_v1::OutcomeKind);
    same!("DELIVERY" runs_v1::Delivery);
    same!("GUARANTEE" runs_v1::Guarantee);
    same!("PHASE" runs_v1::Phase);
}

#[test]
fn a_run_s_states_are_the_api_s() {
    for word in ["queued", "prefilling", "decoding", "preempted", "suspended", "stopping", "ended"] {
        assert!(run_state(word).is_some(), "{word}");
    }
    for word in ["", "unspecified", "QUEUED", "gone"] {
        assert_eq!(run_state(word), None, "{word}");
    }
}

#[test]
fn the_file_has_the_contract_s_table_of_outcomes() {
    let proto = include_str!("../../proto/kvit/worker/v1/session.proto");
    for kind in OutcomeKind::ALL {
        let row = proto.lines().find_map(|line| line.trim_start_matches('/').trim().strip_prefix(&format!("{kind}:"))).expect("a row");
        let row: Vec<&str> = row.split(',').map(str::trim).collect();
        let ours: Vec<&str> = Cause::ALL.iter().filter(|c| c.outcome() == *kind).map(|c| c.as_str()).collect();
        assert_eq!(row, ours, "{kind}");
    }
}

#[test]
fn a_prompt_is_never_shown() {
    let secret = "the launch code";
    let text = worker_v1::Text { text: secret.into() };
    let submit = worker_v1::Submit { prompt: Some(worker_v1::submit::Prompt::Text(text)), ..Default::default() };
    let turn = runs_v1::Turn { role: "user".into(), content: secret.into() };
    let prompt = runs_v1::generate_request::Prompt::Chat(runs_v1::Chat { turns: vec![turn] });
    let request = runs_v1::GenerateRequest { prompt: Some(prompt), ..Default::default() };
    let delta = worker_v1::Delta { text: secret.into(), ..Default::default() };
    let event = runs_v1::Delta { text: secret.into(), ..Default::default() };
    for shown in [format!("{submit:?}"), format!("{request:?}"), format!("{delta:?}"), format!("{event:?}")] {
        assert!(!shown.contains(secret) && shown.contains("15"), "{shown}");
    }
}
