//! The journal and its views, seen through the public API: what is recorded is what every view shows.

mod alerts;
mod diagnose;
mod diagnose_engine;
mod documents;
mod files;
mod graces;
mod hands;
mod journal;
mod metrics;
mod open_metrics;
mod otlp;
mod reach;
mod reported;
mod sessions;
mod steps;
mod story;
mod timeline;
mod totals;
mod views;
mod waste;
