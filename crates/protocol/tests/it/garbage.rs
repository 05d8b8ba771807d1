//! Any bytes are a message or an error. Bytes near a real message go deeper than bytes from nowhere.

use lifecycle::message::{self, Snapshot};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use prost::Message;
use protocol::{Drained, FromGateway, FromWorker, GenerateAsk, down, runs_v1, up, worker_v1 as wire};

use crate::samples;

/// Reads bytes as each type that somebody else can send; what is understood can be said again.
fn read_as_all(bytes: &[u8]) {
    if let Ok(Ok(FromGateway::Frame(frame))) = wire::Down::decode(bytes).map(FromGateway::try_from) {
        down(&frame).expect("what was understood can be said");
    }
    if let Ok(Ok(FromWorker::Frame(frame))) = wire::Up::decode(bytes).map(FromWorker::try_from) {
        up(&frame).expect("what was understood can be said");
    }
    let _ = wire::SnapshotReply::decode(bytes).map(message::From::<Snapshot>::try_from);
    let _ = wire::DrainReply::decode(bytes).map(Drained::try_from);
    let _ = runs_v1::GenerateRequest::decode(bytes).map(GenerateAsk::try_from);
    let _ = runs_v1::CancelRequest::decode(bytes).map(|request| request.run_id());
}

proptest! {
    #[test]
    fn bytes_from_nowhere(bytes in vec(any::<u8>(), 0..200)) {
        read_as_all(&bytes);
    }

    #[test]
    fn bytes_near_a_message(which: Index, changes in vec(any::<(Index, u8)>(), 1..4), cut: Option<Index>) {
        let all = samples::encoded();
        let mut bytes = which.get(&all).2.clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        read_as_all(&bytes);
    }
}

#[test]
fn a_message_from_a_newer_peer_is_named_and_not_taken_for_a_heartbeat() {
    let known = down(&samples::frame(Some(samples::downs().remove(3).1))).expect("it can be sent");
    let Some(wire::down::Kind::Frame(known)) = known.kind else { panic!("a frame") };
    let mut inner = wire::DownFrame { head: known.head, message: None }.encode_to_vec();
    // Field 15, which this version does not have, with an empty message.
    inner.extend([0x7a, 0x00]);
    let mut bytes = vec![0x12, u8::try_from(inner.len()).expect("short")];
    bytes.extend(inner);
    let error = FromGateway::try_from(wire::Down::decode(bytes.as_slice()).expect("a message")).expect_err("unknown");
    assert_eq!(error.to_string(), "DownFrame: message 4 is of a kind that this side does not know");
}
