//! What the Responses API needs of the table and the store: runs that are known, followed, cancelled and erased, wherever they are.
//!
//! A trait, so that what is decided here is tested with a script instead of a database and a worker.
//!
//! Invariant: nothing here waits for a reader; whoever follows a run is no owner of it.
// contract: C-26 C-30

use std::sync::Arc;
use std::time::Duration;

use lifecycle::{RunKey, Said};
use serde_json::Value;
use store::StoredRun;

use crate::calls::Calls;
use crate::http::effects;
use crate::http::error::ApiError;
use crate::keeping::Follow;

/// Runs of this gateway, of others, and those that are over.
pub(crate) trait Runs: Send + Sync {
    /// A run's events.
    type Follow: Follows;

    /// What is known of a run; `None` if there is none.
    fn known(&self, key: &RunKey) -> impl Future<Output = Result<Option<StoredRun>, ApiError>> + Send;

    /// The events of a run that is known, from the first on, those that are to come as well. `None` where nothing is kept.
    fn follow(&self, key: &RunKey) -> Option<Self::Follow>;

    /// Asks for its end, wherever it is, and waits so long for its release. False if there is no such run.
    fn cancel(&self, key: &RunKey, wait: Duration) -> impl Future<Output = Result<bool, ApiError>> + Send;

    /// What it did outside, as it is shown: a list, or null where the store does not say in time.
    fn effects(&self, key: &RunKey) -> impl Future<Output = Value> + Send;

    /// Deletes what is kept of an ended run. False if there is no such run.
    fn erase(&self, key: &RunKey) -> impl Future<Output = Result<bool, ApiError>> + Send;
}

/// A run's events, one after the other.
pub(crate) trait Follows: Send + Sized + 'static {
    /// The next event with its number; `None` after the last. Waits for it, and for the store.
    fn next(&mut self) -> impl Future<Output = Option<(u64, Said)>> + Send;

    /// The next that is there now; `None` if there is none.
    fn stored(&mut self) -> impl Future<Output = Result<Option<(u64, Said)>, ApiError>> + Send;
}

impl Runs for Arc<Calls> {
    type Follow = Follow;

    async fn known(&self, key: &RunKey) -> Result<Option<StoredRun>, ApiError> {
        Calls::known(self, key).await.map_err(ApiError::store)
    }

    fn follow(&self, key: &RunKey) -> Option<Follow> {
        self.follow_known(key, 0)
    }

    async fn cancel(&self, key: &RunKey, wait: Duration) -> Result<bool, ApiError> {
        self.cancel_anywhere(key, wait).await.map_err(ApiError::store)
    }

    async fn effects(&self, key: &RunKey) -> Value {
        effects::outside(self, key).await
    }

    async fn erase(&self, key: &RunKey) -> Result<bool, ApiError> {
        Calls::erase(self, key).await.map_err(ApiError::store)
    }
}

impl Follows for Follow {
    async fn next(&mut self) -> Option<(u64, Said)> {
        Follow::next(self).await
    }

    async fn stored(&mut self) -> Result<Option<(u64, Said)>, ApiError> {
        Follow::stored(self).await.map_err(ApiError::store)
    }
}
