//! From what a run says to the events of a response, and to the response at any moment.
//!
//! A fold of the run's events from the first on, and of nothing else: no clock, no chance, no reader. So whoever comes back, at whichever
//! gateway, gets the same events with the same numbers; what it has is dropped, not computed differently.
//!
//! Invariant: events are numbered from 0 without gaps; the last one is the only terminal one, and nothing follows it; each is a function of
//! the head and of the items so far.
// contract: C-6 C-26

use std::sync::Arc;

use lifecycle::message::{Called, Delta, Piece, TokenLogprob, Usage};
use lifecycle::{Cause, Outcome, Said};
use serde_json::{Value, json};

use super::asked::Item;
use super::grown::{Grown, What, logprobs};
use super::object::{Head, Moment, Status, object, output_part};

/// One event on OpenAI's wire.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Event {
    /// Its `sequence_number`.
    pub(super) number: u64,
    /// Its `type`.
    pub(super) kind: &'static str,
    pub(super) body: Value,
    /// Tokens that it shows, or that were taken back into what it shows.
    pub(super) tokens: u32,
}

/// A response as it grows.
pub(super) struct Fold {
    head: Arc<Head>,
    next: u64,
    accepted: bool,
    /// The answer's items. Of one run they are a message, calls of functions behind it, and perhaps text behind these.
    items: Vec<Grown>,
    /// Why the answer came to its own end.
    finish: Option<Cause>,
    /// Tokens whose text is not shown yet, and their log-probabilities.
    held: (u32, Vec<TokenLogprob>),
    end: Option<(Outcome, Usage)>,
}

impl Fold {
    /// Nothing is said yet.
    pub(super) const fn new(head: Arc<Head>) -> Fold {
        Fold { head, next: 0, accepted: false, items: Vec::new(), finish: None, held: (0, Vec::new()), end: None }
    }

    /// What is said before the run says anything: of a background response, that it is there. An interactive one that is turned away before
    /// a worker took it on is answered with a status, so there nothing is said before that.
    pub(super) fn begin(&mut self) -> Vec<Event> {
        if !self.head.asked.background || self.next > 0 {
            return Vec::new();
        }
        let now = self.object(None);
        vec![self.of_response("response.created", now.clone()), self.of_response("response.queued", now)]
    }

    /// Takes the run's next item.
    pub(super) fn take(&mut self, said: &Said) -> Vec<Event> {
        // Nothing follows the end.
        if self.end.is_some() {
            return Vec::new();
        }
        match said {
            Said::Accepted => self.accept(),
            Said::Delta(delta) => self.delta(delta),
            Said::End { outcome, usage } => self.ends(outcome, *usage),
        }
    }

    /// Whether the last event was given.
    pub(super) const fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// What was said so far, for whoever goes on from it.
    pub(super) fn answer(&self) -> Vec<Item> {
        self.items.iter().filter_map(Grown::said).collect()
    }

    /// Where it stands.
    pub(super) fn status(&self) -> Status {
        match (&self.end, self.accepted) {
            (Some((outcome, _)), _) => Status::of(outcome, self.finish),
            (None, true) => Status::InProgress,
            (None, false) => Status::Queued,
        }
    }

    /// The response now. `ended` is when it ended, in seconds of the calendar, where that is known.
    pub(super) fn object(&self, ended: Option<i64>) -> Value {
        let output = (0..self.items.len()).map(|at| self.item(at, false)).collect();
        let end = self.end.as_ref().map(|(outcome, usage)| (outcome, usage));
        object(&self.head, &Moment { status: self.status(), output, end, ended })
    }

    fn accept(&mut self) -> Vec<Event> {
        if self.accepted {
            return Vec::new();
        }
        self.accepted = true;
        let now = self.object(None);
        let mut events = Vec::new();
        if self.next == 0 {
            events.push(self.of_response("response.created", now.clone()));
        }
        events.push(self.of_response("response.in_progress", now));
        events
    }

    fn delta(&mut self, delta: &Delta) -> Vec<Event> {
        // Without it nothing is said by a run; so this is the order whatever is kept of one.
        let mut events = self.accept();
        self.held.0 = self.held.0.saturating_add(delta.count());
        // What comes behind the answer's own end is no part of it.
        if self.finish.is_none() {
            self.held.1.extend(delta.logprobs.iter().cloned());
            match delta.passed.as_ref().map(|passed| &passed.piece) {
                Some(Piece::Called(part)) => self.called(part, &mut events),
                _ => self.text(&delta.text, &mut events),
            }
        }
        if let Some(cause) = delta.finish {
            self.finish = Some(cause);
            self.close(&mut events, if cause == Cause::Length { "incomplete" } else { "completed" });
        }
        events
    }

    /// More text, be it nothing yet: where functions may be called, an answer may have none.
    fn text(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() && !self.head.asked.tools.is_empty() {
            return;
        }
        let at = self.message(events);
        if text.is_empty() {
            return;
        }
        let (tokens, entries) = std::mem::take(&mut self.held);
        let body = json!({"delta": text, "logprobs": logprobs(&entries)});
        if let Some(Grown { what: What::Message { text: all, logprobs }, .. }) = self.items.get_mut(at) {
            all.push_str(text);
            logprobs.extend(entries);
        }
        let event = self.of_part(at, "response.output_text.delta", &body);
        events.push(Event { tokens, ..event });
    }

    /// A part of a call. The text before it is whole.
    fn called(&mut self, part: &Called, events: &mut Vec<Event>) {
        if let Some(at) = self.items.len().checked_sub(1).filter(|at| matches!(self.items[*at].what, What::Message { .. })) {
            self.end_item(at, "completed", events);
        }
        // Some engines give all calls one place.
        let is_it = |grown: &Grown| match &grown.what {
            What::Call { place, call_id, .. } => *place == part.place && part.id.as_ref().is_none_or(|id| id == call_id),
            What::Message { .. } => false,
        };
        let at = self.items.iter().rposition(is_it).unwrap_or_else(|| {
            let at = self.items.len();
            let call_id = part.id.clone().unwrap_or_else(|| format!("call_{}_{at}", self.head.run));
            let (name, arguments) = (part.name.clone().unwrap_or_default(), String::new());
            self.begin_item(Grown { what: What::Call { place: part.place, call_id, name, arguments }, done: None }, events)
        });
        if let Some(Grown { what: What::Call { name, arguments, .. }, .. }) = self.items.get_mut(at) {
            arguments.push_str(&part.arguments);
            if name.is_empty() {
                name.extend(part.name.as_deref());
            }
        }
        if !part.arguments.is_empty() {
            let event = self.of_item(at, "response.function_call_arguments.delta", &json!({"delta": part.arguments}));
            events.push(event);
        }
        if let Some(last) = events.last_mut() {
            last.tokens = std::mem::take(&mut self.held.0);
        }
    }

    fn ends(&mut self, outcome: &Outcome, usage: Usage) -> Vec<Event> {
        let mut events = Vec::new();
        if self.next == 0 {
            let now = self.object(None);
            events.push(self.of_response("response.created", now));
        }
        let status = Status::of(outcome, self.finish);
        if matches!(status, Status::Completed | Status::Incomplete) && self.items.is_empty() {
            // A whole answer has a message, be it an empty one.
            self.message(&mut events);
        }
        self.close(&mut events, if status == Status::Completed { "completed" } else { "incomplete" });
        self.end = Some((outcome.clone(), usage));
        let kind = match status {
            Status::Completed => "response.completed",
            Status::Incomplete => "response.incomplete",
            // OpenAI's list has no event for a cancelled response. This one is terminal for every client and no success for any; the
            // response in it says `cancelled`, and has no error.
            Status::Queued | Status::InProgress | Status::Failed | Status::Cancelled => "response.failed",
        };
        let now = self.object(None);
        let mut last = self.of_response(kind, now);
        if matches!(status, Status::Completed | Status::Incomplete) {
            last.tokens = std::mem::take(&mut self.held.0);
        }
        events.push(last);
        events
    }

    /// The message to which text comes: the last item, if it is one, else one that begins now.
    fn message(&mut self, events: &mut Vec<Event>) -> usize {
        match self.items.len().checked_sub(1).filter(|at| matches!(self.items[*at].what, What::Message { .. })) {
            Some(at) => at,
            None => self.begin_item(Grown::message(), events),
        }
    }

    /// One more item. Its place.
    fn begin_item(&mut self, grown: Grown, events: &mut Vec<Event>) -> usize {
        let (at, is_message) = (self.items.len(), matches!(grown.what, What::Message { .. }));
        self.items.push(grown);
        let item = self.item(at, true);
        events.push(self.event("response.output_item.added", &json!({"output_index": at, "item": item})));
        if is_message {
            events.push(self.of_part(at, "response.content_part.added", &json!({"part": output_part("", &[])})));
        }
        at
    }

    /// Ends what is open. A call that may have been cut off is never told as done: whoever reads that would make it.
    fn close(&mut self, events: &mut Vec<Event>, status: &'static str) {
        for at in (0..self.items.len()).filter(|at| self.items[*at].is_open()).collect::<Vec<_>>() {
            self.end_item(at, status, events);
        }
    }

    fn end_item(&mut self, at: usize, status: &'static str, events: &mut Vec<Event>) {
        if !self.items[at].is_open() {
            return;
        }
        self.items[at].done = Some(status);
        let told = match &self.items[at].what {
            What::Message { text, logprobs: entries } => {
                let (text, part) = (json!({"text": text, "logprobs": logprobs(entries)}), json!({"part": self.items[at].part()}));
                Some(vec![self.of_part(at, "response.output_text.done", &text), self.of_part(at, "response.content_part.done", &part)])
            }
            What::Call { name, arguments, .. } if status == "completed" => {
                let whole = json!({"name": name, "arguments": arguments});
                Some(vec![self.of_item(at, "response.function_call_arguments.done", &whole)])
            }
            What::Call { .. } => None,
        };
        let Some(told) = told else { return };
        events.extend(told);
        let item = self.item(at, false);
        events.push(self.event("response.output_item.done", &json!({"output_index": at, "item": item})));
    }

    fn item(&self, at: usize, fresh: bool) -> Value {
        self.items[at].item(&self.head.run, at, fresh)
    }

    fn of_response(&mut self, kind: &'static str, response: Value) -> Event {
        self.event(kind, &json!({"response": response}))
    }

    fn of_item(&mut self, at: usize, kind: &'static str, more: &Value) -> Event {
        let mut body = json!({"item_id": self.items[at].id(&self.head.run, at), "output_index": at});
        merge(&mut body, more);
        self.event(kind, &body)
    }

    fn of_part(&mut self, at: usize, kind: &'static str, more: &Value) -> Event {
        let mut body = json!({"content_index": 0});
        merge(&mut body, more);
        self.of_item(at, kind, &body)
    }

    fn event(&mut self, kind: &'static str, more: &Value) -> Event {
        let number = self.next;
        self.next += 1;
        let mut body = json!({"type": kind, "sequence_number": number});
        merge(&mut body, more);
        Event { number, kind, body, tokens: 0 }
    }
}

/// Adds the fields of one object to another.
fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        into.extend(from.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
}
