//! The journal and its views, seen through the public API: what is recorded is what every view shows.

mod graces;
mod journal;
mod metrics;
mod sessions;
mod steps;
mod story;
mod timeline;
mod totals;
mod views;
