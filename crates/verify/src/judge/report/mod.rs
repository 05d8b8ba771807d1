//! What a report looks like: a table for a person, JSON, JUnit for CI, a page, and how it differs from an older one.
//!
//! All of it comes from [`Report`](super::result::Report) alone, so that a report that was kept can be shown again in every form.
//!
//! Invariant: pure; whatever text a stack put into a report (names, records, logs) cannot leave the place in which it is shown.
// contract: C-29

pub mod compare;
pub mod html;
pub mod json;
pub mod junit;
pub mod table;
mod text;
mod timeline;

#[cfg(test)]
mod example;
