//! Runs as tracks of a Perfetto trace: each run's phases as slices with its milestones and its steps below, and for each worker what its
//! blocks were as counters.
//!
//! The trace's clock is the calendar, in nanoseconds. A run's own times are exact to the microsecond among one another; runs and blocks are put
//! side by side to a millisecond, which is what the API says of when they began.
//!
//! Invariant: every track is declared before what stands on it; on each track times never go back, and what begins ends.

use lifecycle::Milestone;
use observe::timeline::{phases, stamps};
use prost::Message;
use serde_json::Value;

use super::proto::{Annotation, Clock, ClockSnapshot, Counter, Data, Event, Fact, Kind, Packet, Trace, Track};

/// The tracks' numbers: `kvit` in ASCII, and a number, so that they meet nobody else's in a trace that is put together of several.
const UUIDS: u64 = 0x6b76_6974_0000_0000;
/// Perfetto's numbers of the calendar's clock and of the trace's own.
const CLOCKS: [u32; 2] = [1, 6];
/// Perfetto's number for tracks that stand by their rank.
const BY_RANK: i32 = 3;
/// This writer.
const SEQUENCE: u32 = 1;
/// What of the account is drawn, from the bottom up.
const BLOCK_STATES: [&str; 6] = ["active", "orphaned", "cached", "draining", "quarantined", "free"];
/// Fields of a step's row that are shown.
const STEP_FACTS: [&str; 6] = ["attempt", "prompt_tokens", "generated", "discarded", "late", "layers_dropped"];

/// A run and its steps, as the API has them.
pub(super) struct Subject {
    pub(super) run: Value,
    pub(super) steps: Value,
}

/// What was drawn.
#[derive(Default)]
pub(super) struct Drawing {
    tracks: Vec<Track>,
    /// Each with its time, track by track.
    events: Vec<(u64, Event)>,
    pub(super) runs: usize,
    pub(super) steps: usize,
    pub(super) moments: usize,
    /// What is missing and why, a sentence each.
    pub(super) gaps: Vec<String>,
}

/// Draws runs, and the blocks of their server while they lived.
pub(super) fn draw(subjects: &[Subject], moments: &Value) -> Drawing {
    let mut drawing = Drawing::default();
    let mut span: Option<(f64, f64)> = None;
    for subject in subjects.iter().filter(|subject| !stamps(&subject.run).is_empty()) {
        let (from, to) = drawing.run(subject, moments["now_ms"].as_f64());
        span = Some(span.map_or((from, to), |(first, last)| (from.min(first), to.max(last))));
    }
    if let Some(span) = span {
        drawing.blocks(moments, span);
    }
    drawing
}

/// Nanoseconds of the calendar. In one float there would be 256 of them to a step.
fn nanoseconds(base_ms: u64, ms: f64) -> u64 {
    base_ms * 1_000_000 + (ms.max(0.0) * 1e6).round() as u64
}

fn stamp(run: &Value, milestone: Milestone) -> Option<f64> {
    run["milestones"][milestone.as_str()].as_f64()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn fact(name: &str, value: Fact) -> Annotation {
    Annotation { name: Some(name.to_owned()), value: Some(value) }
}

/// Counts of the run's record, by their place in it; what the record does not have is left out.
fn counts(run: &Value, wanted: &[(&str, &str)]) -> Vec<Annotation> {
    wanted.iter().filter_map(|(name, at)| Some(fact(name, Fact::Count(run.pointer(at)?.as_u64()?)))).collect()
}

impl Drawing {
    fn track(&mut self, parent: Option<u64>, name: String, about: &str) -> u64 {
        let uuid = UUIDS + self.tracks.len() as u64 + 1;
        let rank = self.tracks.iter().filter(|track| track.parent_uuid == parent).count() as i32;
        self.tracks.push(Track {
            uuid: Some(uuid),
            name: Some(name),
            parent_uuid: parent,
            child_ordering: parent.is_none().then_some(BY_RANK),
            sibling_order_rank: Some(rank),
            description: Some(about.to_owned()),
            ..Track::default()
        });
        uuid
    }

    fn event(&mut self, at: u64, track: u64, kind: Kind, name: Option<&str>, facts: Vec<Annotation>) {
        let event = Event {
            debug_annotations: facts,
            r#type: Some(kind as i32),
            track_uuid: Some(track),
            name: name.map(str::to_owned),
            counter_value: None,
        };
        self.events.push((at, event));
    }

    fn slice(&mut self, track: u64, name: &str, (from, to): (u64, u64), facts: Vec<Annotation>) {
        self.event(from, track, Kind::SliceBegin, Some(name), facts);
        self.event(to.max(from), track, Kind::SliceEnd, None, Vec::new());
    }

    /// A run's tracks; when it began and ended, in milliseconds of the calendar.
    fn run(&mut self, subject: &Subject, now_ms: Option<f64>) -> (f64, f64) {
        let Subject { run, steps } = subject;
        let base = run["created_ms"].as_u64().unwrap_or(0);
        let (id, reached) = (text(&run["id"]), stamps(run));
        let newest = reached.last().map_or(0.0, |(at, _)| *at);
        let end = stamp(run, Milestone::Settled).unwrap_or_else(|| now_ms.map_or(newest, |now| newest.max(now - base as f64)));
        let standing = match run["outcome"]["kind"].as_str() {
            Some(kind) => format!("{kind}: {}", text(&run["outcome"]["cause"])),
            None => text(&run["state"]).to_owned(),
        };
        let about = format!("model {}, guarantee {}", text(&run["model"]), text(&run["guarantee"]));
        let track = self.track(None, format!("run {id} ({standing})"), &about);
        for phase in phases(run, end) {
            let mut facts = match phase.name {
                "prefill" => counts(run, &[("prompt", "/tokens/prompt"), ("cached", "/tokens/cached_prompt")]),
                "decode" => counts(run, &[("generated", "/tokens/generated"), ("delivered", "/tokens/delivered")]),
                "draining" | "settling" => counts(run, &[("blocks_peak", "/blocks/peak")]),
                name if name.starts_with("after") => counts(
                    run,
                    &[
                        ("tokens_after", "/tokens/after_disconnect"),
                        ("prompt_tokens_after", "/tokens/prompt_computed_after_disconnect"),
                        ("steps_after", "/steps/after_disconnect"),
                    ],
                ),
                _ => Vec::new(),
            };
            let open = run["settled"] != true && phase.to == end;
            facts.extend(open.then(|| fact("goes_on", Fact::Bool(true))));
            self.slice(track, phase.name, (nanoseconds(base, phase.from), nanoseconds(base, phase.to)), facts);
        }
        let marks = self.track(Some(track), "milestones".to_owned(), "what the contract stamps (C-24), when it was first reached");
        for (at, milestone) in &reached {
            self.event(nanoseconds(base, *at), marks, Kind::Instant, Some(milestone.as_str()), Vec::new());
        }
        self.steps_of(run, steps, track, base);
        self.runs += 1;
        (base as f64, base as f64 + end)
    }

    /// The steps in which the run had part. The journal says when each was over; one that follows the run's step before it began no earlier
    /// than that one ended.
    fn steps_of(&mut self, run: &Value, steps: &Value, parent: u64, base: u64) {
        let place = |name: &str| steps["columns"].as_array().and_then(|columns| columns.iter().position(|column| column == name));
        let rows: &[Value] = steps["rows"].as_array().map_or(&[], Vec::as_slice);
        let total = run["steps"]["total"].as_u64().unwrap_or(0);
        if steps["complete"] != true && total > 0 {
            let id = text(&run["id"]);
            self.gaps.push(format!("run {id}: the server has {} of its {total} steps, the rest is no longer in its journal", rows.len()));
        }
        let (Some(ms), Some(step)) = (place("ms"), place("step")) else { return };
        if rows.is_empty() {
            return;
        }
        let about =
            "engine steps in which the run had part: each ends when it was over, and begins with the end of the run's step before it";
        let track = self.track(Some(parent), "steps".to_owned(), about);
        let mut before: Option<(u64, f64)> = None;
        for row in rows {
            let (Some(ended), Some(number)) = (row[ms].as_f64(), row[step].as_u64()) else { continue };
            let ended = before.map_or(ended, |(_, at)| ended.max(at));
            let began = match before {
                Some((last, at)) if last + 1 == number => at,
                Some(_) => ended,
                None => stamp(run, Milestone::PrefillStart).unwrap_or(ended).min(ended),
            };
            let facts = STEP_FACTS.iter().filter_map(|name| Some(fact(name, Fact::Count(row[place(name)?].as_u64()?)))).collect();
            self.slice(track, &format!("step {number}"), (nanoseconds(base, began), nanoseconds(base, ended)), facts);
            before = Some((number, ended));
            self.steps += 1;
        }
    }

    /// The workers' blocks from the newest moment before the runs to the first one behind them: a moment holds until the next.
    fn blocks(&mut self, moments: &Value, (from, to): (f64, f64)) {
        let workers: &[Value] = moments["workers"].as_array().map_or(&[], Vec::as_slice);
        for worker in workers {
            let kept: Vec<(u64, &Value)> =
                worker["moments"].as_array().into_iter().flatten().filter_map(|m| Some((m["at_ms"].as_u64()?, m))).collect();
            let first = kept.iter().rposition(|(at, _)| *at as f64 <= from).unwrap_or(0);
            let last = kept.iter().position(|(at, _)| *at as f64 >= to).unwrap_or(kept.len().saturating_sub(1));
            let Some(wanted) = kept.get(first..=last).filter(|wanted| !wanted.is_empty()) else { continue };
            let name = text(&worker["worker"]);
            let late = wanted[0].0 as f64 - from;
            // A server that has just begun has no moment before; and one holds until the next.
            if late > moments["every_ms"].as_f64().unwrap_or(0.0) {
                self.gaps.push(format!("worker {name}: its blocks are known from {:.1} s behind the first run's beginning on", late / 1e3));
            }
            let group =
                self.track(None, format!("KV blocks of worker {name}"), "the account of blocks at the moments that the server keeps");
            for state in BLOCK_STATES {
                let track = self.track(Some(group), state.to_owned(), "blocks in this state; orphaned ones are part of active");
                if let Some(track) = self.tracks.last_mut() {
                    track.counter = Some(Counter { unit_name: Some("blocks".to_owned()) });
                }
                let mut newest = 0;
                for (at, moment) in wanted {
                    let Some(value) = moment[state].as_i64() else { continue };
                    // The calendar may be set back; what was later stays later.
                    newest = nanoseconds(*at, 0.0).max(newest);
                    self.event(newest, track, Kind::Counter, None, Vec::new());
                    if let Some((_, event)) = self.events.last_mut() {
                        event.counter_value = Some(value);
                    }
                }
            }
            self.moments += wanted.len();
        }
    }

    /// The file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut events = self.events.clone();
        // Of what is on one track at one moment the order stays.
        events.sort_by_key(|(at, _)| *at);
        let first = events.first().map_or(0, |(at, _)| *at);
        let packet =
            |timestamp, data| Packet { timestamp, trusted_packet_sequence_id: Some(SEQUENCE), sequence_flags: None, data: Some(data) };
        let clocks = CLOCKS.map(|id| Clock { clock_id: Some(id), timestamp: Some(first) });
        let start = packet(Some(first), Data::Clocks(ClockSnapshot { clocks: clocks.to_vec() }));
        let mut trace = Trace { packet: vec![Packet { sequence_flags: Some(1), ..start }] };
        trace.packet.extend(self.tracks.iter().map(|track| packet(None, Data::Track(track.clone()))));
        trace.packet.extend(events.into_iter().map(|(at, event)| packet(Some(at), Data::Event(event))));
        trace.encode_to_vec()
    }
}
