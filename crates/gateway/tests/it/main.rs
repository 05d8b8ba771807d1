//! The front door against scripted workers, through raw sockets.
//!
//! Every wait is for a condition and bounded; no sleep proves anything.

mod cancel;
mod comments;
mod console;
mod diagnose;
mod drain;
mod durable;
mod effects;
mod errors;
mod forward;
mod http2;
mod ids;
mod joining;
mod keeping;
mod leave;
mod link;
mod lost_device;
mod many;
mod outside;
mod redispatch;
mod responses;
mod shapes;
mod simulated;
mod slow;
mod storm;
mod tools;
mod views;
mod webhooks;
mod wire;
