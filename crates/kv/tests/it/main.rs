//! The pool from outside: cases by contract clause and field report, and random operations against a naive model.

mod cases;
mod model;
mod prefixes;
mod random;
