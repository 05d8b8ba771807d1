//! Which version two sides speak.

use lifecycle::Incarnation;
use lifecycle::session::Refused;
use proptest::collection::vec;
use proptest::prelude::*;
use protocol::version::{choose, confirm};
use protocol::{Error, PROTOCOL_VERSION, VERSIONS};
use tonic::{Code, Status};

#[test]
fn the_highest_common_one_is_taken_whatever_the_order() {
    assert_eq!(choose(&[3, 1, 2], &[2, 1]), Ok(2));
    assert_eq!(choose(VERSIONS, VERSIONS), Ok(PROTOCOL_VERSION));
    assert_eq!(choose(&[1, 7], VERSIONS), Ok(1), "a newer gateway gets the older behaviour");
}

#[test]
fn without_one_both_lists_are_named() {
    let error = choose(&[4, 3], &[2, 1]).expect_err("nothing in common");
    let status = Status::from(Error::from(error));
    assert_eq!(status.code(), Code::FailedPrecondition);
    let words = "no common protocol version: the gateway speaks 3, 4; the worker speaks 1, 2";
    assert_eq!(status.message(), words);
    assert!(include_str!("../../proto/kvit/worker/v1/session.proto").contains(words), "the file says these very words");
}

#[test]
fn a_worker_that_states_what_was_not_offered_is_not_believed() {
    assert_eq!(confirm(&[1, 2], 2), Ok(2));
    let error = confirm(&[1, 2], 3).expect_err("not offered");
    assert_eq!(error.to_string(), "no common protocol version: the gateway speaks 1, 2; the worker speaks 3");
}

#[test]
fn a_refusal_has_the_status_that_the_file_says() {
    let code = |refused: Refused| Status::from(Error::from(refused)).code();
    assert_eq!(code(Refused::OldGateway { newest: Incarnation(1) }), Code::Aborted);
    assert_eq!(code(Refused::OldSession { newest: 1 }), Code::Aborted);
    assert_eq!(code(Refused::TooManyGateways { limit: 64 }), Code::ResourceExhausted);
}

proptest! {
    #[test]
    fn what_is_chosen_is_spoken_by_both(gateway in vec(0u32..9, 0..6), worker in vec(0u32..9, 0..6)) {
        match choose(&gateway, &worker) {
            Ok(version) => {
                prop_assert!(gateway.contains(&version) && worker.contains(&version));
                prop_assert!(!gateway.iter().any(|v| *v > version && worker.contains(v)));
            }
            Err(_) => prop_assert!(!gateway.iter().any(|v| worker.contains(v))),
        }
    }
}
