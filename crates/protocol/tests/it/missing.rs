//! Every required field of every message, taken away one by one; every enum with a number that nobody knows.
//!
//! What is required is read from the .proto file's own comments, and where it stands from the descriptors, so that neither can be forgotten.

use std::collections::BTreeSet;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, ReflectMessage, Value};
use protocol::worker_v1 as wire;
use protocol::{Drained, Error, FILE_DESCRIPTOR_SET, FromGateway, FromWorker};

use crate::samples;

const PROTO: &str = include_str!("../../proto/kvit/worker/v1/session.proto");

/// Reads bytes as the peer would.
fn read(of: &str, bytes: &[u8]) -> Result<(), Error> {
    match of {
        "Down" => FromGateway::try_from(wire::Down::decode(bytes).expect("a message")).map(drop),
        "Up" => FromWorker::try_from(wire::Up::decode(bytes).expect("a message")).map(drop),
        "SnapshotReply" => lifecycle::message::From::try_from(wire::SnapshotReply::decode(bytes).expect("a message")).map(drop),
        "DrainReply" => Drained::try_from(wire::DrainReply::decode(bytes).expect("a message")).map(drop),
        other => panic!("{other} is not read here"),
    }
}

/// `Message.field` of each that has a comment beginning with "Required."; a oneof counts as a field.
fn required() -> BTreeSet<String> {
    let (mut message, mut comment, mut found) = (String::new(), String::new(), BTreeSet::new());
    for line in PROTO.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("//") {
            comment += text;
            continue;
        }
        if let Some(name) = line.strip_prefix("message ") {
            message = name.split_whitespace().next().unwrap_or_default().to_owned();
        } else if comment.trim_start().starts_with("Required.") {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "=").unwrap_or(2);
            found.insert(format!("{message}.{}", words[at - 1]));
        }
        comment.clear();
    }
    found
}

/// Where a message is changed: the fields on the way to it, with an index where they are lists.
type Path = Vec<(u32, usize)>;

/// Calls `visit` with each message in here and the way to it.
fn walk(message: &DynamicMessage, path: &Path, visit: &mut impl FnMut(&DynamicMessage, &Path)) {
    visit(message, path);
    for (field, value) in message.fields() {
        let inner = match value {
            Value::List(list) => list.as_slice(),
            single => std::slice::from_ref(single),
        };
        for (index, value) in inner.iter().enumerate() {
            if let Value::Message(inner) = value {
                walk(inner, &[path.as_slice(), &[(field.number(), index)]].concat(), visit);
            }
        }
    }
}

/// The message at the end of the way.
fn at<'m>(message: &'m mut DynamicMessage, path: &[(u32, usize)]) -> &'m mut DynamicMessage {
    let Some(((number, index), rest)) = path.split_first() else { return message };
    let inner = match message.get_field_by_number_mut(*number).expect("a field") {
        Value::List(list) => &mut list[*index],
        single => single,
    };
    at(inner.as_message_mut().expect("a message"), rest)
}

/// Every example with its type's name.
fn examples() -> Vec<(&'static str, DynamicMessage)> {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("descriptors");
    let whole = |of: &str, bytes: &[u8]| {
        let descriptor = pool.get_message_by_name(&format!("kvit.worker.v1.{of}")).expect("known");
        DynamicMessage::decode(descriptor, bytes).expect("a message")
    };
    samples::encoded().into_iter().map(|(_, of, bytes)| (of, whole(of, &bytes))).collect()
}

/// Every example with every one of its fields taken away: `Message.field`, and what is said of it.
fn taken_away() -> Vec<(String, Result<(), Error>)> {
    let mut results = Vec::new();
    for (of, whole) in examples() {
        let mut places = Vec::new();
        walk(&whole, &Path::new(), &mut |message, path| {
            for (field, _) in message.fields() {
                // A field with presence is a oneof of its own in the descriptor; that is no choice.
                let choice = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
                let name = choice.map_or(field.name().to_owned(), |oneof| oneof.name().to_owned());
                places.push((format!("{}.{name}", message.descriptor().name()), path.clone(), field.number()));
            }
        });
        for (name, path, number) in places {
            let mut less = whole.clone();
            at(&mut less, &path).clear_field_by_number(number);
            results.push((name, read(of, &less.encode_to_vec())));
        }
    }
    results
}

#[test]
fn each_required_field_is_missed_by_its_name_and_no_other_is() {
    let required = required();
    assert!(required.len() > 50, "the file's comments are not understood: {required:?}");
    let mut seen = BTreeSet::new();
    for (name, result) in taken_away() {
        seen.insert(name.clone());
        match result {
            Err(Error::Missing { field }) => assert!(field == name && required.contains(&name), "{name}: {field} is missed"),
            // These two say that a message and its number belong together.
            Err(Error::UnknownMessage { .. }) => assert!(name == "DownFrame.message" || name == "UpFrame.message", "{name}"),
            Err(Error::Unnumbered { .. }) => assert_eq!(name, "Head.number"),
            Err(error) => panic!("{name}: {error}"),
            Ok(()) => assert!(!required.contains(&name), "{name} is required and nobody missed it"),
        }
    }
    let unseen: Vec<_> = required.difference(&seen).collect();
    assert!(unseen.is_empty(), "no example has {unseen:?}");
}

#[test]
fn the_examples_leave_no_field_out() {
    let mut seen = BTreeSet::new();
    for (_, whole) in examples() {
        walk(&whole, &Path::new(), &mut |message, _| seen.extend(message.fields().map(|(field, _)| field.full_name().to_owned())));
    }
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("descriptors");
    let ours = pool.all_messages().filter(|m| m.package_name() == "kvit.worker.v1" && !m.name().ends_with("Request"));
    let all: BTreeSet<String> = ours.flat_map(|m| m.fields().collect::<Vec<_>>()).map(|f| f.full_name().to_owned()).collect();
    let unseen: Vec<_> = all.difference(&seen).collect();
    // Always 0, and stated so that it can be checked.
    assert_eq!(unseen, ["kvit.worker.v1.Receipt.blocks_held"]);
}

#[test]
fn a_number_that_is_no_word_is_named_and_never_guessed() {
    let mut found = BTreeSet::new();
    for (of, whole) in examples() {
        let mut places = Vec::new();
        walk(&whole, &Path::new(), &mut |message, path| {
            for (field, _) in message.fields().filter(|(field, _)| matches!(field.kind(), Kind::Enum(_))) {
                places.push((format!("{}.{}", message.descriptor().name(), field.name()), path.clone(), field.number()));
            }
        });
        for (name, path, number) in places {
            for value in [99, -1] {
                let mut other = whole.clone();
                at(&mut other, &path).set_field_by_number(number, Value::EnumNumber(value));
                match read(of, &other.encode_to_vec()) {
                    Err(Error::UnknownValue { field, value: said }) => assert_eq!((field, said), (name.as_str(), value)),
                    other => panic!("{name} = {value}: {other:?}"),
                }
            }
            found.insert(name);
        }
    }
    assert!(found.len() >= 8, "{found:?}");
}

#[test]
fn the_first_messages_have_a_kind() {
    assert_eq!(read("Down", &[]), Err(Error::Missing { field: "Down.kind" }));
    assert_eq!(read("Up", &[]), Err(Error::Missing { field: "Up.kind" }));
}

#[test]
fn an_outcome_whose_kind_does_not_follow_from_its_cause_is_refused() {
    let outcome = wire::Outcome { cause: wire::Cause::Stop.into(), kind: wire::OutcomeKind::Cancelled.into(), reason: None };
    let error = lifecycle::Outcome::try_from(outcome).expect_err("it contradicts itself");
    assert_eq!(error.to_string(), "Outcome.kind is cancelled, and stop gives completed");
}

#[test]
fn an_incarnation_has_16_bytes() {
    for len in [1, 15, 17] {
        let mut hello = wire::Hello::from(&samples::opening());
        hello.incarnation = vec![7; len];
        let error = protocol::Opening::try_from(hello).expect_err("no incarnation");
        assert_eq!(error, Error::Incarnation { field: "Hello.incarnation", len });
    }
}

#[test]
fn a_deadline_ends_a_run_as_a_deadline_does_and_a_finish_is_an_end_of_its_own() {
    let deadline = wire::Deadline { left_us: 1, cause: wire::Cause::Stop.into() };
    let error = lifecycle::message::DeadlineLeft::try_from(deadline).expect_err("no deadline");
    assert_eq!(error.to_string(), "Deadline.cause must be a deadline's");
    let mut delta = wire::Delta::from(&samples::delta());
    delta.finish = Some(wire::Cause::Orphaned.into());
    let error = lifecycle::message::Delta::try_from(delta).expect_err("no finish");
    assert_eq!(error.to_string(), "Delta.finish must be stop or length");
}
