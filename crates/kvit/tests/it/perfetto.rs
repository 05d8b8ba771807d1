//! `kvit trace --perfetto`: what is written is a trace by Perfetto's published format, and says what the runs' records say.
//!
//! The file is read by a reader of protobuf's wire that knows nothing of what wrote it, only the numbers and types of the published fields.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::run;
use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, lasting_model};

/// A field's value as it is on the wire.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a number ends inside its message");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number of more than ten bytes");
}

/// A message's fields; `known` has each published number that may be there, and whether it is a number.
fn fields<'a>(mut bytes: &'a [u8], known: &[(u64, bool)]) -> Vec<(u64, Wire<'a>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, kind) = (key >> 3, key & 7);
        let (_, is_number) = known.iter().find(|(known, _)| *known == number).unwrap_or_else(|| panic!("field {number} is not published"));
        let value = match kind {
            0 => Wire::Number(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at_checked(length).expect("a field ends inside its message");
                bytes = rest;
                Wire::Bytes(value)
            }
            _ => panic!("field {number} has wire type {kind}"),
        };
        assert_eq!(matches!(value, Wire::Number(_)), *is_number, "field {number}");
        fields.push((number, value));
    }
    fields
}

fn number(fields: &[(u64, Wire<'_>)], wanted: u64) -> Option<u64> {
    fields.iter().find_map(|(number, value)| match value {
        Wire::Number(value) if *number == wanted => Some(*value),
        _ => None,
    })
}

fn bytes<'a>(fields: &[(u64, Wire<'a>)], wanted: u64) -> Vec<&'a [u8]> {
    let of = |(number, value): &(u64, Wire<'a>)| match value {
        Wire::Bytes(value) if *number == wanted => Some(*value),
        _ => None,
    };
    fields.iter().filter_map(of).collect()
}

fn text(fields: &[(u64, Wire<'_>)], wanted: u64) -> Option<String> {
    bytes(fields, wanted).first().map(|text| String::from_utf8(text.to_vec()).expect("a string is UTF-8"))
}

#[derive(Clone, Debug)]
struct Slice {
    name: String,
    from: u64,
    to: u64,
    facts: HashMap<String, u64>,
}

#[derive(Default, Debug)]
struct Track {
    name: String,
    parent: Option<u64>,
    is_counter: bool,
    slices: Vec<Slice>,
    open: Vec<usize>,
    instants: Vec<(String, u64)>,
    counts: Vec<(u64, u64)>,
    newest: u64,
}

impl Track {
    fn slice(&self, name: &str) -> &Slice {
        self.slices.iter().find(|slice| slice.name == name).unwrap_or_else(|| panic!("no `{name}` in {:?}", self.slices))
    }

    fn sum(&self, fact: &str) -> u64 {
        self.slices.iter().map(|slice| slice.facts[fact]).sum()
    }
}

/// `DebugAnnotation`: its name and its value as a number; a word is 0.
fn annotation(bytes: &[u8]) -> (String, u64) {
    let fields = fields(bytes, &[(10, false), (2, true), (3, true), (6, false)]);
    assert_eq!(fields.len(), 2, "a name and one value");
    let value = number(&fields, 2).or(number(&fields, 3)).unwrap_or(0);
    (text(&fields, 10).expect("a fact has a name"), value)
}

/// Puts an event on its track.
fn event(tracks: &mut BTreeMap<u64, Track>, at: u64, message: &[u8]) {
    let fields = fields(message, &[(4, false), (9, true), (11, true), (23, false), (30, true)]);
    let uuid = number(&fields, 11).expect("an event has a track");
    let track = tracks.get_mut(&uuid).unwrap_or_else(|| panic!("track {uuid} is not declared before its event"));
    assert!(at >= track.newest, "time goes back on `{}`", track.name);
    track.newest = at;
    let kind = number(&fields, 9).expect("an event has a type");
    assert_eq!(track.is_counter, kind == 4, "a counter's track has its values, and no other has");
    assert_eq!(number(&fields, 30).is_some(), kind == 4, "a value is a counter's");
    let facts = bytes(&fields, 4).into_iter().map(annotation).collect();
    match kind {
        1 => {
            track.open.push(track.slices.len());
            track.slices.push(Slice { name: text(&fields, 23).expect("a slice has a name"), from: at, to: 0, facts });
        }
        2 => {
            let begun = track.open.pop().unwrap_or_else(|| panic!("a slice of `{}` ends that has not begun", track.name));
            track.slices[begun].to = at;
        }
        3 => track.instants.push((text(&fields, 23).expect("an instant has a name"), at)),
        4 => track.counts.push((at, number(&fields, 30).expect("a counter has a value"))),
        other => panic!("there is no type {other}"),
    }
}

/// Reads a whole trace and holds it against the format.
fn read(file: &Path) -> BTreeMap<u64, Track> {
    let bytes_of_file = std::fs::read(file).expect("the file can be read");
    let mut tracks: BTreeMap<u64, Track> = BTreeMap::new();
    for (i, packet) in bytes(&fields(&bytes_of_file, &[(1, false)]), 1).into_iter().enumerate() {
        let packet = fields(packet, &[(6, false), (8, true), (10, true), (11, false), (13, true), (60, false)]);
        assert_eq!(number(&packet, 10), Some(1), "every packet is of the one writer");
        assert_eq!(number(&packet, 13), (i == 0).then_some(1), "the first packet needs nothing before it");
        let said: Vec<u64> = packet.iter().map(|(number, _)| *number).filter(|number| [6, 11, 60].contains(number)).collect();
        assert_eq!(said.len(), 1, "a packet says one thing");
        if said == [6] {
            let clocks = bytes(&packet, 6).into_iter().flat_map(|message| bytes(&fields(message, &[(1, false)]), 1)).collect::<Vec<_>>();
            let ids: Vec<_> = clocks.iter().map(|clock| number(&fields(clock, &[(1, true), (2, true)]), 1)).collect();
            assert_eq!(ids, [Some(1), Some(6)], "the calendar beside the trace's clock");
        } else if said == [60] {
            let known = [(1, true), (2, false), (5, true), (8, false), (11, true), (12, true), (14, false)];
            let track = fields(bytes(&packet, 60)[0], &known);
            let (uuid, parent) = (number(&track, 1).expect("a track has a uuid"), number(&track, 5));
            assert!(uuid > 0 && parent.is_none_or(|parent| tracks.contains_key(&parent)), "the parent {parent:?} is declared before");
            let (name, is_counter) = (text(&track, 2).expect("a track has a name"), !bytes(&track, 8).is_empty());
            assert!(tracks.insert(uuid, Track { name, parent, is_counter, ..Track::default() }).is_none(), "{uuid} is declared twice");
        } else {
            event(&mut tracks, number(&packet, 8).expect("an event has a time"), bytes(&packet, 11)[0]);
        }
    }
    for track in tracks.values() {
        assert!(track.open.is_empty(), "a slice of `{}` does not end", track.name);
    }
    tracks
}

/// A run's own track, its milestones and its steps, if they are there.
fn tracks_of<'a>(tracks: &'a BTreeMap<u64, Track>, id: &str) -> (&'a Track, &'a Track, Option<&'a Track>) {
    let (uuid, own) = tracks.iter().find(|(_, track)| track.name.starts_with(&format!("run {id} ("))).expect("the run has a track");
    let child = |name: &str| tracks.values().find(|track| track.parent == Some(*uuid) && track.name == name);
    (own, child("milestones").expect("its milestones"), child("steps"))
}

/// Holds a run's tracks against its record.
fn agrees(tracks: &BTreeMap<u64, Track>, record: &Value) {
    let (own, marks, steps) = tracks_of(tracks, record["id"].as_str().expect("an id"));
    let (kind, cause) = (record["outcome"]["kind"].as_str().expect("it ended"), record["outcome"]["cause"].as_str().expect("by a cause"));
    assert!(own.name.ends_with(&format!(" ({kind}: {cause})")), "{}", own.name);
    let base = record["created_ms"].as_u64().expect("when it was accepted") * 1_000_000;
    let at = |ms: f64| base + (ms * 1e6).round() as u64;
    let reached: BTreeMap<String, u64> = record["milestones"]
        .as_object()
        .expect("milestones")
        .iter()
        .filter_map(|(name, ms)| Some((name.clone(), at(ms.as_f64()?))))
        .collect();
    assert_eq!(marks.instants.iter().cloned().collect::<BTreeMap<_, _>>(), reached);
    assert_eq!(marks.instants.len(), reached.len(), "each once");
    // From the beginning to the end it is in one phase after another.
    assert!(own.slices.windows(2).all(|two| two[0].to == two[1].from), "{:?}", own.slices);
    assert_eq!((own.slices[0].from, own.slices[own.slices.len() - 1].to), (reached["accepted"], reached["settled"]));
    assert!(own.slices.iter().all(|slice| !slice.facts.contains_key("goes_on")));
    let steps = steps.expect("the journal has its steps");
    let count = |at: &str| record.pointer(at).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {at} in {record:#}"));
    assert_eq!(steps.slices.len() as u64, count("/steps/total"));
    // What came behind its end was generated, too.
    assert_eq!(steps.sum("generated") + steps.sum("discarded"), count("/tokens/generated"));
    assert_eq!(steps.sum("prompt_tokens"), count("/tokens/prompt") - count("/tokens/cached_prompt"));
    assert_eq!(steps.sum("layers_dropped"), count("/steps/layers_dropped"));
    assert_eq!(steps.slices.first().map(|step| step.from), reached.get("prefill_start").copied());
}

fn write(server: &Server, file: &Path, ids: &[&str]) -> String {
    let address = format!("http://127.0.0.1:{}", server.port);
    let args = [&["trace"], ids, &["--server", &address, "--perfetto", file.to_str().expect("a path")]].concat();
    let said = run(&args);
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{}", said.out);
    said.out
}

// contract: C-24
#[test]
fn a_perfetto_trace_is_valid_and_says_what_the_records_say() {
    let server = Server::start(&lasting_model(), &["--log", "warn"]);
    assert_eq!(server.json("GET", "/v1/kv/moments").0, 200, "a moment before all of them");
    assert_eq!(Caller::chat(&server, "stayed", &chat_body("Say something", 12, false)).answer().0, 200);
    let mut caller = Caller::chat(&server, "left", &chat_body("Go on and on", 15_000, true));
    caller.read_tokens(3);
    caller.leave(Leave::Close);
    let (stayed, left) = (server.settled("stayed"), server.settled("left"));
    assert_eq!(left["outcome"]["cause"], "client_closed", "{left:#}");
    // A server looks at its blocks once a second at most: until it has seen how they stand now.
    let since = Instant::now();
    let step = server.kv()["step"].clone();
    while server.json("GET", "/v1/kv/moments").1["workers"][0]["moments"].as_array().and_then(|all| all.last()?.get("step")) != Some(&step)
    {
        assert!(since.elapsed() < PATIENCE, "no moment of step {step}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("runs.pftrace");
    let said = write(&server, &file, &["stayed", "left"]);
    let tracks = read(&file);
    agrees(&tracks, &stayed);
    agrees(&tracks, &left);
    let total = stayed["steps"]["total"].as_u64().zip(left["steps"]["total"].as_u64()).map(|(a, b)| a + b).expect("steps");
    assert!(said.contains(&format!(": 2 runs, {total} steps, ")), "{said}");

    // What became of the one that was left, and of the one that was not.
    let slices = tracks_of(&tracks, "stayed").0.slices.iter();
    // Its blocks may come back in the same microsecond in which its last step is over.
    let names: Vec<&str> = slices.map(|slice| slice.name.as_str()).filter(|name| *name != "draining").collect();
    assert_eq!(names, ["accepted", "queued", "prefill", "decode", "settling"]);
    let (own, marks, _) = tracks_of(&tracks, "left");
    let observed = marks.instants.iter().find(|(name, _)| name == "disconnect_observed").expect("it was seen to leave").1;
    let after = own.slice("after disconnect");
    assert_eq!((own.slice("decode").to, after.from), (observed, observed));
    assert_eq!(after.facts["tokens_after"], left["tokens"]["after_disconnect"].as_u64().expect("a count"));
    assert_eq!(after.facts["steps_after"], left["steps"]["after_disconnect"].as_u64().expect("a count"));
    assert_eq!(own.slice("decode").facts["delivered"], left["tokens"]["delivered"].as_u64().expect("a count"));

    // The blocks: at every moment the states add up, and the newest moment is the account as it stands.
    let group = tracks.iter().find(|(_, track)| track.name.starts_with("KV blocks of worker ")).expect("a worker's blocks").0;
    let counter = |state: &str| tracks.values().find(|t| t.parent == Some(*group) && t.name == state).expect("a counter");
    let kv = server.kv();
    let moments = counter("free").counts.len();
    assert!(moments > 1 && said.contains(&format!(", {moments} moment")), "{said}");
    for i in 0..moments {
        let states = ["free", "active", "cached", "draining", "quarantined"].map(|state| counter(state).counts[i]);
        assert!(states.iter().all(|(at, _)| *at == states[0].0), "one moment");
        assert_eq!(Some(states.iter().map(|(_, n)| n).sum::<u64>()), kv["total"].as_u64());
    }
    for state in ["free", "active", "orphaned", "cached", "draining", "quarantined"] {
        assert_eq!(counter(state).counts.last().map(|(_, n)| *n), kv[state].as_u64(), "{state}");
    }
    assert!(server.terminate());
}

#[test]
fn a_run_that_goes_on_is_drawn_until_now_and_what_cannot_be_drawn_is_said() {
    let server = Server::start(&lasting_model(), &["--log", "warn"]);
    let mut caller = Caller::chat(&server, "living", &chat_body("Go on and on", 15_000, true));
    caller.read_tokens(3);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("living.pftrace");
    write(&server, &file, &["living"]);
    let tracks = read(&file);
    let (own, marks, steps) = tracks_of(&tracks, "living");
    assert!(own.name.ends_with(" (decoding)"), "{}", own.name);
    let newest = own.slices.last().expect("a phase");
    assert_eq!((newest.name.as_str(), newest.facts["goes_on"]), ("decode", 1), "{:?}", own.slices);
    assert!(steps.is_some_and(|steps| steps.sum("generated") >= 3));
    assert!(marks.instants.iter().any(|(name, _)| name == "first_token"));
    caller.leave(Leave::Close);

    let address = format!("http://127.0.0.1:{}", server.port);
    let trace = |args: &[&str]| run(&[&["trace", "--server", &address], args].concat());
    let missing = dir.path().join("none.pftrace");
    let unknown = trace(&["living", "nobody", "--perfetto", missing.to_str().expect("a path")]);
    assert_eq!((unknown.code, missing.exists()), (3, false), "{}", unknown.err);
    let nowhere = dir.path().join("no").join("such.pftrace");
    let refused = trace(&["living", "--perfetto", nowhere.to_str().expect("a path")]);
    assert!(refused.code == 1 && refused.err.contains("such.pftrace cannot be written"), "{}", refused.err);
    assert_eq!(trace(&["living", "--perfetto", "x", "--json"]).code, 2);
    // Several runs in the other forms.
    server.settled("living");
    let both = trace(&["living", "living"]);
    assert_eq!(both.out.matches("\nrun living").count() + usize::from(both.out.starts_with("run living")), 2, "{}", both.out);
    let list: Value = serde_json::from_str(&trace(&["living", "living", "--json"]).out).expect("JSON");
    assert_eq!((&list["object"], list["data"].as_array().map(Vec::len)), (&"list".into(), Some(2)));
    let one: Value = serde_json::from_str(&trace(&["living", "--json"]).out).expect("JSON");
    assert_eq!(one["object"], "run");
}
