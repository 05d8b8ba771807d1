//! What the Responses API needs of the table and the store: runs that are known, followed, cancelled and erased, wherever they are.
//!
//! A trait, so that what is decided here is tested with a script instead of a database and a worker.
//!
//! Invariant: nothing here waits for a reader; whoever follows a run is no owner of it.
// contract: C-26 C-30

use std::time::Duration;

use lifecycle::{RunKey, Said};
use store::StoredRun;

use crate::http::error::ApiError;

/// Runs of this gateway, of others, and those that are over.
pub(crate) trait Runs: Send + Sync {
    /// A run's events.
    type Follow: Follows;

    /// What is known of a run; `None` if there is none.
    fn known(&self, key: &RunKey) -> impl Future<Output = Result<Option<StoredRun>, ApiError>> + Send;

    /// Its events with numbers above `after`, those that are to come as well. `None` if there is no such run.
    fn follow(&self, key: &RunKey, after: u64) -> impl Future<Output = Result<Option<Self::Follow>, ApiError>> + Send;

    /// Asks for its end, wherever it is, and waits so long for its release. False if there is no such run.
    fn cancel(&self, key: &RunKey, wait: Duration) -> impl Future<Output = Result<bool, ApiError>> + Send;

    /// Deletes what is kept of an ended run. False if there is no such run.
    fn erase(&self, key: &RunKey) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

/// A run's events, one after the other.
pub(crate) trait Follows: Send + Sized + 'static {
    /// The next event with its number; `None` after the last.
    fn next(&mut self) -> impl Future<Output = Option<(u64, Said)>> + Send;
}

/// No run of this process outlives it, or is kept once it has ended: nothing can be fetched again. Taken out by `keeping`.
impl Runs for std::sync::Arc<crate::calls::Calls> {
    type Follow = Nothing;

    async fn known(&self, _: &RunKey) -> Result<Option<StoredRun>, ApiError> {
        Ok(None)
    }

    async fn follow(&self, _: &RunKey, _: u64) -> Result<Option<Nothing>, ApiError> {
        Ok(None)
    }

    async fn cancel(&self, _: &RunKey, _: Duration) -> Result<bool, ApiError> {
        Ok(false)
    }

    async fn erase(&self, _: &RunKey) -> Result<bool, ApiError> {
        Ok(false)
    }
}

/// Nothing follows.
pub(crate) struct Nothing;

impl Follows for Nothing {
    async fn next(&mut self) -> Option<(u64, Said)> {
        None
    }
}
