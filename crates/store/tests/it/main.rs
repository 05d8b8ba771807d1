//! The run store, as its users see it: one suite for the store in memory, SQLite and a real PostgreSQL, and what only one of them does.
//!
//! PostgreSQL's tests need a server: `KVIT_TEST_POSTGRES` is its URL (`cargo xtask test` starts one). Without it they say that they are skipped.

mod common;
mod model;
mod postgres;
mod sealed;
mod sqlite;
mod suite;
