//! Listing runs: what may be asked for, and the page that answers.
//!
//! Invariant: a page holds runs of one tenant only (C-30).

use lifecycle::{Cause, OutcomeKind, RunId};
use serde::Serialize;

use crate::view::{RunState, RunView};

/// Runs on a page where the asker names no number.
pub const PAGE_DEFAULT: usize = 50;
/// Most runs on a page.
pub const PAGE_MAX: usize = 1000;

/// Which runs to list. Everything that is set must hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunFilter {
    /// In this state now.
    pub state: Option<RunState>,
    /// Not ended, whatever its state is.
    pub live: bool,
    /// Ended this way.
    pub outcome: Option<OutcomeKind>,
    /// Ended for this cause.
    pub cause: Option<Cause>,
    /// Most runs on the page; values outside 1 to `PAGE_MAX` count as the nearest value inside.
    pub limit: usize,
    /// Only runs accepted before this one: the last id of the page before.
    pub after: Option<RunId>,
}

impl Default for RunFilter {
    fn default() -> Self {
        RunFilter { state: None, live: false, outcome: None, cause: None, limit: PAGE_DEFAULT, after: None }
    }
}

/// One page of runs, newest first, as `GET /v1/runs` shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RunPage {
    /// Always `list`.
    pub object: &'static str,
    /// The runs.
    pub data: Vec<RunView>,
    /// Whether older runs match, too.
    pub has_more: bool,
}
