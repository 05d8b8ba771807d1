//! The client against a scripted upstream on a real socket: every way in which an upstream can fail, and what is left open behind it.

mod asked;
mod real;
mod script;
mod scripted;
mod tls;
