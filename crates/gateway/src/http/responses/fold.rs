//! From what a run says to the events of a response, and to the response at any moment.
//!
//! A fold of the run's events from the first on, and of nothing else: no clock, no chance, no reader. So whoever comes back, at whichever
//! gateway, gets the same events with the same numbers; what it has is dropped, not computed differently.
//!
//! Invariant: events are numbered from 0 without gaps; the last one is the only terminal one, and nothing follows it; each is a function of
//! the head and of the items so far.
// contract: C-6 C-26

use std::sync::Arc;

use lifecycle::message::{Delta, Usage};
use lifecycle::{Cause, Outcome, Said};
use serde_json::{Value, json};

use super::object::{Head, Moment, Status, message_id, object, output_message, output_part};

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

/// The answer's one message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    None,
    Open,
    Done(&'static str),
}

/// A response as it grows.
pub(super) struct Fold {
    head: Arc<Head>,
    next: u64,
    accepted: bool,
    message: Message,
    text: String,
    /// Why the answer came to its own end.
    finish: Option<Cause>,
    /// Tokens whose text is not shown yet.
    held: u32,
    end: Option<(Outcome, Usage)>,
}

impl Fold {
    /// Nothing is said yet.
    pub(super) const fn new(head: Arc<Head>) -> Fold {
        let (accepted, message) = (false, Message::None);
        Fold { head, next: 0, accepted, message, text: String::new(), finish: None, held: 0, end: None }
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

    /// What was said so far.
    pub(super) fn text(&self) -> &str {
        &self.text
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
        let message = match self.message {
            Message::None => None,
            Message::Open => Some(self.item("in_progress", Some(&self.text))),
            Message::Done(status) => Some(self.item(status, Some(&self.text))),
        };
        let end = self.end.as_ref().map(|(outcome, usage)| (outcome, usage));
        object(&self.head, &Moment { status: self.status(), message, end, ended })
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
        self.open(&mut events);
        self.held = self.held.saturating_add(delta.count());
        if !delta.text.is_empty() && self.message == Message::Open {
            self.text.push_str(&delta.text);
            let body = json!({"delta": delta.text, "logprobs": []});
            let mut event = self.of_part("response.output_text.delta", &body);
            event.tokens = std::mem::take(&mut self.held);
            events.push(event);
        }
        if let Some(cause) = delta.finish {
            self.finish = Some(cause);
            self.close(&mut events, if cause == Cause::Length { "incomplete" } else { "completed" });
        }
        events
    }

    fn ends(&mut self, outcome: &Outcome, usage: Usage) -> Vec<Event> {
        let mut events = Vec::new();
        if self.next == 0 {
            let now = self.object(None);
            events.push(self.of_response("response.created", now));
        }
        let status = Status::of(outcome, self.finish);
        if matches!(status, Status::Completed | Status::Incomplete) {
            // A whole answer has a message, be it an empty one.
            self.open(&mut events);
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
            last.tokens = std::mem::take(&mut self.held);
        }
        events.push(last);
        events
    }

    /// Begins the message, if it has not begun.
    fn open(&mut self, events: &mut Vec<Event>) {
        if self.message != Message::None {
            return;
        }
        self.message = Message::Open;
        let item = self.item("in_progress", None);
        events.push(self.event("response.output_item.added", &json!({"output_index": 0, "item": item})));
        events.push(self.of_part("response.content_part.added", &json!({"part": output_part("")})));
    }

    /// Ends the message, if it is open.
    fn close(&mut self, events: &mut Vec<Event>, status: &'static str) {
        if self.message != Message::Open {
            return;
        }
        self.message = Message::Done(status);
        events.push(self.of_part("response.output_text.done", &json!({"text": self.text, "logprobs": []})));
        events.push(self.of_part("response.content_part.done", &json!({"part": output_part(&self.text)})));
        let item = self.item(status, Some(&self.text));
        events.push(self.event("response.output_item.done", &json!({"output_index": 0, "item": item})));
    }

    fn item(&self, status: &str, text: Option<&str>) -> Value {
        let parts: Vec<Value> = text.map(output_part).into_iter().collect();
        output_message(&message_id(&self.head.run), status, &parts)
    }

    fn of_response(&mut self, kind: &'static str, response: Value) -> Event {
        self.event(kind, &json!({"response": response}))
    }

    fn of_part(&mut self, kind: &'static str, more: &Value) -> Event {
        let mut body = json!({"item_id": message_id(&self.head.run), "output_index": 0, "content_index": 0});
        merge(&mut body, more);
        self.event(kind, &body)
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
