//! Attempts by name.
//!
//! Invariant: an id from the wire is one that `lifecycle` would have taken from a caller, and is compared whole.
// contract: C-1

use lifecycle::{AttemptId, RunId, RunKey, Tenant};

use crate::limits::Limit;
use crate::worker_v1::Attempt;
use crate::{Error, field};

impl From<&AttemptId> for Attempt {
    fn from(id: &AttemptId) -> Attempt {
        Attempt { tenant: id.key.tenant.as_str().to_owned(), run: id.key.run.as_str().to_owned(), attempt: id.attempt }
    }
}

impl TryFrom<Attempt> for AttemptId {
    type Error = Error;

    fn try_from(wire: Attempt) -> Result<AttemptId, Error> {
        let tenant = field::id(Tenant::parse(&wire.tenant), "Attempt.tenant")?;
        let run = field::id(RunId::parse(&wire.run), "Attempt.run")?;
        Ok(AttemptId { key: RunKey { tenant, run }, attempt: field::number(wire.attempt, "Attempt.attempt")? })
    }
}

/// A field that names an attempt and must be there.
pub(crate) fn attempt(wire: Option<Attempt>, field: &'static str) -> Result<AttemptId, Error> {
    field::need(wire, field)?.try_into()
}

/// A list of attempts, not longer than its limit.
pub(crate) fn read(wire: Vec<Attempt>, limit: Limit, field: &'static str) -> Result<Vec<AttemptId>, Error> {
    field::within(&wire, limit, field)?;
    wire.into_iter().map(AttemptId::try_from).collect()
}

/// A list of attempts, not longer than its limit: who sends splits it.
pub(crate) fn write(ids: &[AttemptId], limit: Limit, field: &'static str) -> Result<Vec<Attempt>, Error> {
    field::within(ids, limit, field)?;
    Ok(ids.iter().map(Attempt::from).collect())
}
