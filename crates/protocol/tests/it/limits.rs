//! The .proto files state every limit with its default, those of the code and no others; lists beyond theirs are turned down on both ways.

use std::collections::BTreeMap;

use lifecycle::message::{Down, Prompt, Up};
use lifecycle::session::SessionConfig;
use prost::Message;
use protocol::limits::{self, Limit};
use protocol::{Error, Opening, down, fits, up, worker_v1 as wire};

use crate::samples::{self, attempt, frame};

/// The rows of a file's table of limits.
fn stated(proto: &str) -> BTreeMap<String, u64> {
    let table = proto.split("// LIMITS").nth(1).expect("a table").split("syntax").next().expect("its end");
    let row = |line: &str| {
        let mut words = line.strip_prefix("//   ")?.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

fn of(limits: &[Limit]) -> BTreeMap<String, u64> {
    limits.iter().map(|limit| (limit.name.to_owned(), limit.default)).collect()
}

#[test]
fn both_files_state_every_limit_with_its_default() {
    assert_eq!(stated(include_str!("../../proto/kvit/worker/v1/session.proto")), of(&limits::SESSION));
    assert_eq!(stated(include_str!("../../proto/kvit/v1/runs.proto")), of(&limits::RUNS));
}

#[test]
fn what_the_session_goes_by_is_what_the_file_says() {
    let config = SessionConfig::default();
    let ms = |limit: Limit| u128::from(limit.default);
    assert_eq!(config.heartbeat.as_millis(), ms(limits::HEARTBEAT_MS));
    assert_eq!(config.resend_after.as_millis(), ms(limits::RESEND_AFTER_MS));
    assert_eq!(config.suspend_after.as_millis(), ms(limits::SUSPEND_AFTER_MS));
    assert_eq!(config.lease.as_millis(), ms(limits::LEASE_MS));
    assert_eq!(config.ask_every.as_millis(), ms(limits::ASK_EVERY_MS));
    assert_eq!(config.window, limits::WINDOW.default);
    assert_eq!(config.outbox_max as u64, limits::OUTBOX_MAX.default);
    assert_eq!(config.gateways_max as u64, limits::GATEWAYS_MAX.default);
    assert_eq!(config.tombstones_max as u64, limits::TOMBSTONES_MAX.default);
    assert!(config.ask_max as u64 <= limits::ATTEMPTS_MAX.default, "a question fits into a message");
}

#[test]
fn a_list_beyond_its_limit_is_neither_sent_nor_taken() {
    let most = limits::ATTEMPTS_MAX.default as usize;
    assert!(down(&frame(Some(Down::Claim { attempts: vec![attempt("r1"); most] }))).is_ok());
    let beyond = vec![attempt("r1"); most + 1];
    let too_many = |field| Error::TooMany { field, len: most + 1, limit: limits::ATTEMPTS_MAX };
    assert_eq!(down(&frame(Some(Down::Claim { attempts: beyond.clone() }))), Err(too_many("Claim.attempts")));
    assert_eq!(down(&frame(Some(Down::Disclaim { attempts: beyond.clone() }))), Err(too_many("Disclaim.attempts")));
    assert_eq!(up(&frame(Some(Up::Ask { attempts: beyond.clone() }))), Err(too_many("Ask.attempts")));
    let attempts: Vec<_> = beyond.iter().map(wire::Attempt::from).collect();
    let ask = wire::up_frame::Message::Ask(wire::Ask { attempts: attempts.clone() });
    assert_eq!(Up::try_from(ask).map(drop), Err(too_many("Ask.attempts")));
    let claim = wire::down_frame::Message::Claim(wire::Claim { attempts: attempts.clone() });
    assert_eq!(Down::try_from(claim).map(drop), Err(too_many("Claim.attempts")));
    let disclaim = wire::down_frame::Message::Disclaim(wire::Disclaim { attempts });
    assert_eq!(Down::try_from(disclaim).map(drop), Err(too_many("Disclaim.attempts")));
}

#[test]
fn a_frame_is_measured_before_its_message_is_sent_for_ever() {
    let sized =
        |bytes: usize| down(&frame(Some(Down::Submit(Box::new(samples::submit(Prompt::Text("x".repeat(bytes)))))))).expect("it can be");
    let most = limits::FRAME_BYTES_MAX.default;
    assert_eq!(fits(&sized(4 << 20), most), Ok(()), "the largest request that a gateway takes");
    let large = sized(8 << 20);
    let bytes = large.encoded_len() as u64;
    assert_eq!(fits(&large, most), Err(Error::TooLarge { bytes, frame_bytes_max: most }));
    assert_eq!(fits(&large, bytes), Ok(()));
}

#[test]
fn deadlines_and_versions_are_counted() {
    let mut submit = samples::submit(Prompt::Text("x".into()));
    submit.deadlines = vec![submit.deadlines[0]; 9];
    let mut theirs = wire::Submit::try_from(&samples::submit(Prompt::Text("x".into()))).expect("it can be sent");
    theirs.deadlines = vec![theirs.deadlines[0]; 9];
    let sent = down(&frame(Some(Down::Submit(Box::new(submit))))).expect_err("too many");
    let taken = lifecycle::message::Submit::try_from(theirs).expect_err("too many");
    for error in [sent, taken] {
        assert_eq!(error.to_string(), "Submit.deadlines has 9 entries; deadlines_max allows 8");
    }
    let mut hello = wire::Hello::from(&samples::opening());
    hello.versions = (1..=17).collect();
    assert_eq!(Opening::try_from(hello).expect_err("too many").to_string(), "Hello.versions has 17 entries; versions_max allows 16");
}

#[test]
fn names_and_ids_are_held_to_their_limits() {
    let mut hello = wire::Hello::from(&samples::opening());
    hello.gateway = "g".repeat(65);
    assert_eq!(Opening::try_from(hello).expect_err("too long").to_string(), "Hello.gateway has 65 bytes, at most 64 are allowed");
    let mut wire = wire::Attempt::from(&attempt("r1"));
    wire.run = "a/b".into();
    let error = lifecycle::AttemptId::try_from(wire).expect_err("no id");
    assert_eq!(error.to_string(), "Attempt.run has '/' at byte 1; only A-Z a-z 0-9 . _ : ~ - are allowed");
}

#[test]
fn a_drain_leaves_out_what_finished_before_what_somebody_waits_for() {
    let most = limits::DRAIN_ATTEMPTS_MAX.default as usize;
    let mut drained = samples::drained();
    drained.finished = vec![attempt("r1"); most];
    let wire = wire::DrainReply::from(&drained);
    assert_eq!((wire.handed_back.len(), wire.cancelled.len(), wire.finished.len()), (1, 1, most - 2));
    assert_eq!(wire.left_out, 4 + 2);
    assert!(protocol::Drained::try_from(wire.clone()).is_ok());
    let mut more = wire;
    more.cancelled.push((&attempt("r9")).into());
    assert!(matches!(protocol::Drained::try_from(more), Err(Error::TooMany { .. })));
}
