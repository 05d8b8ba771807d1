//! Tests through the public face: the machines rule by rule, by random sequences and as whole tables; the words and ids.

mod attempt;
mod call;
mod dispatch;
mod effect;
mod leaving;
mod random;
mod session_gateway;
mod session_limits;
mod session_worker;
mod table;
mod words;
mod workers;
