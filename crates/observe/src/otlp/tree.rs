//! The tree itself.
//!
//! ```text
//! chat MODEL            accepted → settled; the run's counts; every milestone as an event
//! ├ queue               accepted → sent to a worker: the wait in the gateway
//! ├ attempt 1           sent → nothing left of it; its id is what an engine elsewhere is told as its caller
//! │ ├ queue             the wait at the worker
//! │ ├ prefill           the prompt's first chunk → the first token
//! │ └ decode            the first token → the attempt's end
//! └ after_disconnect    nobody wants it any more → nothing left of it; only of runs that somebody ended
//!   ├ client-gateway    each boundary that the word of it crossed: seen → nothing left behind it
//!   └ ...
//! ```
//!
//! Invariant: a span ends no earlier than it begins; what has no end of its own ends with the run.

use lifecycle::{Boundary, Milestone, OutcomeKind, Time};

use super::wire::{Event, KeyValue, Span, SpanKind, Status, StatusCode};
use super::{Finished, RunTrace};
use crate::fold::AttemptFold;
use crate::view::RunView;

/// The numbers of spans that are neither the run's nor an attempt's begin behind all attempts' numbers.
const OTHERS: u64 = 1 << 32;
/// The trace's flags say whether the parent is in another process (OTLP: bit 8), and that it is (bit 9).
const HAS_REMOTE: u32 = 1 << 8;
const IS_REMOTE: u32 = 1 << 9;

/// Milestones on the way of a cancel.
const OF_CANCEL: [Milestone; 7] = [
    Milestone::CancelSent,
    Milestone::CancelReceived,
    Milestone::CancelApplied,
    Milestone::CancelAcknowledged,
    Milestone::LastCompute,
    Milestone::FenceCompleted,
    Milestone::Released,
];

impl Finished {
    /// Its spans, the run's own first, each behind its parent.
    pub fn spans(&self) -> Vec<Span> {
        let last = self.run.stamps.iter().filter_map(|(_, at)| at).max().unwrap_or(self.run.opened);
        let mut tree = Tree { of: self, end: last, spans: Vec::with_capacity(12), others: OTHERS };
        tree.run();
        for attempt in &self.run.attempts {
            tree.attempt(attempt);
        }
        tree.after_disconnect();
        tree.spans
    }
}

struct Tree<'a> {
    of: &'a Finished,
    /// When the run was over.
    end: Time,
    spans: Vec<Span>,
    /// The number of the next span that is none of the run's own or an attempt's.
    others: u64,
}

fn id(id: u64) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

impl Tree<'_> {
    fn trace(&self) -> &RunTrace {
        &self.of.trace
    }

    fn at(&self, milestone: Milestone) -> Option<Time> {
        self.of.run.stamps.get(milestone)
    }

    fn ns(&self, at: Time) -> u64 {
        self.of.clock.calendar_ns(at)
    }

    fn event(&self, name: &str, at: Time) -> Event {
        Event { time_unix_nano: self.ns(at), name: name.to_owned(), attributes: Vec::new() }
    }

    fn events(&self, milestones: &[Milestone]) -> Vec<Event> {
        let mut reached: Vec<(Time, Milestone)> = milestones.iter().filter_map(|m| Some((self.at(*m)?, *m))).collect();
        reached.sort_by_key(|(at, milestone)| (*at, *milestone as usize));
        reached.into_iter().map(|(at, milestone)| self.event(milestone.as_str(), at)).collect()
    }

    /// A span of this number within another of the run's.
    fn span(&self, (number, parent): (u64, u64), name: String, (from, to): (Time, Option<Time>), mut attributes: Vec<KeyValue>) -> Span {
        // contract: C-1
        attributes.insert(0, KeyValue::text("kvit.run.id", self.of.run.key.run.as_str()));
        let (trace, to) = (self.trace(), to.unwrap_or(self.end).max(from));
        Span {
            trace_id: trace.trace_bytes(),
            span_id: id(trace.span(number)),
            trace_state: trace.state().unwrap_or_default().to_owned(),
            parent_span_id: id(trace.span(parent)),
            name,
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: self.ns(from),
            end_time_unix_nano: self.ns(to),
            attributes,
            events: Vec::new(),
            status: None,
            flags: trace.flags() | HAS_REMOTE,
        }
    }

    /// One that nobody outside is told of. Its number.
    fn inner(&mut self, parent: u64, name: &str, span: (Time, Option<Time>), attributes: Vec<KeyValue>) -> u64 {
        let number = self.others;
        self.others += 1;
        self.spans.push(self.span((number, parent), name.to_owned(), span, attributes));
        number
    }

    fn run(&mut self) {
        let (run, asked) = (&self.of.run, &self.of.asked);
        let view = RunView::of(run, self.of.clock);
        let begin = run.base();
        let name = format!("{} {}", asked.operation, view.model).trim_end().to_owned();
        let mut span = self.span((0, 0), name, (begin, None), self.of.attributes(&view));
        span.kind = SpanKind::Server.into();
        span.events = self.events(Milestone::ALL);
        (span.parent_span_id, span.flags) = match self.trace().parent() {
            Some(parent) => (id(parent), span.flags | IS_REMOTE),
            None => (Vec::new(), span.flags),
        };
        // contract: C-6. Whoever left, or had a deadline, got what was asked for: it is no error that the work ended.
        let failed = run.outcome.as_ref().filter(|outcome| outcome.kind() == OutcomeKind::Failed);
        span.status = failed.map(|outcome| error(outcome.cause.as_str()));
        self.spans.push(span);
        let sent = run.attempts.iter().filter_map(|attempt| attempt.stages.dispatched).min();
        self.inner(0, "queue", (begin, sent), vec![KeyValue::text("kvit.queue.place", "gateway")]);
    }

    fn attempt(&mut self, attempt: &AttemptFold) {
        let stages = &attempt.stages;
        let known = [stages.dispatched, stages.queued, stages.prefill, stages.first_token, stages.ended, stages.over];
        let Some(begin) = known.into_iter().flatten().min() else { return };
        let number = u64::from(attempt.number);
        let mut attributes = vec![KeyValue::count("kvit.attempt", number)];
        attributes.extend(attempt.ended.map(|kind| KeyValue::text("kvit.attempt.outcome", kind.as_str())));
        for (name, is) in [
            ("kvit.attempt.released", attempt.released),
            ("kvit.attempt.void", attempt.void),
            ("kvit.attempt.handed_back", attempt.handed_back),
        ] {
            attributes.push(KeyValue::flag(name, is));
        }
        let mut kind = SpanKind::Internal;
        if let Some((upstream, request)) = &stages.sent_as {
            attributes.extend([KeyValue::text("kvit.upstream.name", upstream), KeyValue::text("kvit.upstream.request_id", request)]);
            kind = SpanKind::Client;
        }
        let mut span = self.span((number, 0), format!("attempt {number}"), (begin, stages.over), attributes);
        span.kind = kind.into();
        span.status = match attempt.ended {
            Some(OutcomeKind::Failed) => Some(error("failed")),
            _ => attempt.void.then(|| error("worker_lost")),
        };
        self.spans.push(span);
        let ended = stages.ended.or(stages.over);
        let none = Vec::new;
        if let Some(queued) = stages.queued.filter(|_| stages.sent_as.is_none()) {
            let place = vec![KeyValue::text("kvit.queue.place", "worker")];
            self.inner(number, "queue", (queued, stages.prefill.or(ended)), place);
        }
        if let Some(prefill) = stages.prefill {
            self.inner(number, "prefill", (prefill, stages.first_token.or(ended)), none());
        } else if let (Some(queued), Some(_)) = (stages.queued, &stages.sent_as) {
            // An engine of another make does not say when it begins.
            self.inner(number, "before_first_token", (queued, stages.first_token.or(ended)), none());
        }
        if let Some(first) = stages.first_token {
            self.inner(number, "decode", (first, ended), none());
        }
    }

    /// What happened from when nobody wanted the run any more.
    // contract: C-24
    fn after_disconnect(&mut self) {
        let run = &self.of.run;
        let Some((since, cause)) = run.abandoned else { return };
        let view = RunView::of(run, self.of.clock);
        let mut attributes = vec![KeyValue::text("kvit.cause", cause.as_str())];
        attributes.extend(view.phase_at_disconnect.map(|phase| KeyValue::text("kvit.phase_at_disconnect", phase)));
        attributes.extend(waste(&view));
        let end = if run.is_released() { self.at(Milestone::Released) } else { None };
        let number = self.inner(0, "after_disconnect", (since, end), attributes);
        let events = self.events(&OF_CANCEL).into_iter().filter(|event| event.time_unix_nano >= self.ns(since)).collect();
        if let Some(span) = self.spans.last_mut() {
            span.events = events;
        }
        let boundaries = [
            (Boundary::ClientGateway, run.observed, Milestone::CancelSent, Milestone::Settled),
            (Boundary::GatewayWorker, self.at(Milestone::CancelSent), Milestone::CancelReceived, Milestone::Released),
            (Boundary::WorkerEngine, self.at(Milestone::CancelReceived), Milestone::CancelApplied, Milestone::Released),
            (Boundary::EngineAllocator, self.at(Milestone::CancelApplied), Milestone::FenceCompleted, Milestone::Released),
        ];
        for (boundary, seen, forwarded, acknowledged) in boundaries {
            let Some(seen) = seen else { continue };
            let (forwarded, acknowledged) = (self.at(forwarded), self.at(acknowledged));
            let mut attributes = vec![KeyValue::flag("kvit.boundary.acknowledged", acknowledged.is_some())];
            if boundary == Boundary::GatewayWorker {
                let us = u64::try_from(run.clock_error.as_micros()).unwrap_or(u64::MAX);
                attributes.push(KeyValue::count("kvit.boundary.clock_error_us", us));
            }
            self.inner(number, boundary.as_str(), (seen, acknowledged), attributes);
            let passed_on = forwarded.map(|at| self.event("forwarded", at));
            if let Some(span) = self.spans.last_mut() {
                span.events.extend(passed_on);
            }
        }
    }
}

fn error(why: &str) -> Status {
    Status { message: why.to_owned(), code: StatusCode::Error.into() }
}

/// What was computed for nobody.
fn waste(view: &RunView) -> [KeyValue; 5] {
    [
        KeyValue::count("kvit.tokens.after_disconnect", view.tokens.after_disconnect),
        KeyValue::count("kvit.tokens.after_receipt", view.tokens.after_receipt),
        KeyValue::count("kvit.tokens.prompt_computed_after_disconnect", view.tokens.prompt_computed_after_disconnect),
        KeyValue::count("kvit.steps.after_disconnect", view.steps.after_disconnect),
        KeyValue::count("kvit.steps.layers_dropped", view.steps.layers_dropped),
    ]
}

impl Finished {
    /// What the run's own span says: its record, in the conventions' words where they have one.
    fn attributes(&self, view: &RunView) -> Vec<KeyValue> {
        let asked = &self.asked;
        let mut all = vec![
            KeyValue::text("gen_ai.operation.name", asked.operation),
            KeyValue::text("gen_ai.provider.name", "kvit"),
            KeyValue::text("gen_ai.request.model", &view.model),
            KeyValue::count("gen_ai.usage.input_tokens", view.tokens.prompt),
            KeyValue::count("gen_ai.usage.output_tokens", view.tokens.generated),
            KeyValue::count("gen_ai.usage.cache_read.input_tokens", view.tokens.cached_prompt),
            KeyValue::text("kvit.tenant", &view.tenant),
            KeyValue::flag("kvit.stream", asked.stream),
            KeyValue::text("kvit.delivery", view.delivery),
            KeyValue::count("kvit.attempts", self.run.attempts.len() as u64),
            KeyValue::count("kvit.tokens.delivered", view.tokens.delivered),
            KeyValue::count("kvit.tokens.overrun", view.tokens.overrun),
            KeyValue::count("kvit.steps.total", view.steps.total),
            KeyValue::count("kvit.blocks.peak", view.blocks.peak.into()),
            KeyValue::count("kvit.blocks.held", view.blocks.held.into()),
        ];
        all.extend(waste(view));
        all.extend(asked.max_tokens.map(|cap| KeyValue::count("gen_ai.request.max_tokens", cap.into())));
        if asked.n != 1 {
            all.push(KeyValue::count("gen_ai.request.choice.count", asked.n.into()));
        }
        if let Some(outcome) = &view.outcome {
            all.extend([KeyValue::text("kvit.outcome.kind", outcome.kind), KeyValue::text("kvit.outcome.cause", outcome.cause)]);
            match self.run.outcome.as_ref().map(lifecycle::Outcome::kind) {
                Some(OutcomeKind::Completed) => all.push(KeyValue::list("gen_ai.response.finish_reasons", [outcome.cause])),
                Some(OutcomeKind::Failed) => all.push(KeyValue::text("error.type", outcome.cause)),
                _ => {}
            }
        }
        let texts = [
            ("kvit.told", view.told),
            ("kvit.guarantee", view.guarantee),
            ("kvit.phase_at_disconnect", view.phase_at_disconnect),
            ("kvit.on_disconnect", view.on_disconnect.as_deref()),
        ];
        all.extend(texts.into_iter().filter_map(|(key, text)| Some(KeyValue::text(key, text?))));
        all.extend(view.waste_bound_tokens.map(|bound| KeyValue::count("kvit.waste_bound_tokens", bound)));
        if !view.superseded.is_empty() {
            all.push(KeyValue::list("kvit.superseded", view.superseded.iter().copied()));
        }
        if view.graces.begun > 0 {
            let graces = [("kvit.graces.begun", view.graces.begun), ("kvit.graces.resumed", view.graces.resumed)];
            all.extend(graces.map(|(key, count)| KeyValue::count(key, count.into())));
        }
        all
    }
}
