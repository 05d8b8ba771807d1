//! Records for tests: a journal that is driven with explicit times, and one whole cancelled run.

use lifecycle::event::{Event, Record};
use lifecycle::message::Receipt;
use lifecycle::{Cause, Delivery, Incarnation, OnDisconnect, Outcome, Phase, RunId, RunKey, StepId, Tenant, Time};
use observe::{Clock, Format, Journal, Limits, Scrape};

/// A journal with the usual limits.
pub fn journal() -> Journal {
    Journal::new(Clock::start(), Limits::default())
}

/// A run of the default tenant.
pub fn key(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("a valid id") }
}

/// Records an event of attempt 1 at a time in microseconds.
pub fn at(journal: &Journal, key: &RunKey, us: u64, event: Event) {
    of_attempt(journal, key, 1, us, event);
}

/// Records an event of any attempt at a time in microseconds.
pub fn of_attempt(journal: &Journal, key: &RunKey, attempt: u32, us: u64, event: Event) {
    journal.record_at(Record { at: Time(us), run: Some(key.clone()), attempt, event });
}

/// The front door's record.
pub fn accepted() -> Event {
    Event::Accepted { model: "smollm2-135m-instruct".into(), n: 1, stream: true, on_disconnect: OnDisconnect::Cancel }
}

/// The submit is out, to a model with a context of 8192 positions.
pub fn dispatched() -> Event {
    Event::Dispatched { tokens_max: 8192 }
}

/// The worker has a prompt of this length, of one sequence with a cap of 200 tokens.
pub fn queued(prompt_tokens: u32) -> Event {
    Event::Queued { prompt_tokens, n: 1, max_tokens: 200 }
}

/// A step that computed this much for the run.
pub fn computed(step: u64, prompt_tokens: u32, generated: u32, discarded: u32) -> Event {
    Event::Computed { step: StepId(step), prompt_tokens, generated, discarded, late: discarded }
}

/// A release with nothing left.
pub fn released() -> Event {
    Event::Released { receipt: Receipt { blocks_held: 0, blocks_peak: 4, blocks_shared: 1, steps: 19, fence: StepId(19) } }
}

/// The end that a cause gives.
pub fn outcome_set(cause: Cause) -> Event {
    Event::OutcomeSet { outcome: Outcome::of(cause) }
}

/// A metrics page without a worker's account.
pub fn page(journal: &Journal) -> String {
    journal.metrics(&Scrape {
        version: "0.1.0",
        incarnation: Incarnation(7),
        workers: &[],
        holdings: None,
        outside: None,
        spans: None,
        format: Format::Text,
    })
}

/// The run of the fixture: accepted at 1 s, 18 tokens delivered, closed by its caller at +140.2 ms, one token computed in vain.
pub fn cancelled_run(journal: &Journal, key: &RunKey) {
    let rec = |us: u64, event| at(journal, key, 1_000_000 + us, event);
    let cause = Cause::ClientClosed;
    of_attempt(journal, key, 0, 1_000_000, accepted());
    rec(50, dispatched());
    rec(100, queued(37));
    rec(300, Event::BlocksAllocated { held: 3, cached_tokens: 16, shared: 1 });
    rec(400, Event::PrefillStart);
    rec(21_500, computed(1, 21, 1, 0));
    rec(21_500, Event::FirstToken);
    for step in 2..=18 {
        rec(21_500 + step * 6_000, computed(step, 0, 1, 0));
        rec(21_500 + step * 6_000, Event::Delivered { tokens: 1 });
    }
    rec(130_000, Event::BlocksAllocated { held: 4, cached_tokens: 0, shared: 0 });
    rec(140_000, Event::Delivered { tokens: 1 });
    rec(140_200, Event::AbandonmentObserved { cause });
    rec(140_200, Event::DeliveryEnded { delivery: Delivery::Partial });
    rec(140_200, Event::CancelSent { cause, count: 1 });
    rec(140_300, Event::CancelReceived { cause });
    rec(140_300, Event::CancelApplied { cause, phase: Phase::Decode });
    rec(140_350, Event::AttemptEnded { outcome: Outcome::of(cause) });
    rec(140_400, Event::CancelAcknowledged);
    rec(141_000, Event::Superseded { cause: Cause::ClientDeadline, won: cause });
    rec(143_100, computed(19, 0, 0, 1));
    rec(143_100, Event::FenceCompleted { step: StepId(19) });
    rec(143_200, released());
    rec(143_250, outcome_set(cause));
    rec(143_300, Event::Settled { proven: true });
}
