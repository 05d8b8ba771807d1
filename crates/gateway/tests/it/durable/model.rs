//! What readers were told of each run, and that nobody was ever told otherwise.

use std::collections::{BTreeMap, HashMap};

use lifecycle::Cause;
use serde_json::Value;

use super::reader::{Frame, Reader, What};
use super::worker::piece;
use crate::wire::Reply;

/// What a request asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    pub tag: String,
    pub background: bool,
    pub keeps: bool,
    pub response: bool,
    pub tokens: u32,
}

#[derive(Debug)]
pub struct Known {
    pub asked: Asked,
    /// Its events by number.
    pub events: BTreeMap<u64, (String, String)>,
    /// The events of its response by number.
    pub frames: BTreeMap<u64, String>,
    /// Kind, cause, and who was told.
    pub outcome: Option<(String, String, String)>,
}

#[derive(Default)]
pub struct Model {
    pub seed: u64,
    pub runs: HashMap<String, Known>,
    pub asked: HashMap<String, Asked>,
    /// Background requests that were refused, and in which life.
    pub refused: HashMap<String, u128>,
    /// What happened, for a failure's message.
    pub story: Vec<String>,
}

pub fn outcome_of(value: &Value) -> Option<(String, String)> {
    Some((value["kind"].as_str()?.to_owned(), value["cause"].as_str()?.to_owned()))
}

impl Model {
    pub fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let told = self.story.iter().rev().take(60).rev().cloned().collect::<Vec<_>>().join("\n");
            panic!("seed {}: {}\n{told}", self.seed, what());
        }
    }

    pub fn told(&mut self, id: &str, (kind, cause): (String, String), who: String) {
        self.story.push(format!("  {who} is told of {id}: {kind} {cause}"));
        let Some(run) = self.runs.get_mut(id) else { return };
        match run.outcome.clone() {
            None => run.outcome = Some((kind, cause, who)),
            Some((first, why, whom)) => {
                self.check((&first, &why) == (&kind, &cause), || {
                    format!("{id}: {whom} was told {first} ({why}), and {who} is told {kind} ({cause})")
                });
            }
        }
    }

    fn told_cause(&mut self, id: &str, code: &str, who: String) {
        // That there was no room, or no store, is said of requests that got no run as well.
        if let Some(cause) = Cause::parse(code).filter(|cause| *cause != Cause::QueueFull) {
            self.told(id, (cause.outcome().as_str().to_owned(), cause.as_str().to_owned()), who);
        }
    }

    fn event(&mut self, id: &str, number: u64, frame: &Frame) {
        let (kind, data) = (frame.kind.clone(), frame.data.clone());
        let Some(run) = self.runs.get_mut(id) else { return };
        let before = run.events.entry(number).or_insert_with(|| (kind.clone(), data.clone())).clone();
        self.check(before == (kind.clone(), data.clone()), || format!("{id}: event {number} was {before:?} and is {:?}", (kind, data)));
    }

    /// Takes in what a reader has read since it was last looked at.
    pub fn absorb(&mut self, reader: &mut Reader) {
        let (reply, frames, closed) = reader.look();
        let Some(reply) = reply else { return };
        if !reader.headed {
            reader.headed = true;
            self.head(reader, &reply);
        }
        self.whole(reader, &reply, closed);
        if frames.is_empty() {
            return;
        }
        let new = frames.get(reader.seen..).unwrap_or_default().to_vec();
        reader.seen = frames.len();
        for frame in new {
            self.frame(reader, &frame);
        }
    }

    fn head(&mut self, reader: &mut Reader, reply: &Reply) {
        reader.is_twin = reply.header("x-kvit-joined").is_some();
        let tag = match &reader.what {
            What::Chat(tag) | What::Response(tag) | What::Object(tag) => tag.clone(),
            What::Events(id, _) | What::Frames(id, _) | What::View(id) => {
                reader.run = Some(id.clone()).filter(|_| reply.status == 200);
                return;
            }
        };
        let asked = self.asked[&tag].clone();
        if reply.status != 200 {
            if asked.background {
                self.story.push(format!("  {tag} is refused: {}", reply.status));
                self.refused.insert(tag, reader.life);
            }
            return;
        }
        let id = reply.header("x-request-id").expect("an id");
        self.story.push(format!("  {tag} is {id}{}", if reader.is_twin { ", joined" } else { "" }));
        reader.run = Some(id.clone());
        let known = Known { asked: asked.clone(), events: BTreeMap::new(), frames: BTreeMap::new(), outcome: None };
        let known = self.runs.entry(id.clone()).or_insert(known);
        let same = known.asked.tag == asked.tag;
        self.check(same, || format!("{id} is the run of {tag} and of another request"));
    }

    /// Answers that are no streams.
    fn whole(&mut self, reader: &mut Reader, reply: &Reply, closed: bool) {
        if !closed || reader.seen > 0 {
            return;
        }
        let Ok(json) = serde_json::from_str::<Value>(&reply.body) else { return };
        reader.seen = 1;
        match (&reader.what, reader.run.clone()) {
            (What::View(_), Some(id)) => {
                if let Some(outcome) = outcome_of(&json["outcome"]) {
                    self.told(&id, outcome, "who looks".to_owned());
                }
            }
            (What::Chat(_) | What::Response(_), None) if !reader.is_twin => {
                let (id, code) = (reply.header("x-request-id"), json["error"]["code"].as_str().unwrap_or_default());
                self.told_cause(&id.unwrap_or_default(), code, "who asked, at once,".to_owned());
            }
            _ => {}
        }
    }

    fn frame(&mut self, reader: &mut Reader, frame: &Frame) {
        let Some(id) = reader.run.clone() else { return };
        match reader.what.clone() {
            What::Chat(tag) => self.chat(reader, &id, &tag, frame),
            What::Events(_, after) => {
                let number = frame.id.unwrap_or_default();
                let expected = reader.last.unwrap_or(after) + 1;
                self.check(number == expected, || format!("{id}: after event {} came {frame:?}", expected - 1));
                reader.last = Some(number);
                self.event(&id, number, frame);
                if frame.kind == "end" {
                    let data: Value = serde_json::from_str(&frame.data).expect("JSON");
                    let outcome = outcome_of(&data["outcome"]).expect("an outcome");
                    self.told(&id, outcome, format!("who reads events after {after}"));
                }
            }
            What::Response(_) => self.response(reader, &id, None, frame),
            What::Frames(_, after) => self.response(reader, &id, after, frame),
            What::Object(_) | What::View(_) => {}
        }
    }

    fn chat(&mut self, reader: &mut Reader, id: &str, tag: &str, frame: &Frame) {
        let whole: String = (1..=self.asked[tag].tokens).map(|k| piece(tag, k)).collect();
        if frame.data == "[DONE]" {
            let text = reader.text.clone();
            self.check(text == whole, || format!("{id}: the whole answer is {text:?}"));
            return self.told(id, ("completed".into(), "length".into()), "who asked".to_owned());
        }
        let json: Value = serde_json::from_str(&frame.data).expect("JSON");
        if let Some(piece) = json["choices"][0]["delta"]["content"].as_str() {
            reader.text += piece;
            let text = reader.text.clone();
            self.check(whole.starts_with(&text), || format!("{id}: {text:?} is no beginning of {whole:?}"));
        }
        if let Some(code) = json["error"]["code"].as_str() {
            // A gateway that stops ends the reading of a background run, not the run.
            if !frame.data.contains("the run goes on") {
                self.told_cause(id, code, "who asked".to_owned());
            }
        }
    }

    fn response(&mut self, reader: &mut Reader, id: &str, after: Option<u64>, frame: &Frame) {
        let json: Value = serde_json::from_str(&frame.data).expect("JSON");
        let number = json["sequence_number"].as_u64().expect("a number");
        let expected = reader.last.or(after).map_or(0, |n| n + 1);
        self.check(number == expected, || format!("{id}: response event {expected} was due, {frame:?} came"));
        reader.last = Some(number);
        let Some(run) = self.runs.get_mut(id) else { return };
        let before = run.frames.entry(number).or_insert_with(|| frame.data.clone()).clone();
        self.check(before == frame.data, || format!("{id}: response event {number} was\n{before}\nand is\n{}", frame.data));
    }
}
