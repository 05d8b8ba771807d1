//! Journal, metrics and timelines: every view of what happened, folded from one stream of records.
//!
//! The machines emit `lifecycle::event::Record`s, the shells hand them to a `Journal`, and whatever is shown (a run's JSON, the list of
//! runs, the metrics, a timeline) is folded from exactly those records as they come. Nothing is counted in a second place.
//!
//! Invariant: this crate only receives. It answers no question whose answer could change what a run does next, and it never holds the text
//! or the tokens of a prompt or an answer.

mod accounts;
pub mod alert;
pub mod clock;
pub mod diagnose;
mod evicted;
mod exported;
mod exposition;
mod files;
mod fold;
mod history;
pub mod holdings;
pub mod journal;
mod left;
pub mod metrics;
pub mod otlp;
mod outside;
pub mod runs;
mod standing;
pub mod steps;
pub mod timeline;
pub mod view;
mod waiting;
pub mod waste;

pub use alert::{Alert, AlertRules, AlertState, AlertsView};
pub use clock::Clock;
pub use evicted::Recall;
pub use exported::Exported;
pub use exposition::Format;
pub use files::{FileWriter, FilesConfig, FilesError, Replayed, replay};
pub use fold::AttemptKnown;
pub use holdings::{Gpu, Holdings, Process, StoreHoldings};
pub use journal::{ByRun, Journal, Limits};
pub use metrics::{Scrape, WorkerScrape};
pub use outside::Outside;
pub use runs::{PAGE_MAX, RunFilter, RunPage};
pub use steps::{STEPS_MAX, StepRow, StepsView};
pub use timeline::{render_lanes, render_timeline};
pub use view::{RunState, RunView};
pub use waste::{Prices, WasteView};
