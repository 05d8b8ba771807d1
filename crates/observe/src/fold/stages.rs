//! When an attempt was where: the stamps of a run are those of its first attempt, or of its newest, and a trace shows each.
//!
//! Invariant: the first stamp of each stage stays; no record that comes with every token changes anything here.

use std::sync::Arc;

use lifecycle::Time;
use lifecycle::event::{Event, Record};

use super::Run;

/// When one attempt was where.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stages {
    /// It was sent to a worker.
    pub(crate) dispatched: Option<Time>,
    /// It waited there.
    pub(crate) queued: Option<Time>,
    /// Its prompt was begun.
    pub(crate) prefill: Option<Time>,
    /// It had a token.
    pub(crate) first_token: Option<Time>,
    /// Its end was decided.
    pub(crate) ended: Option<Time>,
    /// Nothing of it was left at its worker, or nobody can say more of that.
    pub(crate) over: Option<Time>,
    /// The engine of another make that had it, and what it is called there.
    pub(crate) sent_as: Option<(Arc<str>, Arc<str>)>,
}

impl Run {
    pub(super) fn fold_stages(&mut self, record: &Record) {
        let stage: fn(&mut Stages) -> &mut Option<Time> = match &record.event {
            Event::Dispatched { .. } => |stages| &mut stages.dispatched,
            Event::Queued { .. } => |stages| &mut stages.queued,
            Event::PrefillStart => |stages| &mut stages.prefill,
            Event::FirstToken => |stages| &mut stages.first_token,
            Event::AttemptEnded { .. } => |stages| &mut stages.ended,
            Event::Released { .. } | Event::Void { .. } | Event::LetGo { .. } | Event::HandedBack => |stages| &mut stages.over,
            Event::SentAs { upstream, request } => {
                if let Some(attempt) = self.attempt_mut(record.attempt) {
                    attempt.stages.sent_as = Some((upstream.clone(), request.clone()));
                }
                return;
            }
            _ => return,
        };
        if let Some(attempt) = self.attempt_mut(record.attempt) {
            stage(&mut attempt.stages).get_or_insert(record.at);
        }
    }
}
