//! Every message there and back, through bytes: nothing is lost, nothing is added, to the bit.
// contract: C-2 C-3 C-8 C-14 C-20 C-22

use lifecycle::Incarnation;
use lifecycle::message::{self, Down, Prompt, Snapshot, Up};
use lifecycle::params::Sampling;
use lifecycle::session::Frame;
use proptest::prelude::*;
use prost::Message;
use protocol::{Drained, Error, FromGateway, FromWorker, down, snapshot_reply, up, worker_v1 as wire};

use crate::{samples, strategy};

fn through_down(message: &wire::Down) -> FromGateway {
    let bytes = message.encode_to_vec();
    FromGateway::try_from(wire::Down::decode(bytes.as_slice()).expect("a message")).expect("understood")
}

fn through_up(message: &wire::Up) -> FromWorker {
    let bytes = message.encode_to_vec();
    FromWorker::try_from(wire::Up::decode(bytes.as_slice()).expect("a message")).expect("understood")
}

/// All of a frame down as text: what `Debug` shows, a prompt's content, and the bits of what is not equal to itself.
fn all_of(frame: &Frame<Down>) -> String {
    let mut text = format!("{frame:?}");
    if let Some(Down::Submit(submit)) = &frame.message {
        text += &match &submit.prompt {
            Prompt::Chat(turns) => format!("{:?}", turns.iter().map(|t| (&t.role, &t.content)).collect::<Vec<_>>()),
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(ids) => format!("{ids:?}"),
            Prompt::Forward(f) => format!("{} {:?} {}", f.path, f.body, f.stream),
            Prompt::Worded(fields) => format!("{fields:?}"),
        };
        text += &format!("{:?}", bits(&submit.params.sampling));
    }
    text
}

fn bits(s: &Sampling) -> Vec<u32> {
    let fixed = [s.temperature, s.top_p, s.min_p, s.presence_penalty, s.frequency_penalty, s.repetition_penalty];
    fixed.into_iter().chain(s.logit_bias.iter().map(|bias| bias.1)).map(f32::to_bits).collect()
}

/// The bits of every log-probability of a step.
fn logprob_bits(up: Option<&Up>) -> Vec<u32> {
    let Some(Up::Step { deltas, .. }) = up else { return Vec::new() };
    let entries = deltas.iter().flat_map(|delta| &delta.logprobs);
    entries.flat_map(|e| std::iter::once(e.logprob).chain(e.top.iter().map(|t| t.2))).map(f32::to_bits).collect()
}

proptest! {
    #[test]
    fn frames_down(frame in strategy::frame(strategy::down())) {
        let FromGateway::Frame(back) = through_down(&down(&frame).expect("it can be sent")) else { panic!("a frame") };
        prop_assert_eq!(all_of(&frame), all_of(&back));
    }

    #[test]
    fn frames_up(frame in strategy::frame(strategy::up())) {
        let FromWorker::Frame(back) = through_up(&up(&frame).expect("it can be sent")) else { panic!("a frame") };
        prop_assert_eq!(format!("{frame:?}"), format!("{back:?}"));
        prop_assert_eq!(logprob_bits(frame.message.as_ref()), logprob_bits(back.message.as_ref()));
    }

    #[test]
    fn a_hello(opening in strategy::opening()) {
        let FromGateway::Hello(back) = through_down(&(&opening).into()) else { panic!("a hello") };
        prop_assert_eq!(opening, back);
    }

    #[test]
    fn a_welcome(opened in strategy::opened()) {
        let FromWorker::Welcome(back) = through_up(&(&opened).into()) else { panic!("a welcome") };
        prop_assert_eq!(opened, back);
    }

    #[test]
    fn a_snapshot(worker: u128, cut in strategy::snapshot()) {
        let bytes = snapshot_reply(Incarnation(worker), &cut).expect("it can be sent").encode_to_vec();
        let reply = wire::SnapshotReply::decode(bytes.as_slice()).expect("a message");
        let back = message::From::<Snapshot>::try_from(reply).expect("understood");
        prop_assert_eq!((back.incarnation, back.message), (Incarnation(worker), cut));
    }

    #[test]
    fn a_drain(drained in strategy::drained()) {
        let bytes = wire::DrainReply::from(&drained).encode_to_vec();
        let back = Drained::try_from(wire::DrainReply::decode(bytes.as_slice()).expect("a message")).expect("understood");
        prop_assert_eq!(drained, back);
    }
}

#[test]
fn a_snapshot_is_no_message_of_a_session() {
    let ask = down(&samples::frame(Some(Down::Snapshot { ask: 1, blocks: true })));
    assert_eq!(ask.map(drop), Err(Error::NotInSession { message: "Snapshot" }));
    let answer = Up::Snapshot { ask: 1, snapshot: Box::new(samples::snapshot()) };
    assert_eq!(up(&samples::frame(Some(answer))).map(drop), Err(Error::NotInSession { message: "Snapshot" }));
}

#[test]
fn a_state_that_the_wire_does_not_know_is_not_sent() {
    let mut cut = samples::snapshot();
    cut.attempts[0].state = "dreaming";
    let error = snapshot_reply(samples::WORKER, &cut).expect_err("no such state");
    assert_eq!(error, Error::UnknownWord { field: "AttemptCut.state", word: "dreaming" });
}

#[test]
fn a_message_and_its_number_belong_together() {
    let mut numberless = samples::frame(Some(Up::Draining));
    numberless.number = 0;
    assert_eq!(up(&numberless).map(drop), Err(Error::Unnumbered { frame: "UpFrame" }));
    let mut empty = samples::frame::<Down>(None);
    empty.number = 9;
    assert_eq!(down(&empty).map(drop), Err(Error::UnknownMessage { frame: "DownFrame", number: 9 }));
}
