//! The wire as it stands: every field's number and type, and an example of every message in bytes. What changes here breaks older peers.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p protocol --test it` writes them anew.

use std::fmt::Write as _;
use std::path::Path;

use prost_reflect::{Cardinality, DescriptorPool};
use protocol::FILE_DESCRIPTOR_SET;

use crate::samples;

fn compare(file: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(file);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).and_then(|()| std::fs::write(&path, now)).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == now, "snapshots/{file} differs: peers of before will not understand. If that is meant, UPDATE_SNAPSHOTS=1:\n{now}");
}

#[test]
fn every_field_keeps_its_number_and_its_type() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("descriptors");
    let mut text = String::new();
    for method in pool.services().flat_map(|s| s.methods().collect::<Vec<_>>()) {
        let stream = |yes| if yes { "stream " } else { "" };
        let (asks, answers) = (stream(method.is_client_streaming()), stream(method.is_server_streaming()));
        let (input, output) = (method.input(), method.output());
        writeln!(text, "rpc {}: {asks}{} -> {answers}{}", method.full_name(), input.name(), output.name()).expect("a string takes it");
    }
    for message in pool.all_messages().filter(|m| !m.is_map_entry()) {
        for field in message.fields() {
            let presence = match field.cardinality() {
                Cardinality::Repeated => "repeated ",
                _ if field.supports_presence() => "optional ",
                _ => "",
            };
            writeln!(text, "{} = {} {presence}{:?}", field.full_name(), field.number(), field.kind()).expect("a string takes it");
        }
    }
    for word in pool.all_enums().flat_map(|e| e.values().collect::<Vec<_>>()) {
        writeln!(text, "{} = {}", word.full_name(), word.number()).expect("a string takes it");
    }
    compare("fields.txt", &text);
}

#[test]
fn every_example_keeps_its_bytes() {
    let mut text = String::new();
    for (name, of, bytes) in samples::encoded() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{name} ({of})\n  {hex}").expect("a string takes it");
    }
    compare("bytes.txt", &text);
}
