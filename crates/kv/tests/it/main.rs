//! The pool from outside.
