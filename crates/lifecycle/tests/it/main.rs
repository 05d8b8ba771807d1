//! Tests through the public face: the two machines rule by rule, by random sequences and as whole tables; the words and ids.

mod attempt;
mod call;
mod random;
mod session_limits;
mod table;
mod words;
