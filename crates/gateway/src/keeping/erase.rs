//! Erasing what is kept of a run that has ended: what was asked, what was said, and what was recorded of it.
//!
//! Invariant: what was erased and said to be is erased on disk; a run without an outcome is left as it is.

use lifecycle::RunKey;
use store::{StoreError, Survives, Write, Wrote};

use crate::calls::Calls;

impl Calls {
    /// Erases an ended run. False if there is no such run, or none that has ended.
    ///
    /// # Errors
    /// The store is not there.
    pub(crate) async fn erase(&self, key: &RunKey) -> Result<bool, StoreError> {
        let Some(keeper) = &self.keeper else { return Ok(false) };
        // In its turn, so that it comes behind whatever is still to be written of the run.
        let wrote = keeper.ask(Write::Erase { run: key.clone() }, Survives::Machine, true).await?;
        Ok(wrote == Wrote::Done)
    }
}
