//! Which event has which word and which fields in a file: one table, from which writing and reading are made.
//!
//! Invariant: every event stands in it, which the compiler demands. A word or a field that is here is read by later releases too, or the format's
//! number changes.

use lifecycle::event::Event;
use serde_json::Value;

use super::field::Field;

/// The name of a field in the file: its own, or the one that says its unit.
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

macro_rules! events {
    ($($word:literal $event:ident { $($field:ident $(= $name:literal)?),* })+) => {
        /// Appends an event's word and its fields.
        pub(super) fn put(event: &Event, out: &mut String) {
            match event {
                $(Event::$event { $($field),* } => {
                    out.push_str(concat!("\"event\":\"", $word, "\""));
                    $(out.push_str(concat!(",\"", name!($field $($name)?), "\":"));
                    $field.put(out);)*
                })+
            }
        }

        /// Every word.
        #[cfg(test)]
        pub(super) const WORDS: &[&str] = &[$($word),+];

        /// Reads the event of a line.
        ///
        /// # Errors
        /// A sentence that names the word or the field.
        pub(super) fn take(word: &str, line: &Value) -> Result<Event, String> {
            match word {
                $($word => Ok(Event::$event { $($field: of(line, name!($field $($name)?))?),* }),)+
                _ => Err(format!("there is no event `{word}`")),
            }
        }
    };
}

fn of<T: Field>(line: &Value, name: &str) -> Result<T, String> {
    T::take(&line[name]).ok_or_else(|| format!("`{name}` is not what an event has there"))
}

events! {
    "accepted" Accepted { model, n, stream, on_disconnect }
    "dispatched" Dispatched { tokens_max }
    "sent_as" SentAs { upstream, request }
    "abandonment_observed" AbandonmentObserved { cause }
    "grace_begun" GraceBegun { grace = "grace_us" }
    "abandonment_withdrawn" AbandonmentWithdrawn {}
    "grace_ran_out" GraceRanOut {}
    "left_running" LeftRunning { cause }
    "cancel_sent" CancelSent { cause, count }
    "cancel_acknowledged" CancelAcknowledged {}
    "delivered" Delivered { tokens }
    "delivery_ended" DeliveryEnded { delivery }
    "dismissed" Dismissed { cause }
    "outcome_set" OutcomeSet { outcome }
    "superseded" Superseded { cause, won }
    "settled" Settled { proven }
    "worker_clock" WorkerClock { error = "error_us" }
    "handed_back" HandedBack {}
    "queued" Queued { prompt_tokens, n, max_tokens }
    "blocks_allocated" BlocksAllocated { held, cached_tokens, shared }
    "prefill_start" PrefillStart {}
    "computed" Computed { step, prompt_tokens, generated, discarded, late }
    "rows_dropped" RowsDropped { step, layers }
    "first_token" FirstToken {}
    "preempted" Preempted {}
    "cancel_received" CancelReceived { cause }
    "cancel_applied" CancelApplied { cause, phase }
    "tombstoned" Tombstoned { cause }
    "suspended" Suspended {}
    "attached" Attached {}
    "orphaned" Orphaned {}
    "attempt_ended" AttemptEnded { outcome }
    "prompt_counted" PromptCounted { tokens, cached }
    "fence_completed" FenceCompleted { step }
    "released" Released { receipt }
    "void" Void { worker }
    "reported" Reported { work }
    "let_go" LetGo { guarantee }
    "step_done" StepDone { step, rows, dropped }
    "device_busy" DeviceBusy { span = "span_us" }
    "device_failed" DeviceFailed { step, quarantined }
    "session_opened" SessionOpened { gateway, incarnation, session }
    "session_closed" SessionClosed { gateway, session }
    "gateway" Gateway { gateway, state }
    "stale_message" StaleMessage {}
    "defect" Defect { what }
}
